"""The shared library of native kernels: found, checked against these files, and loaded once.

It knows neither tensors nor torch.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import Final

from cutaway.core.errors import ConfigError
from cutaway.core.limits import quote
from cutaway.kernels.native.structs import (
    VERSION,
    ChainStruct,
    Status,
    StepStruct,
    WeightStruct,
    layout,
)

_PATH: Final = Path(__file__).resolve().parent.parent / "_native.so"

_SENTENCES: Final = {
    Status.BAD_ARGUMENT: "a size, pointer or kind of an operation is not possible",
    Status.BAD_STEP: "the step has more rows than the buffers, or lacks a table",
    Status.BAD_TOKEN_ID: "a token id is outside the table",
    Status.BAD_POSITION: "a position is outside the rotation table",
    Status.BAD_QUERY_START: "query starts do not ascend from 0 to the number of tokens",
    Status.BAD_CONTEXT_LENGTH: "a context is shorter than its queries or longer than its pages",
    Status.BAD_PAGE: "a page is outside the pool",
    Status.BAD_SLOT: "a slot is outside the pool",
    Status.BAD_LOGIT_ROW: "a logit row is not a token of the step",
    Status.NO_MEMORY: "scratch memory could not be had",
    Status.UNKNOWN_ISA: "the instruction set is not compiled in, or this CPU lacks it",
    Status.TOO_LARGE: "a scale of a block is beyond float16",
    Status.BAD_ADAPTER: "a token's adapter is none of those that are loaded",
}


@cache
def _opened() -> ctypes.CDLL | str:
    """The library, or a sentence that says why there is none."""
    path = Path(os.environ.get("CUTAWAY_NATIVE", _PATH))
    if not path.is_file():
        return f"{path.name} is not built: run `make native`"
    try:
        loaded = ctypes.CDLL(str(path))
        loaded.cw_version.restype = ctypes.c_int64
        version = loaded.cw_version()
    except (OSError, AttributeError) as error:
        return f"{path.name} cannot be loaded: {error}"
    if version != VERSION:
        return f"{path.name} has version {version}, these files have {VERSION}: run `make native`"
    try:
        _declare(loaded)
    except AttributeError as error:
        return f"{path.name} is older than these files ({error}): run `make native`"
    other = _other_structs(loaded)
    if other:
        return f"{path.name} was built from other structs ({other}): run `make native`"
    name = os.environ.get("CUTAWAY_ISA")
    if name and loaded.cw_use_isa(name.encode()) != Status.OK:
        allowed = loaded.cw_isas().decode()
        raise ConfigError(
            f"CUTAWAY_ISA is {quote(name)}; this machine has {allowed}. Leave it out for the best."
        )
    return loaded


def _other_structs(loaded: ctypes.CDLL) -> str:
    """Names of structs that lie otherwise in the library than in these files; empty if none."""
    lines = loaded.cw_layout().decode().splitlines()
    theirs = dict(line.split(" ", 1) for line in lines)
    ours = layout()
    if not runs_chains(loaded):
        del ours["cw_chain"]
    return ", ".join(
        name for name in sorted({*ours, *theirs}) if ours.get(name) != theirs.get(name)
    )


def is_available() -> bool:
    """Whether the native kernels are built and fit these files."""
    return not isinstance(_opened(), str)


def why_missing() -> str:
    """Why they are not; empty when they are."""
    opened = _opened()
    return opened if isinstance(opened, str) else ""


def library() -> ctypes.CDLL:
    """The loaded library; is_available() was asked before."""
    opened = _opened()
    if isinstance(opened, str):
        raise AssertionError(opened)
    return opened


def check(status: int) -> None:
    """Raise for anything but success: what reaches the library is ours, so the fault is too."""
    if status == 0:  # a number: this is asked after every call
        return
    if status == Status.NO_MEMORY:
        raise MemoryError(_SENTENCES[Status.NO_MEMORY])
    raise AssertionError(_SENTENCES[Status(status)])


def isas() -> tuple[str, ...]:
    """Instruction sets that are compiled in and that this CPU has, best first."""
    return tuple(library().cw_isas().decode().split())


def isa() -> str:
    """The one in use."""
    return library().cw_isa().decode()


def use_isa(name: str) -> None:
    """Choose one of isas()."""
    check(library().cw_use_isa(name.encode()))


def num_threads() -> int:
    """How many threads native operations use."""
    return library().cw_num_threads()


def set_num_threads(count: int, *, spin_seconds: float = 0.05) -> None:
    """Run on count threads, the caller's own included; idle ones spin so long, then sleep."""
    check(library().cw_set_num_threads(count, round(spin_seconds * 1e6)))


