"""A budget of steps and of text for one rendering: whatever a template does is paid for first.

A template comes with a model file and may be hostile. Time is bounded by counting work, not by a
clock, so the same template ends at the same place on every machine. Knows no template.

A long rendering rests now and then, so that other threads of the interpreter have their turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from time import sleep
from typing import Final, NamedTuple, TypeVar

from jinja2 import Undefined
from jinja2.runtime import Context

from cutaway.text import written
from cutaway.text.chat_messages import MAX_INT_BITS
from cutaway.text.kinds import is_nested, is_table

MAX_TEXT = 4 * 2**20  # characters of any one text, the prompt included
CHARS_PER_STEP = 128  # copying these costs about what one step of Python does

# Steps of a rendering: a start, and more for larger input. A message costs a tool template about
# 150 steps; the whole start takes a hostile template less than a second (docs/text.md).
STEPS_AT_START = 250_000
STEPS_PER_VALUE = 400
STEPS_PER_CHAR = 1

# After the first steps, which are more than those of a usual conversation, a rendering rests after
# each so many, about 0.3 ms: whoever waits for the interpreter waits for that, and not for the
# 0.5 ms after which it may ask for it, once for each thread that computes. Shorter rests are over
# before the other thread has woken up. Past STEPS_OF_LONG, which a hundred messages with tools do
# not reach, rests grow with what was spent: what has no end takes ever less of a core.
FIRST_STEPS_WITHOUT_REST: Final = 1000
STEPS_BETWEEN_RESTS: Final = 100
REST_SECONDS: Final = 1e-4
STEPS_OF_LONG: Final = 20_000
MOST_RESTS: Final = 10.0  # of REST_SECONDS, at once

T = TypeVar("T")


class BudgetError(Exception):
    """A template asked for more work or text than its budget holds."""


class ValueSize(NamedTuple):
    """What a value holds, with all that is nested in it counted as often as it appears."""

    values: int
    chars: int
    depth: int

    @property
    def steps(self) -> int:
        """What reading all of it costs."""
        return self.values + self.chars // CHARS_PER_STEP


def rest_longer(spent: int) -> None:
    """The rest behind so many steps."""
    sleep(REST_SECONDS * min(MOST_RESTS, max(1.0, spent / STEPS_OF_LONG)))


class Meter:
    """Counts the work of one rendering; raises BudgetError before work that is not paid for.

    rest: called with the steps so far where others should have a turn.
    """

    def __init__(
        self, steps: int = STEPS_AT_START, rest: Callable[[int], None] = rest_longer
    ) -> None:
        self.steps, self._rest = steps, rest
        self.spent = 0
        self._rests_at = FIRST_STEPS_WITHOUT_REST
        # Containers cannot change in the sandbox, so a size stays right while its owner lives.
        self._sizes: dict[int, tuple[object, ValueSize]] = {}

    def allow(self, values: Iterable[object]) -> None:
        """Raise the budget in proportion to what the caller gave."""
        for value in values:
            size = self.size(value)
            self.steps += size.values * STEPS_PER_VALUE + size.chars * STEPS_PER_CHAR

    def charge(self, steps: int) -> None:
        """Pay for work that comes next."""
        self.spent += steps
        if self.spent >= self._rests_at:
            self._rests_at = self.spent + STEPS_BETWEEN_RESTS
            self._rest(self.spent)
        if self.spent > self.steps:
            raise BudgetError(
                f"it needs more than {self.steps} steps, which is the limit for this input"
            )

    def charge_text(self, chars: int) -> None:
        """Pay for making or reading a text of so many characters."""
        if chars > MAX_TEXT:
            raise BudgetError(
                f"it makes a text of {chars} characters; at most {MAX_TEXT} are allowed"
            )
        self.charge(1 + chars // CHARS_PER_STEP)

    def size(self, value: object) -> ValueSize:
        """Size of a value made of text, numbers, lists and dicts.

        Raises: TypeError for anything else, which may hold more than it shows.
        """
        if isinstance(value, str):
            return ValueSize(1, len(value), 0)
        if value is None or isinstance(value, bool | int | float | range | Undefined):
            return ValueSize(1, 0, 0)
        if not is_nested(value):
            raise TypeError(f"a {type(value).__name__} is not data")
        known = self._sizes.get(id(value))
        if known is None:
            parts = chain.from_iterable(value.items()) if is_table(value) else value
            known = self._sizes[id(value)] = (value, self._sum(parts))
        return known[1]

    def _sum(self, parts: Iterable[object]) -> ValueSize:
        values, chars, depth = 1, 0, 0
        for part in parts:
            if isinstance(part, str):  # most are
                values += 1
                chars += len(part)
                continue
            inner = self.size(part)
            values += inner.values
            chars += inner.chars
            depth = max(depth, inner.depth)
        return ValueSize(values, chars, depth + 1)

    def concat(self, parts: Sequence[str]) -> str:
        """The parts in a row, if there is room."""
        chars = sum(map(len, parts))
        self.charge_text(chars)
        self.charge(len(parts))
        return written.concat(parts)

    def join(self, values: Sequence[object]) -> str:
        """What a template prints for the values, in a row."""
        return self.concat([self.text(value) for value in values])

    def items(self, values: Iterable[object]) -> list[object]:
        """All values of an iterable, paid for one by one."""
        return list(self.count_taken(values))

    def count_taken(self, values: Iterable[T], *, steps: int = 1) -> Iterator[T]:
        """The same values; each is paid for as it is taken."""
        for value in values:
            self.charge(steps)
            yield value

    def count_compared(self, values: Iterable[object]) -> list[object]:
        """All values of an iterable, with sorting or hashing them paid for."""
        items = self.items(values)
        self.charge(self.size(items).steps * max(1, len(items).bit_length()))
        return items

    def number(self, value: object) -> object:
        """The value, unless it is an integer so long that arithmetic with it takes time."""
        if isinstance(value, int) and value.bit_length() > MAX_INT_BITS:
            raise BudgetError(
                f"it makes an integer of {value.bit_length()} bits; "
                f"at most {MAX_INT_BITS} are allowed"
            )
        return value

    def text(self, value: object) -> str:
        """What a template prints for a value: str(value), for plain data only.

        Raises: TypeError for macros, loops and the like, whose names nobody wants in a prompt.
        """
        if isinstance(value, str):
            return value
        if value is None or isinstance(value, bool | int | float | range | Undefined):
            return str(value)
        if is_nested(value):
            self.data(value)
            return str(value)
        raise TypeError(f"it prints a {type(value).__name__}; only text and data can be printed")

    def data(self, value: object, *, extra_per_value: int = 4) -> ValueSize:
        """Pay for turning nested data into text."""
        size = self.size(value)
        self.charge(size.steps)
        self.charge_text(size.chars + size.values * extra_per_value)
        return size


class Rendering(Context):
    """Jinja's context of one rendering, and its budget."""

    meter: Meter  # set by whoever renders, before the first step


def meter_of(context: Context) -> Meter:
    """The budget of the rendering that a filter, test or call belongs to."""
    assert isinstance(context, Rendering), "templates are rendered with a budget"
    return context.meter
