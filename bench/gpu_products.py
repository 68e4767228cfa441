"""Products of a GPU by how the matrix is kept: microseconds, and bytes a second of the matrix.

    python bench/gpu_products.py [--shape llama3-8b] [--tokens 1 16 64 256] [--tiles]
    python bench/gpu_products.py --some 8  # other tiles for so many tokens, a dense matrix

Each product reads one of several equal matrices in turn, more than the cache of the chip holds,
inside a CUDA graph. --tiles tries sizes of the products of one token with 4 bits.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from itertools import product
from typing import Any

import torch
from gpu_shapes import SHAPES
from torch import Tensor

from cutaway.kernels.linear import linear
from cutaway.quantize.floats8 import KeptFloats8
from cutaway.quantize.integers import KeptIntegers
from cutaway.quantize.rounding import round_matrix
from cutaway.quantize.schemes import scheme_of

WORDS = ("int4", "int4-g128", "int8-g128", "fp8")
_PAST_CACHE = 256 << 20  # bytes, several times the L2 of an H200


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--shape", choices=list(SHAPES), default="llama3-8b")
    options.add_argument("--tokens", nargs="*", type=int, default=[1, 16, 64, 160, 192, 224, 256])
    options.add_argument("--tiles", action="store_true")
    options.add_argument("--some", type=int)
    args = options.parse_args()
    if not torch.cuda.is_available():
        sys.exit("gpu_products needs an NVIDIA GPU; torch sees none here.")
    for name, (rows, columns) in matrices(SHAPES[args.shape]).items():
        matrix = torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16) * columns**-0.5
        if args.some:
            tiles_of_some(name, matrix, args.some)
            continue
        kept = {word: round_matrix(matrix, scheme_of(word)).keep(None) for word in WORDS}
        for tokens in args.tokens:
            x = torch.randn(tokens, columns, device="cuda", dtype=torch.bfloat16)
            row: dict[str, Any] = {"bf16": timed(x, matrix)}
            for word, weight in kept.items():
                row[word] = timed(x, weight)
            print(json.dumps({"matrix": name, "tokens": tokens} | row), flush=True)
        if args.tiles and name in ("gate_up", "down"):
            tiles(name, kept["int4"])
        torch.cuda.empty_cache()


def matrices(shape: dict[str, Any]) -> dict[str, tuple[int, int]]:
    width, size = shape["hidden_size"], shape["head_dim"]
    heads, groups = shape["num_attention_heads"], shape["num_key_value_heads"]
    return {
        "gate_up": (2 * shape["intermediate_size"], width),
        "down": (width, shape["intermediate_size"]),
        "qkv": ((heads + 2 * groups) * size, width),
        "o": (width, heads * size),
    }


def timed(x: Tensor, weight: Any) -> list[float]:
    """Microseconds of one product, and GB a second of its matrix."""
    num_bytes = weight.nbytes if isinstance(weight, Tensor) else weight.num_bytes
    copies = copied(weight, max(2, -(-_PAST_CACHE // num_bytes)))
    products: list[Callable[[], Tensor]] = [
        (lambda w=w: linear(x, w)) if isinstance(w, Tensor) else (lambda w=w: w.multiply(x))
        for w in copies
    ]
    micros = graph_seconds(products) * 1e6
    return [round(micros, 2), round(num_bytes / micros / 1e3)]


def copied(weight: Any, count: int) -> list[Any]:
    if isinstance(weight, Tensor):
        return [weight.clone() for _ in range(count)]
    kind = type(weight)
    assert kind in (KeptIntegers, KeptFloats8)
    return [kind.stack([weight]) for _ in range(count)]


def graph_seconds(products: list[Callable[[], Tensor]]) -> float:
    """Of one of them, the median of replays of all in turn."""
    for each in products[:2]:
        each()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for each in products:
            each()
    times: list[float] = []
    for _ in range(9):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        graph.replay()
        after.record()
        after.synchronize()
        times.append(before.elapsed_time(after) / 1e3)
    return sorted(times[2:])[3] / len(products)


def tiles(name: str, weight: KeptIntegers) -> None:
    """Other sizes of a program that multiplies one token."""
    from cutaway.kernels.integers import triton_nibbles

    rows = weight.num_rows
    width = weight.quants.shape[1] * 2
    x = torch.randn(1, width, device="cuda", dtype=torch.bfloat16)
    wanted = weight.multiply(x)
    copies = copied(weight, max(2, -(-_PAST_CACHE // weight.num_bytes)))
    chosen = triton_nibbles._tile
    for sizes in product((4, 8, 16, 32), (64, 128), (4, 8)):
        triton_nibbles._tile = lambda *_, sizes=sizes: sizes
        micros = graph_seconds([lambda w=w: w.multiply(x) for w in copies]) * 1e6
        row = dict(zip(("rows", "runs", "warps"), sizes, strict=True)) | {"us": round(micros, 2)}
        row |= {"of": rows, "gb_s": round(weight.num_bytes / micros / 1e3)}
        is_right = torch.allclose(weight.multiply(x), wanted, rtol=0.02, atol=0.02)
        print(json.dumps({"tile": name, "right": is_right} | row), flush=True)
    triton_nibbles._tile = chosen


_SIZES = (  # rows and columns at once, warps, stages
    *((64, 128, 4, 5), (64, 128, 8, 5), (64, 256, 8, 3)),
    *((128, 128, 8, 4), (32, 128, 4, 6), (32, 256, 4, 4)),
)


@torch.inference_mode()
def tiles_of_some(name: str, matrix: Tensor, tokens: int) -> None:
    """Other sizes of a program that multiplies several tokens; a line for one token before."""
    from cutaway.kernels.linear import triton as few

    rows, width = matrix.shape
    copies = copied(matrix, max(2, -(-_PAST_CACHE // matrix.nbytes)))
    x = torch.randn(tokens, width, device="cuda", dtype=torch.bfloat16)
    wanted, chosen = few.linear(x, matrix), few._tile_of_some
    one = graph_seconds([lambda w=w: few.linear(x[:1], w, is_kept=True) for w in copies]) * 1e6
    print(json.dumps({"matrix": name, "tokens": 1, "us": round(one, 2)}), flush=True)
    for (block, columns, warps, stages), splits in product(_SIZES, (1, 2, 4, 8)):
        programs = -(-rows // block) * splits
        if not 200 <= programs <= 2000 or width < splits * columns:
            continue
        few._tile_of_some = lambda *_, s=(block, columns, splits, warps, stages): s
        micros = graph_seconds([lambda w=w: few.linear(x, w) for w in copies]) * 1e6
        is_right = torch.allclose(few.linear(x, matrix), wanted, rtol=0.02, atol=0.02)
        told = {"rows": block, "columns": columns, "splits": splits, "warps": warps}
        told |= {"stages": stages, "us": round(micros, 2), "right": is_right}
        told["gb_s"] = round(matrix.nbytes / micros / 1e3)
        print(json.dumps({"matrix": name, "tokens": tokens} | told), flush=True)
    few._tile_of_some = chosen


if __name__ == "__main__":
    main()
