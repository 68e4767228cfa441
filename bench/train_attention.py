"""Attention's forward and backward in training on a GPU, beside torch's kinds, in milliseconds.

    python bench/train_attention.py [--sequences 32] [--length 2048] [--heads 9,3] [--size 64]
        [--lengths 2048,31,700] [--search] [--pointers]

bfloat16, causal. Rows: ours (kernels/attention/triton_learned.py), whose gradients' bits repeat;
torch's cuDNN and flash kinds, and flash with deterministic operations. With --lengths sequences
differ, and torch's variable-length attention is beside ours, keys repeated as it wants them.
Medians of 20. TFLOP/s count the products of a causal half: two forward, five back. --search times
ways to cut the work, --pointers has tiles read by addresses, as before Hopper.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import accumulate, product
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from cutaway.kernels.attention import triton_learned
from cutaway.kernels.attention.triton_learned import Tiles
from cutaway.train.stage import deterministic

Call = Callable[[], object]


def timed(call: Call) -> float:
    """Milliseconds, the median of 20."""
    for _ in range(3):
        call()
    found: list[float] = []
    for _ in range(20):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        call()
        after.record()
        torch.cuda.synchronize()
        found.append(before.elapsed_time(after))
    return median(found)


def of_torch(heads: Sequence[Tensor], pull: Tensor, lengths: Sequence[int]) -> tuple[Call, Call]:
    """Forward and backward of what torch chooses."""
    if len(set(lengths)) > 1:
        from torch.nn.attention.varlen import varlen_attn

        starts = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device="cuda")
        shared = heads[0].shape[1] // heads[1].shape[1]

        def forward() -> Any:
            wide = [each.repeat_interleave(shared, 1) for each in heads[1:]]
            longest = max(lengths)
            return varlen_attn(
                heads[0], *wide, starts, starts, longest, longest, window_size=(-1, 0)
            )
    else:
        batch = (len(lengths), lengths[0])
        rows = [each.reshape(*batch, *each.shape[1:]).transpose(1, 2) for each in heads]

        def forward() -> Any:
            mixed = functional.scaled_dot_product_attention(*rows, is_causal=True, enable_gqa=True)
            return mixed.transpose(1, 2).flatten(0, 1)

    made = forward()
    return forward, lambda: torch.autograd.grad(made, heads, pull, retain_graph=True)


def of_ours(heads: Sequence[Tensor], pull: Tensor, lengths: Sequence[int]) -> tuple[Call, Call]:
    """Forward and backward of our kernels."""
    rows, scale = [each.detach() for each in heads], heads[0].shape[-1] ** -0.5
    made = triton_learned.attend(*rows, lengths, scale=scale)
    return (
        lambda: triton_learned.attend(*rows, lengths, scale=scale),
        lambda: triton_learned.gradients(*rows, lengths, made=made, pull=pull, scale=scale),
    )


def search(heads: Sequence[Tensor], pull: Tensor, lengths: Sequence[int]) -> None:
    """The quickest ways to cut each kernel's work."""
    is_large = heads[0].shape[-1] > 64
    cuts = list(product((64, 128), (32, 64), (4, 8), (2, 3)))
    for name, call in (("FORWARD", 0), ("QUERIES", 1), ("KEYS", 1)):
        kept = getattr(triton_learned, name)
        found: list[tuple[float, Tiles]] = []
        for cut in cuts:
            tiles = Tiles(*cut)
            if tiles.outer % tiles.inner:
                continue
            setattr(triton_learned, name, (tiles, tiles))
            try:
                found.append((timed(of_ours(heads, pull, lengths)[call]), tiles))
            except Exception as error:  # too much for a core's memory
                print(name, tiles, type(error).__name__, flush=True)
        found.sort()
        setattr(triton_learned, name, (found[0][1], found[0][1]))
        for ms, tiles in found[:4]:
            print(f"{name} {ms:.3f} ms {tuple(tiles)}", flush=True)
        print(f"{name} now {kept[is_large]}")


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--sequences", type=int, default=32)
    options.add_argument("--length", type=int, default=2048)
    options.add_argument("--lengths", default="")
    options.add_argument("--heads", default="9,3")
    options.add_argument("--size", type=int, default=64)
    options.add_argument("--search", action="store_true")
    options.add_argument("--pointers", action="store_true")
    args = options.parse_args()
    lengths = [int(n) for n in args.lengths.split(",") if n] or [args.length] * args.sequences
    num_heads, num_groups = (int(n) for n in args.heads.split(","))
    counts = (num_heads, num_groups, num_groups, num_heads)
    query, key, value, pull = (
        torch.randn(sum(lengths), n, args.size, device="cuda", dtype=torch.bfloat16) for n in counts
    )
    heads = [each.requires_grad_() for each in (query, key, value)]
    if args.pointers:
        triton_learned._has_copier = lambda device: False
    if args.search:
        search(heads, pull, lengths)
    pairs = sum(n * (n + 1) // 2 for n in lengths)
    flops = 2 * 2 * pairs * num_heads * args.size
    flash = sdpa_kernel(SDPBackend.FLASH_ATTENTION)
    kinds: list[tuple[str, Any, Any]] = [("ours", nullcontext(), of_ours)]
    if len(set(lengths)) > 1:
        kinds += [("torch's varlen", nullcontext(), of_torch)]
        kinds += [("torch's varlen, deterministic", deterministic(), of_torch)]
    else:
        kinds += [("cuDNN", sdpa_kernel(SDPBackend.CUDNN_ATTENTION), of_torch)]
        kinds += [("flash", flash, of_torch), ("flash, deterministic", deterministic(), of_torch)]
    print("| kind | forward ms | TFLOP/s | back ms | TFLOP/s |\n|---|---|---|---|---|")
    for name, context, make in kinds:
        with context:
            forward, back = (timed(each) for each in make(heads, pull, lengths))
        told = (f"{forward:.3f}", f"{flops / forward / 1e9:.0f}")
        told += (f"{back:.3f}", f"{flops * 2.5 / back / 1e9:.0f}")
        print(f"| {name} | {' | '.join(told)} |", flush=True)


if __name__ == "__main__":
    main()
