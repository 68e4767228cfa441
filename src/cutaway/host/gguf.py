"""An opened GGUF file: its metadata, its tensor directory and the stored bytes of each tensor.

It hands out bytes as they lie in the file: unpacking them is quantize/gguf.py's work, and what a
key means is the model's or the tokenizer's. Free of torch and numpy.
"""

from __future__ import annotations

import math
import mmap
import struct
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cutaway.core.errors import ModelFormatError, ModelNotFoundError
from cutaway.core.gguf_types import GgufTensor
from cutaway.core.limits import shown
from cutaway.host.gguf_header import GgufValue, read_header

__all__ = ["GgufFile", "GgufTensor", "GgufValue", "read"]

_LEAST_BYTES = 24  # magic, version and two counts


@dataclass(frozen=True, kw_only=True)
class GgufFile:
    """What a file says about itself, and its bytes.

    The typed getters raise ModelFormatError, naming the key, when a value is absent and no default
    was given, or is of another type.
    """

    path: Path
    version: int
    metadata: Mapping[str, GgufValue]
    tensors: Mapping[str, GgufTensor]
    _metadata_bytes: slice = field(repr=False, compare=False)
    _mapped: mmap.mmap = field(repr=False, compare=False)

    @property
    def file(self) -> str:
        """The path as it was given, for messages."""
        return str(self.path)

    def data(self, name: str) -> memoryview:
        """The stored bytes of one tensor, read-only and not copied."""
        tensor = self.tensors[name]
        return memoryview(self._mapped)[tensor.offset : tensor.offset + tensor.num_bytes]

    def vector(self, name: str) -> tuple[float, ...]:
        """A small tensor of plain numbers, as numbers.

        Raises: ModelFormatError where it is stored in another type than F32 or F16.
        """
        tensor = self.tensors[name]
        form = {"F32": "<f", "F16": "<e"}.get(tensor.type)
        if form is None:
            raise ModelFormatError(
                f"is stored as {tensor.type}; it must be F32 or F16.", file=self.file, field=name
            )
        return tuple(value for (value,) in struct.iter_unpack(form, self.data(name)))

    def stored_metadata(self) -> bytes:
        """Keys and values as they lie in the file."""
        return self._mapped[self._metadata_bytes]

    def release(self, name: str) -> None:
        """Let the system take back the memory that shows one tensor; it can be read again.

        Mapped pages count as resident until then, though they are the file's and not ours.
        """
        if not hasattr(mmap, "MADV_DONTNEED"):
            return  # not on Windows
        tensor, page = self.tensors[name], mmap.PAGESIZE
        start = tensor.offset // page * page
        self._mapped.madvise(mmap.MADV_DONTNEED, start, tensor.offset + tensor.num_bytes - start)

    def text(self, key: str, default: str | None = None) -> str:
        """A string of the metadata."""
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, "a string")
        return value

    def flag(self, key: str, default: bool | None = None) -> bool:
        """A bool of the metadata."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, "a bool")
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        """An integer of the metadata."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(key, "an integer")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number of the metadata."""
        value = self._value(key, default)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
        raise self._wrong(key, "a finite number")

    def strings(self, key: str) -> tuple[str, ...]:
        """An array of strings of the metadata."""
        value = self._value(key, None)
        if isinstance(value, tuple):
            texts = tuple(item for item in value if isinstance(item, str))
            if len(texts) == len(value):
                return texts
        raise self._wrong(key, "an array of strings")

    def integers(self, key: str) -> tuple[int, ...]:
        """An array of integers of the metadata."""
        value = self._value(key, None)
        if not isinstance(value, array) or value.typecode in "fd":
            raise self._wrong(key, "an array of integers")
        return tuple(int(item) for item in value)

    def numbers(self, key: str) -> tuple[float, ...]:
        """An array of numbers of the metadata."""
        value = self._value(key, None)
        if not isinstance(value, array):
            raise self._wrong(key, "an array of numbers")
        return tuple(float(item) for item in value)

    def _value(self, key: str, default: GgufValue | None) -> GgufValue:
        value = self.metadata.get(key, default)
        if value is None:
            raise ModelFormatError(
                "is absent from the metadata, and the model cannot be read without it.",
                file=self.file,
                field=key,
            )
        return value

    def _wrong(self, key: str, wanted: str) -> ModelFormatError:
        found = shown(self.metadata.get(key))
        return ModelFormatError(f"is {found}; it must be {wanted}.", file=self.file, field=key)


def read(path: Path | str) -> GgufFile:
    """Open a GGUF file and read all but its tensors' bytes, which stay on disk until asked for.

    Raises: ModelNotFoundError when there is no such file, ModelFormatError naming the field when
    the file is cut or lies, UnsupportedModelError for a version, byte order or tensor type that
    Cutaway does not know.
    """
    path = Path(path)
    if not path.is_file():
        raise ModelNotFoundError(f"{path} is not a file; give the path of a .gguf file.")
    try:
        with path.open("rb") as opened:
            size = opened.seek(0, 2)
            if size < _LEAST_BYTES:
                raise ModelFormatError(
                    f"the file has {size} bytes; a GGUF file starts with {_LEAST_BYTES}. "
                    "It is cut short or damaged; fetch it again.",
                    file=str(path),
                    field="header",
                )
            mapped = mmap.mmap(opened.fileno(), size, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ModelNotFoundError(f"{path} cannot be read: {error.strerror}.") from error
    header = read_header(mapped, file=str(path))
    return GgufFile(
        path=path,
        version=header.version,
        metadata=header.metadata,
        tensors=header.tensors,
        _metadata_bytes=header.metadata_bytes,
        _mapped=mapped,
    )
