"""A SentencePiece vocabulary as HF's tokenizer.json has it: rules, blanks, pieces, decoding.

What it does not know raises UnsupportedModelError naming it; nothing is skipped in silence.
"""

from __future__ import annotations

import binascii
import math
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, cast

from cutaway.core.limits import quote
from cutaway.tokens.added import AddedToken
from cutaway.tokens.files import symbols
from cutaway.tokens.files.json_node import JsonNode
from cutaway.tokens.files.json_parts import flat, pattern_of, refuse_part, vocabulary_ids
from cutaway.tokens.oniguruma.pattern import OnigurumaPattern
from cutaway.tokens.sentencepiece.charsmap import Charsmap
from cutaway.tokens.sentencepiece.normalizing import (
    Metaspace,
    Normalizer,
    Precompiled,
    Prefix,
    Prepend,
    Replace,
    SplitAt,
    Splitting,
    Steps,
    Strip,
    Unicode,
    WhitespaceSplit,
)
from cutaway.tokens.sentencepiece.sentencepiece import SentencePieceVocabulary
from cutaway.tokens.sentencepiece.subword import SPACE, Fallback, Subword, byte_ids_of
from cutaway.tokens.sentencepiece.subword_bpe import ListedBPE
from cutaway.tokens.sentencepiece.unigram import Unigram
from cutaway.tokens.unicode import NormalForm

# Settings of a model that are honoured, and for the others the values that switch them off.
HONOURED = frozenset(
    {"type", "vocab", "merges", "ignore_merges", "unk_token", "unk_id", "fuse_unk", "byte_fallback"}
)
SWITCHED_OFF: Mapping[str, tuple[object, ...]] = {
    "dropout": (None, 0),
    "continuing_subword_prefix": (None, ""),
    "end_of_word_suffix": (None, ""),
}
NORMAL_FORMS: Mapping[str, NormalForm] = {f: f for f in ("NFC", "NFD", "NFKC", "NFKD")}
PREFIXES: Mapping[str, Prefix] = {p: p for p in ("first", "always", "never")}
FirstBlank = Literal["kept", "one goes", "all of the first go"]


def is_sentencepiece(root: JsonNode) -> bool:
    """Whether a tokenizer.json is of this kind: blanks are marked, and nothing is byte-level."""
    for name, members in (("pre_tokenizer", "pretokenizers"), ("decoder", "decoders")):
        for step in flat(root[name], members):
            if step.value is not None and step["type"].value == "ByteLevel":
                return False
    steps = [*flat(root["decoder"], "decoders"), *flat(root["pre_tokenizer"], "pretokenizers")]
    kinds = [step["type"].value for step in steps if step.value is not None]
    model = root["model"]
    return (
        is_unigram(model)
        or model["byte_fallback"].value is True
        or "Metaspace" in kinds
        or "ByteFallback" in kinds
    )


def is_unigram(model: JsonNode) -> bool:
    """By its type, or in older files, which have none, by its list of scored pieces."""
    kind = model["type"].value
    return kind == "Unigram" or (kind is None and isinstance(model["vocab"].value, list))


def listed_ids(model: JsonNode) -> dict[str, int]:
    """Text -> id; a unigram vocabulary is a list of pairs of text and score."""
    if not is_unigram(model):
        return vocabulary_ids(model["vocab"])
    ids: dict[str, int] = {}
    for token_id, entry in enumerate(model["vocab"].items()):
        ids.setdefault(_pair(entry)[0], token_id)
    if not ids:
        raise model["vocab"].fault("a vocabulary of at least one token")
    return ids


