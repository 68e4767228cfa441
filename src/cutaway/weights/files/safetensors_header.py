"""The header of a safetensors file, proven to describe the file's bytes exactly.

Every byte of the data part belongs to one tensor: no hole, no overlap, nothing past the end. It
reads no tensor. Source: the safetensors format (huggingface/safetensors, README), caps included.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from cutaway.core.errors import ModelFormatError, UnsupportedModelError
from cutaway.core.limits import quote

MAX_HEADER_BYTES = 100_000_000
MAX_DIMS = 8
MAX_NAME_LENGTH = 256  # characters

_METADATA = "__metadata__"
# Bits of one value.
_BITS: Mapping[str, int] = {
    **{"F64": 64, "F32": 32, "F16": 16, "BF16": 16, "C64": 64, "BOOL": 8},
    **{"I64": 64, "I32": 32, "I16": 16, "I8": 8, "U64": 64, "U32": 32, "U16": 16, "U8": 8},
    **{"F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8},
    **{"F6_E2M3": 6, "F6_E3M2": 6, "F4": 4},
}


@dataclass(frozen=True)
class SafetensorsTensor:
    """Where one tensor lies. offset: bytes from the start of the file."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


def read_header(path: Path) -> dict[str, SafetensorsTensor]:
    """The tensors of one file by name.

    Raises: ModelFormatError naming the field, UnsupportedModelError for an unknown dtype, OSError.
    """
    size = path.stat().st_size
    with path.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if size < 8 or length > min(MAX_HEADER_BYTES, size - 8):
            raise ModelFormatError(
                f"is {length}; it must be at most {MAX_HEADER_BYTES} and fit into the file, which "
                f"has {size} bytes. The file is cut short or damaged; fetch it again.",
                file=str(path),
                field="header length",
            )
        raw = opened.read(length)
    header = json_object(raw, file=str(path), field="header")
    _check_metadata(path, header.pop(_METADATA, {}))
    tensors = {name: _tensor(path, name, entry, 8 + length) for name, entry in header.items()}
    _check_cover(path, tensors, 8 + length, size)
    return tensors


def json_object(raw: bytes, *, file: str, field: str) -> dict[str, object]:
    """A JSON object in which no key stands twice, at any depth.

    Raises: ModelFormatError naming field, or the key.
    """

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found: dict[str, object] = {}
        for key, value in pairs:
            if key in found:
                raise ModelFormatError("is there twice.", file=file, field=shown_name(key))
            found[key] = value
        return found

    try:
        value = json.loads(raw.decode(), object_pairs_hook=unique) if raw[:1] == b"{" else None
    except (ValueError, RecursionError) as error:
        message = f"is not JSON: {quote(str(error))}."
        raise ModelFormatError(message, file=file, field=field) from None
    if not isinstance(value, dict):
        raise ModelFormatError("is no JSON object.", file=file, field=field)
    return cast("dict[str, object]", value)


def _check_metadata(path: Path, value: object) -> None:
    entries = cast("dict[str, object]", value) if isinstance(value, dict) else {"": None}
    if not all(isinstance(text, str) for text in entries.values()):
        raise ModelFormatError("must map text to text.", file=str(path), field=_METADATA)


def _tensor(path: Path, name: str, value: object, start: int) -> SafetensorsTensor:
    def fault(message: str) -> ModelFormatError:
        return ModelFormatError(message, file=str(path), field=shown_name(name))

    if not 1 <= len(name) <= MAX_NAME_LENGTH or not name.isprintable():
        raise fault(f"names must be printable text of 1 to {MAX_NAME_LENGTH} characters.")
    entry = cast("dict[str, object]", value) if isinstance(value, dict) else {}
    dtype, shape = entry.get("dtype"), _sizes(entry.get("shape"))
    offsets = _sizes(entry.get("data_offsets"))
    if not isinstance(dtype, str) or shape is None or offsets is None or len(offsets) != 2:
        raise fault(
            f"is {quote(cast('object', value))}; it must have dtype, shape and two data_offsets."
        )
    if dtype not in _BITS:
        raise UnsupportedModelError(
            f"{path}: tensor {name} has the unknown dtype {quote(dtype)}; known are "
            f"{', '.join(_BITS)}."
        )
    begin, end = offsets
    bits = math.prod(shape) * _BITS[dtype]
    if (end - begin) * 8 != bits:
        raise fault(
            f"has shape {list(shape)} in {dtype}, which takes {-(-bits // 8)} bytes, but its "
            f"data_offsets are {list(offsets)}."
        )
    return SafetensorsTensor(path, dtype, shape, start + begin, end - begin)


def shown_name(name: str) -> str:
    """A tensor's name as it may stand on a terminal."""
    return name if name.isprintable() and len(name) <= MAX_NAME_LENGTH else quote(name)


def _sizes(value: object) -> tuple[int, ...] | None:
    """A short list of integers from 0 to 2^63 - 1, or None."""
    items = cast("list[object]", value) if isinstance(value, list) else [None]
    sizes = tuple(
        item
        for item in items
        if isinstance(item, int) and not isinstance(item, bool) and 0 <= item < 2**63
    )
    return sizes if len(sizes) == len(items) <= MAX_DIMS else None


def _check_cover(
    path: Path, tensors: Mapping[str, SafetensorsTensor], start: int, size: int
) -> None:
    end, before = start, "the header"
    by_place = sorted(tensors.items(), key=lambda item: (item[1].offset, item[1].num_bytes))
    for name, tensor in by_place:
        if tensor.offset != end:
            what = "shares bytes with" if tensor.offset < end else "leaves a hole after"
            raise ModelFormatError(
                f"{what} {before}; tensors must follow one another.", file=str(path), field=name
            )
        end, before = tensor.offset + tensor.num_bytes, name
    if end != size:
        raise ModelFormatError(
            f"the file should have {end} bytes and has {size}. It is cut short or damaged; "
            "fetch it again.",
            file=str(path),
            field=before,
        )
