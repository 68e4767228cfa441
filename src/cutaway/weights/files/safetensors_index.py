"""Which file of a model folder holds each tensor, by its index where there are shards.

Only indexed files are read, and only files of this very folder. Free of torch.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import cast

from cutaway.core.errors import ModelFormatError, ModelNotFoundError
from cutaway.core.limits import quote
from cutaway.weights.files.safetensors_header import (
    MAX_HEADER_BYTES,
    SafetensorsTensor,
    json_object,
    read_header,
    shown_name,
)

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"

_MOST_SHOWN = 20


def folder_tensors(folder: Path, *, single: str = SINGLE) -> dict[str, SafetensorsTensor]:
    """Every tensor of the folder, once all headers were judged.

    single: the file that holds them all, where there is one.

    Raises: ModelFormatError, UnsupportedModelError, ModelNotFoundError, OSError.
    """
    if (folder / single).is_file():
        return read_header(folder / single)
    index = folder / INDEX
    if not index.is_file():
        raise ModelNotFoundError(f"{folder} has neither {single} nor {INDEX}.")
    shard_of = _read_index(index)
    shards = {shard: read_header(folder / shard) for shard in sorted(set(shard_of.values()))}
    absent = [f"{name} ({shard})" for name, shard in shard_of.items() if name not in shards[shard]]
    if absent:
        raise _index_fault(index, f"names tensors that their shards lack: {_listed(absent)}.")
    return {name: shards[shard][name] for name, shard in shard_of.items()}


def _read_index(path: Path) -> dict[str, str]:
    """The shard of each tensor; every shard is a file in this very folder."""
    if path.stat().st_size > MAX_HEADER_BYTES:
        raise _index_fault(path, f"the file has more than {MAX_HEADER_BYTES} bytes.")
    weight_map = json_object(path.read_bytes(), file=str(path), field="index").get("weight_map")
    entries = cast("dict[str, object]", weight_map) if isinstance(weight_map, dict) else {}
    if not entries:
        raise _index_fault(path, "is missing or empty; it must map tensors to files.")
    shard_of: dict[str, str] = {}
    for name, shard in entries.items():
        if not isinstance(shard, str) or not _is_plain(shard):
            raise _index_fault(
                path,
                f"puts {shown_name(name)} into {quote(shard)}; it must be the plain name of a "
                ".safetensors file in the same folder.",
            )
        shard_of[name] = shard
    absent = [s for s in sorted(set(shard_of.values())) if not (path.parent / s).is_file()]
    if absent:
        raise _index_fault(path, f"names files that are absent: {_listed(absent)}. Fetch them.")
    return shard_of


def _is_plain(name: str) -> bool:
    is_name = PurePosixPath(name).name == name == PureWindowsPath(name).name
    return is_name and name.isprintable() and name.endswith(".safetensors")


def _listed(names: list[str]) -> str:
    more = len(names) - _MOST_SHOWN
    listed = ", ".join(shown_name(name) for name in names[:_MOST_SHOWN])
    return f"{listed} and {more} more" if more > 0 else listed


def _index_fault(path: Path, message: str) -> ModelFormatError:
    return ModelFormatError(message, file=str(path), field="weight_map")
