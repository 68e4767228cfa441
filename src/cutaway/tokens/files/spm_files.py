"""SentencePiece tokenizers from a model file (tokenizer.model), or the metadata of a GGUF file."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from pathlib import Path

from cutaway.core.errors import ModelFormatError
from cutaway.core.limits import quote
from cutaway.tokens.added import AddedToken
from cutaway.tokens.files.gguf_fields import GgufFields
from cutaway.tokens.files.json_node import JsonNode
from cutaway.tokens.files.model_file import (
    BPE,
    PIECE_TYPES,
    UNIGRAM,
    ModelFile,
    ModelPiece,
    NormalizerSpec,
    PieceType,
    read_model_file,
)
from cutaway.tokens.files.tokenizer_config import read_added, read_roles
from cutaway.tokens.sentencepiece.charsmap import Charsmap
from cutaway.tokens.sentencepiece.normalizing import ModelNormalizer, Prefix
from cutaway.tokens.sentencepiece.sentencepiece import SentencePiece, SentencePieceVocabulary
from cutaway.tokens.sentencepiece.subword import SPACE, Fallback, Subword, byte_ids_of
from cutaway.tokens.sentencepiece.subword_bpe import ScoreBPE
from cutaway.tokens.sentencepiece.unigram import Unigram

MERGED = (PieceType.NORMAL, PieceType.UNUSED)


def load_model_file(path: Path) -> SentencePiece:
    """The tokenizer of a tokenizer.model, with what the files beside it say.

    tokenizer_config.json and its like add tokens, name bos and eos, and decide whether a prompt
    begins with bos (it does unless they say no) and whether every stretch between added tokens
    gets a blank in front, or the first alone ("legacy": false).

    Raises: ModelNotFoundError, ModelFormatError naming file and field, UnsupportedModelError.
    """
    model = read_model_file(path)
    ids = _ids(model)
    config = JsonNode.beside(path, "tokenizer_config")
    listed = read_added(path.parent, ids)
    roles = read_roles(path.parent, ids | {token.content: token.token_id for token in listed})
    control = {i for i, piece in enumerate(model.pieces) if piece.type == PieceType.CONTROL}
    control |= roles.control | {token.token_id for token in listed if token.is_control}
    bos = ids.get(model.bos_piece) if roles.bos is None else roles.bos
    eos = roles.eos or {ids[model.eos_piece]} & control if model.eos_piece in ids else roles.eos
    if bos not in control:
        bos = None
    prefix: Prefix = "always" if model.normalizer.add_dummy_prefix else "never"
    if prefix == "always" and config["legacy"].value is False:
        prefix = "first"
    return SentencePiece(
        _vocabulary(model, control, prefix, listed),
        control_tokens=_control_tokens(model, control, listed),
        bos_token_id=bos,
        eos_token_ids=eos,
        prompt_prefix=[bos] if bos is not None and roles.adds_bos is not False else [],
    )


def sentencepiece_from_gguf(fields: GgufFields, *, is_unigram: bool) -> SentencePiece:
    """The SentencePiece tokenizer that the metadata of a GGUF file describes.

    Raises: ModelFormatError naming the field.
    """
    model = _model_of_gguf(fields, is_unigram)
    count = len(model.pieces)
    control = fields.control_ids(count) | {
        token_id
        for token_id, piece in enumerate(model.pieces)
        if piece.type in (PieceType.UNKNOWN, PieceType.CONTROL)
    }
    control -= {i for i, piece in enumerate(model.pieces) if piece.type == PieceType.BYTE}
    bos = fields.token_id("bos_token_id", count)
    adds_bos = fields.flag("add_bos_token", default=not is_unigram)
    return SentencePiece(
        _vocabulary(model, control, "always" if model.normalizer.add_dummy_prefix else "never", ()),
        control_tokens=_control_tokens(model, control, ()),
        bos_token_id=bos,
        eos_token_ids=fields.end_ids(count),
        prompt_prefix=[bos] if adds_bos and bos is not None else [],
    )


def _model_of_gguf(fields: GgufFields, is_unigram: bool) -> ModelFile:
    tokens = fields.tokens()
    scores = fields.one_each("scores", float, len(tokens))
    if not scores:
        raise fields.fault("scores", "a list of numbers: a SentencePiece vocabulary needs them")
    types = fields.one_each("token_type", int, len(tokens)) or [PieceType.NORMAL] * len(tokens)
    unknown = next((kind for kind in types if kind not in PIECE_TYPES), None)
    if unknown is not None:
        raise fields.fault("token_type", f"a list of numbers from 1 to 6, and one is {unknown}")
    pieces = tuple(
        # The writer of such files puts blanks into user-defined pieces, SPACE into all others.
        ModelPiece(token.replace(" ", SPACE), score, PIECE_TYPES[kind])
        for token, score, kind in zip(tokens, scores, types, strict=True)
    )
    return ModelFile(
        file=fields.file,
        pieces=pieces,
        kind=UNIGRAM if is_unigram else BPE,
        normalizer=NormalizerSpec(
            charsmap=_gguf_charsmap(fields) if is_unigram else b"",
            add_dummy_prefix=fields.flag("add_space_prefix", default=True),
            remove_extra_whitespaces=fields.flag("remove_extra_whitespaces", default=is_unigram),
        ),
        unk_surface="<unk>",
    )


def _gguf_charsmap(fields: GgufFields) -> bytes:
    numbers = fields.array("precompiled_charsmap", int, optional=True)
    try:
        return bytes(number & 0xFF for number in numbers)
    except TypeError:
        raise fields.fault("precompiled_charsmap", "a list of bytes") from None


def _ids(model: ModelFile) -> dict[str, int]:
    ids: dict[str, int] = {}
    for token_id, piece in enumerate(model.pieces):
        if ids.setdefault(piece.text, token_id) != token_id:
            raise ModelFormatError(
                f"is {quote(piece.text)}, which is also pieces[{ids[piece.text]}]; each must "
                "differ.",
                file=model.file,
                field=f"pieces[{token_id}]",
            )
    return ids


def _control_tokens(
    model: ModelFile, control: set[int], listed: Iterable[AddedToken]
) -> dict[str, int]:
    named = {i: model.pieces[i].text for i in sorted(control) if i < len(model.pieces)}
    named |= {token.token_id: token.content for token in listed if token.is_control}
    return {name: token_id for token_id, name in named.items() if name}


def _vocabulary(
    model: ModelFile, control: set[int], prefix: Prefix, listed: Iterable[AddedToken]
) -> SentencePieceVocabulary:
    listed = tuple(listed)
    spec = model.normalizer
    kept = {
        piece.text: token_id
        for token_id, piece in enumerate(model.pieces)
        if piece.type == PieceType.USER_DEFINED and piece.text and token_id not in control
    }
    added = [
        AddedToken(token_id=token_id, content=name, is_control=True)
        for name, token_id in _control_tokens(model, control, ()).items()
    ]
    # A unigram vocabulary chooses its user-defined pieces by their scores.
    if model.kind == BPE:
        added += [
            AddedToken(token_id=token_id, content=text, is_normalized=True)
            for text, token_id in kept.items()
        ]
    known = {token.token_id: token for token in added}
    known |= {token.token_id: token for token in listed}
    charsmap = None
    if spec.charsmap:
        field = "normalizer_spec.precompiled_charsmap"
        charsmap = Charsmap(spec.charsmap, file=model.file, field=field)
    goes = "one goes" if prefix != "never" else "kept"
    return SentencePieceVocabulary(
        token_bytes=_token_bytes(model) | {t.token_id: t.content.encode() for t in listed},
        subword=_subword(model, control),
        normalize=ModelNormalizer(
            charsmap=charsmap,
            kept=tuple(kept) if charsmap is not None or spec.remove_extra_whitespaces else (),
            prefix=prefix,
            removes_extra=spec.remove_extra_whitespaces,
            escapes=spec.escape_whitespaces,
            is_suffix=model.treat_whitespace_as_suffix,
        ),
        added=tuple(known.values()),
        first_blank="each goes" if spec.remove_extra_whitespaces else goes,
        with_own_blank=frozenset(
            token_id
            for token_id, piece in enumerate(model.pieces)
            if piece.type in (PieceType.UNKNOWN, PieceType.BYTE) or piece.text.startswith(" ")
        ),
    )


def _token_bytes(model: ModelFile) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    for token_id, piece in enumerate(model.pieces):
        if piece.type == PieceType.UNKNOWN:
            found[token_id] = model.unk_surface.encode()
        else:
            found[token_id] = piece.text.replace(SPACE, " ").encode("utf-8", "surrogatepass")
    for byte, token_id in enumerate(_byte_ids(model)):
        if token_id is not None:
            found[token_id] = bytes([byte])
    return found


def _byte_ids(model: ModelFile) -> tuple[int | None, ...]:
    found = byte_ids_of(
        {
            piece.text: token_id
            for token_id, piece in enumerate(model.pieces)
            if piece.type == PieceType.BYTE
        }
    )
    if model.byte_fallback and (not found or None in found):
        raise ModelFormatError(
            "is true, but not all 256 bytes are pieces. Fetch the file again.",
            file=model.file,
            field="trainer_spec.byte_fallback",
        )
    return found


def _subword(model: ModelFile, control: set[int]) -> Subword:
    ids: dict[str, int] = {}
    scores: dict[str, float] = {}
    for token_id, piece in enumerate(model.pieces):
        if piece.type in MERGED and token_id not in control and piece.text not in ids:
            ids[piece.text], scores[piece.text] = token_id, piece.score
    ids.pop("", None)
    scores.pop("", None)
    unknown = (i for i, piece in enumerate(model.pieces) if piece.type == PieceType.UNKNOWN)
    fallback = Fallback(_byte_ids(model), next(unknown, None))
    unused = {p.text for p in model.pieces if p.type == PieceType.UNUSED}
    if model.kind == BPE:
        return ScoreBPE(ids, scores, fallback, unused=unused)
    return _unigram(model, ids, scores, fallback, unused)


def _unigram(
    model: ModelFile,
    ids: Mapping[str, int],
    scores: Mapping[str, float],
    fallback: Fallback,
    unused: set[str],
) -> Unigram:
    """User-defined pieces get a score that makes them win wherever they fit."""
    ordinary = [p.score for p in model.pieces if p.type == PieceType.NORMAL]
    worst = min(ordinary, default=0.0)
    used = {text: score for text, score in scores.items() if text not in unused}
    own = {
        piece.text: token_id
        for token_id, piece in enumerate(model.pieces)
        if piece.type == PieceType.USER_DEFINED
    }
    # Source: sentencepiece 0.2.3 as it behaves: a tenth for each byte but the first, in 32 bits. In
    # 0.2.0 it was the best ordinary score for each.
    bonus = {text: array("f", [len(text.encode()) * 0.1 - 0.1])[0] for text in own}
    return Unigram({**ids, **own}, used | bonus, fallback, worst=worst, precision="f")
