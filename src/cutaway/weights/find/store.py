"""What `cutaway models` shows and does: the named models, a model's facts, checking, removing.

Plain functions over plain data: nothing is printed here and nothing asks the network.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from cutaway.core.errors import ModelError, ModelFormatError, ModelNotFoundError
from cutaway.core.limits import quote
from cutaway.host import gguf_file
from cutaway.weights.files.safetensors_header import json_object
from cutaway.weights.files.safetensors_index import folder_tensors
from cutaway.weights.find import checked, package
from cutaway.weights.find.find import Found
from cutaway.weights.find.folder import CONFIG
from cutaway.weights.find.named_models import NAMED, NamedModel


@dataclass(frozen=True, kw_only=True)
class StoredModel:
    """One named model, and whether the cache has it. num_bytes: of its file."""

    name: str
    is_cached: bool
    path: Path
    num_bytes: int
    licence: str
    source: str


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """What can be said of a model without reading its weights.

    num_bytes: of all its tensors. types: numbers stored in each type, the largest share first.
    Random weights take no bytes and have no types.
    """

    name: str
    path: Path
    architecture: str
    licence: str | None
    source: str | None
    num_bytes: int
    types: Mapping[str, int]
    sampling: Mapping[str, float]

    @property
    def num_parameters(self) -> int:
        """Numbers stored in all tensors."""
        return sum(self.types.values())


@dataclass(frozen=True, kw_only=True)
class Verification:
    """A cached file's checksum beside the one that it must have."""

    name: str
    path: Path
    sha256: str
    expected_sha256: str

    @property
    def is_intact(self) -> bool:
        """Whether the file is what was published."""
        return self.sha256 == self.expected_sha256


def list_models() -> tuple[StoredModel, ...]:
    """Every named model, cached or not."""
    return tuple(
        StoredModel(
            name=model.name,
            is_cached=package.is_cached(model),
            path=package.cached_path(model),
            num_bytes=model.num_bytes,
            licence=model.licence,
            source=model.source,
        )
        for model in NAMED.values()
    )


def describe(found: Found) -> ModelInfo:
    """Facts of a model that is at hand, from its headers.

    Raises: ModelFormatError, UnsupportedModelError, ModelNotFoundError.
    """
    return _describe_gguf(found) if found.kind == "gguf" else _describe_folder(found)


def verify(name: str) -> Verification:
    """Compare a cached model's checksum with the published one, by reading the whole file.

    Raises: ModelNotFoundError when the name is unknown or the cache lacks it, DownloadError when
    the file cannot be read.
    """
    model = _cached(name)
    path = package.cached_path(model)
    digest = checked.compare(path, model.sha256)
    return Verification(name=name, path=path, sha256=digest, expected_sha256=model.sha256)


def remove(name: str) -> int:
    """Delete a cached model and return how many bytes that freed.

    Raises: ModelNotFoundError when the name is unknown or the cache lacks it, ModelError when the
    folder may not be changed.
    """
    model = _cached(name)
    folder = package.cached_path(model).parent
    try:
        with package.lock(model):
            freed = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
            shutil.rmtree(folder)
            checked.record_of(package.cached_path(model)).unlink(missing_ok=True)
    except OSError as error:
        raise ModelError(f"{folder} cannot be removed: {error.strerror}.") from error
    return freed


def _cached(name: str) -> NamedModel:
    model = NAMED.get(name)
    if model is None:
        raise ModelNotFoundError(
            f"{quote(name)} is no name of the model cache; known are {', '.join(NAMED)}."
        )
    if not package.cached_path(model).is_file():
        raise ModelNotFoundError(
            f"{name} is not in the model cache ({package.cache_folder()}); "
            f"fetch it with `cutaway models pull {name}`."
        )
    return model


def _describe_gguf(found: Found) -> ModelInfo:
    file = gguf_file.read(found.path)
    named = NAMED.get(found.name)
    published = file.metadata.get("general.source.url")
    licence = file.metadata.get("general.license")
    tensors = file.tensors.values()
    return ModelInfo(
        name=found.name,
        path=found.path,
        architecture=file.text("general.architecture"),
        licence=found.licence or (licence if isinstance(licence, str) else None),
        source=named.source if named else published if isinstance(published, str) else None,
        num_bytes=sum(tensor.num_bytes for tensor in tensors),
        types=_shares((tensor.type, tensor.shape) for tensor in tensors),
        sampling=found.sampling,
    )


def _describe_folder(found: Found) -> ModelInfo:
    config = found.path if found.kind == "random" else found.path / CONFIG
    try:
        architecture = _architecture(config)
        tensors = [] if found.kind == "random" else list(folder_tensors(found.path).values())
    except OSError as error:
        raise ModelNotFoundError(f"{error.filename} cannot be read: {error.strerror}.") from error
    return ModelInfo(
        name=found.name,
        path=found.path,
        architecture=architecture,
        licence=found.licence,
        source=None,
        num_bytes=sum(tensor.num_bytes for tensor in tensors),
        types=_shares((tensor.dtype, tensor.shape) for tensor in tensors),
        sampling=found.sampling,
    )


def _architecture(config: Path) -> str:
    values = json_object(config.read_bytes(), file=str(config), field=CONFIG)
    words = values.get("architectures")
    word = cast("list[object]", words)[0] if isinstance(words, list) and words else None
    if not isinstance(word, str):
        raise ModelFormatError(
            f"is {quote(word)}; it must name the model's class.",
            file=str(config),
            field="architectures",
        )
    return word


def _shares(tensors: Iterable[tuple[str, tuple[int, ...]]]) -> dict[str, int]:
    shares: dict[str, int] = {}
    for kind, shape in tensors:
        shares[kind] = shares.get(kind, 0) + math.prod(shape)
    return dict(sorted(shares.items(), key=lambda share: -share[1]))
