"""Two traces side by side: what was set otherwise, where the answers part, what time did."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from itertools import pairwise

from cutaway.trace.file import TraceFile, Values

_SECTIONS = ("model", "engine", "machine", "sampling", "answer")


@dataclass(frozen=True)
class Difference:
    """What differs.

    settings:    (section and name, left, right) of the manifests.
    same_prompt: None where a redacted trace does not tell.
    first_token: index of the first token of the answers that differs; None where none does, or
                 where a redacted trace does not tell.
    logprob:     largest difference of log-probabilities before that token.
    timings:     (name, left, right) in seconds.
    """

    settings: tuple[tuple[str, object, object], ...]
    same_prompt: bool | None
    first_token: int | None
    texts: tuple[str, str] | None
    logprob: float | None
    timings: tuple[tuple[str, float | None, float | None], ...]

    @property
    def is_same(self) -> bool:
        """Whether the same was answered under the same settings."""
        return not self.settings and self.same_prompt is not False and self.first_token is None


def difference(left: TraceFile, right: TraceFile) -> Difference:
    """What two traces have otherwise."""
    tokens = left.of_kind("token"), right.of_kind("token")
    first = _first(*tokens)
    texts = None
    if first is not None:
        texts = _text_at(tokens[0], first), _text_at(tokens[1], first)
    return Difference(
        settings=tuple(_settings(left, right)),
        same_prompt=_same_prompt(left, right),
        first_token=first,
        texts=texts,
        logprob=_logprob(*tokens, first),
        timings=tuple(_timings(left, right)),
    )


def _settings(left: TraceFile, right: TraceFile) -> list[tuple[str, object, object]]:
    found: list[tuple[str, object, object]] = []
    for section in _SECTIONS:
        one, other = left.section(section), right.section(section)
        names = [*one, *(name for name in other if name not in one)]
        found += [
            (f"{section}.{name}", one.get(name), other.get(name))
            for name in names
            if one.get(name) != other.get(name)
        ]
    return found


def _same_prompt(left: TraceFile, right: TraceFile) -> bool | None:
    ids = [[event.get("ids") for event in t.of_kind("prompt")] for t in (left, right)]
    if any(None in each or not each for each in ids):
        return None
    return ids[0] == ids[1]


def _first(left: list[Values], right: list[Values]) -> int | None:
    """Index of the first token that differs; the end of the shorter counts."""
    if any("id" not in token for token in (*left, *right)):
        return None
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one["id"] != other["id"]:
            return index
    return None if len(left) == len(right) else min(len(left), len(right))


def _text_at(tokens: list[Values], index: int) -> str:
    return str(tokens[index].get("text", "")) if index < len(tokens) else "(the end)"


def _logprob(left: list[Values], right: list[Values], first: int | None) -> float | None:
    differences = [
        abs(one - other)
        for one, other in zip(
            (_float(token, "logprob") for token in left[:first]),
            (_float(token, "logprob") for token in right[:first]),
            strict=False,
        )
        if one is not None and other is not None
    ]
    return max(differences, default=None)


def _timings(left: TraceFile, right: TraceFile) -> list[tuple[str, float | None, float | None]]:
    names = ("queue", "prefill", "first_token", "decode", "detokenize")
    one, other = left.section("timings"), right.section("timings")
    found = [(name, _float(one, name), _float(other, name)) for name in names]
    return [*found, ("between tokens, median", _gap(left), _gap(right))]


def _gap(trace: TraceFile) -> float | None:
    times = [_float(token, "at") for token in trace.of_kind("token")]
    known = [time for time in times if time is not None]
    gaps = [after - before for before, after in pairwise(known)]
    return statistics.median(gaps) if gaps else None


def _float(values: Values, name: str) -> float | None:
    value = values.get(name)
    return float(value) if isinstance(value, int | float) else None
