"""Engines over tiny random models, and workloads for them."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

import tiny
from cutaway.core.output import Delta
from cutaway.core.request import Request, SamplingParams
from cutaway.engine.config import EngineConfig
from cutaway.engine.drafters import Drafter
from cutaway.engine.drafting import Drafting
from cutaway.engine.engine import Engine
from cutaway.engine.loading.loaded_model import LoadedModel
from cutaway.tokens.byte_tokenizer import byte_tokenizer

END = 256  # the byte tokenizer's end token


def loaded(
    *, seed: int = 0, dtype: torch.dtype = torch.float64, device: str = "cpu", **changes: Any
) -> LoadedModel:
    """A random model with the byte tokenizer; its ids past 257 have no text."""
    architecture, transformer = tiny.random_model(tiny.config(**changes), seed=seed, dtype=dtype)
    transformer.join_segments()
    return LoadedModel(
        name="tiny",
        licence="none",
        facts=architecture.facts,
        transformer=transformer.to(device),
        tokenizer=byte_tokenizer(eos_token_id=END),
        template_source=None,
        end_token_ids=frozenset({END}),
        sampling={},
        dtype=dtype,
        cache_dtype=dtype,
        device=torch.device(device),
    )


def nearly(model: LoadedModel, *, noise: float) -> LoadedModel:
    """The same model with noise on its weights: a drafter that is right now and then."""
    other = loaded(seed=0, dtype=model.dtype, vocab_size=model.facts.vocab_size)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in other.transformer.parameters():
            shift = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
            weight.add_(shift * noise * weight.std())
    assert other.facts == model.facts
    return replace(other, name="nearly")


def engine(
    model: LoadedModel,
    *,
    num_pages: int = 200,
    drafter: Drafter | None = None,
    **settings: Any,
) -> Engine:
    """An engine with small pages, so that borders are crossed often; all guesses are taken."""
    config = EngineConfig(**{"page_size": 8, "prefill_chunk": 512, **settings})
    drafting = None if drafter is None else Drafting.of(drafter)
    return Engine(model, config, num_pages=num_pages, drafting=drafting)


@dataclass
class Answer:
    """Everything that was said about one choice."""

    token_ids: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    prompt_logprobs: list[Any] = field(default_factory=list)
    last: Delta | None = None

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def essence(self) -> tuple[Any, ...]:
        """What must not depend on company, chunks, cache, preemption or drafts."""
        assert self.last is not None and self.last.usage is not None
        usage = self.last.usage
        counts = (usage.prompt_tokens, usage.completion_tokens)
        return self.token_ids, self.text, self.last.finish_reason, self.last.stopped_by, counts


def run(
    target: Engine, requests: Sequence[Request], arrivals: Sequence[int] | None = None
) -> dict[tuple[str, int], Answer]:
    """Add each request before its step and run until all are done."""
    answers: dict[tuple[str, int], Answer] = defaultdict(Answer)
    pending = sorted(zip(arrivals or [0] * len(requests), range(len(requests)), strict=True))
    number = 0
    while pending or target.has_work:
        while pending and (pending[0][0] <= number or not target.has_work):
            target.add(requests[pending.pop(0)[1]])
        for delta in target.step():
            answer = answers[(delta.request_id, delta.choice)]
            assert answer.last is None, "nothing comes after the end"
            answer.token_ids += delta.token_ids
            answer.texts.append(delta.text)
            answer.logprobs += delta.logprobs
            answer.prompt_logprobs += delta.prompt_logprobs
            if delta.finish_reason is not None:
                answer.last = delta
        number += 1
    assert all(answer.last is not None for answer in answers.values())
    return answers


def workload(seed: int, count: int = 6) -> list[Request]:
    """Random requests, some with a common prefix, with settings of every kind."""
    chance = random.Random(seed)
    prefix = [chance.randrange(256) for _ in range(40)]
    requests: list[Request] = []
    for number in range(count):
        start = prefix[: chance.choice([0, 0, 8, 20, 33, 40])]
        own = [chance.randrange(256) for _ in range(chance.randint(1, 30))]
        requests.append(
            Request(
                request_id=f"r{number}",
                prompt_token_ids=tuple(start + own),
                params=SamplingParams(
                    temperature=chance.choice([0.0, 0.0, 0.7, 1.3]),
                    top_k=chance.choice([0, 5, 40]),
                    top_p=chance.choice([1.0, 0.9]),
                    min_p=chance.choice([0.0, 0.05]),
                    repetition_penalty=chance.choice([1.0, 1.2]),
                    presence_penalty=chance.choice([0.0, 0.5]),
                    frequency_penalty=chance.choice([0.0, 0.4]),
                    seed=chance.randrange(1000),
                    n=chance.choice([1, 1, 1, 3]),
                    max_tokens=chance.randint(1, 24),
                    min_tokens=0,
                    stop=chance.choice([(), ("e",), ("ab", "q")]),
                    logprobs=chance.choice([None, 2]),
                    prompt_logprobs=chance.choice([None, None, 1]),
                ),
            )
        )
    return requests
