"""Tokens a second of training on a GPU at SmolLM2-135M's shape, blocks plain and compiled.

    python bench/train_speed.py [--sequences 32] [--updates 4]

Random weights and tokens, AdamW, products in bfloat16, one micro-batch an update; the mean of some
updates after three to warm up.
"""

from __future__ import annotations

import argparse
from time import perf_counter

import torch

from cutaway.blocks.transformer import Transformer
from cutaway.models.parts.reading import read_config
from cutaway.train.data.packing import MicroBatch, ScoredSequence
from cutaway.train.loop import descend
from cutaway.train.losses.likelihood import likelihood
from cutaway.train.losses.losses import cross_entropy
from cutaway.train.model import compute_forms
from cutaway.train.model.model_folder import fill
from cutaway.train.optimizers import Optimizers, OptimizerSettings

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "tie_word_embeddings": True,
    "max_position_embeddings": 2048,
}


def made(*, is_compiled: bool) -> Transformer:
    """A model of random weights on the GPU."""
    architecture = read_config(CONFIG).architecture
    with torch.device("meta"):
        model = architecture.build()
    model.to_empty(device="cuda")
    fill(model, architecture, seed=0)
    compute_forms.multiply_in(model, torch.bfloat16)
    if is_compiled:
        compute_forms.compile_blocks(model)
    return model


def measure(length: int, num_sequences: int, *, is_compiled: bool, updates: int) -> str:
    """One line of the table."""
    model = made(is_compiled=is_compiled)
    optimizers = Optimizers(model, OptimizerSettings(rate=1e-4))
    ids = torch.randint(
        0, 49152, (num_sequences, length), generator=torch.Generator().manual_seed(0)
    )
    batch = MicroBatch(tuple(ScoredSequence.whole(row) for row in ids.tolist()))

    def update(index: int) -> None:
        descend(
            [batch],
            lambda each: cross_entropy(likelihood(model, each)),
            optimizers,
            update=index,
            factor=1.0,
        )

    for index in range(3):
        update(index)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    began = perf_counter()
    for index in range(updates):
        update(3 + index)
    torch.cuda.synchronize()
    seconds = (perf_counter() - began) / updates
    form = "compiled" if is_compiled else "plain"
    memory = torch.cuda.max_memory_allocated() / 2**30
    rate = num_sequences * length / seconds
    return f"| {length:,} | {form} | {rate:,.0f} | {seconds * 1000:.0f} | {memory:.1f} |"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--sequences", type=int, default=32)
    options.add_argument("--updates", type=int, default=4)
    args = options.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {args.sequences} sequences")
    print("| tokens of a sequence | blocks | tokens/s | ms | GiB |\n|---|---|---|---|---|")
    for is_compiled in (False, True):
        for length in (1024, 2048):
            print(
                measure(length, args.sequences, is_compiled=is_compiled, updates=args.updates),
                flush=True,
            )
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