def num_operations() -> int:
    """Operations of programs that were run so far; it moves inside a step, on any thread.

    0 for a library that was built before it counted.
    """
    opened = _opened()
    count = None if isinstance(opened, str) else getattr(opened, "cw_num_operations", None)
    return 0 if count is None else int(count())


def runs_parts(opened: ctypes.CDLL) -> bool:
    """Whether a library can run a part of a program; one that was built before cannot."""
    return hasattr(opened, "cw_program_run_part")


def runs_chains(opened: ctypes.CDLL) -> bool:
    """Whether a library goes on from what a program drew; one that was built before cannot."""
    return hasattr(opened, "cw_program_chain")


def runs_training(opened: ctypes.CDLL) -> bool:
    """Whether a library has kernels of training; one that was built before has not."""
    return hasattr(opened, "cw_learn_attention")


def multiplies_in_training(opened: ctypes.CDLL) -> bool:
    """Whether a library has products of training; one that was built before has not."""
    return hasattr(opened, "cw_learn_columns")


def _declare(loaded: ctypes.CDLL) -> None:
    integer, pointer, text = ctypes.c_int64, ctypes.c_void_p, ctypes.c_char_p
    step = ctypes.POINTER(StepStruct)
    weight = ctypes.POINTER(WeightStruct)
    for name, result, arguments in (
        ("cw_sizeof", integer, (integer,)),
        ("cw_layout", text, ()),
        ("cw_set_num_threads", integer, (integer, integer)),
        ("cw_num_threads", integer, ()),
        ("cw_isas", text, ()),
        ("cw_isa", text, ()),
        ("cw_use_isa", integer, (text,)),
        ("cw_packed_bytes", integer, (integer, integer, integer)),
        ("cw_pack", integer, (integer, pointer, pointer, integer, integer, integer, pointer)),
        ("cw_unpack", integer, (weight, pointer)),
        ("cw_program_new", pointer, ()),
        ("cw_program_free", None, (pointer,)),
        ("cw_program_add", integer, (pointer, integer, pointer, integer)),
        ("cw_program_run", integer, (pointer, step)),
        ("cw_program_time", integer, (pointer, step, pointer)),
        ("cw_run", integer, (integer, pointer, integer, step)),
        ("cw_read_bandwidth", ctypes.c_double, (pointer, integer, integer)),
    ):
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    if hasattr(loaded, "cw_num_operations"):
        loaded.cw_num_operations.restype = integer
    if runs_parts(loaded):
        loaded.cw_program_run_part.restype = integer
        loaded.cw_program_run_part.argtypes = (pointer, step, integer, integer)
    if runs_training(loaded):
        number, team = ctypes.c_double, [integer, pointer]
        sizes, rows = [integer] * 4, [pointer, integer] * 3
        loaded.cw_learn_curve.argtypes = [*sizes, *[pointer] * 3, *team]
        loaded.cw_learn_rms.argtypes = [integer, integer, number, *[pointer] * 5, *team]
        first = [integer, pointer, integer, integer, integer, number]
        loaded.cw_learn_attention.argtypes = [*first, *rows, *[pointer] * 6, *team]
        for each in (loaded.cw_learn_curve, loaded.cw_learn_rms, loaded.cw_learn_attention):
            each.restype = integer
    if multiplies_in_training(loaded):
        team = [integer, pointer]
        loaded.cw_learn_rows.argtypes = [*[integer] * 4, *[pointer] * 4, *team]
        loaded.cw_learn_columns.argtypes = [*[integer] * 3, *[pointer] * 4, *team]
        for each in (loaded.cw_learn_rows, loaded.cw_learn_columns):
            each.restype = integer
    if runs_chains(loaded):
        loaded.cw_program_chain.restype = integer
        loaded.cw_program_chain.argtypes = (pointer, step, ctypes.POINTER(ChainStruct))
