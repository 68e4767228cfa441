"""Rows on attention over one long prompt: all scores written to memory, or reduced as they come.

The shape is SmolLM2's, one layer, random numbers. Where the native kernels are not built, torch's
fused attention stands in for ours.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cutaway.bench.paper_engine import attention_engine, fastest, prompt_step
from cutaway.bench.paper_rows import PaperRow, PaperSize
from cutaway.engine.native import NativeSteps
from cutaway.kernels import capture

HEADS, GROUPS, HEAD_SIZE = 9, 3, 64
_MODEL = "random, 9 heads, 3 groups, 64"
_FLASH = "arXiv 2205.14135"


def rows(size: PaperSize) -> Iterator[PaperRow]:
    """Bytes, peak memory and time of both forms over growing lengths."""
    naive_times: list[float] = []
    fused_times: list[float] = []
    longest = size.lengths[-1]
    for length in size.lengths:
        tensors = _tensors(length)
        plain = _measure(lambda given=tensors: naive(*given), size.rounds)
        fused = _fused(length, tensors, size.rounds)
        naive_times.append(plain[0])
        fused_times.append(fused[0])
        yield _ratio(f"time at {length:,} tokens, naive over fused", plain[0], fused[0])
        if length == longest:
            yield from _memory(length, plain[1], fused[1])
    yield from _bytes(size)
    for name, times in (("naive", naive_times), ("fused", fused_times)):
        yield from _growth(name, size.lengths, times)


def naive(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Every score in memory. Shapes: [H, T, C] each -> [H, T, C]."""
    scores = query @ key.transpose(1, 2) * HEAD_SIZE**-0.5  # [H, T, T]
    future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(future, -math.inf).softmax(-1) @ value


class BytesMoved(TorchDispatchMode):
    """Sums what every operation reads and writes; views move nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        made = [x for x in tree_leaves(out) if isinstance(x, Tensor)]
        places = {x.untyped_storage().data_ptr() for x in given}
        if not any(x.untyped_storage().data_ptr() in places for x in made):
            self.total += sum(x.nbytes for x in (*given, *made))
        return out


def count_moved(call: Callable[[], object]) -> int:
    """Bytes that the torch operations of a call read and write."""
    with torch.inference_mode(), BytesMoved() as counted:
        call()
    return counted.total


def _bytes(size: PaperSize) -> Iterator[PaperRow]:
    for length in (1024, size.lengths[-1]):
        if length > size.lengths[-1]:
            continue
        query, key, value = _tensors(length)
        ours = count_moved(lambda q=query, k=key, v=value: naive(q, k, v))
        least = 4 * query.nbytes  # query, key, value and result once each
        yield PaperRow(
            section="attention",
            name=f"bytes moved at {length:,} tokens, naive over fused",
            value=ours / least,
            unit="x",
            how="counted",
            model=_MODEL,
            formula="naive / once",
            terms={"naive": ours, "once": least},
            published=40.3 / 4.4 if length == 1024 else None,
            source=f"{_FLASH}, figure 2: 40.3 and 4.4 GB, GPT-2 medium, 1,024 tokens, backward too",
            note="ours is forward alone; fused counts its tensors once, as if keys stayed on chip",
        )
        paper = (4 * length * HEAD_SIZE + 4 * length**2) / (4 * length * HEAD_SIZE)
        yield PaperRow(
            section="attention",
            name=f"bytes moved at {length:,} tokens, by the paper's count",
            value=paper,
            unit="x",
            how="computed",
            model=_MODEL,
            formula="1 + tokens / head_size",
            terms={"tokens": length, "head_size": HEAD_SIZE},
            source=f"{_FLASH}, algorithm 0: scores and weights written and read once each",
        )


def _memory(length: int, plain: float | None, fused: float | None) -> Iterator[PaperRow]:
    if plain is None or fused is None:
        return  # only Linux tells the peak of a process since a moment
    yield PaperRow(
        section="attention",
        name=f"peak memory at {length:,} tokens, naive",
        value=plain / 1e6,
        unit="MB",
        how="measured",
        model=_MODEL,
        formula="bytes / 1e6",
        terms={"bytes": plain},
        source=f"{_FLASH}, section 4.3: up to 20 times less memory than exact baselines",
        note="beyond queries, keys and values",
    )
    yield PaperRow(
        section="attention",
        name=f"peak memory at {length:,} tokens, fused",
        value=fused / 1e6,
        unit="MB",
        how="measured",
        model=_MODEL,
        formula="bytes / 1e6",
        terms={"bytes": fused},
        source=f"{_FLASH}, theorem 1: memory linear in the length",
        note="beyond queries, keys and values",
    )


def _growth(name: str, lengths: tuple[int, ...], times: list[float]) -> Iterator[PaperRow]:
    """How time grows over the last doubling, and the part of it that is quadratic."""
    few, many = lengths[-2:]
    yield PaperRow(
        section="attention",
        name=f"{name}: exponent of time over the last doubling",
        value=math.log(times[-1] / times[-2]) / math.log(many / few),
        unit="",
        how="measured",
        model=_MODEL,
        formula="log(late / early) / log(many / few)",
        terms={"late": times[-1], "early": times[-2], "many": many, "few": few},
        published=2.0,
        source="arXiv 1706.03762, table 1: n^2 d a layer",
    )
    linear, quadratic = fit(lengths, times)
    yield PaperRow(
        section="attention",
        name=f"{name}: quadratic share of time at {many:,} tokens, fitted a n + b n^2",
        value=100 * quadratic * many**2 / (linear * many + quadratic * many**2),
        unit="%",
        how="measured",
        model=_MODEL,
        formula="100 * b * n**2 / (a * n + b * n**2)",
        terms={"a": linear, "b": quadratic, "n": many},
        source="least squares over all lengths, each weighted by its own time",
    )


def fit(lengths: tuple[int, ...], times: list[float]) -> tuple[float, float]:
    """a and b of time = a n + b n^2, neither below 0; errors count in proportion to the time."""
    scaled = [(n / t, n**2 / t) for n, t in zip(lengths, times, strict=True)]
    aa, ab = sum(x * x for x, _ in scaled), sum(x * y for x, y in scaled)
    bb, a1, b1 = sum(y * y for _, y in scaled), sum(x for x, _ in scaled), sum(y for _, y in scaled)
    determinant = aa * bb - ab * ab
    a, b = (a1 * bb - b1 * ab) / determinant, (b1 * aa - a1 * ab) / determinant
    if a < 0:
        return 0.0, b1 / bb
    return (a, b) if b >= 0 else (a1 / aa, 0.0)


def _tensors(length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, and keys and values repeated for the heads that share them."""
    generator = torch.Generator().manual_seed(length)
    query = torch.randn(HEADS, length, HEAD_SIZE, generator=generator)
    key, value = (
        torch.randn(GROUPS, length, HEAD_SIZE, generator=generator).repeat_interleave(
            HEADS // GROUPS, dim=0
        )
        for _ in range(2)
    )
    return query, key, value


