"""The structs and codes of native/cutaway.h, field by field."""

from __future__ import annotations

import ctypes
import re
from enum import IntEnum

VERSION = 8  # CW_VERSION: raised when a field's meaning changes; see layout() for the rest
MAX_SEGMENTS = 4
MAX_GROUPS = 4
MOST_HEAD_SIZE = 512

_Pointer = ctypes.c_void_p
_Int = ctypes.c_int64
_Float = ctypes.c_double


class Code(IntEnum):
    """Operations."""

    GATHER = 0
    TAKE = 1
    NORM = 2
    LINEAR = 3
    GATED = 4
    GATE = 5
    ROTATE = 6
    STORE = 7
    ATTEND = 8
    ATTENTION = 9
    SAMPLE = 10
    ROUTE = 11
    EXPERTS = 12
    HEADS = 13
    STORE_LATENT = 14
    ATTEND_LATENT = 15
    DELTA = 16
    CONVOLVE = 17
    EXPERT_UNITS = 18
    EXPERT_SUMS = 19


class Rows(IntEnum):
    """Which count of the step an operation's rows follow."""

    TOKENS = 0
    LOGITS = 1


class Activation(IntEnum):
    """What a gate goes through before it multiplies."""

    SILU = 0
    GELU_TANH = 1
    GELU = 2
    RELU = 3
    CLAMPED = 4  # of experts alone
    SIGMOID = 5  # of a gate alone, as those below
    IDENTITY = 6
    CAPPED = 7  # cap * tanh(x / cap)


class NormKind(IntEnum):
    """What rows are divided by: nothing, their root mean square, or their deviation."""

    NONE = 0
    RMS = 1
    LAYER = 2


class RoutingRule(IntEnum):
    """How a router's scores become weights, and which experts are chosen by them."""

    SOFTMAX_THEN_TOP = 0
    TOP_THEN_SOFTMAX = 1
    SIGMOID_THEN_TOP = 2


class Status(IntEnum):
    """What a call answers."""

    OK = 0
    BAD_ARGUMENT = 1
    BAD_STEP = 2
    BAD_TOKEN_ID = 3
    BAD_POSITION = 4
    BAD_QUERY_START = 5
    BAD_CONTEXT_LENGTH = 6
    BAD_PAGE = 7
    BAD_SLOT = 8
    BAD_LOGIT_ROW = 9
    NO_MEMORY = 10
    UNKNOWN_ISA = 11
    TOO_LARGE = 12
    BAD_ADAPTER = 13


class WeightStruct(ctypes.Structure):
    _fields_ = [
        ("data", _Pointer),
        ("num_rows", _Int),
        ("num_columns", _Int),
        ("kind", _Int),
    ]


class StackStruct(ctypes.Structure):
    _fields_ = [
        ("data", _Pointer),
        ("num_matrices", _Int),
        ("num_rows", _Int),
        ("num_columns", _Int),
        ("kind", _Int),
    ]


class GroupStruct(ctypes.Structure):
    _fields_ = [("page_table", _Pointer), ("pages_per_sequence", _Int), ("slots", _Pointer)]


class StepStruct(ctypes.Structure):
    _fields_ = [
        ("num_tokens", _Int),
        ("num_sequences", _Int),
        ("num_logit_rows", _Int),
        ("token_ids", _Pointer),
        ("positions", _Pointer),
        ("query_starts", _Pointer),
        ("context_lengths", _Pointer),
        ("logit_rows", _Pointer),
        ("adapters", _Pointer),
        ("groups", GroupStruct * MAX_GROUPS),
    ]


class PairStruct(ctypes.Structure):
    _fields_ = [("down", _Pointer), ("up", WeightStruct), ("rank", _Int)]


class PairsStruct(ctypes.Structure):
    _fields_ = [("pairs", _Pointer), ("num_adapters", _Int), ("most_rank", _Int)]


_ROWS = [("rows", _Int), ("capacity", _Int)]


class NormingStruct(ctypes.Structure):
    _fields_ = [("weight", _Pointer), ("bias", _Pointer), ("epsilon", _Float), ("kind", _Int)]


class GatherStruct(ctypes.Structure):
    _fields_ = [*_ROWS, ("table", WeightStruct), ("out", _Pointer), ("multiplier", _Float)]


