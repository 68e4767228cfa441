"""How many cache pages fit: the memory that this process may still take, and a share of it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from cutaway.core.errors import ConfigError
from cutaway.core.layout import CacheSpec
from cutaway.core.limits import INT64_MAX
from cutaway.engine.config import EngineConfig
from cutaway.host.free_memory import free_memory

# Of what is free after the weights are loaded. The rest is for activations and for everybody else.
CPU_SHARE = 0.4
SNAPSHOTS = 64  # states of full pages that stay for prefix hits


def free_bytes(device: torch.device) -> int:
    """Bytes that could still be allocated on the device; on the CPU its control group counts."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    free = free_memory()
    return 4 * 2**30 if free is None else free


def cache_tokens(
    allowed: int,
    *,
    bytes_per_token: int,
    max_length: int,
    max_sequences: int,
    state_bytes: int = 0,
) -> int:
    """Tokens for which to make pages: what fits, and no more than could ever be used at once.

    allowed: bytes of the cache.   state_bytes: what layers with a state take of them.
    Raises: ConfigError when those alone do not fit.
    """
    if state_bytes > allowed:
        raise ConfigError(
            f"the states of {max_sequences} sequences and their snapshots take {state_bytes} "
            f"bytes; {allowed} are free for them. Lower max_sequences or max_tokens_per_step, or "
            "raise page_size."
        )
    affordable = (allowed - state_bytes) // max(1, bytes_per_token)
    return max(1, min(affordable, max_length * max_sequences))


def check_cache(tokens: int, bytes_per_token: int, *, free: int) -> None:
    """Refuse a cache that was asked for and is larger than what is free.

    Systems lend more memory than there is: whoever then writes to it is killed without a word.
    Raises: ConfigError naming both.
    """
    asked = tokens * bytes_per_token
    if asked > free:
        raise ConfigError(
            f"cache_tokens is {tokens}; a cache of so many takes {asked / 2**30:.1f} GiB, and "
            f"{free / 2**30:.1f} GiB are free. Ask for at most {free // bytes_per_token}, or leave "
            "it out for as many as fit."
        )


def share_of_memory(device: torch.device) -> int:
    """Bytes that the cache may take on a CPU, where no step is tried: a share of what is free."""
    return int(free_bytes(device) * CPU_SHARE)


def state_bytes(specs: Sequence[CacheSpec], config: EngineConfig) -> int:
    """What the pages of states take in all layers together, however many tokens there are."""
    return sum(
        pages_of(spec, INT64_MAX, config)
        * sum(field.num_bytes for field in spec.list_fields("float32"))
        for spec in specs
        if spec.is_state
    )


def pages_of(spec: CacheSpec, num_pages: int, config: EngineConfig) -> int:
    """Pages of one cache group, where num_pages would be made for one that keeps every token.

    A page of states takes as much as hundreds of tokens, and a sequence needs two: there are
    those, one for each page of the largest step, and some to remain as snapshots.
    """
    if not spec.is_state:
        return num_pages
    in_step = config.max_tokens_per_step // config.page_size
    return min(num_pages, 1 + 2 * config.max_sequences + in_step + SNAPSHOTS)