def read_vocabulary(
    root: JsonNode, ids: Mapping[str, int], added: Sequence[AddedToken]
) -> SentencePieceVocabulary:
    """Everything but begin and end.

    Raises: ModelFormatError naming file and field, UnsupportedModelError.
    """
    model = root["model"]
    for key in model.mapping():
        if key not in HONOURED and model[key].value not in SWITCHED_OFF.get(key, ()):
            raise refuse_part(model[key], "models without it")
    first_blank, has_bytes = _decoding(root["decoder"])
    byte_ids = byte_ids_of(ids) if has_bytes or model["byte_fallback"].value is True else ()
    token_bytes = {
        token_id: token.replace(SPACE, " ").encode() for token, token_id in ids.items()
    } | {token_id: bytes([b]) for b, token_id in enumerate(byte_ids) if token_id is not None}
    normalize = Steps(tuple(map(_normalizer, _present(root["normalizer"], "normalizers"))))
    control = {token.token_id for token in added if token.is_control}
    falls_back = model["byte_fallback"].flag(default=False)
    fallback = Fallback(byte_ids if falls_back else (), _unknown_id(model, ids))
    kept_out = control.union(each for each in byte_ids if each is not None)
    return SentencePieceVocabulary(
        token_bytes=token_bytes
        | {t.token_id: t.content.replace(SPACE, " ").encode() for t in added},
        subword=_subword(model, ids, kept_out, fallback),
        normalize=normalize,
        splittings=tuple(map(_splitting, _present(root["pre_tokenizer"], "pretokenizers"))),
        added=tuple(
            replace(token, content=normalize(token.content, is_start=True))
            if token.is_normalized
            else token
            for token in added
        ),
        first_blank=first_blank,
        with_own_blank=frozenset(each for each in byte_ids if each is not None)
        | {token.token_id for token in added},
    )


def _present(node: JsonNode, members: str) -> list[JsonNode]:
    return [step for step in flat(node, members) if step.value is not None]


def _pair(entry: JsonNode) -> tuple[str, float]:
    """Text and score of a unigram vocabulary's entry."""
    parts = list(entry.items())
    if len(parts) != 2:
        raise entry.fault("a pair of text and score")
    score = parts[1].value
    if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
        raise parts[1].fault("a finite number")
    return parts[0].text(), float(score)


def _unknown_id(model: JsonNode, ids: Mapping[str, int]) -> int | None:
    if is_unigram(model):
        node = model["unk_id"]
        if node.value is None:
            return None
        count = len(list(model["vocab"].items()))
        if node.number() >= count:
            raise node.fault(f"a token id from 0 to {count - 1}")
        return node.number()
    node = model["unk_token"]
    if node.value is None:
        return None
    if node.text() not in ids:
        raise node.fault("a token of the vocabulary")
    return ids[node.text()]


def _subword(
    model: JsonNode, ids: Mapping[str, int], kept_out: set[int], fallback: Fallback
) -> Subword:
    """kept_out: ids that plain text must not become: control tokens, and bytes by their names."""
    kind = model["type"].value
    usable = {text: token_id for text, token_id in ids.items() if token_id not in kept_out and text}
    if is_unigram(model):
        pairs = [_pair(entry) for entry in model["vocab"].items()]
        scores = {text: score for i, (text, score) in enumerate(pairs) if usable.get(text, -1) == i}
        worst = min(score for _, score in pairs)
        return Unigram(usable, scores, fallback, worst=worst, precision="d")
    if kind not in (None, "BPE"):
        raise refuse_part(model["type"], "BPE and Unigram")
    merges = model["merges"]
    if not isinstance(merges.value, list):
        raise merges.fault("a list of pairs")
    whole = model["ignore_merges"].flag(default=False)
    return ListedBPE(
        usable,
        symbols.pair_merges(
            ids,
            cast("list[str | Sequence[str]]", merges.value),
            control=kept_out,
            file=model.file,
            field="model.merges",
        ),
        fallback,
        fuses_unknown=model["fuse_unk"].flag(default=False),
        whole_pieces=usable if whole else {},
    )


