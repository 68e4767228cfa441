"""A SentencePiece model file (tokenizer.model) as plain data; what it means is left to others."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

from cutaway.core.errors import ModelFormatError, ModelNotFoundError, UnsupportedModelError
from cutaway.tokens.files.protobuf import ProtobufMessage

# Gemma's, with 256,000 pieces, has 4.2 MB.
MOST_BYTES = 1 << 28


class PieceType(IntEnum):
    """What a piece is. Source: sentencepiece_model.proto."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


PIECE_TYPES: Mapping[int, PieceType] = {int(kind): kind for kind in PieceType}


class ModelPiece(NamedTuple):
    """One entry of the vocabulary; a vocabulary may have 262,144."""

    text: str
    score: float = 0.0
    type: PieceType = PieceType.NORMAL


@dataclass(frozen=True, kw_only=True)
class NormalizerSpec:
    """How text is normalized before it is cut."""

    charsmap: bytes = b""
    add_dummy_prefix: bool = True
    remove_extra_whitespaces: bool = True
    escape_whitespaces: bool = True


@dataclass(frozen=True, kw_only=True)
class ModelFile:
    """The parts of a model file that decide ids and text; defaults are the format's own.

    kind: 1 unigram, 2 BPE.
    """

    file: str
    pieces: tuple[ModelPiece, ...]
    kind: int = 1
    normalizer: NormalizerSpec = NormalizerSpec()
    byte_fallback: bool = False
    treat_whitespace_as_suffix: bool = False
    unk_surface: str = " \u2047 "
    bos_piece: str = "<s>"
    eos_piece: str = "</s>"


UNIGRAM, BPE = 1, 2
_FLOAT = struct.Struct("<f")
_KINDS = {3: "word", 4: "char"}
_TRAINER_FIELDS = {
    3: "model_type",
    24: "treat_whitespace_as_suffix",
    35: "byte_fallback",
    44: "unk_surface",
    46: "bos_piece",
    47: "eos_piece",
}
_NORMALIZER_FIELDS = {
    3: "add_dummy_prefix",
    4: "remove_extra_whitespaces",
    5: "escape_whitespaces",
}


def read_model_file(path: Path) -> ModelFile:
    """What the file says.

    Raises: ModelNotFoundError, ModelFormatError naming file and field, UnsupportedModelError for
    a model of whole words or characters, or one that normalizes again when it decodes.
    """
    try:
        with path.open("rb") as opened:
            data = opened.read(MOST_BYTES + 1)
    except FileNotFoundError:
        raise ModelNotFoundError(f"there is no file {path}.") from None
    except OSError as error:
        raise ModelNotFoundError(f"{path} cannot be read: {error.strerror}.") from None
    if len(data) > MOST_BYTES:
        raise ModelFormatError(
            f"has more than {MOST_BYTES} bytes, which no vocabulary needs.",
            file=path.name,
            field="(whole file)",
        )
    return parse_model_file(data, file=path.name)


def parse_model_file(data: bytes, *, file: str) -> ModelFile:
    """The same from bytes at hand."""
    pieces: list[ModelPiece] = []
    parts: dict[str, Any] = {}
    for field in ProtobufMessage(memoryview(data), file).fields():
        if field.number == 1:
            piece = _usual_piece(field.value)
            pieces.append(piece or _piece(field.inner(f"pieces[{len(pieces)}]")))
        elif field.number == 2:
            parts |= _trainer(field.inner("trainer_spec"))
        elif field.number == 3:
            parts["normalizer"] = _normalizer(field.inner("normalizer_spec"))
        elif field.number == 5 and _normalizer(field.inner("denormalizer_spec")).charsmap:
            raise UnsupportedModelError(
                f"{file}: denormalizer_spec has rules; Cutaway decodes without any."
            )
    if not pieces:
        raise ModelFormatError(
            "there is none; a SentencePiece model has at least one. Fetch the file again.",
            file=file,
            field="pieces",
        )
    return ModelFile(file=file, pieces=tuple(pieces), **parts)


def _usual_piece(data: int | memoryview) -> ModelPiece | None:
    """A piece as every writer lays it out; None for any other, sound or not.

    Much quicker than _piece, which matters for 256,000 of them.
    """
    if isinstance(data, int) or len(data) < 8 or data[0] != 0x0A or data[1] >= 0x80:
        return None
    end = 2 + data[1]
    rest = len(data) - end
    if data[1] == 0 or rest not in (5, 7) or data[end] != 0x15:
        return None
    kind = PieceType.NORMAL
    if rest == 7:
        if data[end + 5] != 0x18 or data[end + 6] not in PIECE_TYPES:
            return None
        kind = PIECE_TYPES[data[end + 6]]
    (score,) = _FLOAT.unpack_from(data, end + 1)
    try:
        text = str(data[2:end], "utf-8")
    except UnicodeDecodeError:
        return None
    return ModelPiece(text, score, kind) if math.isfinite(score) else None


def _piece(message: ProtobufMessage) -> ModelPiece:
    text, score, kind = "", 0.0, PieceType.NORMAL
    for field in message.fields():
        if field.number == 1:
            text = field.text("piece")
        elif field.number == 2:
            score = field.number32("score")
            if not math.isfinite(score):
                raise message.fault(f"the score is {score}")
        elif field.number == 3:
            number = field.integer("type")
            if number not in PIECE_TYPES:
                raise message.fault(f"the type is {number}, which is none of 1 to 6")
            kind = PIECE_TYPES[number]
    if not text:
        raise message.fault("the piece is empty")
    return ModelPiece(text, score, kind)


def _trainer(message: ProtobufMessage) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in message.fields():
        name = _TRAINER_FIELDS.get(field.number)
        if name is None:
            continue
        if name == "model_type":
            found["kind"] = _kind(field.integer(name), message)
        elif name in ("treat_whitespace_as_suffix", "byte_fallback"):
            found[name] = field.flag(name)
        else:
            found[name] = field.text(name)
    return found


def _kind(number: int, message: ProtobufMessage) -> int:
    if number in _KINDS:
        raise UnsupportedModelError(
            f"{message.file}: trainer_spec.model_type is {_KINDS[number]}; Cutaway knows unigram "
            "and bpe."
        )
    if number not in (UNIGRAM, BPE):
        raise message.fault(f"model_type is {number}, which is none of 1 to 4")
    return number


def _normalizer(message: ProtobufMessage) -> NormalizerSpec:
    found: dict[str, Any] = {}
    for field in message.fields():
        if field.number == 2:
            found["charsmap"] = bytes(field.raw("precompiled_charsmap"))
        elif field.number in _NORMALIZER_FIELDS:
            name = _NORMALIZER_FIELDS[field.number]
            found[name] = field.flag(name)
    return NormalizerSpec(**found)
