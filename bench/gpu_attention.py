"""Attention of prompts on a GPU: over pages, over gathered rows, and torch's cuDNN without pages.

    python bench/gpu_attention.py [--cases 1x4096 16x1024 8x512 1x2048+6144] [--tiles]

A case is prompts x tokens, or prompts x new tokens + tokens that are cached. Heads are those of
Llama-3-8B. TFLOP/s count the products that a causal mask leaves. --tiles tries other tiles of the
gathered form. Times are of graphs' replays. cuDNN's first call of a shape, which makes a plan, is
told apart.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

import torch
from gpu_decode import device_seconds
from torch import Tensor
from torch.nn import functional

from cutaway.core.layout import FULL
from cutaway.core.step import ShapePlan
from cutaway.kernels.attention.plain import Scoring

HEADS, GROUPS, SIZE, PAGE = 32, 8, 128, 16
# Rows, keys, warps, stages, registers of a thread.
TILES = (
    *((128, 128, 8, 2, None), (128, 64, 8, 2, 128), (128, 64, 8, 3, None)),
    *((64, 64, 4, 3, 168), (64, 64, 4, 2, None)),
)
NAMES = ("_ROWS", "KEYS", "_WARPS", "_STAGES", "_REGISTERS")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument(
        "--cases", nargs="*", default=["1x4096", "16x1024", "8x512", "1x2048+6144"]
    )
    options.add_argument("--tiles", action="store_true")
    args = options.parse_args()
    if not torch.cuda.is_available():
        sys.exit("gpu_attention needs an NVIDIA GPU; torch sees none here.")
    from cutaway.kernels.attention import gathered, triton

    for case in args.cases:
        tensors, where, new, cached = laid_out(case)
        scoring = Scoring(SIZE**-0.5, FULL, None, None)
        count = len(where["plan"].query_lengths)
        flops = 4 * SIZE * HEADS * count * (new * (new + 1) / 2 + new * cached)

        def paged(tensors: Any = tensors, where: Any = where, scoring: Any = scoring) -> Tensor:
            return triton.paged_attention(*tensors, **where, scoring=scoring)

        row: dict[str, Any] = {"case": case}
        takes, tile = gathered.takes, tuple(getattr(gathered, name) for name in NAMES)
        gathered.takes = lambda *_: False
        results = {"paged": paged()}
        row["paged"] = flops / replayed_seconds(paged) / 1e12
        gathered.takes = takes
        for each in TILES if args.tiles else (tile,):
            use(each)
            try:
                results[f"gathered {each}"] = paged()
                row[f"gathered {each}"] = flops / replayed_seconds(paged) / 1e12
            except Exception as fault:  # a tile that does not fit
                row[f"gathered {each}"] = type(fault).__name__
        use(tile)
        if not cached:
            cudnn, seconds = with_cudnn(tensors[0], where, count, new)
            row |= {"cudnn_first_ms": seconds * 1e3}
            row["cudnn"] = flops / replayed_seconds(cudnn) / 1e12
            results["cudnn"] = cudnn().transpose(1, 2).reshape(results["paged"].shape)
        whole = results["paged"].float()
        for name, other in results.items():
            if name != "cudnn":  # keys and values there are others
                apart = ((other.float() - whole).norm() / whole.norm()).item()
                assert apart < 0.01, f"{name} is {apart} away"
        print(json.dumps({k: round(v, 1) if isinstance(v, float) else v for k, v in row.items()}))
        sys.stdout.flush()


def use(tile: tuple[Any, ...]) -> None:
    from cutaway.kernels.attention import gathered

    for name, value in zip(NAMES, tile, strict=True):
        setattr(gathered, name, value)


def replayed_seconds(run: Any) -> float:
    """The device's time without the host's: of one of a graph's replays."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return device_seconds(graph.replay, 20)


def laid_out(
    case: str, heads: int = HEADS, groups: int = GROUPS
) -> tuple[list[Tensor], dict[str, Any], int, int]:
    """Queries, and pages in shuffled order."""
    count, _, rest = case.partition("x")
    new, _, cached = rest.partition("+")
    num, length, before = int(count), int(new), int(cached or 0)
    width = -(-(length + before) // PAGE)
    table = (torch.randperm(num * width, device="cuda") + 1).view(num, width)
    tensors = [
        torch.randn(shape, device="cuda", dtype=torch.bfloat16)
        for shape in ((num * length, heads, SIZE), *[(num * width + 1, PAGE, groups, SIZE)] * 2)
    ]
    plan = ShapePlan((length,) * num, (length + before,) * num)
    where = {
        "page_table": table,
        "query_starts": torch.arange(num + 1, device="cuda") * length,
        "context_lengths": torch.full((num,), length + before, device="cuda"),
        "plan": plan,
    }
    return tensors, where, length, before


def with_cudnn(query: Tensor, where: Any, count: int, length: int) -> tuple[Any, float]:
    """Dense heads through cuDNN, and the seconds of the first call."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    dense = query.view(count, length, HEADS, SIZE).transpose(1, 2)
    own = [torch.randn_like(dense[:, :GROUPS]) for _ in range(2)]

    def run() -> Tensor:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return functional.scaled_dot_product_attention(
                dense, *own, is_causal=True, enable_gqa=True
            )

    torch.cuda.synchronize()
    began = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return run, time.perf_counter() - began


if __name__ == "__main__":
    main()
