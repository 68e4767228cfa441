"""What the sampler's stages hand to each other: rows' settings, logits and weights."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from torch import Tensor

from cutaway.core.request import SamplingParams
from cutaway.sampling.integer_weights import exponential, weigh


@dataclass(frozen=True, kw_only=True)
class SamplerRow:
    """Everything that decides one token besides its logits. Host only.

    position: absolute index of the token to draw, prompt included; so a fork of the
        conversation draws alike.
    output_token_ids: what the penalties count as output; when a draft is verified, the drafts
        before this row are a part of it. May be left out where params has no penalties.
    banned_token_ids: never drawn here (the ends, while the output is below min_tokens); an id
        outside the vocabulary is banned anyway.
    allowed: one bit per token id, as grammars/grammar_state.py gives them; None allows all.
    num_logprobs: alternatives to report; None reports neither these nor the rank.
    scores_drawn: its score is of the distribution that the token is drawn from, after edits and
        temperature, in place of the raw one. For training, whose loss is about what was drawn.
    """

    params: SamplingParams
    seed: int
    position: int
    choice: int = 0
    prompt_token_ids: Sequence[int] = ()
    output_token_ids: Sequence[int] = ()
    banned_token_ids: Collection[int] = ()
    allowed: bytes | None = None
    num_logprobs: int | None = None
    scores_drawn: bool = False


@dataclass(frozen=True, eq=False)
class Candidates:
    """The tokens of each row that are still in play.

    Edits (bias, penalties, temperature) give new logits. Cuts (min_p, top_k, top_p) give new
    weights: those of dropped tokens are 0. A cut always keeps a token of the largest weight, so
    the other weights stay as they were and are computed once. No stage writes into what it was
    given.

    Shapes: logits [R, V] float32, cut [R, V] whole numbers in float32.
    """

    logits: Tensor
    cut: Tensor | None = None  # weights after the first cut

    @cached_property
    def peak(self) -> Tensor:
        """Largest logit of each row, [R, 1]; NaN if the row holds one."""
        return self.logits.amax(dim=-1, keepdim=True)

    @cached_property
    def exponentials(self) -> Tensor:
        """e^(logit - peak), [R, V]."""
        return exponential(self.logits, self.peak)

    @cached_property
    def weights(self) -> Tensor:
        """Integer weights that the draw uses, [R, V]; 0 for what cannot be drawn."""
        return weigh(self.exponentials) if self.cut is None else self.cut

    def weights_at(self, indices: Tensor) -> Tensor:
        """The weights at some indices that include each row's largest logit: [R, K] -> [R, K]."""
        if self.cut is not None:
            return self.cut.gather(1, indices)
        # Weighing only these spares the polynomial over the whole vocabulary.
        return Candidates(self.logits.gather(1, indices)).weights


class SamplerStage(Protocol):
    """One step of the sampler; sampler.ORDER lists all of them."""

    name: str

    def is_neutral(self, row: SamplerRow) -> bool:
        """Whether this row's settings ask nothing of the stage; it is then left out."""
        ...

    def __call__(self, candidates: Candidates, rows: Sequence[SamplerRow]) -> Candidates:
        """Act on rows none of which is neutral."""
        ...
