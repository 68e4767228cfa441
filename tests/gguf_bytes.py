"""GGUF files built byte by byte, so that a test can make them lie."""

from __future__ import annotations

import struct
from collections.abc import Sequence

UINT8, UINT32, FLOAT32, BOOL, STRING, ARRAY, UINT64 = 0, 4, 6, 7, 8, 9, 10
F32, Q4_1, Q8_0 = 0, 3, 8


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def string(text: str | bytes, *, length: int | None = None) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return u64(len(raw) if length is None else length) + raw


def key(name: str, kind: int, payload: bytes) -> bytes:
    return string(name) + u32(kind) + payload


def array(kind: int, count: int, payload: bytes) -> bytes:
    return u32(kind) + u64(count) + payload


def tensor(
    name: str,
    dims: Sequence[int],
    *,
    type: int = F32,
    offset: int = 0,
    num_dims: int | None = None,
) -> bytes:
    """One entry of the directory; dims are in the file's order, the row's length first."""
    return (
        string(name)
        + u32(len(dims) if num_dims is None else num_dims)
        + b"".join(map(u64, dims))
        + u32(type)
        + u64(offset)
    )


def gguf(
    keys: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    version: int = 3,
    num_keys: int | None = None,
    num_tensors: int | None = None,
    alignment: int = 32,
) -> bytes:
    """A whole file; the counts are true unless given."""
    header = (
        b"GGUF"
        + u32(version)
        + u64(len(tensors) if num_tensors is None else num_tensors)
        + u64(len(keys) if num_keys is None else num_keys)
        + b"".join(keys)
        + b"".join(tensors)
    )
    return header + bytes(-len(header) % alignment) + data


def small_valid() -> bytes:
    """A sound file with every kind of value and two tensors."""
    keys = [
        key("general.architecture", STRING, string("llama")),
        key("general.alignment", UINT32, u32(32)),
        key("a.count", UINT64, u64(7)),
        key("a.eps", FLOAT32, struct.pack("<f", 0.5)),
        key("a.flag", BOOL, b"\1"),
        key("a.names", ARRAY, array(STRING, 3, string("x") + string("") + string("äé"))),
        key("a.types", ARRAY, array(UINT32, 3, u32(1) + u32(2) + u32(3))),
        key("a.flags", ARRAY, array(BOOL, 2, b"\0\1")),
    ]
    tensors = [tensor("w.q", [32, 2], type=Q8_0), tensor("w.n", [4], offset=96)]
    data = bytes(range(68)) + bytes(28) + struct.pack("<4f", 1, 2, 3, 4)
    return gguf(keys, tensors, data)
