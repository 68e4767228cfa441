"""How near a model's answers are to those of another: perplexity, and divergence from the truth."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Unpack

import torch
from torch import Tensor

from cutaway.core.request import Request, SamplingParams
from cutaway.engine.batch import Batch
from cutaway.engine.engine_settings import EngineSettings
from cutaway.engine.loading.requantize import CHUNK, cut_into_chunks
from cutaway.service.llm import LLM


class PromptLogits:
    """Every row of logits that an engine computes for a prompt. settings: as for LLM."""

    def __init__(self, model: str, **settings: Unpack[EngineSettings]) -> None:
        sized: EngineSettings = {"cache_tokens": 2 * CHUNK, "prefix_cache": False, **settings}
        self._llm = LLM(model, **sized)
        self.encode = self._llm.encode
        runner = self._llm.engine.runner
        run = runner.run

        def kept(batch: Batch, is_over: Callable[[], bool] | None = None) -> Tensor:
            logits = run(batch, is_over)
            self._rows.append(logits.clone())
            return logits

        runner.run = kept
        self._rows: list[Tensor] = []

    def of(self, token_ids: Sequence[int]) -> Tensor:
        """Logits after every token of a prompt. Shapes: [T] -> [T, V] float32."""
        params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
        self._rows.clear()
        engine = self._llm.engine
        engine.add(Request(request_id="one", prompt_token_ids=tuple(token_ids), params=params))
        while engine.has_work:
            engine.step()
        return torch.cat(self._rows).float().cpu()

    def chunks(self, text: str, num_tokens: int) -> list[Sequence[int]]:
        """The beginning of a text as token ids, cut into chunks."""
        token_ids = self.encode(text[: 8 * num_tokens])[:num_tokens]
        return cut_into_chunks(token_ids, self._llm.engine.max_length)


class Judged:
    """Sums over tokens, in float64; every token but a chunk's first counts."""

    def __init__(self) -> None:
        self.divergence, self.surprise, self.agreed, self.count = 0.0, 0.0, 0, 0

    def add(self, logits: Tensor, truth: Tensor, token_ids: Sequence[int]) -> None:
        """Count one chunk. Shapes: logits and truth [T, V], token_ids [T]."""
        for top in range(0, len(token_ids) - 1, 64):
            rows = slice(top, min(top + 64, len(token_ids) - 1))
            p = truth[rows].double().log_softmax(-1)
            q = logits[rows].double().log_softmax(-1)
            following = torch.tensor(token_ids[rows.start + 1 : rows.stop + 1])
            self.divergence += float((p.exp() * (p - q)).sum())
            self.surprise -= float(q.gather(1, following[:, None]).sum())
            self.agreed += int((p.argmax(-1) == q.argmax(-1)).sum())
            self.count += len(following)

    @property
    def kl(self) -> float:
        """Mean divergence of the judged from the truth, in nats per token."""
        return self.divergence / self.count

    @property
    def perplexity(self) -> float:
        """Perplexity of the judged on the text: e to its mean loss in nats per token."""
        return math.exp(self.surprise / self.count)

    @property
    def agreement(self) -> float:
        """How often the likeliest token is the truth's."""
        return self.agreed / self.count

    def __str__(self) -> str:
        return (
            f"KL {self.kl:.6f}, perplexity {self.perplexity:.3f}, "
            f"likeliest token agrees {self.agreement:.2%}"
        )
