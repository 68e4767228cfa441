"""How large a model may say that it is: judged before anything of that size is built.

A configuration of 400 bytes can name a million layers, each of which would be made before the
first tensor is missed. With tensors at hand a claim is held against their number; without them,
as for random weights and estimates, against bounds that no known model comes near.
"""

from __future__ import annotations

from collections.abc import Mapping

from cutaway.core.errors import ModelFormatError
from cutaway.core.limits import quote

# The deepest published decoders have 126 layers (Llama 3.1 405B) to 1,000 (DeepNet); the most
# experts of a layer are 2,048 (Switch Transformer), of all layers together 24,576 (Qwen3-Next).
MAX_LAYERS, MAX_EXPERTS, MAX_LAYER_EXPERTS = 4096, 8192, 2**18
MAX_SIZE = 2**22  # of any other dimension: 4 million; the largest vocabulary has 262,400
MAX_LENGTH = 2**40  # of what nothing is built from: tokens that a context or a window has

_LAYERS = ("num_hidden_layers", "n_layer", "block_count")
_EXPERTS = (
    *("num_local_experts", "num_experts", "n_routed_experts", "n_shared_experts"),
    *("moe_num_experts", "moe_num_shared_experts"),
    *("expert_count", "expert_shared_count"),
)
_LENGTHS = frozenset(
    (
        *("max_position_embeddings", "original_max_position_embeddings", "n_positions"),
        *("sliding_window", "max_window_layers", "attention.sliding_window", "context_length"),
        *("rope.scaling.original_context_length",),
    )
)


def most_of(name: str) -> int:
    """The largest integer that a field may hold."""
    return MAX_LENGTH if name in _LENGTHS else MAX_SIZE


def check_claims(
    values: Mapping[str, object], *, file: str, prefix: str = "", num_tensors: int | None = None
) -> None:
    """Judge how many layers and experts a configuration claims.

    prefix: of the names in a GGUF file.   num_tensors: that are there; None where there are none.
    Raises: ModelFormatError naming the field, its value and what is allowed.
    """
    layers, experts = 1, 1
    for name in _LAYERS:
        most = MAX_LAYERS if num_tensors is None else min(MAX_LAYERS, num_tensors)
        why = "" if num_tensors is None else f", as there are {num_tensors} tensors"
        layers = max(layers, _checked(values, prefix + name, most, file=file, why=why))
    for name in _EXPERTS:
        most = min(MAX_EXPERTS, MAX_LAYER_EXPERTS // layers)
        why = f" in {layers} layers"
        experts = max(experts, _checked(values, prefix + name, most, file=file, why=why))


def _checked(values: Mapping[str, object], name: str, most: int, *, file: str, why: str) -> int:
    """A count; 1 for what is none, which whoever reads the field tells of."""
    value = values.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        return 1
    if value > most:
        raise ModelFormatError(
            f"is {quote(value)}; it must be at most {most}{why}.", file=file, field=name
        )
    return value
