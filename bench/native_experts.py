"""Times native layers of experts beside the read bandwidth of the same minute.

Sixteen layers of a small Mixtral of 1B numbers (8 experts of 1,024 by 2,304, a token uses 2), in
Q4_0 with random numbers: norm, router, experts. The floor is the time in which the chosen experts
can be read once.

    python bench/native_experts.py --threads 2 --rounds 15

The whole engine beside llama.cpp on a file of that shape: `cutaway bench cpu --models experts`.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy
import torch

from cutaway.bench.model_files import CHOSEN, EXPERT_INNER, EXPERT_LAYERS, EXPERT_WIDTH, EXPERTS
from cutaway.kernels import hardware, native
from cutaway.kernels.native import library

ROUTING = native.Routing(native.RoutingRule.SOFTMAX_THEN_TOP, CHOSEN, is_renormalized=True)


def random_stack(rows: int, columns: int) -> native.WeightStack:
    """Blocks with random integers; every matrix lies in memory of its own."""
    random = numpy.random.default_rng(rows)
    blocks = random.integers(0, 256, (rows * columns // 32, 18), dtype=numpy.uint8)
    blocks[:, :2] = numpy.full((len(blocks), 1), 0.004, numpy.float16).view(numpy.uint8)
    one = native.PackedWeight.from_blocks(blocks.tobytes(), "Q4_0", shape=(rows, columns))
    assert one is not None
    return native.WeightStack.of([one] * EXPERTS)


class Layers:
    """Layers of experts with buffers for some rows, as one program."""

    def __init__(self, rows: int) -> None:
        width = EXPERT_WIDTH
        self.hidden, normed = torch.randn(rows, width), native.room(rows, width)
        scores = native.room(rows, EXPERTS)
        self.ids = native.room(rows, CHOSEN, dtype=torch.int64)
        weights = native.room(rows, CHOSEN)
        norm = native.NormWeights(torch.ones(width), 1e-5)
        self.program, self.bytes_of_one = native.Program(), 0
        for _ in range(EXPERT_LAYERS):
            gate_up, down = random_stack(2 * EXPERT_INNER, width), random_stack(width, EXPERT_INNER)
            self.bytes_of_one += (gate_up.num_bytes + down.num_bytes) // EXPERTS
            router = native.PackedWeight.from_matrix(torch.randn(EXPERTS, width), native.Kind.F32)
            self.program.add(native.norm(self.hidden, norm.weight, norm.epsilon, out=normed))
            self.program.add(native.linear(normed, [router], out=scores))
            self.program.add(native.route(scores, ROUTING, ids=self.ids, weights=weights))
            self.program.add(
                native.experts(
                    normed,
                    gate_up,
                    down,
                    ids=self.ids,
                    weights=weights,
                    out=self.hidden,
                    residual=self.hidden,
                )
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=hardware.available_threads())
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    library.set_num_threads(options.threads)
    print(
        f"isa {library.isa()}, {library.num_threads()} threads; median of {options.rounds} rounds"
    )
    print("rows       ms   read floor / ms   rows/s")
    hardware.read_bandwidth(rounds=1)
    for rows in (1, 8, 128):
        layers = Layers(rows)
        step = native.NativeStep.of_rows(rows)
        layers.program.run(step)
        bandwidths, times, floors = list[float](), list[float](), list[float]()
        for _ in range(options.rounds):
            num_bytes = layers.bytes_of_one * EXPERTS
            bandwidths.append(hardware.read_bandwidth(rounds=1, num_bytes=num_bytes))
            before = time.perf_counter()
            layers.program.run(step)
            times.append((time.perf_counter() - before) * 1e3)
            used = len(set(layers.ids.flatten().tolist()))  # of the last layer: like the others
            floors.append(layers.bytes_of_one * used / bandwidths[-1] * 1e3)
        middle, floor = statistics.median(times), statistics.median(floors)
        share, speed = floor / middle, rows / middle * 1e3
        print(f"{rows:4d} {middle:8.2f}   {floor:6.2f} = {share:4.2f}   {speed:8.0f}", flush=True)


if __name__ == "__main__":
    main()
