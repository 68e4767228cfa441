"""Training on a CPU beside nanoGPT's own model and loop, at its recipe for CPUs, in turns.

    git clone https://github.com/karpathy/nanoGPT NANOGPT
    python bench/train_cpu.py --nanogpt NANOGPT [--threads 2] [--updates 100]
    python bench/train_cpu.py --products [--threads 1]

4 layers of 128, 4 heads, 65 characters, 12 sequences of 64, AdamW, no dropout, not compiled. Ours
is GPT-2 of that shape, and Llama's form with as many layers. Random ids: what a loss is plays no
part here. Updates are made in turns, so that all meet the same company on a busy machine; told are
medians of what the clock says and of the processor's time for all threads, and of a turn's ratios.
The second command tells what decides whose products training takes on a processor: those of the
shape's matrices and their gradients by torch's library and by own kernels, medians, in turns.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import torch

from cutaway.kernels.large_blocks import keep_freed_blocks
from cutaway.kernels.native.learn import multiply_columns, multiply_rows
from cutaway.kernels.native.library import isa
from cutaway.models.parts.reading import read_config
from cutaway.train.data.packing import MicroBatch, ScoredSequence
from cutaway.train.loop import descend
from cutaway.train.losses.likelihood import likelihood
from cutaway.train.losses.losses import cross_entropy
from cutaway.train.model.model_folder import fill
from cutaway.train.optimizers import Optimizers, OptimizerSettings

WARM = 3  # updates that are not counted
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


def products(turns: int) -> None:
    """Print a row for each matrix of a block: billions of operations a second, both sides."""
    rows = SEQUENCES * LENGTH
    print("| N x K | forward: torch, own | gradient of rows | gradient of the matrix |")
    print("|---|---|---|---|")
    sums = [0.0, 0.0]
    for width, depth in (
        (3 * WIDTH, WIDTH),
        (WIDTH, WIDTH),
        (4 * WIDTH, WIDTH),
        (WIDTH, 4 * WIDTH),
    ):
        x, w, pull = (torch.randn(*s) for s in ((rows, depth), (width, depth), (rows, width)))
        out, of_x, of_w = torch.empty_like(pull), torch.empty_like(x), torch.empty_like(w)
        cells: list[str] = []
        for sides in (
            (partial(torch.mm, x, w.T, out=out), partial(multiply_rows, x, w, is_turned=True)),
            (
                partial(torch.mm, pull, w, out=of_x),
                partial(multiply_rows, pull, w, is_turned=False),
            ),
            (
                partial(torch.mm, pull.T, x, out=of_w),
                partial(multiply_columns, pull, x, sums=False),
            ),
        ):
            took = _medians(sides, turns)
            sums = [total + each for total, each in zip(sums, took, strict=True)]
            cells.append(", ".join(f"{2e-9 * rows * width * depth / each:.0f}" for each in took))
        print(f"| {width} x {depth} | " + " | ".join(cells) + " |")
    print(f"{isa()}: {LAYERS} layers take " + ", ".join(f"{1e3 * LAYERS * s:.1f} ms" for s in sums))


def _medians(sides: Sequence[Callable[[], object]], turns: int) -> list[float]:
    """Seconds of each side."""
    took: list[list[float]] = [[] for _ in sides]
    for _ in range(WARM + turns):
        for each, side in zip(took, sides, strict=True):
            began = perf_counter()
            side()
            each.append(perf_counter() - began)
    return [statistics.median(each[WARM:]) for each in took]


def main() -> None:
    """Take turns and print a row for each."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--nanogpt", type=Path, help="the folder of its model.py")
    options.add_argument("--products", action="store_true", help="products alone, without nanoGPT")
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--updates", type=int, default=100)
    args = options.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    if args.products:
        return products(args.updates)
    if args.nanogpt is None:
        options.error("--nanogpt FOLDER is wanted, or --products")
    keep_freed_blocks()  # as a stage does; all turns have it, since they share a process
    sides = {"nanoGPT": theirs(args.nanogpt), "ours, GPT-2": ours(GPT2), "ours, Llama": ours(LLAMA)}
    walls: dict[str, list[float]] = {name: [] for name in sides}
    works: dict[str, list[float]] = {name: [] for name in sides}
    for index in range(WARM + args.updates):
        for name, update in sides.items():
            began, worked = perf_counter(), process_time()
            update(index)
            if index >= WARM:
                walls[name].append(perf_counter() - began)
                works[name].append(process_time() - worked)
    print(f"torch {torch.__version__}, {args.threads} threads, {args.updates} updates in turns")
    print(
        "| loop | ms an update | its processor time | tokens/s | nanoGPT's in its own | processor |"
    )
    print("|---|---|---|---|---|---|")
    for name in sides:
        wall, work = (statistics.median(each[name]) for each in (walls, works))
        ratios = [_ratio(each[name], each["nanoGPT"]) for each in (walls, works)]
        print(
            f"| {name} | {1000 * wall:.1f} | {1000 * work:.1f} | {SEQUENCES * LENGTH / wall:,.0f} "
            f"| {ratios[0]:.2f} | {ratios[1]:.2f} |"
        )


def _ratio(own: list[float], theirs: list[float]) -> float:
    """The median of turns."""
    return statistics.median(other / each for each, other in zip(own, theirs, strict=True))


if __name__ == "__main__":
    main()
