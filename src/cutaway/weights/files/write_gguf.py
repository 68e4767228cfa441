"""Writes a GGUF file anew: metadata as they are, some matrices in another type."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

from cutaway.core.gguf_types import BLOCK_TYPES
from cutaway.host.gguf_file import GgufFile
from cutaway.host.whole_file import whole_file

_NUMBERS = {stored.name: number for number, stored in BLOCK_TYPES.items()}
# general.file_type: what most of a file is in.
_FILE_TYPES = {"Q4_0": 2, "Q4_1": 3, "Q8_0": 7}
_FILE_TYPE_KEY = b"general.file_type"
_UINT32 = 4
_DEFAULT_ALIGNMENT = 32


def write_gguf(
    file: GgufFile, out: Path, *, type_name: str, make: Callable[[str], bytes | None]
) -> None:
    """Write the file.

    make: a tensor's blocks of type_name, or None where it stays as it is stored.
    Raises: OSError.
    """
    alignment = file.integer("general.alignment", _DEFAULT_ALIGNMENT)
    changed = {name: blocks for name in file.tensors if (blocks := make(name)) is not None}
    directory, at = b"", 0
    for name, tensor in file.tensors.items():
        number = _NUMBERS[type_name if name in changed else tensor.type]
        num_bytes = len(changed[name]) if name in changed else tensor.num_bytes
        text = name.encode()
        directory += struct.pack("<Q", len(text)) + text + struct.pack("<I", len(tensor.shape))
        directory += struct.pack(f"<{len(tensor.shape)}Q", *tensor.shape[::-1])
        directory += struct.pack("<IQ", number, at)
        at += -(-num_bytes // alignment) * alignment
    metadata = _retyped(file.stored_metadata(), _FILE_TYPES[type_name])
    head = struct.pack("<4sIQQ", b"GGUF", file.version, len(file.tensors), len(file.metadata))
    with whole_file(out, is_new=True) as opened:
        opened.write(head + metadata + directory)
        for name in file.tensors:
            opened.write(bytes(-opened.tell() % alignment))
            opened.write(changed.get(name) or file.data(name))
        opened.write(bytes(-opened.tell() % alignment))


def _retyped(metadata: bytes, file_type: int) -> bytes:
    """The metadata with another general.file_type, where they have one."""
    key = struct.pack("<Q", len(_FILE_TYPE_KEY)) + _FILE_TYPE_KEY + struct.pack("<I", _UINT32)
    before, found, after = metadata.partition(key)
    return before + found + struct.pack("<I", file_type) + after[4:] if found else metadata
