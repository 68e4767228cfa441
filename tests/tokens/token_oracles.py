"""Our tokenizers beside the public ones over the same vocabularies, each built once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import cast, get_args

import tiktoken
from tiktoken.load import load_tiktoken_bpe
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from cutaway.host import gguf_file
from cutaway.tokens.byte_bpe import ByteBPE
from cutaway.tokens.files.tokenizer_files import (
    load_rank_file,
    load_tokenizer_json,
    tokenizer_from_gguf,
)
from cutaway.tokens.patterns import ENCODINGS
from oracles import RankName, rank_file, smollm2_gguf, tokenizer_json

RANK_NAMES: tuple[RankName, ...] = get_args(RankName)
HF_NAMES = ("llama3", "qwen3", "smollm2")
NAMES = (*RANK_NAMES, *HF_NAMES)


@dataclass(frozen=True)
class Beside:
    """Our tokenizer, and the reference's ids with control tokens as plain text or as tokens."""

    ours: ByteBPE
    plain: Callable[[str], list[int]]
    control: Callable[[str], list[int]]
    plain_batch: Callable[[list[str]], list[list[int]]]


@cache
def beside(name: str) -> Beside:
    """Skips the test when the vocabulary is not fetched."""
    return _beside_tiktoken(cast(RankName, name)) if name in RANK_NAMES else _beside_hf(name)


def _beside_tiktoken(name: RankName) -> Beside:
    path = rank_file(name)
    rules = ENCODINGS[name]
    theirs = tiktoken.Encoding(
        name=name,
        pat_str=reference_pattern(name),
        mergeable_ranks=load_tiktoken_bpe(str(path)),
        special_tokens=dict(rules.control_tokens),
    )
    return Beside(
        load_rank_file(path, name),
        theirs.encode_ordinary,
        lambda text: theirs.encode(text, allowed_special="all"),
        lambda texts: theirs.encode_ordinary_batch(texts, num_threads=2),
    )


def reference_pattern(name: str) -> str:
    """tiktoken's own pattern; its module fetches vocabularies, which we take from elsewhere."""
    from tiktoken_ext import openai_public

    loaders = ("load_tiktoken_bpe", "data_gym_to_mergeable_bpe_ranks")
    kept = {loader: getattr(openai_public, loader) for loader in loaders}
    try:
        for loader in loaders:
            setattr(openai_public, loader, lambda *_, **__: {})
        return openai_public.ENCODING_CONSTRUCTORS[name]()["pat_str"]
    finally:
        for loader, function in kept.items():
            setattr(openai_public, loader, function)


def _beside_hf(name: str) -> Beside:
    if name == "smollm2":
        path = smollm2_gguf()
        metadata = gguf_file.read(path).metadata
        ours, theirs = tokenizer_from_gguf(metadata, file=path.name), _smollm2_reference(metadata)
    else:
        path = tokenizer_json("llama3" if name == "llama3" else "qwen3")
        ours, theirs = load_tokenizer_json(path), Tokenizer.from_file(str(path))

    def plain(text: str) -> list[int]:
        return plain_batch([text])[0]

    def control(text: str) -> list[int]:
        theirs.encode_special_tokens = False
        return theirs.encode(text, add_special_tokens=False).ids

    def plain_batch(texts: list[str]) -> list[list[int]]:
        theirs.encode_special_tokens = True
        return [each.ids for each in theirs.encode_batch_fast(texts, add_special_tokens=False)]

    return Beside(ours, plain, control, plain_batch)


def _smollm2_reference(metadata) -> Tokenizer:
    """HF's tokenizer over the vocabulary in the GGUF, put together as its model card does."""
    tokens = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    theirs = Tokenizer(
        models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges)
    )
    theirs.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    theirs.decoder = decoders.ByteLevel()
    theirs.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in tokens[:17]]
    )
    return theirs
