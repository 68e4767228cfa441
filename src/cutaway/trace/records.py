"""The nouns of a recording: answers, their tokens, and the steps that computed them.

Everything here is small, bytes per token; inner values are had by running a step again. Free of
torch.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, cast, overload

from cutaway.core.output import FinishReason, Timings, Usage
from cutaway.core.request import Request

NOBODY = -1  # the answer of guesses that were verified in place of others and fell


@dataclass(frozen=True, slots=True)
class Part:
    """What one answer had computed in a step.

    answer:   its number, or NOBODY.
    start:    position of the first token; count: tokens, the drafts behind the known ones included.
    num_rows: the last so many of them gave logits.
    draft_chances: what the drafter gave each draft; none where it has no distribution.
    """

    answer: int
    start: int
    count: int
    draft_token_ids: tuple[int, ...]
    num_rows: int
    draft_chances: tuple[float, ...] = ()

    @property
    def end(self) -> int:
        """Position behind its last token."""
        return self.start + self.count


class Parts(Sequence[Part]):
    """The parts of a step, kept as columns: 20 bytes for each, and made when they are asked for.

    drafts: of the parts that have any, by their place; chances likewise.
    """

    __slots__ = ("_answers", "_chances", "_counts", "_drafts", "_num_rows", "_starts")

    def __init__(
        self,
        answers: Sequence[int],
        starts: Sequence[int],
        counts: Sequence[int],
        num_rows: Sequence[int],
        drafts: Mapping[int, tuple[int, ...]],
        chances: Mapping[int, tuple[float, ...]] | None = None,
    ) -> None:
        self._answers = array("q", answers)
        self._starts, self._counts = array("i", starts), array("i", counts)
        self._num_rows, self._drafts = array("i", num_rows), drafts
        self._chances = chances or {}

    def __len__(self) -> int:
        return len(self._answers)

    @overload
    def __getitem__(self, index: int) -> Part: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Part, ...]: ...
    def __getitem__(self, index: int | slice) -> Part | tuple[Part, ...]:
        if isinstance(index, slice):
            return tuple(map(self._part, range(*index.indices(len(self)))))
        return self._part(range(len(self))[index])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(cast("Sequence[Part]", other))

    __hash__ = None  # type: ignore[assignment]

    def find(self, answer: int) -> int:
        """The place of an answer's part. Raises: ValueError where it has none."""
        return self._answers.index(answer)

    def _part(self, index: int) -> Part:
        return Part(
            self._answers[index],
            self._starts[index],
            self._counts[index],
            self._drafts.get(index, ()),
            self._num_rows[index],
            self._chances.get(index, ()),
        )


class StepRecord(NamedTuple):
    """One forward: its shape, and when it was. Units: seconds of a monotonic clock.

    computed: when the forward was handed to the device, and on a CPU was done.
    kernel:   what ran it: native and the instruction set, a graph, or plain.
    """

    number: int
    parts: Sequence[Part]
    kernel: str
    began: float
    computed: float
    ended: float


class TokenRecord(NamedTuple):
    """One token of an answer and what it was drawn from.

    row:      which of the part's sampled rows gave it; above 0 behind accepted drafts.
    u:        the random number of the draw, in [0, 2^32); None where the likeliest is taken.
    logit, logsumexp: of the raw row.   checksum: of the raw row, 64 bits (kernels/checksum).
    rank, top: where the request asked for log-probabilities: 1 is the likeliest; ids and
              log-probabilities of the likeliest, the likeliest first.
    residual: where a guess of chance q fell by rejection, this token's share of what was left for
              its place; u is then the random number of that draw.
    """

    token_id: int
    step: int
    row: int
    u: int | None
    logit: float
    logsumexp: float
    checksum: int
    rank: int | None = None
    top: tuple[tuple[int, float], ...] = ()
    residual: float | None = None


_LATE = 32  # tokens that may wait for their columns, and as many more by a number of the answer's
_Top = tuple[tuple[int, float], ...]
TokenFields = tuple[*(int, int, int, int | None, float, float, int, int | None, _Top, float | None)]