class TakeStruct(ctypes.Structure):
    _fields_ = [
        *_ROWS,
        ("x", _Pointer),
        ("out", _Pointer),
        ("width", _Int),
        ("most_tokens", _Int),
    ]


class NormStruct(ctypes.Structure):
    _fields_ = [
        *_ROWS,
        ("x", _Pointer),
        ("x_stride", _Int),
        ("add", _Pointer),
        ("sum", _Pointer),
        ("norm", NormingStruct),
        ("out", _Pointer),
        ("width", _Int),
        ("residual", _Pointer),
    ]


class LinearStruct(ctypes.Structure):
    _fields_ = [
        *_ROWS,
        ("x", _Pointer),
        ("norm", NormingStruct),
        ("num_segments", _Int),
        ("segments", WeightStruct * MAX_SEGMENTS),
        ("biases", _Pointer * MAX_SEGMENTS),
        ("residual", _Pointer),
        ("out", _Pointer),
        ("pairs", PairsStruct),
    ]


class GatedStruct(ctypes.Structure):
    _fields_ = [
        *_ROWS,
        ("x", _Pointer),
        ("norm", NormingStruct),
        ("gate", WeightStruct),
        ("up", WeightStruct),
        ("gate_bias", _Pointer),
        ("up_bias", _Pointer),
        ("out", _Pointer),
        ("activation", _Int),
        ("pairs", PairsStruct),
    ]


class GateStruct(ctypes.Structure):
    _fields_ = [
        *_ROWS,
        ("gate", _Pointer),
        ("up", _Pointer),
        ("gate_stride", _Int),
        ("up_stride", _Int),
        ("gate_head_stride", _Int),
        ("up_head_stride", _Int),
        ("num_heads", _Int),
        ("width", _Int),
        ("is_scalar", _Int),
        ("activation", _Int),
        ("cap", _Float),
        ("multiplier", _Float),
        ("residual", _Pointer),
        ("out", _Pointer),
    ]


class RotationStruct(ctypes.Structure):
    _fields_ = [
        ("cos", _Pointer),
        ("sin", _Pointer),
        ("num_rows", _Int),
        ("half", _Int),
        ("by_token", _Int),
        ("are_neighbours", _Int),
    ]


class RotateStruct(ctypes.Structure):
    _fields_ = [
        *_ROWS,
        ("x", _Pointer),
        ("x_stride", _Int),
        ("x_head_stride", _Int),
        ("out", _Pointer),
        ("out_stride", _Int),
        ("out_head_stride", _Int),
        ("num_heads", _Int),
        ("head_size", _Int),
        ("norm", NormingStruct),
        ("rotation", RotationStruct),
    ]


class PagesStruct(ctypes.Structure):
    _fields_ = [
        ("keys", _Pointer),
        ("values", _Pointer),
        ("key_scales", _Pointer),
        ("value_scales", _Pointer),
        ("kind", _Int),
        ("group", _Int),
        ("num_pages", _Int),
        ("page_size", _Int),
        ("num_groups", _Int),
        ("head_size", _Int),
    ]


class ScoringStruct(ctypes.Structure):
    _fields_ = [
        ("softmax_scale", _Float),
        ("cap", _Float),
        ("window", _Int),
        ("num_first", _Int),
        ("sinks", _Pointer),
    ]


class StoreStruct(ctypes.Structure):
    _fields_ = [
        *_ROWS,
        ("key", _Pointer),
        ("value", _Pointer),
        ("key_stride", _Int),
        ("value_stride", _Int),
        ("pages", PagesStruct),
    ]


class AttendStruct(ctypes.Structure):
    _fields_ = [
        *_ROWS,
        ("query", _Pointer),
        ("query_stride", _Int),
        ("num_heads", _Int),
        ("scoring", ScoringStruct),
        ("pages", PagesStruct),
        ("out", _Pointer),
    ]


class AttentionStruct(ctypes.Structure):
    _fields_ = [
        *_ROWS,
        ("qkv", _Pointer),
        ("num_heads", _Int),
        ("scoring", ScoringStruct),
        ("query_norm", NormingStruct),
        ("key_norm", NormingStruct),
        ("value_norm", NormingStruct),
        ("rotation", RotationStruct),
        ("pages", PagesStruct),
        ("out", _Pointer),
    ]


