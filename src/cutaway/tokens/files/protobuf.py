"""The fields of a protobuf message, as far as tokenizer.model uses them; bounded by its bytes.

Source: the wire format in the Protocol Buffers guide. Groups, which nothing writes, are refused.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from cutaway.core.errors import ModelFormatError

_MOST_VARINT_BYTES = 10
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True)
class ProtobufMessage:
    """The bytes of one message, with the file that they lie in and what the message is called."""

    data: memoryview
    file: str
    name: str = ""

    def fields(self) -> Iterator[ProtobufField]:
        """Every field in order of the file; nothing inside it is looked at.

        Raises: ModelFormatError naming the message where it is cut or no protobuf.
        """
        at, end = 0, len(self.data)
        while at < end:
            key, at = self._varint(at)
            number, kind = key >> 3, key & 7
            if kind == _VARINT:
                value, at = self._varint(at)
                yield ProtobufField(self, number, value)
                continue
            if kind == _BYTES:
                size, at = self._varint(at)
            elif kind in (_FIXED32, _FIXED64):
                size = 4 if kind == _FIXED32 else 8
            else:
                raise self.fault(f"field {number} has wire type {kind}, which is none")
            if size > end - at:
                raise self.fault(f"field {number} has {size} bytes and {end - at} are left")
            yield ProtobufField(self, number, self.data[at : at + size])
            at += size

    def fault(self, what: str) -> ModelFormatError:
        """The error that this message deserves."""
        return ModelFormatError(
            f"{what}; the file is cut or no SentencePiece model. Fetch it again.",
            file=self.file,
            field=self.name or "(whole file)",
        )

    def _varint(self, at: int) -> tuple[int, int]:
        value = 0
        for place, byte in enumerate(self.data[at : at + _MOST_VARINT_BYTES]):
            value |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                return value, at + place + 1
        raise self.fault(f"the integer at byte {at} has no end")


@dataclass(frozen=True)
class ProtobufField:
    """One field: an integer, or bytes that mean what its reader says."""

    message: ProtobufMessage
    number: int
    value: int | memoryview

    def integer(self, name: str) -> int:
        """A signed integer of 32 bits, such as an id that is -1 where there is none."""
        if not isinstance(self.value, int):
            raise self._wrong(name, "an integer")
        low = self.value & 0xFFFFFFFF
        return low - (1 << 32) if low >> 31 else low

    def flag(self, name: str) -> bool:
        """True or false, stored as an integer."""
        return bool(self.integer(name))

    def number32(self, name: str) -> float:
        """A float of 32 bits."""
        if isinstance(self.value, int) or len(self.value) != 4:
            raise self._wrong(name, "a float of 4 bytes")
        return struct.unpack("<f", self.value)[0]

    def text(self, name: str) -> str:
        """A string. Raises: ModelFormatError where its bytes are not UTF-8."""
        try:
            return bytes(self.raw(name)).decode()
        except UnicodeDecodeError:
            raise self._wrong(name, "a string in UTF-8") from None

    def raw(self, name: str) -> memoryview:
        """Bytes as they lie in the file."""
        if isinstance(self.value, int):
            raise self._wrong(name, "a string")
        return self.value

    def inner(self, name: str) -> ProtobufMessage:
        """The message that this field holds."""
        return ProtobufMessage(self.raw(name), self.message.file, self._path(name))

    def _path(self, name: str) -> str:
        return f"{self.message.name}.{name}" if self.message.name else name

    def _wrong(self, name: str, allowed: str) -> ModelFormatError:
        return ModelFormatError(
            f"is stored as something else; it must be {allowed}.",
            file=self.message.file,
            field=self._path(name),
        )
