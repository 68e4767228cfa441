"""What an engine needs of a host's memory, so that Ray keeps it: from its shape, as estimated."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from cutaway.cli.session.shape_at import shape_at
from cutaway.cli.settings.integer_text import parse_integer
from cutaway.core import estimate as arithmetic
from cutaway.core.weight_types import weights_in

if TYPE_CHECKING:
    from cutaway.server.clusters.cluster_config import ClusterConfig

PROGRAM_BYTES: Final = 2**30  # Python, torch and two processes; 0.6 GB were seen of a tiny model
LEAST_TOKENS: Final = 32_768  # of a cache whose size nobody says


def with_memory(config: ClusterConfig) -> ClusterConfig:
    """A cluster whose engines say what memory they take; what is said already stays.

    A cache that takes what is free would take what Ray gives to others: it gets a size too.
    Raises: ModelNotFoundError where the model is not on this machine to be measured.
    """
    if config.memory is not None:
        return config
    shape, stored, longest = shape_at(config.model)
    said = config.settings.get("cache_tokens")
    tokens = parse_integer(said) if isinstance(said, str) else said
    if not isinstance(tokens, int):
        tokens = max(longest, LEAST_TOKENS)
    weights = stored or weights_in(shape, "float32")
    made = arithmetic.estimate(shape, weights, context=tokens, batch=1, kv_dtype="float16")
    # Weights are there twice for a moment, as they are read and as they are packed.
    memory = PROGRAM_BYTES + 2 * made.weight_bytes + made.kv_bytes_in_pages + made.state_bytes
    return replace(config, memory=memory, settings={**config.settings, "cache_tokens": tokens})
