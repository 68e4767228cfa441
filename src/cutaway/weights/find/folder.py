"""A model folder in the hub's layout: whether it is whole, its licence and recommended sampling."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from cutaway.core.errors import ModelFormatError, ModelNotFoundError, RequestError
from cutaway.core.limits import LIMITS, check
from cutaway.core.request import RECOMMENDED
from cutaway.weights.files.safetensors_header import json_object
from cutaway.weights.files.safetensors_index import INDEX, SINGLE

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"

_FRONT_MATTER = re.compile(r"\A---\r?\n(.*?)\r?\n---", re.DOTALL)
_LICENCE = re.compile(r"^license:[ \t]*['\"]?([\w.+-]+)", re.MULTILINE)
_MOST_BYTES = 2**20  # of a small text file beside the weights


def check_folder(path: Path) -> None:
    """Raise ModelNotFoundError, saying what is missing, unless this is a model's folder."""
    if not (path / CONFIG).is_file():
        models = sorted(file.name for file in path.glob("*.gguf"))
        hint = f" Give the path of one of its files: {', '.join(models[:5])}." if models else ""
        raise ModelNotFoundError(f"{path} has no {CONFIG}.{hint}")
    if not (path / SINGLE).is_file() and not (path / INDEX).is_file():
        has_pickles = any(path.glob("pytorch_model*.bin"))
        hint = " Its weights are pickles, which are never loaded; convert them." * has_pickles
        raise ModelNotFoundError(f"{path} has neither {SINGLE} nor {INDEX}.{hint}")


def folder_licence(path: Path) -> str | None:
    """The licence that the model card's front matter names."""
    card = path / "README.md"
    if not card.is_file():
        return None
    with card.open("rb") as opened:
        text = opened.read(_MOST_BYTES).decode(errors="replace")
    front_matter = _FRONT_MATTER.match(text)
    named = _LICENCE.search(front_matter[1]) if front_matter else None
    return named[1] if named else None


def folder_sampling(path: Path) -> Mapping[str, float]:
    """The sampling that generation_config.json recommends, by the names of SamplingParams.

    do_sample is not read: transformers turns sampling off where it is absent, but the fields
    beside it say what the makers recommend for sampling.

    Raises: ModelFormatError naming the field that is out of range.
    """
    file = path / GENERATION_CONFIG
    if not file.is_file():
        return {}
    with file.open("rb") as opened:
        raw = opened.read(_MOST_BYTES)
    values = json_object(raw, file=str(file), field=GENERATION_CONFIG)
    sampling: dict[str, float] = {}
    for name in RECOMMENDED:
        value = values.get(name)
        if value is None:
            continue
        try:
            check(name, value)
        except RequestError as error:
            raise ModelFormatError(str(error), file=str(file), field=name) from None
        assert isinstance(value, int | float), "the limits table lets only numbers pass"
        sampling[name] = int(value) if LIMITS[name].kind == "int" else float(value)
    return sampling
