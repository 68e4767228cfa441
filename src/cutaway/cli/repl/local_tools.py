"""Two tools that run outside the model: a calculator and today's date, called by one plain line.

A model that was never trained on tool calls can still write `TOOL calc: 2+2`.
"""

from __future__ import annotations

import ast
import json
import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date

from cutaway.stream.answer import AnswerParser
from cutaway.stream.formats import BY_NAME
from cutaway.stream.text_events import CallArguments, CallEnd, CallStart, Event

MAX_ROUNDS = 3  # of calls for one message: a small model may call for ever
MAX_CHARACTERS = 200  # of an expression
MAX_BITS = 4096  # of an integer: 1,200 digits

INSTRUCTIONS = """You can use tools. For arithmetic write a line such as TOOL calc: 12*34
For the date write the line TOOL date:
The result comes in the next message. Then answer the question."""

Number = int | float


@dataclass(frozen=True)
class LineCall:
    """A call that the model wrote. end: where its line ends in the answer."""

    name: str
    argument: str
    end: int


class CallFinder:
    """Finds the first line of an answer that is a call, while the answer comes."""

    def __init__(self) -> None:
        self._parser = AnswerParser(BY_NAME["line"])
        self._events: list[Event] = []

    def push(self, text: str, *, is_finished: bool) -> LineCall | None:
        """The call, once its line is whole; the last line is whole when the answer is finished."""
        self._events += self._parser.push(text)
        if is_finished:
            self._events += self._parser.finish()
        return _first_call(self._events)


def _first_call(events: Iterable[Event]) -> LineCall | None:
    name = arguments = ""
    for event in events:
        match event:
            case CallStart(0, name):
                pass
            case CallArguments(0, arguments):
                pass
            case CallEnd(0, end):
                return LineCall(name, json.loads(arguments)["argument"], end)
            case _:
                pass
    return None


def examples(*, today: Callable[[], date] = date.today) -> tuple[tuple[str, str], ...]:
    """Questions and answers that show how tools are called, as if they had been said before.

    SmolLM2 calls no tool by instructions alone, nor by examples in the system message. Of the
    orders that were tried this one misled it least on other questions.
    """
    day = run_call(LineCall("date", "", 0), today=today)
    return (
        *(("What day is it today?", "TOOL date:"), (f"RESULT date: {day}", f"Today is {day}.")),
        ("What is the capital of Italy?", "The capital of Italy is Rome."),
        *(("Calculate 300/4", "TOOL calc: 300/4"), ("RESULT calc: 75.0", "300/4 is 75.")),
        *(("What is the date?", "TOOL date:"), (f"RESULT date: {day}", f"Today is {day}.")),
        ("Hi, who are you?", "I am an assistant. How can I help?"),
        *(("What is 6+9?", "TOOL calc: 6+9"), ("RESULT calc: 15", "6+9 is 15.")),
    )


def result_message(call: LineCall, result: str) -> str:
    """What the model is told of a call."""
    return f"RESULT {call.name}: {result}"


def run_call(call: LineCall, *, today: Callable[[], date] = date.today) -> str:
    """What the tool answers; a fault of the call is an answer too, since the model must read it."""
    if call.name == "calc":
        try:
            return str(calculate(call.argument))
        except ValueError as error:
            return f"error: {error}"
    if call.name == "date":
        return f"{today():%A, %Y-%m-%d}"
    return f"error: there is no tool {call.name}; there are calc and date"


def calculate(expression: str) -> Number:
    """The value of an arithmetic expression: numbers, + - * / // % **, and parentheses.

    Raises: ValueError saying what is not allowed. Work is bounded: 200 characters, 4096 bits.
    """
    if len(expression) > MAX_CHARACTERS:
        raise ValueError(f"the expression has more than {MAX_CHARACTERS} characters")
    # Signs of multiplication and division, and the power that people write.
    plain = expression.translate({ord("^"): "**", 0xD7: "*", 0xF7: "/"})
    try:
        with warnings.catch_warnings(action="ignore"):  # the parser's, on digits before letters
            tree = ast.parse(plain.strip(), mode="eval")
        return _checked(_value(tree.body))
    except ZeroDivisionError:
        raise ValueError("division by zero") from None
    except OverflowError:
        raise ValueError("the result is too large") from None
    except (SyntaxError, RecursionError, MemoryError):  # the parser's answers to odd texts
        raise ValueError(f"{expression!r} is no arithmetic") from None


def _value(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _power(_value(left), _value(right))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATIONS:
            return _checked(_OPERATIONS[type(op)](_value(left), _value(right)))
        case _:
            raise ValueError(
                f"{ast.unparse(node)} is no arithmetic; use numbers and + - * / // % **"
            )


_OPERATIONS: Mapping[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: lambda left, right: left + right,
    ast.Sub: lambda left, right: left - right,
    ast.Mult: lambda left, right: left * right,
    ast.Div: lambda left, right: left / right,
    ast.FloorDiv: lambda left, right: left // right,
    ast.Mod: lambda left, right: left % right,
}


def _power(base: Number, exponent: Number) -> Number:
    """base ** exponent, judged before it is computed."""
    if isinstance(base, int) and isinstance(exponent, int):
        if exponent > MAX_BITS or (base.bit_length() - 1) * exponent > MAX_BITS:
            raise ValueError("the power is too large")
        return base**exponent
    if base < 0 and exponent != int(exponent):
        raise ValueError("a root of a negative number is no real number")
    return float(base) ** float(exponent)


def _checked(value: Number) -> Number:
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise ValueError("the result is too large")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("the result is no finite number")
    return value
