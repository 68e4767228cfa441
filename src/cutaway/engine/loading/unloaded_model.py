"""A model's configuration, understood, and its tensors before any is read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from cutaway.core.errors import ModelFormatError
from cutaway.host.gguf_file import GgufFile
from cutaway.models.parts.architecture import Architecture, FitsNames, Layout
from cutaway.models.parts.nested import TEXT_PARTS, text_name
from cutaway.models.parts.reading import read_config, read_gguf, word_of
from cutaway.quantize import checkpoint_reader
from cutaway.weights.absorbed import AbsorbedWeights, is_absorbed
from cutaway.weights.files.safetensors import SafetensorsWeights
from cutaway.weights.find.find import Found
from cutaway.weights.mxfp4_checkpoint import Mxfp4Weights
from cutaway.weights.quantized import QuantizedWeights
from cutaway.weights.random import RandomWeights
from cutaway.weights.source import GgufWeights, WeightSource


@dataclass(frozen=True)
class OpenedModel:
    """What a model is made of.

    layout: whose names its tensors have. is_part: whether this is the text part of more.
    """

    architecture: Architecture
    source: WeightSource
    layout: Layout
    is_part: bool = False


def open_gguf(file: GgufFile) -> OpenedModel:
    """A GGUF file's architecture and tensors. Raises: UnsupportedModelError, ModelFormatError."""
    architecture = read_gguf(file)
    source: WeightSource = GgufWeights(file)
    if is_absorbed(file.tensors):
        source = AbsorbedWeights(GgufWeights(file))
    return OpenedModel(architecture, source, "gguf")


def open_hf(found: Found, *, overrides: Sequence[str] = ()) -> OpenedModel:
    """A folder, or random weights of a config.json; of a model that also sees its text part.

    Raises: UnsupportedModelError, ModelFormatError, ConfigError for overrides.
    """
    is_random = found.kind == "random"
    folder = folder_of(found)
    config = found.path if is_random else folder / "config.json"
    values = _read_json(config)
    if is_random:
        architecture, _, is_part, _ = read_config(values, file=str(config), overrides=overrides)
        return OpenedModel(architecture, _random(architecture), "hf", is_part)
    is_part = word_of(values, file=str(config)) in TEXT_PARTS
    stored = SafetensorsWeights(folder, named=text_name if is_part else str)
    architecture, own, _, _ = read_config(
        values, file=str(config), overrides=overrides, num_tensors=len(stored.names())
    )
    settings = values.get("quantization_config", own.get("quantization_config"))
    source = as_kept(stored, settings, str(config))
    if isinstance(architecture, FitsNames):
        architecture = architecture.fitting(source.names())
    return OpenedModel(architecture, source, "hf", is_part)


def folder_of(found: Found) -> Path:
    """Where the small files of a model that is no GGUF file lie."""
    return found.path.parent if found.kind == "random" else found.path


def as_kept(stored: SafetensorsWeights, settings: object, file: str) -> WeightSource:
    """The folder's tensors, those of quantized matrices put together. settings: of the config."""
    if settings is None:
        return stored
    if not isinstance(settings, dict):
        raise ModelFormatError("must be an object.", file=file, field="quantization_config")
    settings = cast("dict[str, object]", settings)
    if settings.get("quant_method") == "mxfp4":
        return Mxfp4Weights(stored)
    checkpoint = checkpoint_reader(settings, file=file)
    return QuantizedWeights(stored, checkpoint)


def _random(architecture: Architecture) -> RandomWeights:
    needed = architecture.targets("hf").items()
    spare = architecture.optional("hf")
    return RandomWeights({name: target for name, target in needed if name not in spare})


def _read_json(path: Path) -> Mapping[str, object]:
    try:
        values = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ModelFormatError(f"is not JSON: {error}.", file=str(path), field="file") from None
    if not isinstance(values, dict):
        raise ModelFormatError("must be a JSON object.", file=str(path), field="file")
    return cast("dict[str, object]", values)
