"""Parameters, bytes and operations of a model from its shape alone."""

from __future__ import annotations

from dataclasses import dataclass

from cutaway.core.devices import Device
from cutaway.core.layout import DTYPE_BYTES, Window
from cutaway.core.shapes import ModelShape, seen_pairs, seen_tokens
from cutaway.core.weight_types import WeightBytes
from cutaway.core.work import cache_bytes_per_token

KV_DTYPES = tuple(DTYPE_BYTES)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """One decode step and one prefill of a batch; the keys of `--json`.

    kv_bytes_per_token:   all layers, while the context still fits every window.
    kv_bytes_at_context:  what the last token of each sequence sees, its own included.
    kv_bytes_in_pages:    the same as the allocator holds it, in whole pages.
    state_bytes:          of layers that keep a state in place of keys and values, in float32.
    bytes_decode:         weights that are touched, keys and values that are seen, states.
    """

    parameters_total: int
    parameters_active: int
    weight_bytes: int
    kv_bytes_per_token: int
    kv_bytes_at_context: int
    kv_bytes_in_pages: int
    state_bytes: int
    bytes_decode: int
    flops_decode: int
    flops_prefill: int
    intensity: float
    flops_training_per_token: int


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """The least time that a device needs for a decode step and for the prefill of the batch."""

    device: str
    source: str
    computes: str  # the type of the multiplications
    peak_flops: float
    bandwidth: float
    bound: str  # of the decode step: memory or compute
    decode_seconds: float
    decode_tokens_per_second: float
    prefill_bound: str
    prefill_seconds: float
    memory_bytes: float
    needed_bytes: int  # weights, and the cache at the context
    fits: bool


def estimate(
    shape: ModelShape,
    weights: WeightBytes,
    *,
    context: int,
    batch: int = 1,
    kv_dtype: str = "bfloat16",
    page_size: int = 16,
) -> Estimate:
    """Sizes of `batch` sequences that each hold `context` tokens, the newest included."""
    assert context > 0 and batch > 0, "a context and a batch start at 1"
    held = batch * _kv_bytes(shape, context, kv_dtype)
    states = 4 * batch * sum(layer.attention.state_values for layer in shape.layers)
    decode = batch * _decode_flops(shape, context)
    read = weights.read(batch) + held + 2 * states  # a state is read and written
    active = _parameters(shape, 1)
    return Estimate(
        parameters_total=_parameters(shape, None),
        parameters_active=active,
        weight_bytes=weights.total,
        kv_bytes_per_token=cache_bytes_per_token(shape, kv_dtype),
        kv_bytes_at_context=held,
        kv_bytes_in_pages=batch * _page_bytes(shape, context, kv_dtype, page_size),
        state_bytes=states,
        bytes_decode=read,
        flops_decode=decode,
        flops_prefill=batch * _prefill_flops(shape, context),
        intensity=decode / read,
        flops_training_per_token=6 * active,
    )


def roofline(made: Estimate, weights: WeightBytes, device: Device, *, batch: int = 1) -> Roofline:
    """Operations over the peak, or bytes over the bandwidth, whichever takes longer."""
    computes, peak = device.peak(weights.computes)
    decode = made.flops_decode / peak, made.bytes_decode / device.bandwidth
    # A prefill reads every weight once, and writes what it keeps.
    prefill_bytes = weights.total - weights.lookup + made.kv_bytes_at_context + made.state_bytes
    prefill = made.flops_prefill / peak, prefill_bytes / device.bandwidth
    needed = made.weight_bytes + made.kv_bytes_in_pages + made.state_bytes
    return Roofline(
        device=device.name,
        source=device.source,
        computes=computes,
        peak_flops=peak,
        bandwidth=device.bandwidth,
        bound=_bound(*decode),
        decode_seconds=max(decode),
        decode_tokens_per_second=batch / max(decode),
        prefill_bound=_bound(*prefill),
        prefill_seconds=max(prefill),
        memory_bytes=device.memory_bytes,
        needed_bytes=needed,
        fits=needed <= device.memory_bytes,
    )


def _bound(compute: float, memory: float) -> str:
    return "memory" if memory >= compute else "compute"


def _kv_bytes(shape: ModelShape, context: int, dtype: str) -> int:
    return sum(
        seen_tokens(spec.extent, context) * spec.bytes_per_token(dtype)
        for spec in shape.cache_specs
    )


def _page_bytes(shape: ModelShape, context: int, dtype: str, page_size: int) -> int:
    """Whole pages from the first that a window still touches, and those of its sinks."""
    total = 0
    for spec in shape.cache_specs:
        pages = -(-context // page_size)
        if isinstance(spec.extent, Window):
            first = max(0, context - spec.extent.width) // page_size
            pages -= first - min(first, -(-spec.extent.sinks // page_size))
        total += pages * page_size * spec.bytes_per_token(dtype)
    return total


def _parameters(shape: ModelShape, batch: int | None) -> int:
    """Parameters that a batch can touch at most, lookups whole; None counts all."""
    count = shape.vectors(batch)
    for matrix in shape.matrices:
        copies = matrix.copies
        if batch is not None and matrix.kind == "expert":
            copies = min(copies, batch * matrix.used)
        count += matrix.rows * matrix.columns * copies
    return count


def _matmul_flops(shape: ModelShape) -> int:
    """Operations of one token in all matrices that it uses, the unembedding's included."""
    used = (m.rows * m.columns * m.used for m in shape.matrices if m.kind != "lookup")
    return 2 * (sum(used) + sum(layer.attention.token_values for layer in shape.layers))


def _decode_flops(shape: ModelShape, context: int) -> int:
    seen = (
        seen_tokens(layer.attention.extent, context) * layer.attention.decode_values
        for layer in shape.layers
    )
    return _matmul_flops(shape) + 2 * sum(seen)


def _prefill_flops(shape: ModelShape, context: int) -> int:
    """All tokens through the layers; only the last through the unembedding."""
    head = 2 * shape.vocab_size * shape.width
    pairs = (
        seen_pairs(layer.attention.extent, context) * layer.attention.prefill_values
        for layer in shape.layers
    )
    return context * (_matmul_flops(shape) - head) + head + 2 * sum(pairs)
