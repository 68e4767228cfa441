"""Times the native CPU kernels on SmolLM2's shapes beside the read bandwidth of the same minute.

Weights are random and of the shipped file's types: Q4_1 in the layers, Q8_0 for the table. Rounds
interleave bandwidth and kernels; medians are printed, so that a shared machine disturbs less.

    python bench/native_kernels.py --threads 2 --rounds 15
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass

import numpy
import torch
from torch import Tensor

from cutaway.core.step import GroupTables, ShapePlan, Step
from cutaway.kernels import hardware, native
from cutaway.kernels.native import library, structs
from cutaway.kernels.native.large_pages import room_for
from cutaway.kernels.store import scale_rows

PAGE = 16
BLOCK_BYTES = {"Q4_1": 20, "Q8_0": 34, "Q4_0": 18}


@dataclass(frozen=True)
class Shape:
    """Sizes of a Llama model."""

    layers: int
    width: int
    inner: int
    heads: int
    groups: int
    head_size: int
    vocab: int

    @property
    def qkv(self) -> int:
        return (self.heads + 2 * self.groups) * self.head_size


SHAPES = {
    "smollm2-135m": Shape(30, 576, 1536, 9, 3, 64, 49152),
    # Llama-3.2-1B's sizes with SmolLM2's vocabulary.
    "llama-1b": Shape(16, 2048, 8192, 32, 8, 64, 49152),
}


def random_weight(type_name: str, rows: int, columns: int) -> native.PackedWeight:
    """Blocks of a file with random integers and scales that keep numbers near 1."""
    random = numpy.random.default_rng(rows * columns)
    size = BLOCK_BYTES[type_name]
    blocks = random.integers(0, 256, (rows * columns // 32, size), dtype=numpy.uint8)
    blocks[:, :2] = numpy.full((len(blocks), 1), 0.004, numpy.float16).view(numpy.uint8)
    if type_name == "Q4_1":
        blocks[:, 2:4] = numpy.full((len(blocks), 1), -0.03, numpy.float16).view(numpy.uint8)
    return native.PackedWeight.from_blocks(blocks.tobytes(), type_name, shape=(rows, columns))


def random_pages(shape: tuple[int, ...], dtype: torch.dtype) -> native.Pages:
    """Pages full of random numbers, in eight bits with their scales."""
    keys, values = torch.randn(shape), torch.randn(shape)
    if dtype != torch.int8:
        return native.Pages.of(keys.to(dtype), values.to(dtype))
    (keys, key_scales), (values, value_scales) = scale_rows(keys, dtype), scale_rows(values, dtype)
    return native.Pages.of(keys, values, key_scales=key_scales, value_scales=value_scales)


class Model:
    """Weights, pages and buffers of a shape, and its step as one program."""

    def __init__(
        self,
        shape: Shape,
        type_name: str,
        *,
        capacity: int,
        context: int,
        sequences: int,
        kv_dtype: torch.dtype = torch.float16,
    ) -> None:
        def weights(rows: int, columns: int) -> list[native.PackedWeight]:
            one = random_weight(type_name, rows, columns)

            def copy() -> native.PackedWeight:
                data = shelf.put(room_for(one.num_bytes).copy_(one.data))
                return native.PackedWeight(data, rows, columns, one.kind)

            # Own memory for each layer, or the caches would hold them all.
            return [copy() for _ in range(shape.layers)]

        self.shape, shelf = shape, native.Shelf()
        width, mixed = shape.width, shape.heads * shape.head_size
        self.qkv, self.output = weights(shape.qkv, width), weights(width, mixed)
        self.gate, self.up = weights(shape.inner, width), weights(shape.inner, width)
        self.down = weights(width, shape.inner)
        self.table = random_weight("Q8_0", shape.vocab, width)
        self.norm = native.NormWeights(torch.ones(width), 1e-5)
        num_pages = sequences * -(-context // PAGE) + 1
        pages = (num_pages, PAGE, shape.groups, shape.head_size)
        self.pages = [random_pages(pages, kv_dtype) for _ in range(shape.layers)]
        half = shape.head_size // 2
        angles = torch.arange(context)[:, None] / 10000 ** (torch.arange(half)[None] / half)
        self.rotation = native.Rotation(angles.cos(), angles.sin())
        self.most_logits = sequences
        self.hidden = torch.randn(capacity, width)
        self.heads = torch.randn(capacity, shape.qkv)
        self.mixed = torch.randn(capacity, mixed)
        self.product = torch.randn(capacity, shape.inner)
        self.last = torch.randn(sequences, width)
        self.logits = torch.empty(sequences, shape.vocab)

    @property
    def num_bytes(self) -> int:
        lists = (self.qkv, self.output, self.gate, self.up, self.down)
        return sum(w.num_bytes for each in lists for w in each) + self.table.num_bytes

    def bytes_read(self, contexts: list[int]) -> int:
        """Weights, and the keys and values of every sequence."""
        pages = self.pages[0]
        held = sum(each.nbytes for each in pages.tensors if each is not None)
        tokens = len(pages.keys) * PAGE
        return self.num_bytes + sum(contexts) * self.shape.layers * held // tokens

    def matmuls(self, *, with_head: bool) -> native.Program:
        """The products of a step and what is fused with them, nothing else."""
        program = native.Program()
        for layer in range(self.shape.layers):
            self._qkv(program, layer)
            self._after_attention(program, layer)
        if with_head:
            self._head(program)
        return program

    def step(self) -> native.Program:
        """Token ids to logits."""
        program = native.Program()
        program.add(native.gather(self.table, out=self.hidden))
        for layer in range(self.shape.layers):
            self._qkv(program, layer)
            attention = native.attention(
                self.heads,
                self.pages[layer],
                num_heads=self.shape.heads,
                rotation=self.rotation,
                out=self.mixed,
                scoring=native.NativeScoring(self.shape.head_size**-0.5),
            )
            program.add(attention)
            self._after_attention(program, layer)
        program.add(native.take(self.hidden, out=self.last))
        self._head(program)
        return program

    def _qkv(self, program: native.Program, layer: int) -> None:
        program.add(native.linear(self.hidden, [self.qkv[layer]], out=self.heads, norm=self.norm))

    def _after_attention(self, program: native.Program, layer: int) -> None:
        hidden = self.hidden
        output, down = [self.output[layer]], [self.down[layer]]
        program.add(native.linear(self.mixed, output, out=hidden, residual=hidden))
        gate, up = self.gate[layer], self.up[layer]
        program.add(native.multiply_gate(hidden, gate, up, out=self.product, norm=self.norm))
        program.add(native.linear(self.product, down, out=hidden, residual=hidden))

    def _head(self, program: native.Program) -> None:
        rows = structs.Rows.LOGITS
        program.add(
            native.linear(self.last, [self.table], out=self.logits, norm=self.norm, rows=rows)
        )


def make_step(queries: list[int], contexts: list[int], pages_each: int) -> native.NativeStep:
    """Sequences whose newest tokens are computed, over pages in order."""

    def tensor(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64)

    table = torch.arange(1, len(queries) * pages_each + 1).view(len(queries), pages_each)
    starts = [sum(queries[:i]) for i in range(len(queries) + 1)]
    positions = [p for n, c in zip(queries, contexts, strict=True) for p in range(c - n, c)]
    owners = [row for row, n in enumerate(queries) for _ in range(n)]
    slots = [
        int(table[row, p // PAGE]) * PAGE + p % PAGE
        for row, p in zip(owners, positions, strict=True)
    ]
    step = Step(
        token_ids=torch.arange(len(positions)),
        positions=tensor(positions),
        declared_lengths=tensor(positions),
        query_starts=tensor(starts),
        context_lengths=tensor(contexts),
        logit_rows=tensor(starts[1:]) - 1,
        plan=ShapePlan(tuple(queries), tuple(contexts)),
        groups=(GroupTables(table, tensor(slots)),),
    )
    return native.NativeStep.of(step)


def timed(program: native.Program, step: native.NativeStep) -> float:
    """Milliseconds of one run."""
    before = time.perf_counter()
    program.run(step)
    return (time.perf_counter() - before) * 1e3


RUNS = {
    "smollm2-135m": (
        ("matmuls", 1, 16, 1),
        ("matmuls", 8, 16, 8),
        ("matmuls", 32, 16, 32),
        ("matmuls", 512, 16, 0),
        ("step", 1, 32, 1),
        ("step", 1, 1024, 1),
        ("step", 1, 4096, 1),
        ("step", 8, 128, 8),
        ("step", 32, 128, 32),
        ("step", 512, 512, 1),
        ("step", 2048, 2048, 1),
    ),
    "llama-1b": (("step", 1, 32, 1), ("step", 8, 128, 8), ("step", 128, 128, 1)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=hardware.available_threads())
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--type", default="Q4_1", choices=("Q4_1", "Q4_0"))
    parser.add_argument("--shape", default="smollm2-135m", choices=tuple(SHAPES))
    parser.add_argument("--kv-dtype", default="float16", help="float32, float16, bfloat16, int8")
    parser.add_argument("--rows", type=int, help="only what has so many rows")
    options = parser.parse_args()
    library.set_num_threads(options.threads)
    print(
        f"{options.shape}, {options.type} and a Q8_0 table, isa {library.isa()}, "
        f"{library.num_threads()} threads, {options.kv_dtype} cache; "
        f"median and best of {options.rounds}, fewer for prefill"
    )
    print("what      rows  context       ms     best   read floor / ms   tokens/s")
    hardware.read_bandwidth(rounds=1)
    for name, rows, context, sequences in RUNS[options.shape]:
        if options.rows not in (None, rows):
            continue
        model = Model(
            SHAPES[options.shape],
            options.type,
            capacity=rows,
            context=context,
            sequences=max(sequences, 1),
            kv_dtype=getattr(torch, options.kv_dtype),
        )
        contexts = [context] * sequences
        if name == "matmuls":
            program = model.matmuls(with_head=sequences > 0)
            step = native.NativeStep.of_rows(rows)
            step.struct.num_logit_rows = max(sequences, 1)
            bytes_read = model.num_bytes
        else:
            program = model.step()
            queries = [rows // sequences] * sequences
            step = make_step(queries, contexts, -(-context // PAGE))
            bytes_read = model.bytes_read(contexts)
        program.run(step)
        rounds = options.rounds if rows <= 32 else max(3, options.rounds // 4)
        pairs = [
            (hardware.read_bandwidth(rounds=1, num_bytes=model.num_bytes), timed(program, step))
            for _ in range(rounds)
        ]
        floor = bytes_read / statistics.median(b for b, _ in pairs) * 1e3
        times = sorted(t for _, t in pairs)
        middle = statistics.median(times)
        print(
            f"{name:8s} {rows:5d} {context:8d} {middle:8.2f} {times[0]:8.2f}"
            f"   {floor:6.2f} = {floor / middle:4.2f}   {rows / middle * 1e3:8.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
