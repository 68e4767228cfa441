"""Products of a GPU by how the matrix is kept: microseconds, and bytes a second of the matrix.

    python bench/gpu_products.py [--shape llama3-8b] [--tokens 1 16 64 256] [--tiles]
    python bench/gpu_products.py --some 1 2 3 4 5 8  # of several tokens and dense matrices, by tile

Each product reads one of several equal matrices in turn, more than the cache of the chip holds,
inside a CUDA graph. --tiles tries sizes of the products of one token with 4 bits. --some prints for
each matrix and number of tokens the present tile, the quickest of a list and cuBLAS; kernels are
compiled by some processes at once. A tile serves any number of tokens.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from multiprocessing import get_context
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
    options.add_argument("--some", nargs="+", type=int)
    options.add_argument("--workers", type=int, default=12, help="processes that compile tiles")
    args = options.parse_args()
    if not torch.cuda.is_available():
        sys.exit("gpu_products needs an NVIDIA GPU; torch sees none here.")
    if args.some:
        choose_tiles(SHAPES[args.shape], args.some, args.workers)
        return
    for name, (rows, columns) in matrices(SHAPES[args.shape]).items():
        matrix = torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16) * columns**-0.5
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
    for sizes in product((4, 8, 16, 32), (64, 128), (4, 8), (264, 396)):
        triton_nibbles._tile = lambda *_, sizes=sizes: sizes
        micros = graph_seconds([lambda w=w: w.multiply(x) for w in copies]) * 1e6
        row = dict(zip(("rows", "runs", "warps", "programs"), sizes, strict=True)) | {
            "us": round(micros, 2)
        }
        row |= {"of": rows, "gb_s": round(weight.num_bytes / micros / 1e3)}
        is_right = torch.allclose(weight.multiply(x), wanted, rtol=0.02, atol=0.02)
        print(json.dumps({"tile": name, "right": is_right} | row), flush=True)
    triton_nibbles._tile = chosen


_SIZES = (  # rows and columns at once, warps, stages
    *((64, 128, 4, 5), (64, 128, 4, 3), (64, 64, 4, 8), (64, 256, 4, 3), (64, 256, 8, 3)),
    *((32, 128, 4, 6), (32, 256, 4, 4), (32, 256, 8, 5), (32, 512, 8, 3)),
    *((16, 256, 4, 6), (16, 512, 4, 4), (128, 64, 8, 6), (128, 128, 8, 4)),
)
_TUNED_FOR = 4


def choose_tiles(shape: dict[str, Any], tokens: Sequence[int], workers: int) -> None:
    """The quickest tile of each matrix."""
    sizes = matrices(shape) | {"head": (shape["vocab_size"], shape["hidden_size"])}
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        found = {name: _candidates(*size) for name, size in sizes.items()}
        _compile(pool, [(t, sizes[name][1]) for name, tiles in found.items() for t in tiles])
    for name, size in sizes.items():
        copies = _copies(size)
        _tell_matrix(name, copies, _times(copies, found[name]), tokens)


def _candidates(rows: int, width: int) -> list[Any]:
    """The present tile, and others with enough programs and not too many."""
    from cutaway.kernels.linear import triton as few

    tiles = [few._tile_of_some(rows, width)]
    for (block, columns, warps, stages), shares in product(_SIZES, (1, 2, 4, 8)):
        blocks = -(-rows // block)
        if blocks * shares < 200 or width < shares * columns:
            continue
        if shares == 1 or (blocks <= few._MOST_BLOCKS and blocks * shares <= 2000):
            tiles.append(few.SomeTile(block, columns, shares, warps, stages))
    return list(dict.fromkeys(tiles))


def _compile(pool: ProcessPoolExecutor, wanted: Sequence[tuple[Any, int]]) -> None:
    """Have tiles compiled for some widths; what cannot be says so when it is timed."""
    for _ in pool.map(_compile_one, dict.fromkeys(wanted)):
        pass


def _compile_one(wanted: tuple[Any, int]) -> None:
    tile, width = wanted
    weight = torch.zeros(256, width, device="cuda", dtype=torch.bfloat16)
    x = torch.zeros(_TUNED_FOR, width, device="cuda", dtype=torch.bfloat16)
    try:
        _multiply(x, weight, tile)
        torch.cuda.synchronize()
    except Exception as fault:
        print(f"# {tile}: {type(fault).__name__}", file=sys.stderr)


@torch.inference_mode()
def _multiply(x: Tensor, weight: Tensor, tile: Any) -> Tensor:
    from cutaway.kernels.linear import triton as few

    out = torch.empty(len(x), len(weight), device=x.device, dtype=x.dtype)
    few.multiply_shares(x, weight, out, tile)
    return out


def _copies(size: tuple[int, int]) -> list[Tensor]:
    torch.cuda.empty_cache()
    matrix = torch.randn(size, device="cuda", dtype=torch.bfloat16) * size[1] ** -0.5
    return copied(matrix, max(2, -(-_PAST_CACHE // matrix.nbytes)))


def _times(copies: Sequence[Tensor], tiles: Sequence[Any]) -> dict[Any, float]:
    """Microseconds of each tile that gives what the library gives."""
    x = torch.randn(_TUNED_FOR, copies[0].shape[1], device="cuda", dtype=torch.bfloat16)
    wanted = torch.nn.functional.linear(x, copies[0])
    found: dict[Any, float] = {}
    for tile in tiles:
        try:
            ours = _multiply(x, copies[0], tile)
            alone = _multiply(x[:2].contiguous(), copies[0], tile)
            assert torch.allclose(ours, wanted, rtol=0.02, atol=0.02), "it is wrong"
            assert torch.equal(alone, ours[:2]), "two tokens are summed otherwise"
            found[tile] = _micros(partial(_multiply, x, tile=tile), copies)
        except Exception as fault:
            print(f"# {tile}: {type(fault).__name__}: {fault}"[:200], file=sys.stderr)
    return found


def _tell_matrix(
    name: str, copies: Sequence[Tensor], times: dict[Any, float], tokens: Sequence[int]
) -> None:
    """A line for each number of tokens, and the best tiles."""
    from cutaway.kernels.linear import triton as few

    rows, width = copies[0].shape
    present, best = few._tile_of_some(rows, width), min(times, key=lambda tile: times[tile])
    for count in tokens:
        x = torch.randn(count, width, device="cuda", dtype=torch.bfloat16)
        row: dict[str, Any] = {"matrix": name, "tokens": count}
        if count == 1:
            row["us"] = _micros(partial(few.linear, x, is_kept=True), copies)
        else:
            for key, tile in (("present", present), ("best", best)):
                row[key] = _micros(partial(_multiply, x, tile=tile), copies)
        row["cublas"] = _micros(partial(torch.nn.functional.linear, x), copies)
        print(json.dumps(row | {"mb": round(copies[0].nbytes / 1e6, 1)}), flush=True)
    order = sorted(times, key=lambda tile: times[tile])
    for tile in [*order[:6], present]:
        print(f"#   {name} {times[tile]:7.2f} us {tuple(tile)}", flush=True)


def _micros(product_with: Callable[[Tensor], Tensor], copies: Sequence[Tensor]) -> float:
    return round(graph_seconds([partial(product_with, w) for w in copies]) * 1e6, 2)


if __name__ == "__main__":
    main()
