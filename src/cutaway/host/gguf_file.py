"""An opened GGUF file: its metadata, its tensor directory and the stored bytes of each tensor.

It hands out bytes as they lie in the file: unpacking them is the work of quantize/gguf/, and what a
key means is the model's or the tokenizer's. Free of torch and numpy.
"""

from __future__ import annotations

import math
import mmap
import re
import struct
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from cutaway.core.errors import ModelFormatError, ModelNotFoundError, UnsupportedModelError
from cutaway.core.gguf_types import GgufTensor
from cutaway.core.limits import quote
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
    # Where a tensor lies in another part of a model in several files.
    _elsewhere: Mapping[str, mmap.mmap] = field(
        default_factory=dict[str, mmap.mmap], repr=False, compare=False
    )

    @property
    def mapped(self) -> mmap.mmap:
        """The file's bytes."""
        return self._mapped

    @property
    def file(self) -> str:
        """The path as it was given, for messages."""
        return str(self.path)

    def data(self, name: str) -> memoryview:
        """The stored bytes of one tensor, read-only and not copied."""
        tensor = self.tensors[name]
        return memoryview(self._map_of(name))[tensor.offset : tensor.offset + tensor.num_bytes]

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
        """Keys and values as they lie in the file.

        Raises: UnsupportedModelError for a model in several files: a copy would say so too.
        """
        if self._elsewhere:
            raise UnsupportedModelError(
                f"{self.file} is one of several parts; join them first, as with "
                "`llama-gguf-split --merge`."
            )
        return self._mapped[self._metadata_bytes]

    def release(self, name: str) -> None:
        """Let the system take back the memory that shows one tensor; it can be read again.

        Mapped pages count as resident until then, though they are the file's and not ours.
        """
        if not hasattr(mmap, "MADV_DONTNEED"):
            return  # not on Windows
        tensor, page = self.tensors[name], mmap.PAGESIZE
        start = tensor.offset // page * page
        mapped = self._map_of(name)
        mapped.madvise(mmap.MADV_DONTNEED, start, tensor.offset + tensor.num_bytes - start)

    def _map_of(self, name: str) -> mmap.mmap:
        return self._elsewhere.get(name, self._mapped)

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
        found = quote(self.metadata.get(key))
        return ModelFormatError(f"is {found}; it must be {wanted}.", file=self.file, field=key)


_COUNT = "split.count"
_PART = re.compile(r"(?P<name>.+)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf")


def read(path: Path | str) -> GgufFile:
    """Open a GGUF file and read all but its tensors' bytes, which stay on disk until asked for.

    A part of a model in several files stands for all of it, whichever part is named; the others lie
    beside it, under names such as model-00001-of-00003.gguf.

    Raises: ModelNotFoundError when there is no such file, ModelFormatError naming the field when
    the file is cut or lies, UnsupportedModelError for a version, byte order or tensor type that
    Cutaway does not know.
    """
    one = _read_one(Path(path))
    count = one.integer(_COUNT, 1)
    return one if count <= 1 else _joined(one, count)


def _joined(one: GgufFile, count: int) -> GgufFile:
    """All parts of a model as one file; the first has what it says about itself."""
    number = one.integer("split.no", 0) + 1
    named = _PART.fullmatch(one.path.name)
    if named is None or int(named["count"]) != count or int(named["number"]) != number:
        raise ModelFormatError(
            f"is part {number} of {count}, and the file's name does not say so; name the parts as "
            f"NAME-{number:05}-of-{count:05}.gguf, all in one folder.",
            file=one.file,
            field=_COUNT,
        )
    parts: list[GgufFile] = []
    for each in range(1, count + 1):
        path = one.path.with_name(f"{named['name']}-{each:05}-of-{count:05}.gguf")
        if not path.is_file():
            raise ModelFormatError(
                f"is part {number} of {count}, and {path.name} is not beside it; put all parts "
                "into one folder.",
                file=one.file,
                field=_COUNT,
            )
        part = one if each == number else _read_one(path)
        if (part.integer(_COUNT, 1), part.integer("split.no", 0)) != (count, each - 1):
            raise ModelFormatError(
                f"must be {count}, and split.no {each - 1}, as the name says.",
                file=part.file,
                field=_COUNT,
            )
        parts.append(part)
    tensors: dict[str, GgufTensor] = {}
    elsewhere: dict[str, mmap.mmap] = {}
    for part in parts:
        for name, tensor in part.tensors.items():
            if name in tensors:
                raise ModelFormatError("stands in two parts.", file=part.file, field=name)
            tensors[name] = tensor
            elsewhere[name] = part.mapped
    first = parts[0]
    total = first.integer("split.tensors.count", len(tensors))
    if total != len(tensors):
        raise ModelFormatError(
            f"is {total}; all parts together have {len(tensors)}.",
            file=first.file,
            field="split.tensors.count",
        )
    return replace(first, path=one.path, tensors=tensors, _elsewhere=elsewhere)


def _read_one(path: Path) -> GgufFile:
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
