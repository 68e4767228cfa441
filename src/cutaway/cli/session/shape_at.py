"""The shape of a model that is on this machine, and its weights where a file has them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from cutaway.cli.session.at_hand import at_hand
from cutaway.core.errors import ConfigError, ModelFormatError, ModelNotFoundError
from cutaway.core.limits import quote
from cutaway.core.shapes import ModelShape
from cutaway.core.weight_types import WeightBytes, weights_of_file
from cutaway.host import gguf_file
from cutaway.models.parts.reading import read_config, read_gguf
from cutaway.weights.find.find import Found


def shape_at(
    name: str, overrides: Sequence[str] = ()
) -> tuple[ModelShape, WeightBytes | None, int]:
    """Read a config.json, a folder that has one, a GGUF file's header, or a model by its name.

    overrides: fields of config.json to replace, as in "num_key_value_heads=1".

    Fetches nothing. With it come the weights, None where the configuration does not say how they
    are kept, and the tokens of prompt and answer that the model was made for.

    Raises: ModelNotFoundError where there is no such file or the model is not here; ConfigError
    for an override of a GGUF file, or one that moves no size.
    """
    path = Path(name.removeprefix("random:")).expanduser()
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file() and not name.startswith("random:"):
        found = at_hand(name)
        if found is None:
            raise ModelNotFoundError(
                f"{name} is not here; `cutaway models pull {name}` fetches it."
            )
        path = found.path / "config.json" if found.path.is_dir() else found.path
    if not path.is_file():
        raise ModelNotFoundError(
            f"{path} is no file; name a config.json, a folder that has one, or a .gguf file."
        )
    return _read(path, overrides)


def shape_of_found(found: Found) -> tuple[ModelShape, WeightBytes | None, int]:
    """The same of a model that was found. Raises: as shape_at does."""
    return _read(found.path / "config.json" if found.path.is_dir() else found.path, ())


def _read(path: Path, overrides: Sequence[str]) -> tuple[ModelShape, WeightBytes | None, int]:
    if path.suffix == ".gguf":
        if overrides:
            raise ConfigError(
                f"override is {quote(overrides[0])}, but {path} is a GGUF file and has no "
                "config.json."
            )
        file = gguf_file.read(path)
        made = read_gguf(file)
        return made.shape, weights_of_file(file.tensors, made.shape), made.facts.max_length
    config = _object(path)
    shape = _overridden(config, overrides, file=str(path))
    facts = read_config(config, file=str(path), overrides=overrides).architecture.facts
    return shape, None, facts.max_length


def _overridden(config: Mapping[str, object], overrides: Sequence[str], *, file: str) -> ModelShape:
    """The shape with fields replaced, one after the other; each must make a difference."""
    shape = read_config(config, file=file).architecture.shape
    for count, entry in enumerate(overrides, start=1):
        given = overrides[:count]
        before, shape = shape, read_config(config, file=file, overrides=given).architecture.shape
        if shape == before:
            raise ConfigError(f"override is {quote(entry)}, which changes no size of {file}.")
    return shape


def _object(path: Path) -> Mapping[str, object]:
    try:
        config = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ModelFormatError("is no JSON.", file=str(path), field="whole file") from error
    if not isinstance(config, Mapping):
        raise ModelFormatError("is no JSON object.", file=str(path), field="whole file")
    return cast("Mapping[str, object]", config)
