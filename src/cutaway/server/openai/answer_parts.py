"""Parts that OpenAI's answers share: token counts, timings, finish reasons, log-probabilities."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cutaway.core.output import Delta, TokenLogprob
from cutaway.server.answers import Answers, ChoiceOutput
from cutaway.tokens.tokenizer import Tokenizer

LEAST_LOGPROB = -9999.0  # what OpenAI writes for minus infinity, which JSON cannot


def usage_of(answers: Iterable[Sequence[ChoiceOutput]]) -> dict[str, Any]:
    """Token counts of [prompt][choice]: each prompt once, every token of every answer."""
    prompts = [choices[0].usage for choices in answers]
    said = sum(answer.usage.completion_tokens for choices in answers for answer in choices)
    read = sum(usage.prompt_tokens for usage in prompts)
    return {
        "prompt_tokens": read,
        "completion_tokens": said,
        "total_tokens": read + said,
        "prompt_tokens_details": {"cached_tokens": sum(u.cached_tokens for u in prompts)},
    }


def usage_so_far(prompts: Iterable[Sequence[int]], answers: Answers) -> dict[str, int]:
    """Token counts amid a stream: what was found in the cache is told with the last ones."""
    read = sum(len(token_ids) for token_ids in prompts)
    said = sum(len(answer.token_ids) for choices in answers.all for answer in choices)
    return {"prompt_tokens": read, "completion_tokens": said, "total_tokens": read + said}


def timings_of(answers: Sequence[ChoiceOutput], *, tokenize: float | None = None) -> dict[str, Any]:
    """Milliseconds as llama.cpp writes them, and queue_ms, the wait before the first step.

    prompt_n counts the prompt's tokens that were computed, cache_n those that were found in the
    cache. tokenize: seconds that the prompt took from text to token ids, told as tokenize_ms where
    it was text. With several choices predicted_n counts all, and predicted_ms is the longest.
    """
    first = answers[0]
    computed = first.usage.prompt_tokens - first.usage.cached_tokens
    said = sum(answer.usage.completion_tokens for answer in answers)
    decode = max(answer.timings.decode for answer in answers)
    return {
        "cache_n": first.usage.cached_tokens,
        **({} if tokenize is None else {"tokenize_ms": tokenize * 1000}),
        "queue_ms": first.timings.queue * 1000,
        **_rates("prompt", computed, first.timings.prefill),
        **_rates("predicted", said, decode),
        **_guesses(answers),
        **_seams(answers),
    }


def _guesses(answers: Sequence[ChoiceOutput]) -> dict[str, int]:
    """How many tokens were guessed and how many stood, where any were: llama.cpp's names."""
    drafted = sum(answer.timings.drafted for answer in answers)
    accepted = sum(answer.timings.accepted for answer in answers)
    return {"draft_n": drafted, "draft_n_accepted": accepted} if drafted else {}


def _seams(answers: Sequence[ChoiceOutput]) -> dict[str, dict[str, bool]]:
    """Whether an answer is to the bit what it would have been, where it went on elsewhere."""
    seams = [answer.seam for answer in answers if answer.seam is not None]
    return {"resumed": {"exact": all(seams)}} if seams else {}


def ending_of(answer: ChoiceOutput | Delta) -> dict[str, Any]:
    """Why an answer ended: OpenAI's word, and as vLLM what string or token ended it."""
    return {"finish_reason": answer.finish_reason, "stop_reason": answer.stopped_by}


def chat_logprobs(
    logprobs: Sequence[TokenLogprob], tokenizer: Tokenizer, *, has_ids: bool = False
) -> dict[str, Any]:
    """Log-probabilities as the chat API writes them, with each token's exact bytes.

    has_ids: whether each token has its id as well, which OpenAI's do not.
    """
    content = token_logprobs(logprobs, tokenizer)
    if has_ids:
        for entry, each in zip(content, logprobs, strict=True):
            entry["token_id"] = each.token_id
            for other, (token_id, _) in zip(entry["top_logprobs"], each.top, strict=True):
                other["token_id"] = token_id
    return {"content": content, "refusal": None}


def token_logprobs(logprobs: Sequence[TokenLogprob], tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """The same as Responses write them, without a frame."""
    return [
        {
            **_token(each.token_id, each.logprob, tokenizer),
            "top_logprobs": [_token(*item, tokenizer) for item in each.top],
        }
        for each in logprobs
    ]


class Offsets:
    """Where each token of one text begins, in characters: bytes join to characters as they come."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def next(self, token: bytes) -> int:
        """Where this token begins."""
        offset = self._offset
        self._offset += len(self._decoder.decode(token))
        return offset


def text_logprobs(
    scored: Sequence[tuple[int, TokenLogprob | None]],
    *,
    tokenizer: Tokenizer,
    offsets: Offsets,
    asked: int,
) -> dict[str, Any]:
    """Log-probabilities as the completions API writes them.

    scored:  tokens and their scores; the first of a prompt has none.
    offsets: of the text that these tokens continue.
    asked:   alternatives per token; the token itself is added where it is not among them.
    """
    scores = [score for _, score in scored]
    return {
        "tokens": [tokenizer.token_text(token_id) for token_id, _ in scored],
        "token_logprobs": [None if e is None else finite(e.logprob) for e in scores],
        "top_logprobs": [None if e is None else _tops(e, asked, tokenizer) for e in scores],
        "text_offset": [offsets.next(tokenizer.token_bytes(token_id)) for token_id, _ in scored],
    }


def prompt_logprobs(
    logprobs: Sequence[TokenLogprob | None], tokenizer: Tokenizer
) -> list[dict[str, Any] | None]:
    """Log-probabilities of a prompt as vLLM writes them: by token id, with rank and text."""
    return [None if each is None else _by_id(each, tokenizer) for each in logprobs]


def finite(logprob: float) -> float:
    """A log-probability that JSON can write."""
    return max(logprob, LEAST_LOGPROB)


def _by_id(each: TokenLogprob, tokenizer: Tokenizer) -> dict[str, Any]:
    entries = [(i, p, rank) for rank, (i, p) in enumerate(each.top, 1)]
    entries.append((each.token_id, each.logprob, each.rank))
    return {
        str(token_id): {
            "logprob": finite(logprob),
            "rank": rank,
            "decoded_token": tokenizer.token_text(token_id),
        }
        for token_id, logprob, rank in entries
    }


def _token(token_id: int, logprob: float, tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "token": tokenizer.token_text(token_id),
        "logprob": finite(logprob),
        "bytes": list(tokenizer.token_bytes(token_id)),
    }


def _tops(each: TokenLogprob, asked: int, tokenizer: Tokenizer) -> Mapping[str, float]:
    """Alternatives by text. Two tokens may share a text; the likelier one keeps it."""
    tops: dict[str, float] = {}
    for token_id, logprob in (*each.top[:asked], (each.token_id, each.logprob)):
        tops.setdefault(tokenizer.token_text(token_id), finite(logprob))
    return tops


def _rates(name: str, count: int, seconds: float) -> dict[str, float]:
    return {
        f"{name}_n": count,
        f"{name}_ms": seconds * 1000,
        f"{name}_per_token_ms": seconds * 1000 / count if count else 0.0,
        f"{name}_per_second": count / seconds if seconds > 0 else 0.0,
    }