class TokenRecords(Sequence[TokenRecord]):
    """An answer's tokens, kept as columns and made when they are asked for.

    52 bytes each, and nothing that Python's cycle collector walks: with an object for each token
    it stopped a GPU for a tenth of a second, again and again. The latest few wait to be put into
    the columns together, until there are many or somebody asks.
    """

    __slots__ = (
        *("_checksums", "_draws", "_ids", "_late", "_logits", "_most_late", "_ranked"),
        *("_residuals", "_rows", "_steps", "_totals"),
    )

    def __init__(self, tokens: Iterable[TokenFields] = (), *, spread: int = 0) -> None:
        """spread: any number; answers that grow together then do not settle in the same step."""
        self._ids, self._steps, self._draws = array("q"), array("q"), array("q")
        self._rows, self._checksums = array("i"), array("Q")
        self._logits, self._totals = array("d"), array("d")
        self._ranked: dict[int, tuple[int | None, tuple[tuple[int, float], ...]]] = {}
        self._residuals: dict[int, float] = {}
        self._late: list[TokenFields] = []
        self._most_late = _LATE + spread % _LATE
        for token in tokens:
            self.append(token)

    def append(self, token: TokenFields) -> None:
        """Add the next token: a record, or its fields in order."""
        self._late.append(token)
        if len(self._late) >= self._most_late:
            self._settle()

    @property
    def ids(self) -> array[int]:
        """The tokens."""
        self._settle()
        return self._ids

    def _settle(self) -> None:
        """Put what is late into the columns."""
        if not self._late:
            return
        first, (ids, steps, rows, draws, *more) = len(self._ids), zip(*self._late, strict=True)
        logits, totals, checksums, ranks, tops, residuals = more
        self._ids.extend(ids)
        self._steps.extend(steps)
        self._rows.extend(rows)
        self._draws.extend([-1 if u is None else u for u in draws])
        self._logits.extend(logits)
        self._totals.extend(totals)
        self._checksums.extend(checksums)
        for index, (rank, top, residual) in enumerate(
            zip(ranks, tops, residuals, strict=True), first
        ):
            if rank is not None or top:
                self._ranked[index] = (rank, top)
            if residual is not None:
                self._residuals[index] = residual
        self._late = []

    @property
    def num_alternatives(self) -> int:
        """Alternatives that are kept, of all tokens."""
        self._settle()
        return sum(len(top) for _, top in self._ranked.values())

    def __len__(self) -> int:
        return len(self._ids) + len(self._late)

    @overload
    def __getitem__(self, index: int) -> TokenRecord: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[TokenRecord, ...]: ...
    def __getitem__(self, index: int | slice) -> TokenRecord | tuple[TokenRecord, ...]:
        if isinstance(index, slice):
            return tuple(map(self._token, range(*index.indices(len(self)))))
        return self._token(range(len(self))[index])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(
            cast("Sequence[TokenRecord]", other)
        )

    __hash__ = None  # type: ignore[assignment]

    def _token(self, index: int) -> TokenRecord:
        self._settle()
        u, ranked = self._draws[index], self._ranked.get(index, (None, ()))
        return TokenRecord(
            self.ids[index],
            self._steps[index],
            self._rows[index],
            None if u < 0 else u,
            self._logits[index],
            self._totals[index],
            self._checksums[index],
            *ranked,
            self._residuals.get(index),
        )


class Origin(NamedTuple):
    """Who wrote a page: an answer, and in which of its admissions."""

    answer: int
    admission: int


@dataclass
class Admission:
    """A time at which an answer got pages, the first or after a preemption.

    num_hit:  tokens found in the prefix index.
    origins:  who wrote each page of the hit; None where that is not known.
    steps:    numbers of the steps since then, in order.
    """

    num_hit: int
    origins: tuple[Origin | None, ...]
    steps: list[int] = field(default_factory=list[int])


@dataclass(frozen=True)
class Seam:
    """Where an answer goes on that another engine began.

    num_tokens: that were told before. They are recorded with the step that computed the row of the
        last of them again, and with what the other engine drew them from.
    is_exact: whether that row came out to the bit.
    """

    num_tokens: int
    is_exact: bool


@dataclass(eq=False)
class AnswerRecord:
    """One choice of a request: what was asked, and everything that decided its tokens.

    arrived:  by the clock of the steps.
    load_id:  of the load of the adapter that it has; empty without one.
    num_continued: last tokens of its prompt that are the answer's: another server had told them.
    is_whole: no step of it was dropped for lack of memory; else it cannot be run again.
    """

    number: int
    request: Request
    choice: int
    seed: int
    max_length: int
    cache_root: bytes
    arrived: float = 0.0
    load_id: bytes = b""
    admissions: list[Admission] = field(default_factory=list[Admission])
    tokens: TokenRecords = field(default_factory=TokenRecords)
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    timings: Timings | None = None
    is_whole: bool = True
    seam: Seam | None = None
    num_continued: int = 0

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Prompt and answer."""
        return (*self.request.prompt_token_ids, *self.tokens.ids)

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.prompt_token_ids)

    @property
    def continued(self) -> tuple[int, ...]:
        """The answer's tokens that another server had told."""
        return self.request.prompt_token_ids[self.num_prompt_tokens - self.num_continued :]

    @property
    def steps(self) -> list[int]:
        """Numbers of all its steps, in order."""
        return [number for admission in self.admissions for number in admission.steps]
