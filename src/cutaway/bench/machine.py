"""What this machine's CPU reaches: read bandwidth and products, measured in about a second."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

import torch

from cutaway.blocks.embedding import Embedding
from cutaway.blocks.linear import Linear
from cutaway.core.devices import Device
from cutaway.core.step import Step
from cutaway.engine.memory import free_bytes
from cutaway.kernels import capture, hardware
from cutaway.quantize.packed import Packed

_SIZE, _ROWS = 1024, 512  # of the matrix, and tokens: beyond what a core's own caches hold


def measure(*, rounds: int = 5) -> Device:
    """The CPU as a device: float32 by torch's product, int8 by our packed one where it is here."""
    threads = hardware.chosen_threads()
    torch.set_num_threads(threads)
    peaks = {"float32": _float32_flops(rounds)}
    bandwidth, sets = _torch_bandwidth(rounds), ()
    if capture.is_available():
        capture.set_num_threads(threads)
        peaks["int8"] = _int8_flops(rounds)
        bandwidth, sets = hardware.read_bandwidth(), hardware.instruction_sets()
    return Device(
        name="cpu",
        memory_bytes=float(free_bytes(torch.device("cpu"))),
        bandwidth=bandwidth,
        peaks=peaks,
        source="measured here",
        facts={"threads": threads, "cpus": os.cpu_count(), "instruction_sets": sets[:1]},
    )


def _float32_flops(rounds: int) -> float:
    left, right = torch.randn(_ROWS, _SIZE), torch.randn(_SIZE, _SIZE)
    return 2 * _ROWS * _SIZE**2 / _best(lambda: left @ right, rounds)


def _int8_flops(rounds: int) -> float:
    embedding, linear = Embedding(1, _SIZE), Linear(_SIZE, (_SIZE,))
    embedding.table = Packed.of(torch.randn(1, _SIZE), row_order=None, widens=False)
    linear.segments[0] = Packed.of(torch.randn(_SIZE, _SIZE), row_order=None, widens=True)
    tape = capture.Tape(  # reading its one row takes no time beside the product
        lambda step: linear(embedding(step)), (), num_tokens=_ROWS, num_rows=1, max_length=1
    )
    step = Step.without_cache([[0] * _ROWS])
    return 2 * _ROWS * _SIZE**2 / _best(lambda: tape.run(step), rounds)


def _torch_bandwidth(rounds: int) -> float:
    buffer = torch.ones(1 << 26)
    return buffer.nbytes / _best(buffer.sum, rounds)


def _best(call: Callable[[], object], rounds: int) -> float:
    """Seconds of the fastest third of some calls: a peak is what the machine can, undisturbed."""
    call()
    seconds: list[float] = []
    for _ in range(3 * rounds):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return statistics.median(sorted(seconds)[:rounds])
