"""Operations in C++ for CPUs: packed weights, one call for a whole step, results free of shape.

Built by native/build.py; where it is not built, is_available() is False and torch does the work.
"""

from cutaway.kernels.native.library import is_available
from cutaway.kernels.native.operations import (
    Norm,
    Operation,
    Rotation,
    Scoring,
    attend,
    attention,
    gate,
    gated,
    gather,
    linear,
    norm,
    rotate,
    store,
    take,
)
from cutaway.kernels.native.pages import Pages
from cutaway.kernels.native.program import NativeStep, Program, room, run
from cutaway.kernels.native.sample import Choice, Drawn, Sampling
from cutaway.kernels.native.structs import MAX_GROUPS, MOST_HEAD_SIZE, Activation
from cutaway.kernels.native.weight import Groups, Kind, PackedWeight

__all__ = [
    "MAX_GROUPS",
    "MOST_HEAD_SIZE",
    "Activation",
    "Choice",
    "Drawn",
    "Groups",
    "Kind",
    "NativeStep",
    "Norm",
    "Operation",
    "PackedWeight",
    "Pages",
    "Program",
    "Rotation",
    "Sampling",
    "Scoring",
    "attend",
    "attention",
    "gate",
    "gated",
    "gather",
    "is_available",
    "linear",
    "norm",
    "room",
    "rotate",
    "run",
    "store",
    "take",
]
