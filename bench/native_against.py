"""Old native kernels against new ones: the same operations over the same buffers, in turn.

Each library runs a whole step of SmolLM2's shapes, operation by operation, then the other does, so
that both meet the same neighbours and the same cold caches. What counts is the processor time of
one thread, since a busy machine takes the wall's away.

    python native/build.py --output /tmp/old.so     # in a checkout of what was before
    python bench/native_against.py /tmp/old.so --type Q4_0
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import time
from collections.abc import Sequence

from native_kernels import SHAPES, Model, make_step

from cutaway.kernels import native
from cutaway.kernels.native import library

RUNS = ((1, 32), (1, 1024), (4, 128), (8, 128), (32, 128), (256, 256))  # rows, context
_PARTS = ("qkv", "attention", "output", "gated", "down")


def names(num_operations: int) -> list[str]:
    """What each operation of Model.step does."""
    layers = (num_operations - 3) // len(_PARTS)
    return ["gather", *_PARTS * layers, "take", "table"]


def other(path: str) -> ctypes.CDLL:
    """A library beside the one in use, on one thread too."""
    loaded = ctypes.CDLL(path)
    library._declare(loaded)
    assert loaded.cw_version() == library.library().cw_version(), f"{path} has other structs"
    loaded.cw_set_num_threads(1, 0)
    return loaded


def seconds(
    loaded: ctypes.CDLL, operations: Sequence[native.Operation], step: native.NativeStep
) -> dict[str, float]:
    """Processor time of each kind of operation in one step, and of all."""
    spent: dict[str, float] = {}
    for name, each in zip(names(len(operations)), operations, strict=True):
        address, size = ctypes.addressof(each.arguments), ctypes.sizeof(each.arguments)
        began = time.thread_time()
        status = loaded.cw_run(each.code, address, size, ctypes.byref(step.struct))
        spent[name] = spent.get(name, 0.0) + time.thread_time() - began
        library.check(status)
    return spent | {"step": sum(spent.values())}


def compare(old: ctypes.CDLL, model: Model, step: native.NativeStep, rounds: int) -> None:
    """Print lower quartiles of both, and quartile and median of the ratios of single rounds."""
    operations, new = model.step().operations, library.library()
    seconds(old, operations, step), seconds(new, operations, step)
    pairs = [
        (seconds(old, operations, step), seconds(new, operations, step)) for _ in range(rounds)
    ]
    for name in ("step", *_PARTS, "table"):
        before, after = ([pair[side][name] * 1e3 for pair in pairs] for side in (0, 1))
        ratios = [b / a for b, a in zip(before, after, strict=True)]
        low, middle, _ = statistics.quantiles(ratios, n=4)
        quartiles = [statistics.quantiles(each, n=4)[0] for each in (before, after)]
        print(
            f"{name:10s} {quartiles[0]:8.2f} {quartiles[1]:8.2f}   {low:5.2f} {middle:5.2f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", help="the old one")
    parser.add_argument("--type", default="Q4_1", choices=("Q4_1", "Q4_0"))
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--rows", type=int, help="only what has so many rows")
    options = parser.parse_args()
    library.set_num_threads(1)
    old = other(options.library)
    print(f"{options.type}, isa {library.isa()}, one thread; ms of processor time")
    for rows, context in RUNS:
        if options.rows not in (None, rows):
            continue
        sequences = 1 if context == rows else rows
        model = Model(
            *(SHAPES["smollm2-135m"], options.type),
            **{"capacity": rows, "context": context, "sequences": sequences},
        )
        queries = [rows // sequences] * sequences
        step = make_step(queries, [context] * sequences, -(-context // 16))
        print(f"{rows} rows, context {context}: old, new, ratio's lower quartile and median")
        compare(old, model, step, options.rounds if rows <= 32 else max(3, options.rounds // 6))


if __name__ == "__main__":
    main()
