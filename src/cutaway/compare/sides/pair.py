"""What a comparison starts from, and the two sides that come of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from cutaway.compare.allowance import Allowance
from cutaway.compare.levers import Change
from cutaway.compare.side import Side
from cutaway.core.errors import RequestError
from cutaway.core.request import SamplingParams
from cutaway.engine.engine import Engine
from cutaway.text.chat_messages import Message
from cutaway.trace.records import AnswerRecord

Of = Literal["model", "draw"]


@dataclass(frozen=True)
class Source:
    """What there is to start from.

    engine:   nobody else uses it meanwhile.
    name:     under which the model was loaded, to load it again in another form.
    messages: the conversation behind the prompt, where there is one.
    piece_tokens: of one forward at most, where others go on meanwhile; None takes whole steps.
    """

    engine: Engine
    answer: AnswerRecord
    name: str
    messages: tuple[Message, ...] | None
    allowance: Allowance
    piece_tokens: int | None = None

    @property
    def params(self) -> SamplingParams:
        """The answer's own, with the seed and the length that it had."""
        given = self.answer.request.params
        most = self._most(given.max_tokens or len(self.answer.tokens))
        return replace(
            given,
            seed=self.answer.seed,
            max_tokens=most,
            min_tokens=min(given.min_tokens, most),
            n=1,
            logprobs=None,
            prompt_logprobs=None,
        )

    @property
    def prompt(self) -> tuple[int, ...]:
        """Token ids of the answer's prompt."""
        return self.answer.request.prompt_token_ids

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Of the answer, as far as it is compared."""
        tokens = self.answer.tokens
        return tuple(token.token_id for token in tokens[: self._most(len(tokens))])

    def check_prompt_can_hold_answer(self, change: Change) -> None:
        """Known tokens of the answer go in as prompt; some settings would count them apart."""
        given = self.params
        if given.grammar is not None or given.presence_penalty or given.frequency_penalty:
            raise RequestError(
                f"{change.lever} cannot be changed where a grammar, presence_penalty or "
                "frequency_penalty looks at the answer so far. Ask without them.",
                param="change",
            )

    def _most(self, count: int) -> int:
        bound = self.allowance.max_tokens
        return count if bound is None else min(count, bound)


@dataclass(frozen=True)
class Pair:
    """Both sides, and how their steps can be compared.

    of:     whose chances moved; None where the model's rows are the same ones by intent, and
            their recorded bits are compared.
    forced: tokens put in the mouth of the changed side; None where it does not know them.
    """

    recorded: Side
    changed: Side
    of: Of | None = "model"
    forced: tuple[int, ...] | None = None
    notes: tuple[str, ...] = ()