class ChoiceStruct(ctypes.Structure):
    _fields_ = [
        ("temperature", ctypes.c_float),
        ("floor", ctypes.c_float),
        ("top_k", _Int),
        ("rest", _Int),
        ("u", _Int),
        ("watched", _Int),
    ]


class DrawnStruct(ctypes.Structure):
    _fields_ = [
        ("token_id", _Int),
        ("total", _Float),
        ("peak", ctypes.c_float),
        ("left", ctypes.c_float),
        ("logit", ctypes.c_float),
        ("unused", ctypes.c_float),
        ("checksum", ctypes.c_uint64),
        ("weight", _Int),
        ("weights", _Int),
    ]


class SampleStruct(ctypes.Structure):
    _fields_ = [
        *_ROWS,
        ("raw", _Pointer),
        ("edited", _Pointer),
        ("vocab_size", _Int),
        ("choices", _Pointer),
        ("drawn", _Pointer),
    ]


class RouteStruct(ctypes.Structure):
    _fields_ = [
        *_ROWS,
        ("scores", _Pointer),
        ("num_experts", _Int),
        ("num_chosen", _Int),
        ("rule", _Int),
        ("num_groups", _Int),
        ("num_chosen_groups", _Int),
        ("num_counted", _Int),
        ("correction", _Pointer),
        ("factors", _Pointer),
        ("score_multiplier", _Float),
        ("multiplier", _Float),
        ("is_renormalized", _Int),
        ("least_sum", _Float),
        ("ids", _Pointer),
        ("weights", _Pointer),
    ]


class ExpertsStruct(ctypes.Structure):
    _fields_ = [
        *_ROWS,
        ("x", _Pointer),
        ("norm", NormingStruct),
        ("ids", _Pointer),
        ("weights", _Pointer),
        ("num_chosen", _Int),
        ("gate_up", StackStruct),
        ("down", StackStruct),
        ("gate_up_bias", _Pointer),
        ("down_bias", _Pointer),
        ("is_interleaved", _Int),
        ("activation", _Int),
        ("alpha", _Float),
        ("limit", _Float),
        ("residual", _Pointer),
        ("out", _Pointer),
    ]


class ExpertUnitsStruct(ctypes.Structure):
    _fields_ = [
        *_ROWS,
        ("x", _Pointer),
        ("norm", NormingStruct),
        ("ids", _Pointer),
        ("num_chosen", _Int),
        ("gate_up", StackStruct),
        ("bias", _Pointer),
        ("is_interleaved", _Int),
        ("activation", _Int),
        ("alpha", _Float),
        ("limit", _Float),
        ("out", _Pointer),
    ]


class ExpertSumsStruct(ctypes.Structure):
    _fields_ = [
        *_ROWS,
        ("x", _Pointer),
        ("ids", _Pointer),
        ("weights", _Pointer),
        ("num_chosen", _Int),
        ("down", StackStruct),
        ("bias", _Pointer),
        ("out", _Pointer),
    ]


class HeadsStruct(ctypes.Structure):
    _fields_ = [
        *_ROWS,
        ("x", _Pointer),
        ("x_stride", _Int),
        ("x_head_stride", _Int),
        ("stack", StackStruct),
        ("out", _Pointer),
        ("out_stride", _Int),
        ("out_head_stride", _Int),
    ]


class LatentPagesStruct(ctypes.Structure):
    _fields_ = [
        ("latent", _Pointer),
        ("rotary", _Pointer),
        ("latent_scales", _Pointer),
        ("rotary_scales", _Pointer),
        ("kind", _Int),
        ("group", _Int),
        ("num_pages", _Int),
        ("page_size", _Int),
        ("rank", _Int),
        ("rotary_size", _Int),
    ]


class StoreLatentStruct(ctypes.Structure):
    _fields_ = [
        *_ROWS,
        ("latent", _Pointer),
        ("rotary", _Pointer),
        ("latent_stride", _Int),
        ("rotary_stride", _Int),
        ("pages", LatentPagesStruct),
    ]


class AttendLatentStruct(ctypes.Structure):
    _fields_ = [
        *_ROWS,
        ("query", _Pointer),
        ("query_stride", _Int),
        ("num_heads", _Int),
        ("scoring", ScoringStruct),
        ("pages", LatentPagesStruct),
        ("out", _Pointer),
    ]


