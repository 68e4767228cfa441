"""Native operations of attention: heads turned, stored and attended to, as checked data."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from cutaway.kernels.native import structs
from cutaway.kernels.native.operation import (
    NormWeights,
    Operation,
    address,
    norming,
    require,
    require_heads,
    require_matrix,
    require_spaced,
    require_vector,
    tensors_of,
)
from cutaway.kernels.native.pages import Pages
from cutaway.kernels.native.structs import Code, Rows

_MOST_KEYS = 2**31  # of a sequence: the library's bound on every size


@dataclass(frozen=True, eq=False)
class Rotation:
    """Cosines and sines [rows, C'/2]: one row per position, or per token of the step.

    are_neighbours: pairs are (2i, 2i + 1); turned, the first entries of all pairs come out first.
    """

    cos: Tensor
    sin: Tensor
    is_by_token: bool = False
    are_neighbours: bool = False


@dataclass(frozen=True, eq=False)
class NativeScoring:
    """How products of queries and keys become scores, and which of them count.

    cap:       scores become cap * tanh(score / cap).
    window:    keys that a query sees, its own included.
    num_first: keys of a sequence that stay visible before the window.
    sinks:     [H] scores that take part in the softmax and bring no value.
    """

    softmax_scale: float
    cap: float | None = None
    window: int | None = None
    num_first: int = 0
    sinks: Tensor | None = None


def rotate(
    x: Tensor, rotation: Rotation | None, *, out: Tensor, norm: NormWeights | None = None
) -> Operation:
    """Heads of x, normalized and turned by position if asked. Shapes: x, out [T, heads, C]."""
    rows, num_heads, head_size = x.shape
    require_heads(x, (rows, num_heads, head_size))
    require_heads(out, (rows, num_heads, head_size))
    arguments = structs.RotateStruct(
        *(Rows.TOKENS, rows, x.data_ptr(), x.stride(0), x.stride(1)),
        *(out.data_ptr(), out.stride(0), out.stride(1), num_heads, head_size),
        *(norming(norm, head_size), _rotation(rotation, head_size)),
    )
    return Operation(Code.ROTATE, arguments, (x, out, *tensors_of(norm), *_tables(rotation)))


def store(key: Tensor, value: Tensor, pages: Pages) -> Operation:
    """Write the step's keys and values to their slots. Shapes: key, value [T, G, C]."""
    for each in (key, value):
        require_spaced(each, (len(key), *pages.keys.shape[2:]))
    arguments = structs.StoreStruct(
        *(Rows.TOKENS, len(key), key.data_ptr(), value.data_ptr()),
        *(key.stride(0), value.stride(0), pages.struct()),
    )
    return Operation(Code.STORE, arguments, (key, value, *pages.tensors))


def attend(query: Tensor, pages: Pages, *, out: Tensor, scoring: NativeScoring) -> Operation:
    """Causal attention of each sequence's last tokens over its pages.

    Shapes: query [T, H, C], out [T, H, C] or [T, H * C]; H is a multiple of G.
    """
    rows, num_heads, head_size = query.shape
    require_spaced(query, (rows, num_heads, head_size))
    require_matrix(out.flatten(1), num_heads * head_size, rows)
    _require_pages(num_heads, head_size, pages)
    arguments = structs.AttendStruct(
        *(Rows.TOKENS, rows, query.data_ptr(), query.stride(0), num_heads),
        *(scoring_struct(scoring, num_heads), pages.struct(), out.data_ptr()),
    )
    return Operation(Code.ATTEND, arguments, (query, out, scoring.sinks, *pages.tensors))


def attention(
    qkv: Tensor,
    pages: Pages,
    *,
    num_heads: int,
    rotation: Rotation | None,
    out: Tensor,
    scoring: NativeScoring,
    query_norm: NormWeights | None = None,
    key_norm: NormWeights | None = None,
    value_norm: NormWeights | None = None,
) -> Operation:
    """rotate, store and attend in one: bit for bit what the three give one after another.

    Shapes: qkv [T, (H + 2 G) * C], query heads first, out [T, H * C].
    """
    num_groups, head_size = pages.keys.shape[2:]
    require_matrix(qkv, (num_heads + 2 * num_groups) * head_size)
    require_matrix(out, num_heads * head_size, len(qkv))
    _require_pages(num_heads, head_size, pages)
    norms = (query_norm, key_norm, value_norm)
    arguments = structs.AttentionStruct(
        *(Rows.TOKENS, len(qkv), qkv.data_ptr(), num_heads, scoring_struct(scoring, num_heads)),
        *(norming(norm, head_size) for norm in norms),
        *(_rotation(rotation, head_size), pages.struct(), out.data_ptr()),
    )
    kept = (qkv, out, *pages.tensors, *_tables(rotation), scoring.sinks, *tensors_of(*norms))
    return Operation(Code.ATTENTION, arguments, kept)


def _rotation(rotation: Rotation | None, head_size: int) -> structs.RotationStruct:
    if rotation is None:
        return structs.RotationStruct(0, 0, 1, 0, 0, 0)
    rows, half = rotation.cos.shape
    require_matrix(rotation.cos, half)
    require_matrix(rotation.sin, half, rows)
    require(2 * half <= head_size, "no more pairs turn than a head has")
    return structs.RotationStruct(
        *(rotation.cos.data_ptr(), rotation.sin.data_ptr()),
        *(rows, half, int(rotation.is_by_token), int(rotation.are_neighbours)),
    )


def _tables(rotation: Rotation | None) -> tuple[Tensor, ...]:
    return () if rotation is None else (rotation.cos, rotation.sin)


def scoring_struct(scoring: NativeScoring, num_heads: int) -> structs.ScoringStruct:
    """The form that native operations take, for so many query heads."""
    if scoring.sinks is not None:
        require_vector(scoring.sinks, num_heads)
    window = min(scoring.window or 0, _MOST_KEYS)  # whoever asks for more sees all
    num_first = min(scoring.num_first, _MOST_KEYS) if window else 0
    return structs.ScoringStruct(
        *(scoring.softmax_scale, scoring.cap or 0.0, window, num_first, address(scoring.sinks))
    )


def _require_pages(num_heads: int, head_size: int, pages: Pages) -> None:
    num_groups, page_head_size = pages.keys.shape[2:]
    require(num_heads % num_groups == 0, "query heads are a multiple of key-value heads")
    require(head_size == page_head_size, "query and pages have one head size")
