"""Faults of our own: told on stderr without content, and to whoever waited as one plain sentence.

A fault is any exception that is no CutawayError. It ends the one thing whose work raised it;
docs/faults.md says what that is for each place.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator

from cutaway.core.errors import CutawayError, OverloadedError

RETRY_SECONDS = 5.0  # after which memory may be there again


def note(what: str, fault: BaseException) -> None:
    """Say on stderr what raised, of which kind and where.

    Not its message, and no values: both may hold what a user wrote.
    """
    lines = [f"cutaway: {what}"]
    for each in _chain(fault):
        lines.append(f"  {type(each).__name__}, latest call last:")
        frames = traceback.extract_tb(each.__traceback__)
        lines += [f"    {frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
    print("\n".join(lines), file=sys.stderr, flush=True)


def error_of(fault: BaseException, what: str) -> CutawayError:
    """What whoever waited is told: what had to end, and why. Errors of our tree stay themselves.

    what: the beginning of the sentence, as in "this answer ends here".
    """
    if isinstance(fault, CutawayError):
        return fault
    if is_out_of_memory(fault):
        words = f"{what} because memory ran out. Ask for less at once, or try again later."
        return OverloadedError(words, retry_after=RETRY_SECONDS)
    return CutawayError(f"{what} because of a fault of Cutaway itself.")


def refuse(tell: Callable[[CutawayError], object], fault: Exception, what: str) -> None:
    """End one thing: stderr has the fault, and whoever waited is told, unless they are gone.

    what: as for error_of.
    """
    if not isinstance(fault, CutawayError):
        note(f"{what}, for it raised; everything else goes on.", fault)
    try:
        tell(error_of(fault, what))
    except Exception as unheard:
        note("whoever waited for it could not be told.", unheard)


def is_out_of_memory(fault: BaseException) -> bool:
    """Whether memory ran out, of this machine or of its device."""
    # Torch has a class for devices alone; on a CPU its allocator gives a RuntimeError.
    is_torch = isinstance(fault, RuntimeError) and "allocate memory" in str(fault)
    return isinstance(fault, MemoryError) or type(fault).__name__ == "OutOfMemoryError" or is_torch


def again(call: Callable[[], object]) -> None:
    """Do what gives something back; where that raises once more.

    For work that may be done twice: left undone it would hold its place for ever.
    """
    try:
        call()
    except Exception as fault:
        note("what gives something back raised, and is done again.", fault)
        call()


def _chain(fault: BaseException | None) -> Iterator[BaseException]:
    """A fault behind those that it came of, the first of them in front."""
    if fault is not None:
        yield from _chain(fault.__cause__ or fault.__context__)
        yield fault
