"""What the largest step of a model takes beside weights and pages: it is run, and seen.

On a GPU the cache may then have everything else, and kernels are compiled on the way, which they
need anyway. A divided model runs it in every rank, and one that has no room is named.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

import torch

from cutaway.core.errors import ConfigError
from cutaway.core.request import Request, SamplingParams
from cutaway.engine.breaks import EngineLostError
from cutaway.engine.captured.graphs import buckets_up_to, most_drafted_tokens
from cutaway.engine.captured.mixed_graphs import mixed_shapes
from cutaway.engine.config import EngineConfig
from cutaway.engine.engine import Engine
from cutaway.engine.loading.loaded_model import LoadedModel
from cutaway.host.faults import is_out_of_memory

# Of the whole card: what libraries take when graphs are captured, and what lies between tensors.
_SPARE = 0.04


@dataclass(frozen=True)
class DeviceMemory:
    """Where a card's memory goes. Units: bytes.

    in_use: weights, and whatever else was there before.   step: beside them, of the largest step.
    graphs: results of captured steps, and what the widest of them computes with.
    """

    total: int
    in_use: int
    step: int
    graphs: int
    spare: int

    @property
    def cache(self) -> int:
        """What is left for pages."""
        return self.total - self.in_use - self.step - self.graphs - self.spare

    def __str__(self) -> str:
        gib = {name: f"{getattr(self, name) / 2**30:.2f}" for name in (*_NAMES, "cache")}
        return (
            f"GPU memory, GiB: {gib['total']} in all, less {gib['in_use']} in use (weights), "
            f"{gib['step']} for the largest step, {gib['graphs']} for graphs and {gib['spare']} "
            f"spare: {gib['cache']} for the cache"
        )


_NAMES = ("total", "in_use", "step", "graphs", "spare")


def profile(model: LoadedModel, config: EngineConfig) -> DeviceMemory:
    """Run the largest step that the configuration allows, and tell where memory goes.

    Raises: ConfigError where not even that step fits.
    """
    config = config.on(model.device.type)
    free, total = _mem(model.device)
    try:
        step = _step_bytes(model, config)
    except Exception as fault:
        if not is_out_of_memory(fault):
            raise
        raise _too_large(config, free) from None
    found = DeviceMemory(
        total=total,
        in_use=total - free,
        step=step,
        graphs=_graph_bytes(model, config, step),
        spare=int(total * _SPARE),
    )
    if found.cache <= 0:
        raise _too_large(config, free)
    print(found, file=sys.stderr, flush=True)
    return found


def rehearse(model: LoadedModel, config: EngineConfig) -> None:
    """Run the largest step in every rank of a divided model, before any request comes.

    Raises: ConfigError naming a rank that has no memory for it.
    """
    engine = _with_largest_step(model, config.on(model.device.type))
    try:
        while engine.has_work:
            engine.step()
    except EngineLostError as fault:
        raise ConfigError(
            f"{fault}. The largest step was tried: lower max_tokens_per_step or prefill_chunk, or "
            "start with tensor 1."
        ) from fault


def _with_largest_step(model: LoadedModel, config: EngineConfig) -> Engine:
    """An engine that has as many prompt tokens to read as one step may have."""
    length = max(1, min(config.prefill_chunk, model.facts.max_length - 1))
    count = max(1, min(config.max_sequences, config.max_tokens_per_step // length))
    pages = 2 + count * (-(-(length + 1) // config.page_size) + 1)
    small = replace(config, graphs=False, ledger_bytes=0, prefix_cache=False, draft="off")
    engine = Engine(model, small, num_pages=pages)
    # With a penalty top_p goes through torch, whose sorts need the most.
    params = SamplingParams(
        temperature=1.0, top_p=0.9, presence_penalty=0.1, max_tokens=1, ignore_eos=True
    )
    for number in range(count):
        prompt = (number % model.facts.vocab_size,) * length
        engine.add(Request(request_id=f"profile-{number}", prompt_token_ids=prompt, params=params))
    return engine


def _step_bytes(model: LoadedModel, config: EngineConfig) -> int:
    """The most that a step with so many tokens, and then its draws, held beside what stays."""
    engine = _with_largest_step(model, config)
    torch.cuda.synchronize(model.device)
    torch.cuda.reset_peak_memory_stats(model.device)
    before = torch.cuda.memory_allocated(model.device)
    while engine.has_work:
        engine.step()
    torch.cuda.synchronize(model.device)
    most = torch.cuda.max_memory_allocated(model.device) - before
    rows = min(config.max_sequences, config.max_tokens_per_step) * model.facts.vocab_size
    del engine
    torch.cuda.empty_cache()
    return most + 4 * rows * torch.float32.itemsize  # a full step's logits, as sorts hold them


def _graph_bytes(model: LoadedModel, config: EngineConfig, step: int) -> int:
    if not config.graphs or not model.transformer.can_capture:
        return 0
    buckets = buckets_up_to(config.max_sequences)
    # Steps with guesses leave theirs in one place, and so do those with prompts.
    drafted = 0 if config.draft == "off" else most_drafted_tokens(config.max_sequences)
    most = config.max_tokens_per_step
    mixed = mixed_shapes(config.max_sequences, most, longest=most)
    rows = sum(buckets) + drafted + max((shape.rows for shape in mixed), default=0)
    logits = rows * model.facts.vocab_size * model.dtype.itemsize
    tokens = max(buckets[-1], drafted, *map(sum, mixed))
    return logits + step * tokens // most


def _mem(device: torch.device) -> tuple[int, int]:
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(device)


def _too_large(config: EngineConfig, free: int) -> ConfigError:
    return ConfigError(
        f"max_tokens_per_step is {config.max_tokens_per_step} and max_sequences "
        f"{config.max_sequences}; such a step does not fit in the {free / 2**30:.1f} GiB that the "
        "weights leave on the GPU. Lower them, or set cache_tokens."
    )
