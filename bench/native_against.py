"""The native kernels of another checkout against ours: the same work and memory, in turn.

Both trees are in one process, each with its own library and the structs that it knows, and both
run a whole step of SmolLM2's shapes over the same weights, pages and buffers: where memory lies,
which makes equal processes differ by some percent, is the same for both. What counts is the
processor time of one thread, since a busy machine takes the wall's. A round's ratio, old seconds
over new, is the median of its pairs; what is judged is the lower quartile of the rounds. The host's
work is not in it: bench/host_work.py has that.

    git worktree add /tmp/old COMMIT && (cd /tmp/old && python native/build.py)
    python bench/native_against.py /tmp/old
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import os
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import native_kernels
import torch

from cutaway.kernels.native import library

RUNS = ((1, 32), (1, 1024), (4, 128), (8, 128), (32, 128), (256, 256))  # rows, context
_PARTS = ("qkv", "attention", "output", "gated", "down")
LIKE = 0.02  # of the largest logit: both round activations to eight bits, a layout gives noise
OURS = ("cutaway", "native_kernels")  # packages and modules that both checkouts have


@contextmanager
def tree_of(modules: dict[str, ModuleType]) -> Iterator[None]:
    """Let imports find these modules of ours, and keep in there what is imported meanwhile."""
    others = _take_ours()
    sys.modules.update(modules)
    try:
        yield
    finally:
        modules |= _take_ours()
        sys.modules.update(others)


def _take_ours() -> dict[str, ModuleType]:
    names = [name for name in sys.modules if name.partition(".")[0] in OURS]
    return {name: sys.modules.pop(name) for name in names}


class Side:
    """One checkout's library, and a step of its own structs."""

    def __init__(self, kernels: ModuleType, own_library: Any) -> None:
        own_library.set_num_threads(1)
        self._kernels, self.library = kernels, own_library.library()
        self._check, self.instructions = own_library.check, own_library.isa()
        self.model: Any = None

    def build(self, type_name: str, rows: int, context: int) -> None:
        """Weights, pages and buffers of a step, and the step."""
        sequences = 1 if context == rows else rows
        sizes = {"capacity": rows, "context": context, "sequences": sequences}
        self.model = self._kernels.Model(self._kernels.SHAPES["smollm2-135m"], type_name, **sizes)
        queries = [rows // sequences] * sequences
        pages_each = -(-context // self._kernels.PAGE)
        self._step = self._kernels.make_step(queries, [context] * sequences, pages_each)

    def record(self) -> None:
        """Take the addresses of the model's memory."""
        self._program = self.model.step()
        self._operations = self._program.operations

    def run(self) -> dict[str, float]:
        """Processor time of a step as it is served, in one call; then of each kind of operation.

        Those are called one by one, which checks each anew.
        """
        began = time.thread_time()
        self._program.run(self._step)
        spent = {"step": time.thread_time() - began}
        for name, each in zip(names(len(self._operations)), self._operations, strict=True):
            address, size = ctypes.addressof(each.arguments), ctypes.sizeof(each.arguments)
            began = time.thread_time()
            status = self.library.cw_run(each.code, address, size, ctypes.byref(self._step.struct))
            spent[name] = spent.get(name, 0.0) + time.thread_time() - began
            self._check(status)
        return spent


def names(num_operations: int) -> list[str]:
    """What each operation of Model.step does."""
    layers = (num_operations - 3) // len(_PARTS)
    return ["gather", *_PARTS * layers, "take", "table"]


def share(old: object, new: object) -> None:
    """Let the old one's tensors be the new one's, wherever both hold some under one name."""
    if isinstance(new, torch.Tensor):
        assert isinstance(old, torch.Tensor)
        assert (old.shape, old.dtype) == (new.shape, new.dtype), (old.shape, new.shape)
        old.set_(new)  # type: ignore[call-overload]
    elif isinstance(new, list):
        assert isinstance(old, list) and len(old) == len(new)
        for one, other in zip(old, new, strict=True):
            share(one, other)
    elif dataclasses.is_dataclass(new) or isinstance(new, native_kernels.Model):
        for name, value in vars(new).items():
            if hasattr(old, name):
                share(getattr(old, name), value)


def compare(old: Side, new: Side, rounds: int, pairs: int) -> dict[str, list[float]]:
    """Old seconds over new of each round, by kind of operation. Both begin equally often."""
    found: dict[str, list[float]] = {}
    old.run(), new.run()  # warms up
    for _ in range(rounds):
        ratios: dict[str, list[float]] = {}
        for number in range(pairs):
            if number % 2:
                after, before = new.run(), old.run()
            else:
                before, after = old.run(), new.run()
            for name in ("step", *_PARTS, "table"):
                ratios.setdefault(name, []).append(before[name] / after[name])
        for name, each in ratios.items():
            found.setdefault(name, []).append(statistics.median(each))
    return found


def check_alike(old: Side, new: Side) -> None:
    """That both say the same of the same: a layout that differs would be no comparison."""
    logits: list[torch.Tensor] = []
    start = new.model.hidden.clone()
    for side in (old, new):
        new.model.hidden.copy_(start)
        side.run()
        logits.append(new.model.logits.clone())
    apart = (logits[0] - logits[1]).abs().max() / logits[1].abs().max()
    assert apart < LIKE, f"the logits of both sides lie {apart:.3g} of the largest apart"


def main() -> int:
    """Compare; the exit status is 1 where a whole step's lower quartile is below the bar."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=Path, help="the other one, with its library built")
    parser.add_argument("--type", default="Q4_1", choices=("Q4_1", "Q4_0"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--pairs", type=int, default=64, help="steps of each side in a round")
    parser.add_argument("--rows", type=int, help="only what has so many rows")
    parser.add_argument("--bar", type=float, default=0.99)
    options = parser.parse_args()
    checkout = options.checkout.resolve()
    modules: dict[str, ModuleType] = {}
    found = [str(checkout / "src"), str(checkout / "bench")]
    with tree_of(modules):
        sys.path[:0] = found
        import native_kernels as old_kernels

        from cutaway.kernels.native import library as old_library

        assert str(checkout) in str(old_library.__file__), old_library.__file__
        old = Side(old_kernels, old_library)
        del sys.path[: len(found)]
    new = Side(native_kernels, library)
    assert old.instructions == new.instructions, (old.instructions, new.instructions)
    print(
        f"{options.type}, {new.instructions}, one thread; old seconds over new of {checkout.name}"
    )
    print("rows context  what        lower quartile  median   rounds")
    is_reached = True
    for rows, context in RUNS:
        if options.rows not in (None, rows):
            continue
        new.build(options.type, rows, context)
        with tree_of(modules):
            old.build(options.type, rows, context)
            share(old.model, new.model)
            old.record()
        new.record()
        check_alike(old, new)
        pairs = max(3, options.pairs // -(-rows // 16))
        for name, ratios in compare(old, new, options.rounds, pairs).items():
            low = statistics.quantiles(ratios, n=4, method="inclusive")[0]
            is_reached &= name != "step" or low >= options.bar
            every = " ".join(f"{ratio:.3f}" for ratio in ratios) if name == "step" else ""
            middle = statistics.median(ratios)
            print(
                f"{rows:4d} {context:7d}  {name:10s} {low:15.3f} {middle:7.3f}   {every}",
                flush=True,
            )
    print(
        f"load {os.getloadavg()[0]:.1f}; bar {options.bar} for each step's lower quartile: ", end=""
    )
    print("reached" if is_reached else "missed")
    return int(not is_reached)


if __name__ == "__main__":
    sys.exit(main())
