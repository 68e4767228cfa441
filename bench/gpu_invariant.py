"""Forms of one order of summation on a GPU: which tiles give the same bits, and what they cost.

    python bench/gpu_invariant.py [--shape llama3-8b] [--tokens 1 16 64 256 8192] [--attention]

Products are told in microseconds beside those of the quickest forms, of graphs' replays over
several equal matrices. Each tile's result is compared bit by bit with that of sixteen tokens.
--attention: decode steps and prompts in segments, of several sizes.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import torch
from gpu_attention import SIZE, laid_out
from gpu_products import copied, graph_seconds, matrices
from gpu_shapes import SHAPES
from torch import Tensor

from cutaway.core.layout import FULL
from cutaway.core.step import ShapePlan
from cutaway.kernels.attention.plain import Scoring
from cutaway.kernels.linear import linear

NAMES, SEGMENTS = ("KEYS", "SEGMENT"), ((64, 256), (128, 256), (128, 512))
CHUNK_NAMES = ("_CHUNK_ROWS", "_CHUNK_WARPS", "_CHUNK_STAGES")
CHUNK_TILES = ((128, 8, 2), (64, 4, 2), (128, 8, 3), (64, 4, 3), (128, 4, 2))
_PAST_CACHE = 256 << 20  # bytes, several times the L2 of an H200


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--shape", choices=list(SHAPES), default="llama3-8b")
    options.add_argument("--tokens", nargs="*", type=int, default=[1, 16, 64, 128, 256, 8192])
    options.add_argument("--matrices", nargs="*", default=["gate_up", "down", "qkv", "o"])
    options.add_argument("--attention", action="store_true")
    args = options.parse_args()
    if not torch.cuda.is_available():
        sys.exit("gpu_invariant needs an NVIDIA GPU; torch sees none here.")
    shape = SHAPES[args.shape]
    for name, (rows, columns) in matrices(shape).items():
        if name in args.matrices:
            for tokens in args.tokens:
                products(name, rows, columns, tokens)
    if args.attention:
        for case in ("1x1+1023", "8x1+1023", "64x1+1023", "256x1+1023", "1x4096", "16x1024"):
            attention(shape, case)


def tiles_for(tokens: int) -> list[tuple[int, ...]]:
    """Tokens, rows, columns, warps and stages of a program that are worth a try."""
    if tokens <= 16:
        few = [(16, 64, 128, 4, 5), (16, 64, 128, 4, 4), (16, 64, 256, 4, 3), (16, 32, 256, 4, 4)]
        return [*few, (16, 16, 256, 2, 5), (16, 16, 512, 4, 3), (16, 128, 128, 8, 4)]
    if tokens <= 64:
        return [(64, 128, 64, 4, 5), (64, 128, 128, 8, 4), (64, 64, 64, 4, 6), (64, 64, 128, 4, 4)]
    if tokens <= 128:
        return [(128, 128, 64, 8, 4), (128, 128, 64, 4, 4), (128, 64, 64, 4, 5)]
    if tokens <= 256:
        return [
            (256, 128, 64, 8, 3),
            (256, 128, 64, 8, 4),
            (128, 128, 64, 8, 4),
            (256, 64, 64, 8, 4),
        ]
    wide = [(128, 256, 64, 8, 3), (128, 256, 64, 8, 4), (256, 128, 64, 8, 3)]
    return [*wide, (128, 128, 64, 8, 4), (128, 128, 64, 4, 4)]


def products(name: str, rows: int, columns: int, tokens: int) -> None:
    """One line: the quickest form, and each tile with whether its bits are those of 16 tokens."""
    from cutaway.kernels.linear import triton_shares
    from cutaway.kernels.linear.triton_shares import Tile

    weight = torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16) * columns**-0.5
    x = torch.randn(tokens, columns, device="cuda", dtype=torch.bfloat16)
    expected = triton_shares.linear(x[:16], weight, tile=Tile(16, 64, 128, 4, 3))
    copies = copied(weight, max(2, -(-_PAST_CACHE // weight.nbytes)))
    row: dict[str, Any] = {"matrix": name, "tokens": tokens}
    row["quickest"] = round(graph_seconds([lambda w=w: linear(x, w) for w in copies]) * 1e6, 2)
    for sizes in tiles_for(tokens):
        tile = Tile(*sizes)
        key = " ".join(map(str, sizes))
        try:
            ours = triton_shares.linear(x, weight, tile=tile)
            torch.cuda.synchronize()
            is_same = torch.equal(ours[:16], expected)
            near = torch.allclose(ours.float(), linear(x, weight).float(), rtol=0.05, atol=0.05)
            micros = graph_seconds(
                [lambda w=w, t=tile: triton_shares.linear(x, w, tile=t) for w in copies]
            )
            row[key] = [round(micros * 1e6, 2), "same" if is_same else "OTHER BITS"]
            row[key] += [] if near else ["WRONG"]
        except Exception as fault:  # a tile that does not fit
            row[key] = f"{type(fault).__name__}: {str(fault)[:60]}"
    print(json.dumps(row), flush=True)


def attention(shape: dict[str, Any], case: str) -> None:
    """One line: the quickest form, and segments of several sizes; bits of the last query alone."""
    from cutaway.kernels.attention import triton, triton_segments

    heads, groups = shape["num_attention_heads"], shape["num_key_value_heads"]
    tensors, where, _, _ = laid_out(case, heads, groups)
    scoring = Scoring(SIZE**-0.5, FULL, None, None)
    count = len(where["plan"].query_lengths)
    row: dict[str, Any] = {"attention": case, "heads": f"{heads}/{groups}"}

    def run(form: Any) -> Tensor:
        return form.paged_attention(*tensors, **where, scoring=scoring)

    wanted = run(triton).float()
    row["quickest"] = round(graph_seconds([lambda: run(triton)] * 4) * 1e6, 1)
    is_chunk = where["plan"].query_lengths[0] > 1
    names = CHUNK_NAMES if is_chunk else NAMES
    chosen = [getattr(triton_segments, name) for name in names]
    for sizes in CHUNK_TILES if is_chunk else SEGMENTS:
        for name, value in zip(names, sizes, strict=True):
            setattr(triton_segments, name, value)
        try:
            ours = run(triton_segments)
            near = ((ours.float() - wanted).norm() / wanted.norm()).item()
            micros = graph_seconds([lambda: run(triton_segments)] * 4) * 1e6
            words = [round(micros, 1), f"{near:.1e}"]
            row[str(sizes)] = [*words, *is_same(tensors, where, scoring, ours, count)]
        except Exception as fault:
            row[str(sizes)] = f"{type(fault).__name__}: {str(fault)[:60]}"
    for name, value in zip(names, chosen, strict=True):
        setattr(triton_segments, name, value)
    print(json.dumps(row), flush=True)


def is_same(
    tensors: list[Tensor], where: dict[str, Any], scoring: Scoring, ours: Tensor, count: int
) -> list[str]:
    """Whether the last queries of two sequences have the same bits alone, by one and by five."""
    from cutaway.kernels.attention import triton_segments

    lengths = where["plan"].query_lengths
    ends = [sum(lengths[: i + 1]) for i in range(count)]
    words: list[str] = []
    for queries in (1, 5, 100):
        for sequence in {0, count - 1}:
            if queries > lengths[sequence]:
                continue
            keys = where["plan"].context_lengths[sequence]
            alone = triton_segments.paged_attention(
                tensors[0][ends[sequence] - queries : ends[sequence]],
                *tensors[1:],
                page_table=where["page_table"][sequence : sequence + 1],
                query_starts=torch.tensor([0, queries], device="cuda"),
                context_lengths=torch.tensor([keys], device="cuda"),
                plan=ShapePlan((queries,), (keys,)),
                scoring=scoring,
            )
            part = ours[ends[sequence] - queries : ends[sequence]]
            if not torch.equal(alone, part):
                words.append(f"OTHER BITS by {queries}")
    return words or ["same"]


if __name__ == "__main__":
    main()
