"""Tokenizers from files: tokenizer.json, tokenizer.model, rank files, metadata of a GGUF file."""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Mapping, Sequence
from pathlib import Path

from cutaway.core.errors import ModelFormatError, ModelNotFoundError, UnsupportedModelError
from cutaway.core.limits import quote
from cutaway.tokens.added import AddedToken
from cutaway.tokens.byte_bpe import ByteBPE, Vocabulary
from cutaway.tokens.files import symbols
from cutaway.tokens.files.gguf_fields import GgufFields
from cutaway.tokens.files.spm_files import load_model_file, sentencepiece_from_gguf
from cutaway.tokens.files.tokenizer_json import load_tokenizer_json
from cutaway.tokens.merging import RankMerges
from cutaway.tokens.patterns import Family, encoding, gguf_family
from cutaway.tokens.tokenizer import Tokenizer

__all__ = [
    "load_folder",
    "load_model_file",
    "load_rank_file",
    "load_tokenizer_json",
    "tokenizer_from_gguf",
]

# Values of tokenizer.ggml.token_type that need treatment.
UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4


def load_folder(folder: Path) -> Tokenizer:
    """The tokenizer of a model's folder: tokenizer.json, or tokenizer.model where that is absent.

    Raises: as the two do; ModelNotFoundError when neither is there.
    """
    path = folder / "tokenizer.json"
    if not path.is_file() and (folder / "tokenizer.model").is_file():
        return load_model_file(folder / "tokenizer.model")
    return load_tokenizer_json(path)


def load_rank_file(path: Path, name: str) -> ByteBPE:
    """The tokenizer of a tiktoken rank file (a token in base64 and its rank per line).

    name: the encoding, which a rank file does not tell: gpt2, r50k_base, cl100k_base, ...
    Raises: UnsupportedModelError for an unknown name, ModelNotFoundError, ModelFormatError.
    """
    rules = encoding(name)
    ranks = _read_ranks(path)
    merges = RankMerges(ranks)
    byte_ids = tuple(merges.token_ids[bytes([byte])] for byte in range(256))
    vocabulary = Vocabulary(
        token_bytes=ranks,
        byte_ids=byte_ids,
        merges=merges,
        patterns=(rules.pattern,),
        added=tuple(
            AddedToken(token_id=token_id, content=content, is_control=True)
            for content, token_id in rules.control_tokens.items()
        ),
        whole_pieces=merges.token_ids,
    )
    return ByteBPE(vocabulary, eos_token_ids=[rules.control_tokens[token] for token in rules.eos])


def _read_ranks(path: Path) -> dict[int, bytes]:
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        raise ModelNotFoundError(f"there is no file {path}.") from None
    ranks: dict[int, bytes] = {}
    for number, line in enumerate(lines, start=1):
        try:
            token, rank = line.split()
            ranks[int(rank)] = b64decode(token, validate=True)
        except (ValueError, binascii.Error):
            raise ModelFormatError(
                f"found {quote(line)}; each line must be a token in base64 and its rank.",
                file=path.name,
                field=f"line {number}",
            ) from None
    missing = {bytes([byte]) for byte in range(256)}.difference(ranks.values())
    if missing:
        raise ModelFormatError(
            f"{min(missing)!r} has no rank; all 256 bytes must be tokens.",
            file=path.name,
            field="(whole file)",
        )
    return ranks


def tokenizer_from_gguf(metadata: Mapping[str, object], *, file: str) -> Tokenizer:
    """The tokenizer that the metadata of a GGUF file describes.

    file: the file's name, for messages.
    Raises: ModelFormatError naming the field, UnsupportedModelError for another kind of tokenizer
    or, for byte-level BPE, an unknown or absent tokenizer.ggml.pre.
    """
    fields = GgufFields(metadata, file)
    kind = fields.value("model")
    if kind == "gpt2":
        return _byte_bpe_from_gguf(fields)
    if kind in ("llama", "t5"):
        return sentencepiece_from_gguf(fields, is_unigram=kind == "t5")
    raise UnsupportedModelError(
        f"{file}: tokenizer.ggml.model is {quote(kind)}; Cutaway knows gpt2, which is byte-level "
        "BPE, and llama and t5, which are SentencePiece."
    )


def _byte_bpe_from_gguf(fields: GgufFields) -> ByteBPE:
    file = fields.file
    family = _family(fields)
    tokens = fields.tokens()
    ids = {token: token_id for token_id, token in enumerate(tokens)}
    bos = fields.token_id("bos_token_id", len(tokens))
    byte_ids = symbols.byte_or_raw_ids(ids)
    added = _added_tokens(tokens, fields, byte_ids)
    control = {token.token_id for token in added if token.is_control}
    token_bytes = symbols.token_bytes(enumerate(tokens))
    whole = {b: i for i, b in token_bytes.items() if family.ignore_merges and i not in control}
    merges = fields.array("merges", str)
    vocabulary = Vocabulary(
        token_bytes=token_bytes,
        byte_ids=byte_ids,
        merges=symbols.pair_merges(
            ids, merges, control=control, file=file, field="tokenizer.ggml.merges"
        ),
        patterns=family.patterns,
        added=added,
        normal_form=family.normal_form,
        whole_pieces=whole,
    )
    adds_bos = fields.flag("add_bos_token", default=family.adds_bos)
    return ByteBPE(
        vocabulary,
        bos_token_id=bos,
        eos_token_ids=fields.end_ids(len(tokens)),
        prompt_prefix=[bos] if adds_bos and bos is not None else [],
    )


def _family(fields: GgufFields) -> Family:
    pre = fields.value("pre")
    if not isinstance(pre, str):
        raise UnsupportedModelError(
            f"{fields.file}: tokenizer.ggml.pre is {quote(pre)}, so nothing tells how text is "
            "cut. Convert the model again with a newer converter, which writes it."
        )
    return gguf_family(pre)


def _added_tokens(
    tokens: Sequence[str], fields: GgufFields, byte_ids: tuple[int | None, ...]
) -> tuple[AddedToken, ...]:
    """Control tokens, and those that the writer marked as its own addition.

    The token of a byte is neither: text could not do without it.
    """
    types = fields.one_each("token_type", int, len(tokens))
    control = fields.control_ids(len(tokens))
    control |= {token_id for token_id, kind in enumerate(types) if kind in (UNKNOWN, CONTROL)}
    ordinary = {token_id for token_id, kind in enumerate(types) if kind == USER_DEFINED}
    return tuple(
        AddedToken(token_id=token_id, content=tokens[token_id], is_control=token_id in control)
        for token_id in sorted((control | ordinary).difference(byte_ids))
    )
