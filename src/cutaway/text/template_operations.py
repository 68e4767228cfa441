"""What operators of a template do, paid for and true to origin: comparing, adding, slicing."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, cast

from jinja2.sandbox import SandboxedEnvironment

from cutaway.text import written
from cutaway.text.chat_messages import MAX_INT_BITS
from cutaway.text.filling import percent
from cutaway.text.kinds import is_nested, is_row, is_table
from cutaway.text.meter import CHARS_PER_STEP, BudgetError, Meter

COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "gt": operator.gt,
    "gteq": operator.ge,
    "lt": operator.lt,
    "lteq": operator.le,
    "in": lambda item, container: item in container,
    "notin": lambda item, container: item not in container,
}
_SEARCHES = ("in", "notin")

# Jinja's own table: "+" is operator.add, and so on for all seven.
ARITHMETIC: Mapping[str, Callable[[Any, Any], Any]] = SandboxedEnvironment.default_binop_table


def compare(meter: Meter, left: object, *rest: object) -> bool:
    """left op right [op right ...], with Python's meaning of a chain."""
    for name, right in zip(rest[::2], rest[1::2], strict=True):
        if not compare_two(meter, cast(str, name), left, right):
            return False
        left = right
    return True


def compare_two(meter: Meter, name: str, left: object, right: object) -> bool:
    """One comparison of the table."""
    meter.charge(_steps(meter, left, right, is_search=name in _SEARCHES))
    if name in ("eq", "ne") and (left is None or right is None):
        is_none = all(each is None or isinstance(each, written.Absent) for each in (left, right))
        return is_none is (name == "eq")
    return bool(COMPARISONS[name](left, right))


def _steps(meter: Meter, left: object, right: object, *, is_search: bool) -> int:
    """What a comparison costs at worst."""
    if isinstance(left, str) and isinstance(right, str):
        return 1 + (len(right) if is_search else min(len(left), len(right))) // CHARS_PER_STEP
    if isinstance(right, range):
        return 1 if isinstance(left, int) else len(right)
    if is_search and is_row(right):
        return len(right) * (
            meter.size(left).steps if isinstance(left, str) or is_nested(left) else 1
        )
    if is_search and is_table(right):
        return meter.size(left).steps  # it is hashed
    if is_nested(left) and is_nested(right):
        return min(meter.size(left).steps, meter.size(right).steps)
    return 1


def add(meter: Meter, left: object, *rest: object) -> object:
    """left + right [+ right ...], from left to right."""
    terms = [left, *rest]
    texts = [term for term in terms if isinstance(term, str)]
    if len(texts) == len(terms):
        return meter.concat(texts)
    for right in rest:
        left = binary(meter, "+", left, right)
    return left


def binary(meter: Meter, name: str, left: object, right: object) -> object:
    """left + right, and the other operators of arithmetic."""
    meter.charge(1)
    if isinstance(left, str) and isinstance(right, str) and name == "+":
        return meter.concat((left, right))
    if isinstance(left, int | float) and isinstance(right, int | float):
        return _arithmetic(meter, name, left, right)
    if isinstance(left, str) and name == "%":
        return percent(meter, left, right)
    if name == "+" and is_row(left) and is_row(right):
        meter.charge(len(left) + len(right))
    elif name == "*" and isinstance(right, int):
        return _repeat(meter, left, right)
    elif name == "*" and isinstance(left, int):
        return _repeat(meter, right, left)
    return ARITHMETIC[name](left, right)  # two lists; for all else an error, in Python's words


def _arithmetic(meter: Meter, name: str, left: float, right: float) -> object:
    if name == "**" and isinstance(left, int) and isinstance(right, int):
        if left.bit_length() * abs(right) > 2 * MAX_INT_BITS:
            raise BudgetError(f"it raises {left} to the power {right}, which is too much")
    return meter.number(ARITHMETIC[name](left, right))


def _repeat(meter: Meter, value: object, times: int) -> object:
    times = max(0, times)
    if isinstance(value, str):
        meter.charge_text(len(value) * times)
        return written.repeat(value, times)
    if is_row(value):
        meter.charge(len(value) * times)
    return ARITHMETIC["*"](value, times)


def slice_value(meter: Meter, value: Any, start: Any, stop: Any, step: Any) -> object:
    """value[start:stop:step]."""
    where = slice(start, stop, step)
    if isinstance(value, str):
        meter.charge_text(len(value))
        return written.cut(value, where)
    if is_row(value):
        meter.charge(1 + len(range(len(value))[where]))
    if is_table(value):  # which Python tells in other words since a slice may be a key
        raise TypeError("a dict has no slices")
    return value[where]


def mapping(meter: Meter, *entries: tuple[object, object]) -> dict[object, object]:
    """A dict that a template makes: {key: value, ...}."""
    # Hashing a key hashes all that is nested in it, each time.
    meter.charge(sum(meter.size(key).steps for key, _ in entries))
    return dict(entries)
