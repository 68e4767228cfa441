"""The filters and tests that chat templates may use: Jinja's, paid for and true to origin.

Those that make text keep the marks of what the template wrote. Left out are filters that no chat
template needs and whose work is hard to bound (center, wordwrap, batch, urlize, pprint ...): a
template that names one is refused, with the name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jinja2 import filters as jinja
from jinja2 import pass_context
from jinja2.runtime import Context
from jinja2.tests import TESTS as JINJA_TESTS

from cutaway.text import methods, written
from cutaway.text.filling import percent
from cutaway.text.meter import BudgetError, Meter, meter_of
from cutaway.text.template_operations import compare_two

MAX_NAME = 256  # characters of a dotted attribute
MAX_INDENT = 64  # characters before a line, or in a separator
MAX_DIGITS = 256  # a longer text is no number

_HTML = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "'": "&#39;", '"': "&#34;"})

Callback = Callable[..., Any]


def _of_text(name: str) -> Callback:
    """A filter that is a method of str under the same name, for text or what prints as text."""

    @pass_context
    def call(context: Context, value: object, *args: object) -> object:
        meter = meter_of(context)
        return methods.METHODS[name](meter, meter.text(value), *args)

    return call


@pass_context
def _trim(context: Context, value: object, chars: str | None = None) -> str:
    meter = meter_of(context)
    return methods.METHODS["strip"](meter, meter.text(value), chars)


@pass_context
def _title(context: Context, value: object) -> str:
    # Jinja starts a word after blanks and brackets only, Python after any character but a letter.
    text = meter_of(context).text(value)
    meter_of(context).charge_text(len(text))
    return written.recase(text, jinja.do_title(str.__getitem__(text, slice(None))))


@pass_context
def _string(context: Context, value: object) -> str:
    return meter_of(context).text(value)


@pass_context
def _escape(context: Context, value: object) -> str:
    text = meter_of(context).text(value)
    meter_of(context).charge_text(len(text))
    return str.translate(text, _HTML)


@pass_context
def _replace(
    context: Context, value: object, old: object, new: object, count: int | None = None
) -> str:
    meter = meter_of(context)
    count = -1 if count is None else count
    return methods.replace(meter, meter.text(value), meter.text(old), meter.text(new), count)


@pass_context
def _join(context: Context, value: Any, d: object = "", attribute: Any = None) -> str:
    meter = meter_of(context)
    items = meter.items(value)
    if attribute is not None:
        meter.charge(len(items) * _path_steps(attribute))
        items = [*map(jinja.make_attrgetter(context.environment, attribute), items)]
    return methods.join(meter, meter.text(d), [meter.text(item) for item in items])


@pass_context
def _format(context: Context, value: object, *args: object, **kwargs: object) -> str:
    meter = meter_of(context)
    if args and kwargs:
        raise TypeError("can't handle positional and keyword arguments at the same time")
    meter.charge(len(args))
    return percent(meter, meter.text(value), kwargs or args)


@pass_context
def _indent(
    context: Context, text: object, width: int | str = 4, first: bool = False, blank: bool = False
) -> str:
    meter = meter_of(context)
    if not isinstance(text, str):
        raise TypeError("indent takes text only")
    space = width if isinstance(width, str) else " " * min(width, MAX_INDENT + 1)
    _check_short("indent", len(space))
    # A line feed at the end is a line of its own here, as in Jinja.
    lines = methods.METHODS["splitlines"](meter, meter.concat((text, "\n")))
    parts: list[str] = []
    for index, line in enumerate(lines):
        parts += [
            "\n" if index else "",
            space if (first if index == 0 else blank or line) else "",
            line,
        ]
    return meter.concat(parts)


@pass_context
def _tojson(
    context: Context,
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as transformers writes it: no HTML escapes, and letters stay letters."""
    meter = meter_of(context)
    space = len(indent) if isinstance(indent, str) else indent or 0
    between = sum(map(len, separators or ()))
    _check_short("tojson", max(space, between))
    depth = meter.size(value).depth
    meter.data(value, extra_per_value=4 + between + space * depth)
    text = json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
    meter.charge_text(len(text))
    return text


@pass_context
def _list(context: Context, value: Iterable[object]) -> list[object]:
    return meter_of(context).items(value)


@pass_context
def _items(context: Context, value: Any) -> Iterable[object]:
    return meter_of(context).count_taken(jinja.do_items(value))


@pass_context
def _reverse(context: Context, value: Any) -> object:
    meter = meter_of(context)
    if isinstance(value, str):
        meter.charge_text(len(value))
        return written.cut(value, slice(None, None, -1))
    return reversed(meter.items(value))


@pass_context
def _first(context: Context, value: Any) -> object:
    return jinja.sync_do_first(context.environment, value)


@pass_context
def _last(context: Context, value: Any) -> object:
    return jinja.do_last(context.environment, value)


@pass_context
def _dictsort(context: Context, value: Any, *args: Any, **kwargs: Any) -> list[object]:
    meter_of(context).count_compared(value.items())
    return [*jinja.do_dictsort(value, *args, **kwargs)]


@pass_context
def _int(context: Context, value: Any, default: Any = 0, base: int = 10) -> object:
    if isinstance(value, str) and len(value) > MAX_DIGITS:
        return default
    return meter_of(context).number(jinja.do_int(value, default, base))


