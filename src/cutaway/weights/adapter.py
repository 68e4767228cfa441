"""Low-rank adapters of a model: put on, switched off, merged, and as a folder in peft's layout."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from cutaway.blocks.linear import Linear, LowRankPair
from cutaway.core.errors import ConfigError, ModelFormatError
from cutaway.core.limits import quote
from cutaway.core.weight_targets import PairedRows, Target
from cutaway.host.regular_file import read_regular
from cutaway.quantize.adapted import Adapted, adapt
from cutaway.quantize.dense import DenseWeight
from cutaway.weights.files.safetensors import SafetensorsWeights
from cutaway.weights.files.safetensors_writer import write_safetensors
from cutaway.weights.load import in_own_order, in_stored_order

MAX_CONFIG_BYTES = 1024 * 1024
MAX_ALPHA = 1_000_000
MOST_RANK = 4096  # what the native kernels keep of a token between both matrices
CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
_FRONT = "base_model.model."  # what peft puts before a module's own name
_SEGMENT, _KEPT = ".segments.", ".weight"
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
# Fields of the file that change what an adapter is, with the values of plain LoRA.
_PLAIN: Mapping[str, tuple[object, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none", None),
    "use_dora": (False, None),
    "lora_bias": (False, None),
    "modules_to_save": (None, []),
    "alpha_pattern": ({}, None),
    "alora_invocation_tokens": (None,),
    "use_qalora": (False, None),
    "layer_replication": (None,),
    "target_parameters": (None, []),
    "task_type": ("CAUSAL_LM", None),
}


@dataclass(frozen=True)
class AdaptableMatrix:
    """A matrix that can have an adapter.

    module: its name in the hub's layout, without ".weight".   path: of our segment.
    is_transposed: whether the hub's layout has the matrix the other way round.
    pairs: set where the hub's layout has the matrix's rows in another order.
    """

    module: str
    path: str
    is_transposed: bool
    pairs: PairedRows | None = None


def places(targets: Mapping[str, Target]) -> list[AdaptableMatrix]:
    """Every matrix of a linear map inside blocks, experts and routers left out.

    targets: of the architecture, in the hub's layout.
    """
    found: list[AdaptableMatrix] = []
    for name, target in targets.items():
        if _is_linear(name, target):
            path = target.parameter.removesuffix(_KEPT)
            module = name.removesuffix(_KEPT)
            found.append(AdaptableMatrix(module, path, target.is_transposed, target.pairs))
    return found


def _is_linear(name: str, target: Target) -> bool:
    is_matrix = len(target.shape) == 2 and not target.part and "router" not in target.parameter
    is_segment = target.parameter.startswith("blocks.") and _SEGMENT in target.parameter
    return is_matrix and is_segment and name.endswith(_KEPT)


def put_on(
    transformer: nn.Module,
    targets: Mapping[str, Target],
    *,
    rank: int,
    alpha: float | None = None,
    modules: tuple[str, ...] = (),
    seed: int = 0,
) -> list[Adapted]:
    """Give matrices a pair each that is trained; all else is trained no more.

    alpha: the pair's part is scaled by alpha / rank; None takes 2 * rank.
    modules: last words of their names in the hub's layout, as "q_proj"; none takes all.

    Raises: ConfigError when a module is not there, or there is an adapter already.
    """
    taken = [p for p in places(targets) if not modules or _word(p.module) in modules]
    absent = set(modules) - {_word(place.module) for place in taken}
    if absent or not taken:
        known = sorted({_word(place.module) for place in places(targets)})
        raise ConfigError(
            f"modules names {', '.join(sorted(absent)) or 'nothing'}; the model has linear maps "
            f"{', '.join(known)}."
        )
    transformer.requires_grad_(False)
    scaling = 2.0 * rank if alpha is None else alpha
    made: list[Adapted] = []
    for place in taken:
        base = transformer.get_submodule(place.path)
        if isinstance(base, Adapted):
            raise ConfigError(f"{place.module} has an adapter already; take it off first.")
        digest = hashlib.blake2b(f"{seed}:{place.module}".encode(), digest_size=8).digest()
        pair = adapt(base, rank=rank, alpha=scaling, seed=int.from_bytes(digest) >> 1)
        _replace(transformer, place.path, pair)
        made.append(pair)
    return made


def adapters(transformer: nn.Module) -> Iterator[tuple[str, Adapted]]:
    """Every adapted matrix with its path."""
    modules = cast("Iterator[tuple[str, nn.Module]]", transformer.named_modules())
    for name, module in modules:
        if isinstance(module, Adapted):
            yield name, module


@contextmanager
def switch_off(transformer: nn.Module) -> Generator[None]:
    """The model without its adapters for as long as the block runs: a reference at no cost."""
    before = [(pair, pair.is_on) for _, pair in adapters(transformer)]
    for pair, _ in before:
        pair.is_on = False
    try:
        yield
    finally:
        for pair, is_on in before:
            pair.is_on = is_on


def take_off(transformer: nn.Module) -> None:
    """Put every matrix back as it was: to the bit, since it was never changed."""
    for path, pair in list(adapters(transformer)):
        _replace(transformer, path, pair.base)


def merge(transformer: nn.Module) -> None:
    """Make each adapted matrix one with its pair. The sums are rounded; take_off() is exact.

    Raises: ConfigError for a matrix in fewer bits: rounding would lose the pair.
    """
    found = list(adapters(transformer))
    for path, pair in found:
        if not isinstance(pair.base, DenseWeight):
            raise ConfigError(
                f"{path} is kept in fewer bits; an adapter is merged into float weights alone. "
                "Serve it beside them."
            )
    for path, pair in found:
        with torch.no_grad():
            merged = DenseWeight.of(pair.dense().clone())
        _replace(transformer, path, merged.requires_grad_(False))


def write_adapter(
    folder: Path,
    transformer: nn.Module,
    targets: Mapping[str, Target],
    *,
    base_model: str = "",
    dtype: torch.dtype = torch.float32,
) -> None:
    """Write the adapters of a model as peft does, which it and other engines read.

    dtype: of the numbers in the file.

    Raises: OSError.
    """
    by_path = dict(adapters(transformer))
    tensors: dict[str, Tensor] = {}
    words: set[str] = set()
    pairs: list[Adapted] = []
    taken = [place for place in places(targets) if place.path in by_path]
    assert len(taken) == len(by_path), "every adapter sits where the hub's layout has a matrix"
    for place in taken:
        pair = by_path[place.path]
        front = f"{_FRONT}{place.module}"
        tensors[f"{front}.lora_A.weight"] = pair.adapter_down.detach().contiguous().cpu().to(dtype)
        up = pair.adapter_up.detach()
        up = up if place.pairs is None else in_stored_order(up, place.pairs)
        tensors[f"{front}.lora_B.weight"] = up.contiguous().cpu().to(dtype)
        words.add(_word(place.module))
        pairs.append(pair)
    rank, scale = pairs[0].rank, pairs[0].scale
    assert all((p.rank, p.scale) == (rank, scale) for p in pairs), "one rank and scale"
    config = _config(rank, scale * rank, words, taken[0].is_transposed, base_model)
    write_safetensors(folder / TENSORS, tensors)
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _config(
    rank: int, alpha: float, words: set[str], is_transposed: bool, base_model: str
) -> dict[str, object]:
    return {
        "alpha_pattern": {},
        "auto_mapping": None,
        "base_model_name_or_path": base_model or None,
        "bias": "none",
        "fan_in_fan_out": is_transposed,
        "inference_mode": True,
        "init_lora_weights": True,
        "layer_replication": None,
        "layers_pattern": None,
        "layers_to_transform": None,
        "lora_alpha": int(alpha) if alpha == int(alpha) else alpha,
        "lora_dropout": 0.0,
        "modules_to_save": None,
        "peft_type": "LORA",
        "r": rank,
        "rank_pattern": {},
        "revision": None,
        "target_modules": sorted(words),
        "task_type": "CAUSAL_LM",
        "use_dora": False,
        "use_rslora": False,
    }


def read_adapter(folder: Path, transformer: nn.Module, targets: Mapping[str, Target]) -> None:
    """Put a folder's adapters on a model; they may be trained further.

    Raises: ModelFormatError naming file and field: a kind that is not plain LoRA, a matrix that
    the model lacks, or one of another shape.
    """
    found = list(_read(folder, transformer, targets))
    transformer.requires_grad_(False)
    device = next(transformer.parameters()).device
    for place, down, up, scale in found:
        base = transformer.get_submodule(place.path)
        wide = (each.to(device, torch.float32) for each in (down, up))
        _replace(transformer, place.path, Adapted(base, *wide, scale=scale))


def read_pairs(
    folder: Path, transformer: nn.Module, targets: Mapping[str, Target]
) -> dict[str, dict[int, LowRankPair]]:
    """A folder's pairs by linear map and segment, to serve beside weights that stay as they are.

    Numbers keep their type where the scale is a power of two; else they become float32.
    Raises: as read_adapter.
    """
    pairs: dict[str, dict[int, LowRankPair]] = {}
    # Packed weights are no parameters, and norms may have none: then it is a CPU's native kernels.
    first = next(transformer.parameters(), None)
    device = torch.device("cpu") if first is None else first.device
    for place, down, up, scale in _read(folder, transformer, targets):
        is_exact = math.frexp(scale)[0] == 0.5 and down.dtype == up.dtype
        dtype = down.dtype if is_exact and down.dtype in _FLOATS else torch.float32
        pair = LowRankPair(down.to(device, dtype), (up.to(dtype) * scale).to(device))
        if not (pair.down.isfinite().all() and pair.up.isfinite().all()):
            raise ModelFormatError(
                f"has entries that are no numbers, or too large for its scale {scale}.",
                file=str(folder / TENSORS),
                field=place.module,
            )
        module, _, segment = place.path.partition(_SEGMENT)
        pairs.setdefault(module, {})[int(segment)] = pair
    return pairs


def _read(
    folder: Path, transformer: nn.Module, targets: Mapping[str, Target]
) -> Iterator[tuple[AdaptableMatrix, Tensor, Tensor, float]]:
    """Places of a folder's pairs, down, up and scale, all checked against the model."""
    config = _read_config(folder / CONFIG)
    stored = SafetensorsWeights(folder, single=TENSORS)
    alpha, is_rooted = float(config["lora_alpha"]), config.get("use_rslora") is True
    by_module = {place.module: place for place in places(targets)}
    pairs = _pairs(stored, by_module, file=str(folder / TENSORS), base=_base_of(config))
    for module, (down, up) in pairs.items():
        place = by_module[module]
        linear, _, segment = place.path.partition(_SEGMENT)
        map_ = cast(Linear, transformer.get_submodule(linear))
        rows, columns = map_.rows[int(segment)], map_.in_features
        rank = len(down) if down.dim() == 2 else 0
        if (tuple(up.shape), tuple(down.shape)) != ((rows, rank), (rank, columns)):
            raise ModelFormatError(
                f"has pairs of shapes {tuple(up.shape)} and {tuple(down.shape)}; the model's "
                f"matrix has {(rows, columns)}, so they must be {rows} by a rank and that by "
                f"{columns}.{_base_of(config)}",
                file=str(folder / TENSORS),
                field=module,
            )
        if not 1 <= rank <= MOST_RANK:
            raise ModelFormatError(
                f"has rank {rank}; it must be from 1 to {MOST_RANK}.",
                file=str(folder / TENSORS),
                field=module,
            )
        up = up if place.pairs is None else in_own_order(up, place.pairs)
        yield place, down, up, alpha / (math.sqrt(rank) if is_rooted else rank)


