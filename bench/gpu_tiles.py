"""Tiles of a GPU's small kernels: heads between products, and decode attention, in one run.

    python bench/gpu_tiles.py [--parts heads decode]

Microseconds of graphs' replays, heads of Llama-3-8B in bfloat16, each beside whether its bits are
those of the tile in use. decode: 256 and 64 contexts of 1,024 tokens, and 188 of 300 to 1,300.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable
from itertools import product
from typing import Any

import torch
from gpu_attention import GROUPS, HEADS, PAGE, SIZE
from gpu_products import graph_seconds
from torch import Tensor

from cutaway.core.layout import FULL
from cutaway.core.step import ShapePlan
from cutaway.kernels.attention.plain import Scoring

_LAYERS = 8  # of pages, read in turn: more than the cache of the chip holds


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--parts", nargs="*", default=["heads", "decode"])
    args = options.parse_args()
    if not torch.cuda.is_available():
        sys.exit("gpu_tiles needs an NVIDIA GPU; torch sees none here.")
    if "heads" in args.parts:
        for tokens in (1, 64, 256, 1024):
            heads(tokens)
    if "decode" in args.parts:
        chance = random.Random(0)
        mixed = [chance.randint(300, 1300) for _ in range(188)]
        for name, lengths in (
            *(("256 x 1024", [1024] * 256), ("188 mixed", mixed)),
            *(("64 x 1024", [1024] * 64), ("8 x 1024", [1024] * 8)),
        ):
            decode(name, lengths)


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def heads(tokens: int) -> None:
    from cutaway.kernels.heads import triton

    rows = [drawn(tokens, HEADS + 2 * GROUPS, SIZE) for _ in range(_LAYERS)]
    angle = torch.randn(tokens, SIZE // 2, device="cuda")
    slots = torch.randperm(tokens, device="cuda")
    pages = [drawn(tokens // PAGE + 1, PAGE, GROUPS, SIZE) for _ in range(2)]
    cos, sin = angle.cos(), angle.sin()
    runs = [lambda x=x: triton.turn_and_store(x, cos, sin, *pages, slots) for x in rows]
    chosen, expected = triton._tile, runs[0]()
    row: dict[str, Any] = {"heads": tokens, "in use": chosen(tokens)}
    for tile in ((4, 1), (8, 1), (8, 2), (16, 2), (16, 4), (32, 4), (64, 4), (64, 8)):
        triton._tile = lambda _, tile=tile: tile
        row[str(tile)] = told(runs, expected)
    triton._tile = chosen
    print(json.dumps(row), flush=True)


def decode(name: str, lengths: list[int]) -> None:
    from cutaway.kernels.attention import triton

    count, width = len(lengths), -(-max(lengths) // PAGE)
    needed = [-(-length // PAGE) for length in lengths]
    order = (torch.randperm(sum(needed)) + 1).split(needed)
    table = torch.zeros(count, width, dtype=torch.int64)
    for row, numbers in zip(table, order, strict=True):
        row[: len(numbers)] = numbers
    layers = max(2, min(_LAYERS, 256 // count))
    pages = [[drawn(sum(needed) + 1, PAGE, GROUPS, SIZE) for _ in "kv"] for _ in range(layers)]
    query, scoring = drawn(count, HEADS, SIZE), Scoring(SIZE**-0.5, FULL, None, None)
    where = {
        "page_table": table.cuda(),
        "query_starts": torch.arange(count + 1, device="cuda"),
        "context_lengths": torch.tensor(lengths, device="cuda"),
        "plan": ShapePlan((1,) * count, tuple(lengths)),
        "scoring": scoring,
    }
    runs = [lambda p=p: triton.paged_attention(query, *p, **where) for p in pages]
    expected, chosen = runs[0](), triton._share_keys
    floor = 4 * sum(lengths) * GROUPS * SIZE
    line: dict[str, Any] = {
        "decode": name,
        "MB": floor // 1_000_000,
        "in use": told(runs, expected),
    }
    few = count * GROUPS < 512
    tiles = [(64, 4, 8), (128, 4, 8), (64, 4, 4), (128, 4, 4), (64, 2, 8), (128, 8, 8)]
    if not few:
        tiles = [(128, 4, 1), (64, 4, 1), (64, 2, 1), (128, 8, 1), (128, 4, 2), (64, 2, 2)]
    for tile, first in product(tiles, (False, True)):
        triton._share_keys = lambda *_, tile=tile, **__: tile
        triton.GROUPS_FIRST = first
        line[f"{tile}{' groups first' if first else ''}"] = told(runs, expected)
    triton._share_keys, triton.GROUPS_FIRST = chosen, False
    print(json.dumps(line), flush=True)


def told(runs: list[Callable[[], Tensor]], expected: Tensor) -> list[Any] | str:
    """Microseconds of one run, and how the first one's result differs from what is in use."""
    try:
        ours = runs[0]()
        apart = ((ours.float() - expected.float()).norm() / expected.float().norm()).item()
        micros = round(graph_seconds(runs) * 1e6, 2)
    except Exception as fault:  # a tile that does not fit
        return type(fault).__name__
    return [micros, "same bits" if torch.equal(ours, expected) else f"{apart:.0e} apart"]


if __name__ == "__main__":
    main()
