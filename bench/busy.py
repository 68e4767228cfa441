"""Decoding beside processes that never rest, and llama.cpp beside the same ones.

    python bench/busy.py [--rounds 3] [--tokens 128] [--loops 2] [--apart] [--python PATH]

Each round measures both engines alone, then starts the loops and measures both again; tokens per
second are over all steps, stalls included. With --apart engines have sessions of their own, so
where Linux groups tasks by session each side has half of the machine by right; without, as in a
container, an engine competes with the loops thread by thread. PATH is an interpreter that has
llama-cpp-python; without it only our side runs.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from cutaway.bench import model_files
from cutaway.bench.peers.peer_process import Peer, has_module
from cutaway.kernels import hardware

WANTED_SHARE, WANTED_RATIO = 0.45, 3.0  # of alone; of llama.cpp beside the same loops
_REST = 0.15  # seconds until threads of the other side sleep


@contextmanager
def busy(count: int) -> Iterator[None]:
    """So many processes that count in a loop."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        time.sleep(0.5)  # they have started
        yield
    finally:
        for each in loops:
            each.kill()
            each.wait()


def used_seconds() -> float:
    """Processor seconds that the machine has spent on anything."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _, _, irq, soft, steal = map(int, file.readline().split()[1:9])
    return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--loops", type=int, default=2)
    parser.add_argument("--threads", type=int, default=hardware.available_threads())
    parser.add_argument("--apart", action="store_true", help="engines in sessions of their own")
    parser.add_argument("--python", default=sys.executable, help="one that has llama-cpp-python")
    options = parser.parse_args()
    before = used_seconds()
    time.sleep(0.5)
    print(f"cores that others used before: {(used_seconds() - before) / 0.5:.1f}", flush=True)
    with ExitStack() as stack:
        arguments = [str(model_files.smollm2()), str(options.threads)]

        def start(script: str, *more: str, python: str) -> Peer:
            peer = Peer(script, [*arguments, *more], python=python, own_session=options.apart)
            return stack.enter_context(peer)

        sides = {"cutaway": start("run_cutaway.py", python=sys.executable)}
        if has_module(options.python, "llama_cpp"):
            sides["llama.cpp"] = start("run_llama_cpp.py", "fa", python=options.python)
        for name, side in sides.items():
            print(f"{name}: {side.versions}, {options.threads} threads")

        def speeds() -> list[float]:
            found: list[float] = []
            for side in sides.values():
                time.sleep(_REST)
                found.append(1 / side.ask("stretch", context=16, sequences=1, steps=options.tokens))
            return found

        speeds()  # prompts, caches, threads
        print("tokens/s    " + "".join(f"{name:>10} beside  left" for name in sides))
        rounds: list[list[tuple[float, float]]] = []
        for number in range(options.rounds):
            alone = speeds()
            with busy(options.loops):
                rounds.append(list(zip(alone, speeds(), strict=True)))
            print(f"round {number}     " + _row(rounds[-1]), flush=True)
    medians = [
        (statistics.median(a for a, _ in side), statistics.median(b for _, b in side))
        for side in zip(*rounds, strict=True)
    ]
    print("median      " + _row(medians))
    share = statistics.median(one[0][1] / one[0][0] for one in rounds)
    print(f"left of alone: {share:.2f} (wanted {WANTED_SHARE})")
    if len(sides) > 1:
        ratio = statistics.median(one[0][1] / one[1][1] for one in rounds)
        print(f"times llama.cpp beside the same loops: {ratio:.1f} (wanted {WANTED_RATIO:.0f})")


def _row(pairs: list[tuple[float, float]]) -> str:
    return "".join(f"{a:10.1f} {b:6.1f}  {b / a:4.2f}" for a, b in pairs)


if __name__ == "__main__":
    main()
