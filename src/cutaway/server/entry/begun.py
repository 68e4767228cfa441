"""What a coroutine gives without waiting: begun here, and gone on with only where it waits.

A clock, or a task of its own, is needed for what waits alone, and most of what a server awaits is
there already.
"""

from __future__ import annotations

from collections.abc import Awaitable, Generator
from types import coroutine
from typing import Any, cast

Step = Generator[Any, None, Any]  # of a generator: it yields what it waits for


def begin(awaitable: Awaitable[Any]) -> tuple[Step, bool, Any]:
    """Run a coroutine until it has its value, or waits: itself, whether it has, and for what.

    Raises: what it raises.
    """
    step = cast("Step", awaitable)
    try:
        return step, False, step.send(None)
    except StopIteration as done:
        return step, True, done.value


def _waiting(step: Step, awaited: Any) -> Step:
    """The value of a step that waits for something."""
    try:
        yield awaited
    except BaseException as fault:
        return (yield from _raising(step, fault))
    return (yield from step)


def _raising(step: Step, fault: BaseException) -> Step:
    """Raise what was raised here in a step that waits; its value if it bears it."""
    try:
        awaited = step.throw(fault)
    except StopIteration as done:
        value: Any = done.value
        return value
    return (yield from _waiting(step, awaited))


go_on, throw = coroutine(_waiting), coroutine(_raising)