def _float(value: Any, default: Any = 0.0) -> object:
    if isinstance(value, str) and len(value) > MAX_DIGITS:
        return default
    return jinja.do_float(value, default)


def _of_all(function: Callback) -> Callback:
    """A filter that compares the items, or one attribute of each, with one another."""

    @pass_context
    def call(context: Context, value: Iterable[object], *args: Any, **kwargs: Any) -> Any:
        meter = meter_of(context)
        items = meter.count_compared(value)
        meter.charge(len(items) * sum(map(_path_steps, (*args, *kwargs.values()))))
        return function(context.environment, items, *args, **kwargs)

    return call


@pass_context
def _map(context: Context, value: Any, *args: Any, **kwargs: Any) -> Iterable[object]:
    meter = meter_of(context)
    steps = 1 + len(args) + _path_steps(kwargs.get("attribute"))
    return jinja.sync_do_map(context, meter.count_taken(value or (), steps=steps), *args, **kwargs)


def _select(function: Callback, *, of_attribute: bool) -> Callback:
    @pass_context
    def call(context: Context, value: Any, *args: Any, **kwargs: Any) -> Iterable[object]:
        steps = 1 + len(args) + _path_steps(args[0] if of_attribute and args else None)
        items = meter_of(context).count_taken(value or (), steps=steps)
        return function(context, items, *args, **kwargs)

    return call


def _path_steps(attribute: object) -> int:
    """Lookups of a dotted attribute."""
    if not isinstance(attribute, str):
        return 1
    if len(attribute) > MAX_NAME:
        raise BudgetError(
            f"it looks up a name of {len(attribute)} characters; {MAX_NAME} is the most"
        )
    return 1 + attribute.count(".") + attribute.count(",")


def _check_short(name: str, length: int) -> None:
    if length > MAX_INDENT:
        raise BudgetError(f"{name} is given a length of {length}; at most {MAX_INDENT} is allowed")


def _compares(name: str) -> Callback:
    @pass_context
    def call(context: Context, left: object, right: object) -> bool:
        return compare_two(meter_of(context), name, left, right)

    return call


def _cases(method: Callback) -> Callback:
    @pass_context
    def call(context: Context, value: object) -> bool:
        meter: Meter = meter_of(context)
        text = meter.text(value)
        meter.charge_text(len(text))
        return method(text)

    return call


def _of_number(function: Callback) -> Callback:
    def call(value: Any, *args: Any) -> bool:
        if not all(isinstance(each, int | float) for each in (value, *args)):
            raise TypeError(
                "only numbers are odd, even or divisible"
            )  # text % n would be filled in
        return function(value, *args)

    return call


FILTERS: Mapping[str, Callback] = {
    "abs": abs,
    "capitalize": _of_text("capitalize"),
    "count": len,
    "d": jinja.do_default,
    "default": jinja.do_default,
    "dictsort": _dictsort,
    "e": _escape,
    "escape": _escape,
    "first": _first,
    "float": _float,
    "format": _format,
    "indent": _indent,
    "int": _int,
    "items": _items,
    "join": _join,
    "last": _last,
    "length": len,
    "list": _list,
    "lower": _of_text("lower"),
    "map": _map,
    "max": _of_all(jinja.do_max),
    "min": _of_all(jinja.do_min),
    "reject": _select(jinja.sync_do_reject, of_attribute=False),
    "rejectattr": _select(jinja.sync_do_rejectattr, of_attribute=True),
    "replace": _replace,
    "reverse": _reverse,
    "safe": _string,  # nothing is escaped here, so nothing needs to be marked as safe
    "select": _select(jinja.sync_do_select, of_attribute=False),
    "selectattr": _select(jinja.sync_do_selectattr, of_attribute=True),
    "sort": _of_all(jinja.do_sort),
    "string": _string,
    "title": _title,
    "tojson": _tojson,
    "trim": _trim,
    "unique": _of_all(jinja.sync_do_unique),
    "upper": _of_text("upper"),
}

_SAME = (
    "defined undefined boolean false true integer float string mapping number sequence "
    "iterable callable sameas"
).split()  # they look at a value's kind and nothing else
_COMPARISONS = {
    **dict.fromkeys(("==", "eq", "equalto"), "eq"),
    **dict.fromkeys(("!=", "ne"), "ne"),
    **dict.fromkeys((">", "gt", "greaterthan"), "gt"),
    **dict.fromkeys((">=", "ge"), "gteq"),
    **dict.fromkeys(("<", "lt", "lessthan"), "lt"),
    **dict.fromkeys(("<=", "le"), "lteq"),
    "in": "in",
}


def _is_none(value: object) -> bool:
    return value is None or isinstance(value, written.Absent)


TESTS: Mapping[str, Callback] = {
    **{name: JINJA_TESTS[name] for name in _SAME},
    "none": _is_none,
    **{name: _compares(comparison) for name, comparison in _COMPARISONS.items()},
    "lower": _cases(str.islower),
    "upper": _cases(str.isupper),
    **{name: _of_number(JINJA_TESTS[name]) for name in ("odd", "even", "divisibleby")},
}
