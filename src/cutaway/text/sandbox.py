"""Jinja's sandbox with a budget: the only place in Cutaway that makes a Jinja environment.

Over Jinja's own rules (no private names, no changing of lists and dicts): every operation is paid
for before it runs, text keeps the marks of what the template wrote, and whatever no chat template
needs is refused: other files, blocks, escaping, most methods, filters whose work is hard to bound.
Knows no message.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterable, KeysView, ValuesView
from datetime import datetime
from typing import Any, TypeGuard, cast

from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from cutaway.text import template_operations
from cutaway.text.compiler import Compiler
from cutaway.text.filling import Formatter
from cutaway.text.kinds import is_nested, is_table
from cutaway.text.meter import BudgetError, Rendering, meter_of
from cutaway.text.methods import METHODS, BoundMethod
from cutaway.text.template_filters import FILTERS, TESTS
from cutaway.text.written import Written, cut, mark_generated, mark_written

MAX_DATE_FORMAT = 256  # the C library makes up to 256 characters out of each
_LOOP_NAMES = frozenset(
    "index index0 revindex revindex0 first last length previtem nextitem depth depth0 cycle".split()
)
_DICT_NAMES = frozenset(dir(dict))


class RefusalError(Exception):
    """The template called raise_exception: what it says is for whoever sent the messages."""


class Sandbox(ImmutableSandboxedEnvironment):
    """An environment for one template."""

    context_class = Rendering
    intercepted_binops = frozenset(template_operations.ARITHMETIC)

    def __init__(self, *, now: Callable[[], datetime] = datetime.now) -> None:
        # Constants stay in the code: folding them would run filters without a budget.
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationTag, LoopControlExtension],
            optimized=False,
            finalize=_printed,
        )
        self.code_generator_class = Compiler
        # What compiling the template leaves here: its texts, and the variables that it reads.
        self.literals: list[Written] = []
        self.names_read: set[str] = set()
        self.filters = dict(FILTERS)
        self.tests = dict(TESTS)
        self.globals = {
            "range": self.globals["range"],
            "dict": _dict,
            "namespace": _namespace,
            "raise_exception": _raise_exception,
            "strftime_now": _strftime(now),
        }

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Whether a template may read the attribute: few kinds of things have any."""
        if isinstance(obj, LoopContext):
            return attr in _LOOP_NAMES
        if isinstance(obj, dict):
            return attr in ("get", "items", "keys", "values")
        if isinstance(obj, list | tuple):
            return attr in ("index", "count")
        return isinstance(obj, Namespace | Macro) and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> None:
        """Nothing: a text's methods, format among them, are never handed out bare."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        """obj.attribute."""
        if type(obj) is dict and attribute not in _DICT_NAMES:
            fields = cast("dict[str, Any]", obj)  # Jinja comes to the same after an exception
            if attribute in fields:
                return fields[attribute]
            return self.undefined(obj=obj, name=attribute)
        if isinstance(obj, str) and (attribute in METHODS or attribute == "format"):
            return BoundMethod(obj, attribute)
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """obj[argument]."""
        if isinstance(obj, str) and isinstance(argument, str):
            return self.getattr(obj, argument)
        if isinstance(obj, Written) and isinstance(argument, int):
            is_there = -len(obj) <= argument < len(obj)
            return cut(obj, slice(argument, argument + 1 or None)) if is_there else self.undefined()
        if isinstance(argument, tuple | list | dict):
            return self.undefined("a list or dict is no key")  # hashing and naming it take time
        return super().getitem(obj, argument)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """obj(...)."""
        meter = meter_of(context)
        meter.charge(1 + len(args) + len(kwargs))
        # Only functions that take the context want these, and ours need no variables from it.
        kwargs.pop("_loop_vars", None)
        kwargs.pop("_block_vars", None)
        if isinstance(obj, BoundMethod):
            if obj.name == "format":
                return Formatter(self, meter).fill(obj.text, args, kwargs)
            return obj(meter, *args, **kwargs)
        owner: object = getattr(obj, "__self__", None)
        if is_nested(owner) and args:  # index, count, get
            template_operations.compare_two(meter, "in", args[0], owner)
        result: object = super().call(context, obj, *args, **kwargs)
        return meter.items(result) if _is_view(result) else result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """left operator right."""
        return template_operations.binary(meter_of(context), operator, left, right)

    def literal(self, text: str) -> str:
        """Code that gives the text, marked as the template's."""
        self.literals.append(mark_written(text))
        return f"environment.literals[{len(self.literals) - 1}]"

    # What generated code calls beside the methods above.
    add = staticmethod(template_operations.add)
    compare = staticmethod(template_operations.compare)
    mapping = staticmethod(template_operations.mapping)
    sliced = staticmethod(template_operations.slice_value)

    @staticmethod
    @pass_context
    def pay(context: Context, steps: int) -> bool:
        """True, for so many steps."""
        meter_of(context).charge(steps)
        return True


class GenerationTag(Extension):
    """{% generation %} ... {% endgeneration %}: what the assistant said; put out as it is.

    Its characters are marked, so that training knows them.
    """

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        """The body, in a scope of its own, and a call that marks what it writes."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("mark"), [], [], body).set_lineno(line)

    @staticmethod
    def mark(caller: Callable[[], str]) -> Written:
        """What the body wrote, as the assistant's."""
        return mark_generated(caller())


def _is_view(value: object) -> TypeGuard[Iterable[object]]:
    """Whether the value shows what a dict holds: comparing two such views is work unpaid for."""
    return isinstance(value, KeysView | ValuesView | ItemsView)


@pass_context
def _printed(context: Context, value: object) -> str:
    meter = meter_of(context)
    text = meter.text(value)
    meter.charge_text(len(text))
    return text


@pass_context
def _dict(context: Context, pairs: object = (), /, **names: object) -> dict[object, object]:
    meter = meter_of(context)
    entries = pairs.items() if is_table(pairs) else cast("Iterable[tuple[object, object]]", pairs)
    given = [(key, value) for key, value in meter.count_taken(entries)]
    return template_operations.mapping(meter, *given, *names.items())


class _Namespace(Namespace):
    """Jinja's, without private names."""

    def __setitem__(self, name: str, value: object) -> None:
        if name.startswith("_"):
            raise SecurityError(f"a namespace cannot hold the name {name!r}")
        super().__setitem__(name, value)


def _namespace(*pairs: Any, **names: object) -> Namespace:
    namespace = _Namespace()
    for name, value in dict(*pairs, **names).items():
        namespace[name] = value
    return namespace


@pass_context
def _raise_exception(context: Context, message: object) -> None:
    raise RefusalError(meter_of(context).text(message))


def _strftime(now: Callable[[], datetime]) -> Callable[[str], str]:
    def strftime_now(format: str) -> str:
        if len(format) > MAX_DATE_FORMAT:
            raise BudgetError(f"it formats a date with {len(format)} characters")
        return now().strftime(format)

    return strftime_now
