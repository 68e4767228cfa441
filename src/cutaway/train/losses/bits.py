"""Bits per byte: what a text costs under a model, whatever its vocabulary."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from cutaway.blocks.transformer import Transformer
from cutaway.tokens.tokenizer import Tokenizer
from cutaway.train.data.packing import MicroBatch, ScoredSequence
from cutaway.train.losses.likelihood import likelihood


def without_controls(sequence: ScoredSequence, tokenizer: Tokenizer) -> ScoredSequence:
    """The same with control tokens unscored: they are no text, so they count neither way."""
    pairs = zip(sequence.token_ids, sequence.is_scored, strict=True)
    marks = (is_scored and each not in tokenizer.control_ids for each, is_scored in pairs)
    return ScoredSequence(sequence.token_ids, tuple(marks))


def num_bytes(sequence: ScoredSequence, tokenizer: Tokenizer) -> int:
    """Bytes of the scored tokens: their own, so half a character counts what it is."""
    pairs = zip(sequence.token_ids, sequence.is_scored, strict=True)
    return sum(len(tokenizer.token_bytes(each)) for each, is_scored in pairs if is_scored)


def bits_per_byte(nats: float, total_bytes: int) -> float:
    """Nats of a text over its bytes, in bits."""
    return nats / (math.log(2) * total_bytes)


@torch.no_grad()
def measure(model: Transformer, batches: Iterable[MicroBatch], tokenizer: Tokenizer) -> float:
    """Bits per byte of sequences under a model; control tokens are left out."""
    nats, total = 0.0, 0
    for batch in batches:
        plain = MicroBatch(tuple(without_controls(each, tokenizer) for each in batch.sequences))
        if plain.count:
            nats -= float(likelihood(model, plain).log_probs.double().sum())
            total += sum(num_bytes(each, tokenizer) for each in plain.sequences)
    return bits_per_byte(nats, total)
