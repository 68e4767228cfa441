"""A finished answer as the object that --json prints, and as the line of figures on stderr."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Protocol

from cutaway.core.output import FinishReason, Timings, TokenLogprob, Usage


class TokenLookup(Protocol):
    """What is asked of a tokenizer here."""

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for."""
        ...

    def token_text(self, token_id: int) -> str:
        """The text of a token as a person may read it."""
        ...


class FinishedAnswer(Protocol):
    """What is asked of a finished answer here: a Generation of the engine has it."""

    @property
    def prompt_token_ids(self) -> Sequence[int]:
        """Token ids of the prompt."""
        ...

    @property
    def token_ids(self) -> Sequence[int]:
        """Token ids of the answer."""
        ...

    @property
    def text(self) -> str:
        """The whole text of the answer."""
        ...

    @property
    def finish_reason(self) -> FinishReason:
        """Why the answer ended."""
        ...

    @property
    def logprobs(self) -> Sequence[TokenLogprob] | None:
        """Scores of the answer's tokens; None where none were asked for."""
        ...

    @property
    def prompt_logprobs(self) -> Sequence[TokenLogprob | None] | None:
        """Scores of the prompt's tokens, None for the first; None where none were asked for."""
        ...

    @property
    def usage(self) -> Usage:
        """Token counts of the prompt and the answer."""
        ...

    @property
    def timings(self) -> Timings:
        """Seconds of each phase of the request."""
        ...


def answer_object(
    answer: FinishedAnswer, vocabulary: TokenLookup, *, model: str, load: float, tokenize: float
) -> dict[str, object]:
    """The one object of --json; load and tokenize are seconds that the engine does not see."""
    made: dict[str, object] = {
        "model": model,
        "prompt_token_ids": list(answer.prompt_token_ids),
        "token_ids": list(answer.token_ids),
        "text": answer.text,
        "finish_reason": answer.finish_reason,
        "usage": asdict(answer.usage),
        "timings": {
            "load": load,
            "tokenize": tokenize,
            **asdict(answer.timings),
            "tokens_per_second": tokens_per_second(answer.usage, answer.timings),
        },
    }
    for name, scores in (
        ("logprobs", answer.logprobs),
        ("prompt_logprobs", answer.prompt_logprobs),
    ):
        if scores is not None:
            made[name] = [each and _logprob_object(each, vocabulary) for each in scores]
    return made


def tokens_per_second(usage: Usage, timings: Timings) -> float | None:
    """Speed of decoding: tokens after the first, by the seconds after the first.

    None for an answer of one token, which has no such seconds.
    """
    num_after_first = usage.completion_tokens - 1
    return num_after_first / timings.decode if num_after_first > 0 and timings.decode > 0 else None


def figures(usage: Usage, timings: Timings, finish_reason: FinishReason) -> str:
    """One line for people."""
    speed = tokens_per_second(usage, timings)
    parts = [
        f"{usage.completion_tokens} tokens",
        f"{speed:.1f} tokens/s" if speed is not None else None,
        f"first token {timings.first_token:.2f} s",
        f"prompt {usage.prompt_tokens} tokens, {usage.cached_tokens} cached",
        _ENDS[finish_reason],
    ]
    return f"[{' | '.join(part for part in parts if part)}]"


_ENDS: Mapping[FinishReason, str | None] = {
    "stop": None,
    "repetition": "repeated itself",
    "length": "cut by --max-tokens or the context",
    "abort": "stopped",
    "error": "failed",
}


def token_object(token_id: int, vocabulary: TokenLookup) -> dict[str, object]:
    """One token: its id, its text as a person may read it, its bytes in hex."""
    return {
        "id": token_id,
        "text": vocabulary.token_text(token_id),
        "bytes": vocabulary.token_bytes(token_id).hex(),
    }


def _logprob_object(score: TokenLogprob, vocabulary: TokenLookup) -> dict[str, object]:
    return {
        **token_object(score.token_id, vocabulary),
        "logprob": _finite(score.logprob),
        "rank": score.rank,
        "top": [
            {**token_object(token_id, vocabulary), "logprob": _finite(logprob)}
            for token_id, logprob in score.top
        ],
    }


def _finite(logprob: float) -> float | None:
    """JSON has no infinity: an impossible token has null."""
    return logprob if math.isfinite(logprob) else None