def _fused(
    length: int, tensors: tuple[Tensor, Tensor, Tensor], rounds: int
) -> tuple[float, float | None]:
    if not capture.is_available():
        query, key, value = (x[None] for x in tensors)
        return _measure(
            lambda: functional.scaled_dot_product_attention(query, key, value, is_causal=True),
            rounds,
        )
    engine = attention_engine(length, heads=HEADS, groups=GROUPS, head_size=HEAD_SIZE)
    native = NativeSteps(
        engine.model.transformer,
        engine.runner.pool.layers,
        num_tokens=length,
        max_length=engine.max_length,
    )
    step = prompt_step(engine, length)
    peak = peak_bytes(lambda: native.time(step))
    seconds = [native.time(step)["attention"] for _ in range(rounds)]
    return fastest(seconds), peak


@torch.inference_mode()
def _measure(call: Callable[[], object], rounds: int) -> tuple[float, float | None]:
    """Seconds, the least of some rounds, and the peak of memory during the first call."""
    peak = peak_bytes(call)
    seconds: list[float] = []
    for _ in range(rounds):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return fastest(seconds), peak


def peak_bytes(call: Callable[[], object]) -> float | None:
    """How far resident memory rose during a call; None where the system does not tell."""
    before = None
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # forget the last peak
        before = _status("VmRSS")
    call()
    return None if before is None else max(0.0, _status("VmHWM") - before)


def _status(name: str) -> float:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(float(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":"))


def _ratio(name: str, slow: float, fast: float) -> PaperRow:
    return PaperRow(
        section="attention",
        name=name,
        value=slow / fast,
        unit="x",
        how="measured",
        model=_MODEL,
        formula="naive / fused",
        terms={"naive": slow, "fused": fast},
        source=f"{_FLASH}, section 4.3: up to 3 times on a GPU, forward and backward",
    )
