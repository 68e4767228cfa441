"""Which of JSON's nested kinds a value of unknown type is."""

from __future__ import annotations

from typing import TypeGuard


def is_row(value: object) -> TypeGuard[list[object] | tuple[object, ...]]:
    """Whether the value is a list or a tuple."""
    return isinstance(value, list | tuple)


def is_table(value: object) -> TypeGuard[dict[object, object]]:
    """Whether the value is a dict."""
    return isinstance(value, dict)


def is_nested(value: object) -> TypeGuard[list[object] | tuple[object, ...] | dict[object, object]]:
    """Whether the value holds other values."""
    return isinstance(value, list | tuple | dict)
