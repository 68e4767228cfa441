"""A learned vocabulary as tokenizer.json and tokenizer_config.json, as HF's library has them."""

from __future__ import annotations

from collections.abc import Sequence

from cutaway.tokens.learn_vocabulary import BPELearner
from cutaway.tokens.patterns import GPT2
from cutaway.tokens.unicode import BYTE_SYMBOLS


def tokenizer_json(learner: BPELearner, control_tokens: Sequence[str]) -> dict[str, object]:
    """What was learned so far, with control tokens behind it, as the file's object."""
    names = ["".join(map(BYTE_SYMBOLS.__getitem__, token)) for token in learner.tokens]
    merges = [[names[left], names[right]] for left, right in (m.pair for m in learner.merges)]
    added = [
        {
            "id": len(names) + place,
            "content": content,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for place, content in enumerate(control_tokens)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": _pre_tokenizer(learner.patterns),
        "post_processor": None,
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": True,
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {name: token_id for token_id, name in enumerate(names)},
            "merges": merges,
        },
    }


def tokenizer_config(begin: str, end: str) -> dict[str, object]:
    """Which tokens begin a text and end an answer; a prompt gets the first in front."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": begin,
        "eos_token": end,
        "add_bos_token": True,
        "clean_up_tokenization_spaces": False,
    }


def _pre_tokenizer(patterns: Sequence[str]) -> dict[str, object]:
    whole = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    if tuple(patterns) == (GPT2,):
        return {**whole, "use_regex": True}
    splits = [
        {"type": "Split", "pattern": {"Regex": each}, "behavior": "Isolated", "invert": False}
        for each in patterns
    ]
    return {"type": "Sequence", "pretokenizers": [*splits, {**whole, "use_regex": False}]}