def _base_of(config: Mapping[str, Any]) -> str:
    base = config.get("base_model_name_or_path")
    return f" The adapter says that it belongs to {quote(base)}." if base else ""


def _read_config(path: Path) -> Mapping[str, Any]:
    try:
        config: object = json.loads(read_regular(path, most=MAX_CONFIG_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else quote(str(error))
        raise ModelFormatError(f"cannot be read: {reason}.", file=str(path), field="file") from None
    if not isinstance(config, dict):
        raise ModelFormatError("must be a JSON object.", file=str(path), field="file")
    values = cast("dict[str, Any]", config)
    for field, allowed in _PLAIN.items():
        if values.get(field) not in allowed:
            raise ModelFormatError(
                f"is {quote(values.get(field))}; only plain LoRA is read, with "
                f"{quote(allowed[0])}.",
                file=str(path),
                field=field,
            )
    alpha = values.get("lora_alpha")
    if (
        not isinstance(alpha, int | float)
        or isinstance(alpha, bool)
        or not abs(alpha) <= MAX_ALPHA  # nor NaN
    ):
        raise ModelFormatError(
            f"is {quote(alpha)}; it must be a number of at most {MAX_ALPHA}.",
            file=str(path),
            field="lora_alpha",
        )
    return values


def _pairs(
    stored: SafetensorsWeights, known: Mapping[str, AdaptableMatrix], *, file: str, base: str
) -> dict[str, tuple[Tensor, Tensor]]:
    modules: dict[str, dict[str, str]] = {}
    for name in stored.names():
        module, _, part = name.removeprefix(_FRONT).rpartition(".lora_")
        if module not in known or part not in ("A.weight", "B.weight"):
            raise ModelFormatError(
                f"is for no linear map of this model's blocks.{base}", file=file, field=name
            )
        modules.setdefault(module, {})[part[0]] = name
    if not modules:
        raise ModelFormatError("has no pair.", file=file, field="file")
    pairs: dict[str, tuple[Tensor, Tensor]] = {}
    for module, parts in modules.items():
        if len(parts) < 2:
            raise ModelFormatError("has one half of a pair alone.", file=file, field=module)
        pairs[module] = (stored.tensor(parts["A"]), stored.tensor(parts["B"]))
    return pairs


def _replace(transformer: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    transformer.get_submodule(parent).__setattr__(name, module)


def _word(module: str) -> str:
    return module.rpartition(".")[2]
