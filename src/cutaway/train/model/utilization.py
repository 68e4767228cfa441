"""How much of a device's products training uses: operations from shapes, peaks by device.

Lookups count nothing; attention counts the keys that are seen, so half of a sequence where it is
causal and a window's width where there is one; what is computed again for gradients counts once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cutaway.blocks.transformer import Transformer
from cutaway.blocks.weighed import model_work
from cutaway.core.facts import ModelFacts

# Dense products of 16-bit floats by their makers' data sheets, in operations per second.
PEAKS: Mapping[str, float] = {
    "NVIDIA H200": 989e12,
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA A100-SXM4-40GB": 312e12,
    "NVIDIA L40S": 362e12,
    "NVIDIA GeForce RTX 4090": 165e12,
    "NVIDIA GeForce RTX 3090": 71e12,
}
_BACKWARD = 2  # a product has two gradients, each a product of the same size


def update_flops(transformer: Transformer, facts: ModelFacts, lengths: Sequence[int]) -> float:
    """Operations of an update over whole sequences in which every token is scored."""
    work = model_work(transformer, facts, "float32")
    forward = sum(work.alone(0, length, num_rows=length).flops for length in lengths)
    return (1 + _BACKWARD) * forward


def utilization(flops: float, seconds: float, device: str) -> float | None:
    """The share of a device's peak; None for a device whose peak is not known.

    device: its name, as torch tells it.
    """
    peak = PEAKS.get(device)
    return None if peak is None else flops / seconds / peak