class ByHeadStruct(ctypes.Structure):
    _fields_ = [("first", _Pointer), ("stride", _Int), ("head_stride", _Int)]


class DeltaStruct(ctypes.Structure):
    _fields_ = [
        *_ROWS,
        *((name, ByHeadStruct) for name in ("query", "key", "value", "rate", "speed")),
        ("convolution", _Pointer),
        ("decay_bias", _Pointer),
        ("decay_log", _Pointer),
        ("num_heads", _Int),
        ("shared", _Int),
        ("key_size", _Int),
        ("value_size", _Int),
        ("width", _Int),
        ("states", _Pointer),
        ("inputs", _Pointer),
        ("group", _Int),
        ("num_pages", _Int),
        ("page_size", _Int),
        ("out", _Pointer),
    ]


class ConvolveStruct(ctypes.Structure):
    _fields_ = [
        *_ROWS,
        ("x", _Pointer),
        ("weights", _Pointer),
        ("bias", _Pointer),
        ("channels", _Int),
        ("width", _Int),
        ("inputs", _Pointer),
        ("group", _Int),
        ("num_pages", _Int),
        ("page_size", _Int),
        ("out", _Pointer),
    ]


class ChainStruct(ctypes.Structure):
    _fields_ = [
        ("drawn", _Pointer),
        ("token_ids", _Pointer),
        ("is_last", _Pointer),
        ("num_entries", _Int),
        ("made", _Pointer),
        ("given", _Pointer),
        ("width", _Int),
        ("page_size", _Int),
        ("most", _Pointer),
        ("least_kept", _Float),
        ("least_followed", _Float),
        ("room", _Int),
        ("guesses", _Pointer),
        ("chances", _Pointer),
        ("counts", _Pointer),
    ]


STRUCTS: dict[Code, type[ctypes.Structure]] = {
    Code.GATHER: GatherStruct,
    Code.TAKE: TakeStruct,
    Code.NORM: NormStruct,
    Code.LINEAR: LinearStruct,
    Code.GATED: GatedStruct,
    Code.GATE: GateStruct,
    Code.ROTATE: RotateStruct,
    Code.STORE: StoreStruct,
    Code.ATTEND: AttendStruct,
    Code.ATTENTION: AttentionStruct,
    Code.SAMPLE: SampleStruct,
    Code.ROUTE: RouteStruct,
    Code.EXPERTS: ExpertsStruct,
    Code.HEADS: HeadsStruct,
    Code.STORE_LATENT: StoreLatentStruct,
    Code.ATTEND_LATENT: AttendLatentStruct,
    Code.DELTA: DeltaStruct,
    Code.CONVOLVE: ConvolveStruct,
    Code.EXPERT_UNITS: ExpertUnitsStruct,
    Code.EXPERT_SUMS: ExpertSumsStruct,
}

# Structs that others hold: the operations' own are called after their codes.
_PARTS: tuple[type[ctypes.Structure], ...] = (
    *(WeightStruct, StackStruct, GroupStruct, StepStruct, NormingStruct, RotationStruct),
    *(PagesStruct, ScoringStruct, ChoiceStruct, DrawnStruct, LatentPagesStruct, ByHeadStruct),
    *(PairStruct, PairsStruct, ChainStruct),
)


def layout() -> dict[str, str]:
    """Every struct by its name in C: its size, and name, offset and size of each field."""
    named = {f"cw_{code.name.lower()}": struct for code, struct in STRUCTS.items()}
    named |= {_name_in_c(struct): struct for struct in _PARTS}
    return {name: _laid_out(struct) for name, struct in named.items()}


def _name_in_c(struct: type[ctypes.Structure]) -> str:
    words = re.findall("[A-Z][a-z]*", struct.__name__.removesuffix("Struct"))
    return "_".join(["cw", *words]).lower()


def _laid_out(struct: type[ctypes.Structure]) -> str:
    names = [field[0] for field in struct._fields_]
    places = [(name, getattr(struct, name)) for name in names]
    fields = "".join(f" {name} {place.offset} {place.size}" for name, place in places)
    return f"{ctypes.sizeof(struct)}:{fields}"
