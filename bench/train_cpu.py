"""Training on a CPU beside nanoGPT's own model and loop, at its recipe for CPUs, in turns.

    git clone https://github.com/karpathy/nanoGPT NANOGPT
    python bench/train_cpu.py --nanogpt NANOGPT [--threads 2] [--rounds 15] [--updates 20]

4 layers of 128, 4 heads, 65 characters, 12 sequences of 64, AdamW, no dropout, not compiled. Ours
is GPT-2 of that shape, and Llama's form with as many layers. Random ids: what a loss is plays no
part here. A round is so many updates of each; told are medians, and the median ratio of a round.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from cutaway.models.parts.reading import read_config
from cutaway.train.data.packing import MicroBatch, ScoredSequence
from cutaway.train.loop import descend
from cutaway.train.losses.likelihood import likelihood
from cutaway.train.losses.losses import cross_entropy
from cutaway.train.model.model_folder import fill
from cutaway.train.optimizers import Optimizers, OptimizerSettings

LAYERS, WIDTH, HEADS, VOCABULARY, SEQUENCES, LENGTH = 4, 128, 4, 65, 12, 64
GPT2: dict[str, Any] = {
    "architectures": ["GPT2LMHeadModel"],
    "vocab_size": VOCABULARY,
    "n_layer": LAYERS,
    "n_embd": WIDTH,
    "n_head": HEADS,
    "n_positions": LENGTH + 1,
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
}
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 344,  # as many numbers as GPT-2's 4 times the width, in three matrices
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "tie_word_embeddings": True,
    "max_position_embeddings": LENGTH + 1,
}


def drawn(update: int) -> torch.Tensor:
    """The ids of an update. Shapes: [B, T + 1]."""
    generator = torch.Generator().manual_seed(update)
    return torch.randint(0, VOCABULARY, (SEQUENCES, LENGTH + 1), generator=generator)


def ours(config: dict[str, Any]) -> Callable[[int], float]:
    """An update of our trainer, and its loss."""
    architecture = read_config(config).architecture
    with torch.device("meta"):
        model = architecture.build()
    model.to_empty(device="cpu")
    fill(model, architecture, seed=0)
    optimizers = Optimizers(model, OptimizerSettings(rate=1e-3))

    def update(index: int) -> float:
        rows = drawn(index).tolist()
        batch = MicroBatch(tuple(ScoredSequence.whole(row) for row in rows))
        done = descend(
            [batch],
            lambda each: cross_entropy(likelihood(model, each)),
            optimizers,
            update=index,
            factor=1.0,
        )
        return done.loss

    return update


def theirs(folder: Path) -> Callable[[int], float]:
    """An update as nanoGPT's train.py makes it, with its model and its choice of an optimizer."""
    sys.path.insert(0, str(folder))
    nano: Any = importlib.import_module("model")
    config = nano.GPTConfig(
        block_size=LENGTH,
        vocab_size=VOCABULARY,
        n_layer=LAYERS,
        n_head=HEADS,
        n_embd=WIDTH,
        dropout=0.0,
        bias=False,
    )
    model = nano.GPT(config)
    optimizer = model.configure_optimizers(1e-1, 1e-3, (0.9, 0.99), "cpu")

    def update(index: int) -> float:
        ids = drawn(index)
        _, loss = model(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.item())

    return update


def main() -> None:
    """Take turns and print a row for each."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--nanogpt", type=Path, required=True, help="the folder of its model.py")
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--rounds", type=int, default=15)
    options.add_argument("--updates", type=int, default=20)
    args = options.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    sides = {"nanoGPT": theirs(args.nanogpt), "ours, GPT-2": ours(GPT2), "ours, Llama": ours(LLAMA)}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for round_ in range(args.rounds + 1):
        for name, update in sides.items():
            began = perf_counter()
            for index in range(args.updates):
                update(round_ * args.updates + index)
            if round_:  # the first warms up
                seconds[name].append((perf_counter() - began) / args.updates)
    tokens = SEQUENCES * LENGTH
    print(f"torch {torch.__version__}, {args.threads} threads, {args.rounds} rounds")
    print("| loop | ms an update | tokens/s | nanoGPT's time in its own, median of rounds |")
    print("|---|---|---|---|")
    for name, taken in seconds.items():
        ratio = statistics.median(
            theirs_ / own for own, theirs_ in zip(taken, seconds["nanoGPT"], strict=True)
        )
        median = statistics.median(taken)
        print(f"| {name} | {1000 * median:.1f} | {tokens / median:,.0f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
