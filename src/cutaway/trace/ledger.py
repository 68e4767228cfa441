"""Recent answers and their steps in bounded memory, for whoever may look at them. Free of torch."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from cutaway.core.errors import ReplayError
from cutaway.core.limits import quote
from cutaway.core.output import FinishReason, Timings, Usage
from cutaway.core.request import Request
from cutaway.trace.records import AnswerRecord, Part, StepRecord, TokenFields, TokenRecords

DEFAULT_BYTES = 64 * 2**20  # some 700,000 tokens

# What Python's objects take, measured with sys.getsizeof over records of SmolLM2's answers; a part
# has 20 bytes in its step, and 16 where its answer names the step.
_STEP_BYTES, _PART_BYTES, _TOKEN_BYTES, _ANSWER_BYTES = 900, 36, 60, 3000
_TOP_BYTES = 116  # of one alternative to a token: a pair, a number, an id


class Ledger:
    """What was recorded, oldest first out.

    Ids of tokens are content: the ledger is memory only, and find() gives an answer to its
    owner alone.
    """

    def __init__(self, max_bytes: int = DEFAULT_BYTES) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self.num_dropped = 0  # answers
        self.is_stopped = False  # for good: nothing is recorded any more
        self._answers: dict[int, AnswerRecord] = {}
        self._steps: deque[StepRecord] = deque()
        self._first_step = 0  # number of the first that is kept; numbers follow one another
        self._next_answer = 0

    @property
    def answers(self) -> Iterator[AnswerRecord]:
        """All that are kept, the oldest first."""
        return iter(tuple(self._answers.values()))

    @property
    def num_answers(self) -> int:
        """How many answers are kept."""
        return len(self._answers)

    @property
    def last_step(self) -> StepRecord | None:
        """The latest that is kept."""
        return self._steps[-1] if self._steps else None

    @property
    def steps(self) -> Iterator[StepRecord]:
        """All that are kept, the oldest first."""
        return iter(tuple(self._steps))

    def find(self, request_id: str, choice: int = 0, *, owner: str = "") -> AnswerRecord | None:
        """The latest answer of that id, if it is the owner's."""
        for answer in reversed(self._answers.values()):
            request = answer.request
            if (request.request_id, answer.choice, request.owner) == (request_id, choice, owner):
                return answer
        return None

    def find_choice(self, request_id: str, choice: int, *, owner: str) -> AnswerRecord | None:
        """The answer of that id; or, where ids of several prompts end in their numbers, one of all.

        Choices are then counted over all prompts.
        """
        found = self.find(request_id, choice, owner=owner)
        if found is not None:
            return found
        for answer in reversed(self._answers.values()):
            of, _, number = answer.request.request_id.rpartition("-")
            if (of, answer.request.owner) == (request_id, owner) and number.isdecimal():
                prompt, own = divmod(choice, answer.request.params.n)
                return self.find(f"{request_id}-{prompt}", own, owner=owner)
        return None

    def answer(self, number: int) -> AnswerRecord | None:
        """The answer of that number, if it is kept."""
        return self._answers.get(number)

    def step(self, number: int) -> StepRecord | None:
        """The step of that number, if it is kept."""
        index = number - self._first_step
        return self._steps[index] if 0 <= index < len(self._steps) else None

    def open(
        self,
        request: Request,
        *,
        choice: int,
        seed: int,
        max_length: int,
        cache_root: bytes,
        arrived: float = 0.0,
        load_id: bytes = b"",
    ) -> AnswerRecord:
        """A record for an answer that begins."""
        number = self._next_answer
        answer = AnswerRecord(
            number, request, choice, seed, max_length, cache_root, arrived, load_id
        )
        answer.tokens = TokenRecords(spread=number)
        self._next_answer += 1
        self._answers[answer.number] = answer
        self.num_bytes += _ANSWER_BYTES + 8 * answer.num_prompt_tokens
        return answer

    def add_step(self, step: StepRecord) -> None:
        """A step that was done; numbers follow one another."""
        assert not self._steps or step.number == self._steps[-1].number + 1, "a step is missing"
        if not self._steps:
            self._first_step = step.number
        self._steps.append(step)
        self.num_bytes += _STEP_BYTES + _PART_BYTES * len(step.parts)
        if self.num_bytes > self.max_bytes:
            self._make_room()

    def add_token(self, answer: AnswerRecord, token: TokenFields) -> None:
        """Add the next token of an answer that has not ended: a record, or its fields in order."""
        answer.tokens.append(token)
        self.note_tokens(1, len(token[8]))

    def note_tokens(self, count: int, num_top: int) -> None:
        """Count tokens that were added to a record itself, and alternatives to them."""
        self.num_bytes += _TOKEN_BYTES * count + _TOP_BYTES * num_top

    def close(
        self,
        answer: AnswerRecord,
        *,
        reason: FinishReason,
        usage: Usage | None,
        timings: Timings | None,
    ) -> None:
        """Note how an answer ended; from now on it may be dropped."""
        answer.finish_reason, answer.usage, answer.timings = reason, usage, timings

    def stop(self) -> None:
        """Record nothing any more. Answers without an end have no whole record."""
        self.is_stopped = True
        for answer in self._answers.values():
            answer.is_whole = answer.is_whole and answer.finish_reason is not None

    def forget(self) -> None:
        """Drop all answers, which have ended, and their steps."""
        assert all(answer.finish_reason for answer in self._answers.values()), "one is under way"
        for answer in self.answers:
            self._drop(answer)
        self._drop_steps(before=self._first_step + len(self._steps))

    def _make_room(self) -> None:
        """Drop the oldest answers that have ended, then steps that nobody's answer needs.

        To an eighth below the bound, so that this is seldom done. When that does not suffice the
        oldest steps go, and the answers that lose one say so.
        """
        wanted = self.max_bytes - self.max_bytes // 8
        ended = [a for a in self._answers.values() if a.finish_reason is not None]
        at_once = max(1, len(ended) // 16)  # asking which steps are needed looks at all answers
        while self.num_bytes > wanted and ended:
            for answer in ended[:at_once]:
                self._drop(answer)
            del ended[:at_once]
            self._drop_steps(before=self._first_needed())
        while self.num_bytes > wanted and self._steps:
            for part in self._steps[0].parts:
                if part.answer in self._answers:
                    self._answers[part.answer].is_whole = False
            self._drop_steps(before=self._first_step + 1)

    def _first_needed(self) -> int:
        firsts = (answer.steps[:1] for answer in self._answers.values())
        past = self._first_step + len(self._steps)
        return min((first[0] for first in firsts if first), default=past)

    def _drop(self, answer: AnswerRecord) -> None:
        del self._answers[answer.number]
        self.num_dropped += 1
        self.num_bytes -= _ANSWER_BYTES + 8 * answer.num_prompt_tokens
        self.num_bytes -= _TOKEN_BYTES * len(answer.tokens)
        self.num_bytes -= _TOP_BYTES * answer.tokens.num_alternatives

    def _drop_steps(self, *, before: int) -> None:
        while self._steps and self._first_step < before:
            step = self._steps.popleft()
            self._first_step += 1
            self.num_bytes -= _STEP_BYTES + _PART_BYTES * len(step.parts)


def find_recorded(
    ledger: Ledger | None, request_id: str, choice: int, *, owner: str
) -> AnswerRecord:
    """The owner's answer of that id, as find_choice finds it. Raises: ReplayError without one."""
    found = None if ledger is None else ledger.find_choice(request_id, choice, owner=owner)
    is_cut = ledger is not None and ledger.is_stopped
    if is_cut and (found is None or found.finish_reason is None):
        raise ReplayError(
            f"there is no whole record of answer {quote(request_id)}, choice {choice}: recording "
            "raised "
            "and was switched off, for a fault of Cutaway itself. Start the engine again."
        )
    if found is None:
        raise ReplayError(
            f"there is no record of answer {quote(request_id)}, choice {choice}. The ledger keeps "
            "recent answers alone; raise ledger_bytes for more."
        )
    return found


def part_of(step: StepRecord, answer: int) -> Part:
    """An answer's part in a step that computed it."""
    return next(part for part in step.parts if part.answer == answer)