def _normalizer(step: JsonNode) -> Normalizer:
    kind = step["type"].text()
    if kind in NORMAL_FORMS:
        return Unicode(NORMAL_FORMS[kind])
    if kind == "Prepend":
        return Prepend(step["prepend"].text())
    if kind == "Replace":
        return Replace(pattern_of(step["pattern"]), step["content"].text())
    if kind == "Strip":
        left, right = step["strip_left"], step["strip_right"]
        return Strip(left.flag(default=True), right.flag(default=True))
    if kind == "Precompiled":
        node = step["precompiled_charsmap"]
        try:
            data = b64decode(node.text(), validate=True)
        except (binascii.Error, ValueError):
            raise node.fault("bytes in base64") from None
        return Precompiled(Charsmap(data, file=node.file, field=node.path))
    known = f"{', '.join(NORMAL_FORMS)}, Precompiled, Prepend, Replace, Strip and Sequence"
    raise refuse_part(step["type"], known)


def _splitting(step: JsonNode) -> Splitting:
    kind = step["type"].text()
    if kind == "Metaspace":
        if step["replacement"].value != SPACE:
            raise refuse_part(step["replacement"], f"{quote(SPACE)}")
        return Metaspace(_prefix(step), step["split"].flag(default=True))
    if kind == "WhitespaceSplit":
        return WhitespaceSplit()
    if kind == "Digits" and step["individual_digits"].flag(default=False):
        return SplitAt(OnigurumaPattern(r"\p{N}"), "alone")
    if kind == "Split":
        goes = {"Isolated": "alone", "MergedWithPrevious": "before", "MergedWithNext": "behind"}
        behaviour = step["behavior"].text()
        if behaviour not in goes or step["invert"].flag(default=False):
            raise refuse_part(step, f"the behaviors {', '.join(goes)}, without invert")
        keeps = cast("Literal['alone', 'before', 'behind']", goes[behaviour])
        return SplitAt(pattern_of(step["pattern"]), keeps)
    raise refuse_part(step["type"], "Metaspace, WhitespaceSplit, Split, Digits and Sequence")


def _prefix(step: JsonNode) -> Prefix:
    """Where Metaspace puts a blank; files of before 2024 say add_prefix_space alone."""
    if step["add_prefix_space"].value is False:
        return "never"
    node = step["prepend_scheme"]
    if node.value is None:
        return "always"
    if node.text() not in PREFIXES:
        raise node.fault(f"one of {', '.join(PREFIXES)}")
    return PREFIXES[node.text()]


def _decoding(node: JsonNode) -> tuple[FirstBlank, bool]:
    """Whether the first blank of a text is taken away, and whether tokens stand for bytes."""
    first_blank: FirstBlank = "kept"
    has_bytes = is_fused = False
    steps = _present(node, "decoders")
    for step in steps:
        kind = step["type"].text()
        if kind == "Metaspace":
            # There a token's own blanks in the middle go, too.
            first_blank = "kept" if _prefix(step) == "never" else "all of the first go"
        elif kind == "ByteFallback":
            has_bytes = True
        elif kind == "Strip":
            if step["content"].value != " " or step["stop"].value != 0:
                raise refuse_part(step, "Strip of blanks at the start")
            start = step["start"].number()
            if start > 1:
                raise refuse_part(step["start"], "0 and 1")
            if start and not is_fused:  # it would take a blank from every token
                raise refuse_part(node, "Strip behind Fuse")
            first_blank = "one goes" if start else first_blank
        elif kind == "Replace":
            if step["pattern"]["String"].value != SPACE or step["content"].value != " ":
                raise refuse_part(step, f"Replace of {quote(SPACE)} by a blank")
        elif kind == "Fuse":
            is_fused = True
        else:
            raise refuse_part(
                step["type"], "Metaspace, Replace, ByteFallback, Fuse, Strip and Sequence"
            )
    if not steps:
        raise refuse_part(node, "a decoder that says where blanks are")
    return first_blank, has_bytes
