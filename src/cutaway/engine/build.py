"""From a model's name to a running engine: the only place where all parts meet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import torch

from cutaway.cache.disk import open_folder, page_secret_of
from cutaway.core.errors import ConfigError, UnsupportedModelError
from cutaway.core.limits import quote
from cutaway.core.rank_shares import layer_parts
from cutaway.core.weight_targets import KeptRows
from cutaway.core.work import cache_bytes_per_token
from cutaway.engine import memory
from cutaway.engine.adapters import Adapters, parse
from cutaway.engine.config import EngineConfig
from cutaway.engine.drafters.draft_models import drafting_of
from cutaway.engine.engine import Engine
from cutaway.engine.loading.loaded_model import LoadedModel
from cutaway.engine.loading.template_of import folder_template, gguf_template
from cutaway.engine.loading.text_side import Opening
from cutaway.engine.loading.unloaded_model import OpenedModel, folder_of, open_gguf, open_hf
from cutaway.engine.pages.page_stores import stores_of
from cutaway.engine.pages.pins import parse_pins, tokens_of_system
from cutaway.engine.profiling import profile, rehearse
from cutaway.engine.ranks.start_ranks import check_memory, start
from cutaway.host.free_memory import free_memory
from cutaway.kernels import capture, hardware
from cutaway.parallel.rank_grid import RankGrid
from cutaway.quantize.schemes import Scheme, scheme_of
from cutaway.weights.files.safetensors import SafetensorsWeights
from cutaway.weights.find.find import Found, find
from cutaway.weights.load import check_weights, load_weights
from cutaway.weights.mxfp4_checkpoint import Mxfp4Weights
from cutaway.weights.pack import keep_weights, pack_weights
from cutaway.weights.quantized import QuantizedWeights
from cutaway.weights.rounded import RoundedWeights

LOAD_SECONDS = 1800.0  # for the slowest rank, after this one has loaded


def build_engine(
    model: str | Opening,
    config: EngineConfig,
    *,
    page_secret: bytes | None = None,
    num_sharing: int = 1,
) -> Engine:
    """Find, load and make ready. Fetches a named model that is not here yet.

    model: its name, or the model itself where it was found before torch was there.
    page_secret: as for Engine.   num_sharing: engines that this machine's memory is for.

    Raises: ModelError and its kinds for what is wrong with the model, ConfigError for settings.
    """
    at_hand = find(model) if isinstance(model, str) else model
    loaded = load_model(at_hand, config) if config.num_ranks == 1 else _lead(at_hand, config)
    draft = None if config.draft_model is None else load_draft_model(config.draft_model, config)
    if loaded.ranks is not None:  # before pages are counted: what is left then is theirs
        rehearse(loaded, config)
    pages = num_pages(loaded, config, beside=draft, num_sharing=num_sharing)
    drafting = None
    if all(spec.can_roll_back for spec in loaded.transformer.cache_specs):
        drafting = drafting_of(config, loaded, num_pages=pages, draft_model=draft)
    secret = None if config.disk_cache is None else open_folder(Path(config.disk_cache))
    if secret is not None:
        page_secret = page_secret or page_secret_of(secret)
    engine = Engine(
        loaded,
        config,
        num_pages=pages,
        drafting=drafting,
        page_secret=page_secret,
        pinned=[(name, tokens_of_system(loaded, text)) for name, text in parse_pins(config.pin)],
    )
    if config.keeps_pages:
        found = at_hand if isinstance(at_hand, Found) else at_hand.found
        engine.attach(stores_of(engine, found, secret))
    while engine.has_work:  # what is pinned, before the first request comes
        engine.step()
    return engine


def _lead(model: Found | Opening, config: EngineConfig) -> LoadedModel:
    """Rank 0's part of a model, and the others that have theirs."""
    devices = devices_of(device_of(config.device), config.num_ranks)
    found = model if isinstance(model, Found) else model.found
    if config.rank_listen is not None:
        if devices[0].type != "cpu":
            raise ConfigError(
                f"rank_listen is {quote(config.rank_listen)} and device is {devices[0]}; ranks of "
                "several hosts compute on CPUs so far. Set device to cpu."
            )
    elif devices[0].type == "cpu":
        check_memory(found.path, config.num_ranks, free=free_memory())
    config = replace(config, device=str(devices[0]))
    name = f"random:{found.path}" if found.kind == "random" else str(found.path)
    starting = start(name, config, devices=devices)
    try:
        loaded = load_model(model, config, grid=starting.grid)
    except BaseException:
        starting.started.end()
        raise
    return replace(loaded, ranks=starting.wait_loaded(LOAD_SECONDS))


def load_draft_model(name: str, config: EngineConfig) -> LoadedModel:
    """The model that guesses, as it lies in its files: overrides and rounding are the target's."""
    return load_model(find(name), replace(config, override=(), quant="off", tensor=1, pipeline=1))


