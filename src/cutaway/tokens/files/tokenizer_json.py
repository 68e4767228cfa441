"""A tokenizer from HF's tokenizer.json and the files beside it, byte-level BPE or SentencePiece.

What it does not know raises UnsupportedModelError naming it; nothing is skipped in silence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

from cutaway.tokens.added import AddedToken
from cutaway.tokens.byte_bpe import ByteBPE, Vocabulary
from cutaway.tokens.files import spm_json, symbols
from cutaway.tokens.files.json_node import JsonNode
from cutaway.tokens.files.json_parts import (
    added_tokens,
    flat,
    pattern_of,
    refuse_part,
    template_ids,
    vocabulary_ids,
    with_control,
)
from cutaway.tokens.files.tokenizer_config import read_roles
from cutaway.tokens.oniguruma.pattern import OnigurumaPattern
from cutaway.tokens.patterns import CL100K, DIGIT, GPT2, LLAMA3, O200K, QWEN2
from cutaway.tokens.sentencepiece.sentencepiece import SentencePiece
from cutaway.tokens.unicode import NormalForm

# These match every text whole, so that "keep the matches" and "keep everything" are the same.
TOTAL_PATTERNS = frozenset({GPT2, CL100K, LLAMA3, QWEN2, O200K})

# Settings of a BPE model that are honoured, and for the others the values that switch them off.
HONOURED = frozenset({"type", "vocab", "merges", "ignore_merges", "unk_token", "fuse_unk"})
SWITCHED_OFF: Mapping[str, tuple[object, ...]] = {
    "dropout": (None, 0),
    "continuing_subword_prefix": (None, ""),
    "end_of_word_suffix": (None, ""),
    "byte_fallback": (None, False),
}
NORMAL_FORMS: Mapping[str, NormalForm] = {f: f for f in ("NFC", "NFD", "NFKC", "NFKD")}


def load_tokenizer_json(path: Path) -> ByteBPE | SentencePiece:
    """The tokenizer of a tokenizer.json, with what the files beside it say about bos and eos.

    What begins a prompt: add_bos_token of tokenizer_config.json decides if it is there, else the
    post-processor.

    Raises: ModelNotFoundError, ModelFormatError naming file and field, UnsupportedModelError.
    """
    root = JsonNode.read(path)
    is_marked = spm_json.is_sentencepiece(root)
    model = root["model"]
    ids = spm_json.listed_ids(model) if is_marked else vocabulary_ids(model["vocab"])
    listed = added_tokens(root, ids)
    roles = read_roles(path.parent, ids | {token.content: token.token_id for token in listed})
    prefix = [i for step in flat(root["post_processor"], "processors") for i in template_ids(step)]
    if roles.adds_bos is not None:
        prefix = [roles.bos] if roles.adds_bos and roles.bos is not None else []
    if is_marked:
        added = with_control(listed, ids, roles.control)
        return SentencePiece(
            spm_json.read_vocabulary(root, ids, added),
            control_tokens={t.content: t.token_id for t in added if t.is_control},
            bos_token_id=roles.bos,
            eos_token_ids=roles.eos,
            prompt_prefix=prefix,
        )
    return ByteBPE(
        _byte_vocabulary(root, ids, listed, roles.control),
        bos_token_id=roles.bos,
        eos_token_ids=roles.eos,
        prompt_prefix=prefix,
    )


def _byte_vocabulary(
    root: JsonNode, ids: dict[str, int], listed: list[AddedToken], has_role: frozenset[int]
) -> Vocabulary:
    model = root["model"]
    byte_ids = _byte_ids(model, ids)
    added = with_control(listed, ids, has_role.difference(byte_ids))
    control = {token.token_id for token in added if token.is_control}
    token_bytes = symbols.token_bytes((token_id, token) for token, token_id in ids.items())
    _check_decoder(root["decoder"])
    return Vocabulary(
        token_bytes=token_bytes,
        byte_ids=byte_ids,
        merges=_merges(model, ids, control),
        patterns=tuple(_patterns(root["pre_tokenizer"])),
        added=added,
        normal_form=_normal_form(root["normalizer"]),
        whole_pieces=_whole_pieces(model, token_bytes, control),
        adds_blank=_adds_blank(root["pre_tokenizer"]),
    )


def _merges(model: JsonNode, ids: Mapping[str, int], control: set[int]) -> symbols.PairMerges:
    kind = model["type"]
    if kind.value not in (None, "BPE"):
        raise refuse_part(kind, "BPE")
    for key in model.mapping():
        node = model[key]
        if key not in HONOURED and node.value not in SWITCHED_OFF.get(key, ()):
            raise refuse_part(node, "models without it")
    merges = model["merges"]
    listed = merges.value
    if not isinstance(listed, list):
        raise merges.fault("a list of pairs")
    # What is no pair of strings is found, and named, where the merges are looked up.
    checked_later = cast("list[str | Sequence[str]]", listed)
    return symbols.pair_merges(
        ids, checked_later, control=control, file=model.file, field="model.merges"
    )


def _byte_ids(model: JsonNode, ids: Mapping[str, int]) -> tuple[int | None, ...]:
    byte_ids = symbols.byte_ids(ids)
    unknown = model["unk_token"]
    if unknown.value is None or None not in byte_ids:
        return byte_ids
    if model["fuse_unk"].flag(default=False):
        raise refuse_part(model["fuse_unk"], "false, or a vocabulary with all 256 bytes")
    if unknown.text() not in ids:
        raise unknown.fault("a token of the vocabulary")
    unknown_id = ids[unknown.text()]
    return tuple(unknown_id if byte_id is None else byte_id for byte_id in byte_ids)


def _whole_pieces(
    model: JsonNode, token_bytes: Mapping[int, bytes], control: set[int]
) -> Mapping[bytes, int]:
    if not model["ignore_merges"].flag(default=False):
        return {}
    return {token: i for i, token in token_bytes.items() if i not in control}


def _normal_form(node: JsonNode) -> NormalForm | None:
    forms = [each for each in flat(node, "normalizers") if each.value is not None]
    if not forms:
        return None
    if len(forms) > 1 or forms[0]["type"].text() not in NORMAL_FORMS:
        raise refuse_part(node, f"none, {', '.join(NORMAL_FORMS)}")
    return NORMAL_FORMS[forms[0]["type"].text()]


def _patterns(node: JsonNode) -> Iterator[OnigurumaPattern]:
    """The split patterns of a pre-tokenizer that ends in ByteLevel."""
    steps = flat(node, "pretokenizers")
    for step in steps:
        kind, is_last = step["type"].text(), step is steps[-1]
        if kind == "Split":
            yield _split_pattern(step)
        elif kind == "Digits":
            yield OnigurumaPattern(
                DIGIT if step["individual_digits"].flag(default=False) else DIGIT + "+"
            )
        elif kind != "ByteLevel":
            raise refuse_part(step["type"], "Split, Digits, ByteLevel and Sequence")
        elif step["add_prefix_space"].flag(default=True) and len(steps) > 1:
            # There each piece of the steps before would get a blank.
            raise refuse_part(step["add_prefix_space"], "false behind other steps")
        elif step["use_regex"].flag(default=True):
            yield OnigurumaPattern(GPT2)
        if (kind == "ByteLevel") != is_last:
            raise refuse_part(node, "byte-level BPE: ByteLevel once, and last")


def _adds_blank(node: JsonNode) -> bool:
    """Whether ByteLevel, which stands alone then, puts a blank before each stretch without one."""
    steps = flat(node, "pretokenizers")
    if not steps:
        raise refuse_part(node, "byte-level BPE: ByteLevel once, and last")
    return steps[-1]["add_prefix_space"].flag(default=True)


def _split_pattern(step: JsonNode) -> OnigurumaPattern:
    found = pattern_of(step["pattern"])
    behaviour = step["behavior"].text(), step["invert"].flag(default=False)
    keeps_matches = behaviour == ("Removed", True) and found.source in TOTAL_PATTERNS
    if behaviour != ("Isolated", False) and not keeps_matches:
        raise refuse_part(step, "the behavior Isolated without invert")
    return found


def _check_decoder(node: JsonNode) -> None:
    for step in flat(node, "decoders"):
        if step.value is None or step["type"].value != "ByteLevel":
            raise refuse_part(node, "the decoder ByteLevel")
