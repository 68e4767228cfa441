"""Named arrays in safetensors framing: a length of 8 bytes, a JSON header, raw data.

Source: the safetensors format (huggingface/safetensors, README). Free of torch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, cast

import numpy as np

Array = np.ndarray[tuple[int, ...], np.dtype[Any]]

_NAMES: Mapping[str, str] = {
    "float32": "F32",
    "float16": "F16",
    "int64": "I64",
    "int32": "I32",
    "uint8": "U8",
}
_DTYPES = {short: np.dtype(name) for name, short in _NAMES.items()}
_MAX_HEADER_BYTES, _MAX_ARRAYS, _MAX_DIMS = 4 * 2**20, 20_000, 8


def pack(arrays: Mapping[str, Array]) -> bytes:
    """All arrays as one string of bytes, little-endian."""
    header: dict[str, object] = {}
    parts: list[bytes] = []
    at = 0
    for name, array in arrays.items():
        raw = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).tobytes()
        header[name] = {
            "dtype": _NAMES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [at, at + len(raw)],
        }
        parts.append(raw)
        at += len(raw)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the format asks for a whole number of eight bytes
    return b"".join((len(text).to_bytes(8, "little"), text, *parts))


def unpack(data: bytes) -> dict[str, Array]:
    """The arrays of such bytes. Raises: ValueError saying what is wrong with them."""
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > min(_MAX_HEADER_BYTES, len(data) - 8):
        raise ValueError(f"a header of {length} bytes does not fit")
    header = json.loads(data[8 : 8 + length])
    if not isinstance(header, dict):
        raise ValueError("the header is no JSON object")
    entries = cast("dict[str, object]", header)
    entries.pop("__metadata__", None)
    if len(entries) > _MAX_ARRAYS:
        raise ValueError(f"{len(entries)} arrays; at most {_MAX_ARRAYS} are read")
    body, at = memoryview(data)[8 + length :], 0
    arrays: dict[str, Array] = {}
    for name, entry in entries.items():
        dtype, shape, begin, end = _entry(name, entry)
        # One after the other, without hole or overlap: so no array is read twice.
        if begin != at or end > len(body) or end - begin != dtype.itemsize * math.prod(shape):
            raise ValueError(f"array {name[:50]!r} does not lie where its shape says")
        flat = np.frombuffer(body[begin:end], dtype.newbyteorder("<"))
        arrays[name] = flat.astype(dtype).reshape(shape)
        at = end
    if at != len(body):
        raise ValueError(f"{len(body) - at} bytes belong to no array")
    return arrays


def _entry(name: str, entry: object) -> tuple[np.dtype[Any], tuple[int, ...], int, int]:
    found = cast("dict[str, object]", entry) if isinstance(entry, dict) else {}
    dtype = _DTYPES.get(str(found.get("dtype")))
    shape, offsets = _sizes(found.get("shape")), _sizes(found.get("data_offsets"))
    if dtype is None or shape is None or offsets is None or len(offsets) != 2:
        raise ValueError(f"array {name[:50]!r} has no dtype, shape and two data_offsets")
    return dtype, shape, *offsets


def _sizes(value: object) -> tuple[int, ...] | None:
    items = cast("list[object]", value) if isinstance(value, list) else [None]
    sizes = tuple(
        item
        for item in items
        if isinstance(item, int) and not isinstance(item, bool) and 0 <= item < 2**48
    )
    return sizes if len(sizes) == len(items) <= _MAX_DIMS else None