def load_model(
    model: Found | Opening, config: EngineConfig, *, grid: RankGrid | None = None
) -> LoadedModel:
    """Weights on the device, tokenizer and template of a found model.

    grid: of the ranks among which it is divided; its own part is loaded.
    """
    device = device_of(config.device)
    precision = precision_of(config.dtype, device, kv_dtype=config.kv_dtype)
    if config.quant != "off":
        precision = replace(precision, scheme=scheme_of(config.quant))
    if precision.is_packed:
        sharing = 1 if grid is None or grid.rank else grid.size  # followers have theirs
        capture.set_num_threads(max(1, hardware.chosen_threads() // sharing))
    found = model if isinstance(model, Found) else model.found
    if found.kind == "gguf" and config.override:
        raise ConfigError(
            f"override is {quote(config.override[0])}, but {found.name} is a GGUF file and has no "
            "config.json. Use a folder, or random:PATH/config.json."
        )
    # Packing weights leaves Python free: the tokenizer is made meanwhile, if not before.
    opening = Opening(model) if isinstance(model, Found) else model
    if found.kind == "gguf":
        loaded = _load_gguf(opening, precision, device, grid)
    else:
        loaded = _load_hf(opening, precision, device, grid, overrides=config.override)
    for name, path in parse(config.lora):
        loaded.adapters.load(name, path)
    return loaded


def device_of(name: str) -> torch.device:
    """The device of a setting. Raises: ConfigError when this machine does not have it."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(
            f"device is {quote(name)}; it must be auto, cpu, cuda or cuda:N."
        ) from None
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device is {quote(name)}; it must be auto, cpu, cuda or cuda:N.")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device is {quote(name)}, but torch sees no GPU here. Use device cpu.")
    return device


def devices_of(first: torch.device, size: int) -> list[torch.device]:
    """A device for each rank: the GPU of the first and those after it, or the CPU for all.

    Raises: ConfigError where there are fewer.
    """
    if first.type == "cpu":
        return [first] * size
    start, count = first.index or 0, torch.cuda.device_count()
    if start + size > count:
        raise ConfigError(
            f"{size} ranks take a GPU each, from {first} on, and this machine has {count}. Start "
            "with fewer ranks, or set device to cpu."
        )
    return [torch.device("cuda", start + rank) for rank in range(size)]


@dataclass(frozen=True)
class Precision:
    """In what a mode keeps weights, activations, keys and values."""

    activations: torch.dtype
    cache: torch.dtype
    is_packed: bool = False  # weights stay packed and native kernels compute
    keeps_quantized: bool = False  # quantized checkpoints stay so, and torch unpacks as it goes
    scheme: Scheme | None = None  # to which weights are rounded at load


def precision_of(mode: str, device: torch.device, *, kv_dtype: str = "auto") -> Precision:
    """What a mode means on a device, with another dtype for the cache if one is named."""
    precision = _precision_of_mode(mode, device)
    if kv_dtype == "auto":
        return precision
    return replace(precision, cache=cast(torch.dtype, getattr(torch, kv_dtype)))


def _precision_of_mode(mode: str, device: torch.device) -> Precision:
    """auto is the fastest that is here.

    On a CPU with the native kernels: weights as packed as the file has them, activations rounded
    to 8 bits per group of 32 before each product, keys and values in float16. Without them
    float32, since a CPU without bfloat16 units emulates it.
    """
    if mode != "auto":
        dtype = cast(torch.dtype, getattr(torch, mode))
        return Precision(dtype, dtype)
    if device.type == "cuda":
        return Precision(torch.bfloat16, torch.bfloat16, keeps_quantized=True)
    if capture.is_available():
        return Precision(torch.float32, torch.float16, is_packed=True)
    return Precision(torch.float32, torch.float32, keeps_quantized=True)


def num_pages(
    model: LoadedModel,
    config: EngineConfig,
    *,
    beside: LoadedModel | None = None,
    num_sharing: int = 1,
) -> int:
    """Pages of the cache, the scratch page included.

    beside: a draft model, whose cache has as many.   num_sharing: as for build_engine.
    Raises: ConfigError where more are asked for than there is memory, or none fits.
    """
    config, tokens = config.on(model.device.type), config.cache_tokens
    # Layers are in one rank each, and each has as much as this one, which has no less than others.
    rows = None if model.ranks is None else model.ranks.grid.rows
    specs = model.facts.cache_specs if rows is None else model.transformer.cache_specs
    mine = replace(model, facts=replace(model.facts, cache_specs=specs))
    own = _bytes_per_token(mine, early=config.draft_layers or 0)
    own += 0 if beside is None else _bytes_per_token(beside)
    is_gpu = model.device.type == "cuda"
    # Whose pages are made out of one memory: ranks with a GPU or a host each have their own.
    num_ranks = 1 if rows is None or is_gpu or config.rank_listen is not None else rows.size
    if tokens is not None:
        memory.check_cache(tokens, own * num_ranks, free=memory.free_bytes(model.device))
    else:
        free = profile(model, config).cache if is_gpu else memory.share_of_memory(model.device)
        tokens = memory.cache_tokens(
            free // (num_sharing * num_ranks),
            bytes_per_token=own,
            max_length=model.facts.max_length,
            max_sequences=config.max_sequences,
            state_bytes=memory.state_bytes(specs, config),
        )
    return 1 + max(1, tokens // config.page_size)


def _bytes_per_token(model: LoadedModel, *, early: int = 0) -> int:
    """Of the model's cache, and of that of its early layers where some guess."""
    dtype = str(model.cache_dtype).removeprefix("torch.")
    own = cache_bytes_per_token(model.facts, dtype)
    return own + own * early // model.facts.num_layers


def _load_gguf(
    opening: Opening, precision: Precision, device: torch.device, grid: RankGrid | None
) -> LoadedModel:
    file = opening.file()
    return _loaded(
        opening,
        open_gguf(file),
        template=gguf_template(file),
        licence=opening.found.licence or file.text("general.license", "") or "not stated",
        precision=precision,
        device=device,
        grid=grid,
    )


def _load_hf(
    opening: Opening,
    precision: Precision,
    device: torch.device,
    grid: RankGrid | None,
    *,
    overrides: Sequence[str],
) -> LoadedModel:
    found = opening.found
    return _loaded(
        opening,
        open_hf(found, overrides=overrides),
        template=folder_template(folder_of(found)),
        licence=found.licence or "not stated",
        precision=precision,
        device=device,
        grid=grid,
    )


def _loaded(
    opening: Opening,
    opened: OpenedModel,
    *,
    template: str | None,
    licence: str,
    precision: Precision,
    device: torch.device,
    grid: RankGrid | None,
) -> LoadedModel:
    found = opening.found
    architecture, source, layout = opened.architecture, opened.source, opened.layout
    with torch.device("meta"):
        transformer = architecture.build()
        kept: Mapping[str, KeptRows] = {}
        elsewhere: frozenset[str] = frozenset()
        if grid is not None and grid.rows is not None:
            kept = transformer.divide(grid.rows)
        if grid is not None and grid.layers is not None:
            parts = layer_parts(architecture.shape, grid.layers.size)
            width, dtype = architecture.facts.width, precision.activations
            elsewhere = transformer.keep_layers(grid.layers, parts, width=width, dtype=dtype)
    transformer.requires_grad_(False)
    targets, optional = architecture.targets(layout), architecture.optional(layout)
    spared = frozenset(name for name, t in targets.items() if t.parameter in elsewhere)
    targets = {n: t.narrow(kept.get(t.parameter)) for n, t in targets.items() if n not in spared}
    optional |= spared
    if isinstance(source, QuantizedWeights):
        optional |= source.spare
    if isinstance(source, QuantizedWeights | Mxfp4Weights):
        if precision.scheme is not None:
            raise ConfigError(
                f"quant is set, but {found.name} is quantized already. Leave quant out, or take "
                "the model without quantization."
            )
    check_weights(source, targets, optional=optional)
    if precision.scheme is not None:
        source = RoundedWeights(source, targets, precision.scheme)
    if isinstance(source, SafetensorsWeights):
        source.send_to(device)
    if precision.is_packed or precision.keeps_quantized:
        if precision.is_packed:
            placed = pack_weights(transformer, source, targets)
        else:
            placed = keep_weights(transformer, source, targets, device=device)
        if isinstance(source, Mxfp4Weights) and not precision.is_packed:
            placed |= source.keep_stacks(transformer, targets, device=device)
        targets = {name: target for name, target in targets.items() if name not in placed}
        optional |= placed
    load_weights(
        transformer, source, targets, dtype=precision.activations, device=device, optional=optional
    )
    if not precision.is_packed:
        transformer.join_segments()
    tokenizer, facts = opening.tokenizer(), architecture.facts
    rows = tokenizer.vocab_size
    # Gemma 3's tokenizer has one more control token, for images, than its text models have rows.
    while rows > facts.vocab_size and rows - 1 in tokenizer.control_ids:
        rows -= 1
    if rows > facts.vocab_size:
        raise UnsupportedModelError(
            f"{found.name}: the tokenizer has ids up to {rows - 1} and the model "
            f"{facts.vocab_size} rows. They do not belong together."
        )
    ends = tokenizer.eos_token_ids | set(architecture.end_token_ids)
    return LoadedModel(
        name=found.name,
        licence=licence,
        facts=facts,
        transformer=transformer.eval(),
        tokenizer=tokenizer,
        template_source=template,
        end_token_ids=frozenset(ends),
        sampling=found.sampling,
        dtype=precision.activations,
        cache_dtype=precision.cache,
        device=device,
        adapters=Adapters(transformer, architecture.targets("hf")),
    )
