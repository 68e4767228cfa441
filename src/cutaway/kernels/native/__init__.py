"""Operations in C++ for CPUs: packed weights, one call for a whole step, results free of shape.

Built by native/build.py; where it is not built, is_available() is False and torch does the work.
"""

from cutaway.kernels.native.attention import Rotation, Scoring, attend, attention, rotate, store
from cutaway.kernels.native.experts import Clamp, GroupChoice, Routing, experts, route
from cutaway.kernels.native.library import is_available
from cutaway.kernels.native.operation import Norm, Operation
from cutaway.kernels.native.operations import gate, gated, gather, linear, norm, take
from cutaway.kernels.native.pages import Pages
from cutaway.kernels.native.program import NativeStep, Program, room, run
from cutaway.kernels.native.sample import Choice, Drawn, Sampling
from cutaway.kernels.native.stack import WeightStack
from cutaway.kernels.native.structs import (
    MAX_GROUPS,
    MOST_HEAD_SIZE,
    Activation,
    NormKind,
    RoutingRule,
)
from cutaway.kernels.native.weight import Groups, Kind, PackedWeight

__all__ = [
    "MAX_GROUPS",
    "MOST_HEAD_SIZE",
    "Activation",
    "Choice",
    "Clamp",
    "Drawn",
    "GroupChoice",
    "Groups",
    "Kind",
    "NativeStep",
    "Norm",
    "NormKind",
    "Operation",
    "PackedWeight",
    "Pages",
    "Program",
    "Rotation",
    "Routing",
    "RoutingRule",
    "Sampling",
    "Scoring",
    "WeightStack",
    "attend",
    "attention",
    "experts",
    "gate",
    "gated",
    "gather",
    "is_available",
    "linear",
    "norm",
    "room",
    "rotate",
    "route",
    "run",
    "store",
    "take",
]
