"""Operations in C++ for CPUs: packed weights, one call for a whole step, results free of shape.

Built by native/build.py; where it is not built, is_available() is False and torch does the work.
"""

from cutaway.kernels.native.attention import (
    NativeScoring,
    Rotation,
    attend,
    attention,
    rotate,
    store,
)
from cutaway.kernels.native.chain import Chain
from cutaway.kernels.native.convolution import InputPages, convolve
from cutaway.kernels.native.delta import DeltaInputs, NativeDeltaWeights, StatePages, delta
from cutaway.kernels.native.experts import (
    Clamp,
    GroupChoice,
    Routing,
    expert_sums,
    expert_units,
    experts,
    route,
)
from cutaway.kernels.native.few_rows import RowRoom, row_rooms
from cutaway.kernels.native.large_pages import Shelf
from cutaway.kernels.native.latent import LatentPages, attend_latent, heads_linear, store_latent
from cutaway.kernels.native.learn import (
    OwnHeads,
    curve,
    gate_sides,
    multiply_columns,
    multiply_rows,
    own_attention,
    own_attention_gradients,
    rms_gradients,
    takes,
    takes_heads,
    takes_products,
)
from cutaway.kernels.native.library import is_available
from cutaway.kernels.native.operation import NormWeights, Operation
from cutaway.kernels.native.operations import gate, gather, linear, multiply_gate, norm, take
from cutaway.kernels.native.packed_pairs import PackedPair, PackedPairs
from cutaway.kernels.native.pages import Pages
from cutaway.kernels.native.program import NativeStep, Program, room, run
from cutaway.kernels.native.sample import Drawn, RowChoice, RowSampler
from cutaway.kernels.native.structs import (
    MAX_GROUPS,
    MOST_HEAD_SIZE,
    Activation,
    NormKind,
    RoutingRule,
)
from cutaway.kernels.native.weight import Groups, Kind, PackedWeight
from cutaway.kernels.native.weight_stack import WeightStack

__all__ = [
    "MAX_GROUPS",
    "MOST_HEAD_SIZE",
    "Activation",
    "Chain",
    "Clamp",
    "DeltaInputs",
    "Drawn",
    "GroupChoice",
    "Groups",
    "InputPages",
    "Kind",
    "LatentPages",
    "NativeDeltaWeights",
    "NativeScoring",
    "NativeStep",
    "NormKind",
    "NormWeights",
    "Operation",
    "OwnHeads",
    "PackedPair",
    "PackedPairs",
    "PackedWeight",
    "Pages",
    "Program",
    "Rotation",
    "Routing",
    "RoutingRule",
    "RowChoice",
    "RowRoom",
    "RowSampler",
    "Shelf",
    "StatePages",
    "WeightStack",
    "attend",
    "attend_latent",
    "attention",
    "convolve",
    "curve",
    "delta",
    "expert_sums",
    "expert_units",
    "experts",
    "gate",
    "gate_sides",
    "gather",
    "heads_linear",
    "is_available",
    "linear",
    "multiply_columns",
    "multiply_gate",
    "multiply_rows",
    "norm",
    "own_attention",
    "own_attention_gradients",
    "rms_gradients",
    "room",
    "rotate",
    "route",
    "row_rooms",
    "run",
    "store",
    "store_latent",
    "take",
    "takes",
    "takes_heads",
    "takes_products",
]
