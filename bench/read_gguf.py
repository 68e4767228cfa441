"""Seconds that a GGUF file takes to read: its header, then all its tensors as float32.

    python bench/read_gguf.py [MODEL] [--repeats 5]

MODEL is what `cutaway models` takes; without it smollm2, fetched if need be.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from collections.abc import Callable

from cutaway.host import gguf_file
from cutaway.quantize.gguf.gguf_tensors import unpack
from cutaway.weights.find.find import find


def main() -> None:
    """Print the median and the best of some repeats."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    path = find(arguments.model).path
    file = gguf_file.read(path)
    before = peak_megabytes()

    def unpack_all() -> None:
        for name in file.tensors:
            unpack(file, name)

    print(f"{path.name}: {len(file.metadata)} keys, {len(file.tensors)} tensors")
    report("header", arguments.repeats, lambda: gguf_file.read(path))
    report("tensors", arguments.repeats, unpack_all)
    print(f"peak memory above the start, one tensor kept at a time: {peak_megabytes() - before} MB")


def report(what: str, repeats: int, run: Callable[[], object]) -> None:
    """One line: seconds of some runs."""
    seconds: list[float] = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    print(f"{what:8} {statistics.median(seconds):.3f} s median, {min(seconds):.3f} s best")


def peak_megabytes() -> int:
    """Most memory that this process has had, mapped file pages included."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1000


if __name__ == "__main__":
    main()
