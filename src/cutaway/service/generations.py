"""Finished answers as Python programs get them: plain data, to be kept, copied, pickled and shown.

It knows neither engine nor model; the tokenizer is there for notebooks alone and stays at home.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cutaway.core.output import Delta, FinishReason, Timings, TokenLogprob, Usage
from cutaway.core.request import Request
from cutaway.service.notebook import block, chips

if TYPE_CHECKING:
    from cutaway.text.chat_messages import Message
    from cutaway.tokens.tokenizer import Tokenizer


@dataclass(frozen=True)
class Choice:
    """One finished answer. token_ids holds the ending token, text does not."""

    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    stopped_by: str | int | None
    logprobs: tuple[TokenLogprob, ...] | None  # None unless asked for
    usage: Usage
    timings: Timings


@dataclass(frozen=True)
class Generation:
    """All answers to one prompt; the properties are those of the first.

    request_id: by which its engine knows the record of it; LLM.verify and LLM.view take the whole.
    messages:   the conversation that it answers, where it was one.
    """

    prompt_token_ids: tuple[int, ...]
    choices: tuple[Choice, ...]
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None
    request_id: str = ""
    messages: tuple[Message, ...] | None = field(default=None, compare=False)

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Token ids of the first answer, its ending token included."""
        return self.choices[0].token_ids

    @property
    def text(self) -> str:
        """Text of the first answer."""
        return self.choices[0].text

    @property
    def finish_reason(self) -> FinishReason:
        """Why the first answer ended."""
        return self.choices[0].finish_reason

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...] | None:
        """Log-probabilities of the first answer's tokens; None unless asked for."""
        return self.choices[0].logprobs

    @property
    def usage(self) -> Usage:
        """How many tokens the first answer took."""
        return self.choices[0].usage

    @property
    def timings(self) -> Timings:
        """Seconds that the first answer spent in each stage."""
        return self.choices[0].timings

    def __str__(self) -> str:
        return self.text

    def __copy__(self) -> Generation:
        return self  # nothing of it changes

    def __deepcopy__(self, memo: object) -> Generation:
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != _TOKENIZER}

    def _repr_html_(self) -> str:
        """Prompt and answers as tokens, for notebooks."""
        tokenizer: Tokenizer | None = vars(self).get(_TOKENIZER)
        if tokenizer is None:  # it came from another process
            return block("answer", html.escape(self.text))
        parts = [block("prompt", chips(self.prompt_token_ids, tokenizer))]
        for choice in self.choices:
            usage, told = choice.usage, chips(choice.token_ids, tokenizer, choice.logprobs)
            title = (
                f"answer, ended by {choice.finish_reason}: {usage.completion_tokens} tokens, the "
                f"first after {choice.timings.first_token * 1e3:.0f} ms"
            )
            parts.append(block(title, told))
        return "".join(parts)


_TOKENIZER = "_tokenizer"  # beside the fields: it is no data, and no other process has it


def generation_of(
    request: Request,
    deltas: Sequence[Delta],
    *,
    messages: tuple[Message, ...] | None = None,
    tokenizer: Tokenizer | None = None,
) -> Generation:
    """All that was said about a request, put together.

    Raises: the error of the first choice that failed.
    """
    asked = request.params.prompt_logprobs is not None
    made = Generation(
        prompt_token_ids=request.prompt_token_ids,
        choices=tuple(
            _choice(request, [delta for delta in deltas if delta.choice == choice])
            for choice in range(request.params.n)
        ),
        prompt_logprobs=deltas[0].prompt_logprobs if asked else None,
        request_id=request.request_id,
        messages=messages,
    )
    if tokenizer is not None:
        object.__setattr__(made, _TOKENIZER, tokenizer)
    return made


def _choice(request: Request, deltas: Sequence[Delta]) -> Choice:
    last = deltas[-1]
    if last.error is not None:
        raise last.error
    assert last.finish_reason and last.usage and last.timings, "the last delta says how it ended"
    logprobs = tuple(each for delta in deltas for each in delta.logprobs)
    return Choice(
        token_ids=tuple(token_id for delta in deltas for token_id in delta.token_ids),
        text="".join(delta.text for delta in deltas),
        finish_reason=last.finish_reason,
        stopped_by=last.stopped_by,
        logprobs=logprobs if request.params.logprobs is not None else None,
        usage=last.usage,
        timings=last.timings,
    )
