"""What ended answers said, for looks at them once their engine is gone: bounded, and packed.

Whose record is lost is recorded again by another engine of the same numbers, from this. In memory
alone, as content is everywhere.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from cutaway.core.output import DrawProof, ToldChoice
from cutaway.core.request import Request

MOST_BYTES: Final = 64 << 20
_FIXED_BYTES: Final = 2000  # of a request and its parts, beside tokens
_NO_U: Final = -1


@dataclass(frozen=True)
class _PackedChoice:
    """One choice in some 36 bytes a token; as objects they would take 250."""

    choice: int
    finish_reason: str
    token_ids: array[int]
    us: array[int]
    logits: array[float]
    logsumexps: array[float]
    checksums: array[int]

    @staticmethod
    def of(told: ToldChoice) -> _PackedChoice:
        draws = told.draws
        assert told.finish_reason is not None, "what is kept has ended"
        return _PackedChoice(
            told.choice,
            told.finish_reason,
            array("I", told.token_ids),
            array("q", [_NO_U if each.u is None else each.u for each in draws]),
            array("d", [each.logit for each in draws]),
            array("d", [each.logsumexp for each in draws]),
            array("Q", [each.checksum for each in draws]),
        )

    def unpack(self) -> ToldChoice:
        rows = zip(self.us, self.logits, self.logsumexps, self.checksums, strict=True)
        draws = tuple(
            DrawProof(None if u == _NO_U else u, logit, total, checksum)
            for u, logit, total, checksum in rows
        )
        told = ToldChoice(self.choice, tuple(self.token_ids), draws)
        return replace(told, finish_reason=self.finish_reason)  # type: ignore[arg-type]


@dataclass(frozen=True)
class _KeptAnswer:
    request: Request  # without its prompt, which is packed
    prompt: array[int]
    choices: tuple[_PackedChoice, ...]
    numeric_class: str

    @property
    def num_bytes(self) -> int:
        tokens = sum(36 * len(each.token_ids) for each in self.choices)
        return _FIXED_BYTES + 4 * len(self.prompt) + tokens


class KeptAnswers:
    """The latest ended answers, by request."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most, self._bytes = most_bytes, 0
        self._kept: OrderedDict[str, _KeptAnswer] = OrderedDict()

    @property
    def num_bytes(self) -> int:
        """That all take, about."""
        return self._bytes

    def add(self, request: Request, told: Sequence[ToldChoice], *, numeric_class: str) -> None:
        """Keep what was told of an answer that has ended, each choice with its reason."""
        choices = tuple(_PackedChoice.of(each) for each in told if each.token_ids)
        if not choices:
            return
        if (older := self._kept.pop(request.request_id, None)) is not None:
            self._bytes -= older.num_bytes
        prompt = array("I", request.prompt_token_ids)
        # A deadline runs from an arrival, which this one has behind it.
        short = replace(request, prompt_token_ids=request.prompt_token_ids[:1], deadline=None)
        kept = self._kept[request.request_id] = _KeptAnswer(short, prompt, choices, numeric_class)
        self._bytes += kept.num_bytes
        while self._bytes > self._most:
            _, oldest = self._kept.popitem(last=False)
            self._bytes -= oldest.num_bytes

    def find(self, request_id: str) -> tuple[Request, tuple[ToldChoice, ...], str] | None:
        """The request, what was told of it, and whose numbers those are."""
        kept = self._kept.get(request_id)
        if kept is None:
            return None
        request = replace(kept.request, prompt_token_ids=tuple(kept.prompt))
        return request, tuple(each.unpack() for each in kept.choices), kept.numeric_class
