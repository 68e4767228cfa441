"""Python's two ways to fill a pattern, paid for and true to origin.

Only text and numbers go in; widths end at 999. The literal part of a pattern is the template's
if the whole pattern is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from jinja2.sandbox import SandboxedFormatter

from cutaway.text import written
from cutaway.text.kinds import is_table
from cutaway.text.meter import BudgetError, Meter

if TYPE_CHECKING:
    from jinja2 import Environment

_PERCENT = re.compile(
    r"%(?:\((?P<key>[^()]*)\))?(?P<spec>[#0\- +]*[\d*]*(?:\.[\d*]*)?)(?P<kind>.?)"
)
_LONG_NUMBER = re.compile(r"\d{4}")


def percent(meter: Meter, pattern: str, values: object) -> str:
    """pattern % values."""
    filled = _Values(values)
    parts: list[str] = []
    start = 0
    for match in _PERCENT.finditer(pattern):
        parts.append(_literal(pattern, pattern[start : match.start()]))
        parts.append(_convert(meter, match, filled, pattern))
        start = match.end()
    filled.check_all_taken()
    parts.append(_literal(pattern, pattern[start:]))
    return meter.concat(parts)


class _Values:
    """What stands right of the percent sign: a tuple in turn, a dict by key, or one value."""

    def __init__(self, values: object) -> None:
        self.by_key = values if is_table(values) else None
        is_tuple = isinstance(values, tuple)
        self.rest = iter(cast("tuple[object, ...]", values) if is_tuple else (values,))
        # Python takes whatever has items for a dict, and leaves a dict unused without a word.
        self.may_be_left = hasattr(values, "__getitem__") and not isinstance(values, tuple | str)

    def take(self, key: str | None) -> object:
        if key is not None:
            if self.by_key is None:
                raise TypeError("format requires a mapping")
            return self.by_key[key]
        try:
            return next(self.rest)
        except StopIteration:
            raise TypeError("not enough arguments for format string") from None

    def check_all_taken(self) -> None:
        if not self.may_be_left and next(self.rest, self) is not self:
            raise TypeError("not all arguments converted during string formatting")


def _convert(meter: Meter, match: re.Match[str], values: _Values, pattern: str) -> str:
    spec, kind = match["spec"], match["kind"]
    if kind == "%":
        return _literal(pattern, "%")
    if not kind or kind not in "diouxXeEfFgGcs" or "*" in spec:
        raise ValueError(f"unsupported format {match[0]!r}")
    _check_width(spec)
    value = values.take(match["key"])
    if kind == "s":
        text = meter.text(value)
        return f"%{spec}s" % text if spec else text
    return f"%{spec}{kind}" % (value,)


class Formatter(SandboxedFormatter):
    """pattern.format(...), with the sandbox's rules for attributes."""

    def __init__(self, environment: Environment, meter: Meter) -> None:
        super().__init__(environment)
        self.meter = meter

    def fill(self, pattern: str, args: Sequence[object], names: Mapping[str, object]) -> str:
        """The filled pattern."""
        return self._fill(pattern, args, names, iter(range(len(args))), depth=2)

    def _fill(
        self,
        pattern: str,
        args: Sequence[object],
        kwargs: Mapping[str, object],
        turn: Iterator[int],
        *,
        depth: int,
    ) -> str:
        if depth == 0:
            raise ValueError("Max string recursion exceeded")
        parts: list[str] = []
        for literal, name, spec, conversion in self.parse(pattern):
            parts.append(_literal(pattern, literal))
            if name is None:
                continue
            if conversion not in (None, "s"):
                raise ValueError(f"unsupported conversion {conversion!r}")
            if name == "":
                name = str(next(turn, len(args)))
            value: object = self.get_field(name, args, kwargs)[0]
            spec = self._fill(spec or "", args, kwargs, turn, depth=depth - 1)
            parts.append(self._one(value, spec, as_text=conversion == "s"))
        return self.meter.concat(parts)

    def _one(self, value: object, spec: str, *, as_text: bool) -> str:
        if not spec:
            return self.meter.text(value)
        _check_width(spec)
        return format(self.meter.text(value) if as_text else value, spec)


def _literal(pattern: str, piece: str) -> str:
    return written.mark_written(piece) if written.is_templates(pattern) else piece


def _check_width(spec: str) -> None:
    if _LONG_NUMBER.search(spec):
        raise BudgetError(
            f"it fills a pattern with the width {spec[:20]!r}; at most 999 is allowed"
        )
