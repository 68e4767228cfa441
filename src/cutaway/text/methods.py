"""The methods of str that chat templates may call, paid for and true to origin.

Whatever is not in the table cannot be reached: center, ljust, zfill, encode, translate ... make
text of any length out of a number, and no chat template needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cutaway.text import written
from cutaway.text.meter import CHARS_PER_STEP, Meter

_BLANKS = "".join(filter(str.isspace, map(chr, range(0x3001))))  # whatever str.split splits at
_LINE_ENDS = "".join(char for char in _BLANKS if len(f"a{char}b".splitlines()) > 1)

Method = Callable[..., Any]


@dataclass(frozen=True)
class BoundMethod:
    """A method of one text, as a template holds it before it calls it."""

    text: str
    name: str

    def __call__(self, meter: Meter, *args: Any, **kwargs: Any) -> Any:
        """Call it, once its work is paid for."""
        return METHODS[self.name](meter, self.text, *args, **kwargs)


def _forward(method: Method) -> Method:
    """Work in proportion to the text."""

    def call(meter: Meter, text: str, *args: Any, **kwargs: Any) -> Any:
        meter.charge_text(len(text))
        return method(text, *args, **kwargs)

    return call


def _product(method: Method) -> Method:
    """Work in proportion to text times argument, at worst: searching backwards, stripping."""

    def call(meter: Meter, text: str, *args: Any, **kwargs: Any) -> Any:
        _charge_product(meter, text, *args, *kwargs.values())
        return method(text, *args, **kwargs)

    return call


def _pieces(method: Method, borders: str) -> Method:
    """The same, and more for each piece into which the text falls."""

    def call(meter: Meter, text: str, *args: Any, **kwargs: Any) -> Any:
        _charge_product(meter, text, *args, *kwargs.values())
        sep = args[0] if args else kwargs.get("sep")
        meter.charge(sum(map(text.count, [sep] if isinstance(sep, str) and sep else borders)))
        return method(text, *args, **kwargs)

    return call


def _charge_product(meter: Meter, text: str, *values: Any) -> None:
    longest = max([1, *(len(value) for value in values if isinstance(value, str))])
    meter.charge(1 + len(text) * longest // CHARS_PER_STEP)


def _recased(name: str) -> Method:
    method: Callable[[str], str] = getattr(str, name)

    def recase(text: str) -> str:
        return written.recase(text, method(text))

    return _forward(recase)


def replace(meter: Meter, text: str, old: str, new: str, count: int = -1) -> str:
    """str.replace."""
    meter.charge_text(len(text))
    found = text.count(old)
    found = found if count < 0 else min(found, count)
    meter.charge(found)
    meter.charge_text(len(text) + found * max(0, len(new) - len(old)))
    return written.replace(text, old, new, count)


def join(meter: Meter, text: str, parts: Iterable[object]) -> str:
    """str.join."""
    items = meter.items(parts)
    strings = [item for item in items if isinstance(item, str)]
    if len(strings) < len(items):
        raise TypeError("join takes texts only")
    meter.charge_text(len(text) * len(strings) + sum(map(len, strings)))
    return written.join(text, strings)


METHODS: Mapping[str, Method] = {
    **{
        name: _forward(getattr(str, name))
        for name in (
            *("startswith", "endswith", "find", "index", "count"),
            *("isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "isidentifier"),
            *("islower", "isnumeric", "isprintable", "isspace", "istitle", "isupper"),
        )
    },
    **{name: _recased(name) for name in ("lower", "upper", "title", "capitalize")},
    "removeprefix": _forward(written.removeprefix),
    "removesuffix": _forward(written.removesuffix),
    "split": _pieces(written.split, _BLANKS),
    "splitlines": _pieces(written.splitlines, _LINE_ENDS),
    "partition": _forward(written.partition),
    "rfind": _product(str.rfind),
    "rindex": _product(str.rindex),
    "rsplit": _pieces(written.rsplit, _BLANKS),
    "rpartition": _product(written.rpartition),
    "strip": _product(written.strip),
    "lstrip": _product(written.lstrip),
    "rstrip": _product(written.rstrip),
    "replace": replace,
    "join": join,
}
