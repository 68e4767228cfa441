"""What the engine says while it answers and when it is done. Free of torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import msgspec

from cutaway.core.errors import CutawayError

# stop: an ending token or a stop string; length: max_tokens or the context is used up; repetition:
# it repeats itself, and the request asked that it end then
FinishReason = Literal["stop", "length", "repetition", "abort", "error"]


@dataclass(frozen=True)
class TokenLogprob:
    """Log-probability of one token and of the likeliest alternatives.

    Units: natural logarithm of the raw softmax: before bias, penalties and temperature.
    """

    token_id: int
    logprob: float
    rank: int  # 1 is the most likely
    top: tuple[tuple[int, float], ...] = ()  # (token id, logprob), most likely first
    text: str = field(default="", compare=False)  # of the token, where a program in Python asks


@dataclass(frozen=True)
class Usage:
    """Token counts of one choice. The ending token counts, as it was sampled."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int  # prompt tokens found in the prefix index


@dataclass(frozen=True)
class Timings:
    """Seconds that one choice spent in each stage, by a monotonic clock.

    queue: arrival to the first step that computes the prompt; prefill: from there to the first
    token; decode: first token to the end; detokenize: within decode, turning ids into text;
    first_token: arrival to the first token. drafted, accepted: guesses that were verified beside
    known tokens, and that stood: tokens without a step of their own.
    """

    queue: float
    prefill: float
    decode: float
    detokenize: float
    first_token: float
    drafted: int = 0
    accepted: int = 0


class DrawProof(NamedTuple):
    """What one token was drawn from: enough to know the row again, and to record it elsewhere.

    u: the random number, in [0, 2^32); None where the likeliest was taken.
    logit, logsumexp, checksum: of the raw row.
    """

    u: int | None
    logit: float
    logsumexp: float
    checksum: int


@dataclass(frozen=True)
class ToldChoice:
    """What one engine has told of a choice, from which another can go on.

    draws: one for each token; without tokens the choice begins as if nobody had asked before.
    finish_reason: why it ended, where it has: it is recorded once more, and no token is added.
    """

    choice: int
    token_ids: tuple[int, ...] = ()
    draws: tuple[DrawProof, ...] = ()
    finish_reason: FinishReason | None = None


class Delta(msgspec.Struct, array_like=True, eq=False):
    """News of one choice after a step: new tokens, new text, and at the end why it ended.

    Not to be changed. One is made, written and read for every token: as a struct it costs a
    quarter of what a dataclass does. Two are equal if they say the same of the answer, whenever.

    draws: of the tokens, where somebody may have to go on from here.
    seam:  set once where an answer goes on that another engine began: whether the row of the last
        token that it had told came out to the bit.
    """

    request_id: str
    choice: int
    token_ids: tuple[int, ...] = ()
    text: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob | None, ...] = ()
    finish_reason: FinishReason | None = None
    stopped_by: str | int | None = None  # the stop string or the ending token
    error: CutawayError | None = None
    usage: Usage | None = None
    timings: Timings | None = None
    draws: tuple[DrawProof, ...] = ()
    seam: bool | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Delta) and self._said == other._said

    __hash__ = None  # type: ignore[assignment]

    @property
    def _said(self) -> tuple[object, ...]:
        return (
            *(self.request_id, self.choice, self.token_ids, self.text, self.logprobs),
            *(self.prompt_logprobs, self.finish_reason, self.stopped_by, self.usage),
        )
