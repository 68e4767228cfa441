"""This engine against that of another checkout: whole engines, in turn, on the same core.

Each side is a process of its own with its own checkout's code and library, so structs may differ.
A round is a row of short slices: old, new, new, old and so on, a few milliseconds apart, so that
both meet the same machine; its ratio is the median over pairs of slices. What is judged is the
lower quartile of the rounds' ratios, old seconds over new: above 1, this checkout is faster. On
one thread the clock is the processor's time of that thread, since a busy machine takes the wall's.

    git worktree add /tmp/old COMMIT && (cd /tmp/old && python native/build.py)
    python bench/engines_against.py /tmp/old
    python bench/engines_against.py /tmp/old --threads 2 --clock wall     # on a quiet machine
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import cutaway
from cutaway.bench import model_files
from cutaway.bench.peers import peer_process
from cutaway.bench.peers.peer_process import Peer
from cutaway.core.errors import ConfigError

HERE = Path(__file__).resolve().parent
LIBRARY = Path("src/cutaway/kernels/_native.so")
MODELS: dict[str, Callable[[], Path]] = {
    "q4_1": model_files.smollm2,
    "q4_0": lambda: model_files.converted("Q4_0"),
    "experts": model_files.random_experts,
}
# Name, sequences (0: prompts), context of each or tokens of a prompt, steps of a slice.
CASES = (
    ("decode 1", 1, 64, 8),
    ("decode 8", 8, 64, 4),
    ("decode 32", 32, 64, 2),
    ("prefill 512", 0, 512, 1),
)


def side(checkout: Path, model: Path, options: argparse.Namespace) -> Peer:
    """The engine of a checkout, in a process that finds its code first."""
    if not (checkout / LIBRARY).is_file():
        raise ConfigError(f"{checkout} has no {LIBRARY}; build it there: python native/build.py.")
    loop = Path(peer_process.__file__).parent
    path = os.pathsep.join([str(checkout / "src"), str(loop)])
    return Peer(
        str(HERE / "engine_side.py"),
        [str(model), str(options.threads), options.core, options.clock],
        python=sys.executable,
        environment={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )


def question(sequences: int, context: int, steps: int) -> Callable[[Peer], float]:
    """What is asked of both for one slice."""
    if sequences:
        return lambda peer: peer.ask("steps", number=steps)
    return lambda peer: peer.ask("prompt", tokens=context)


def slices(old: Peer, new: Peer, ask: Callable[[Peer], float], pairs: int) -> list[float]:
    """Old seconds over new of pairs of slices; who begins changes with each."""
    ratios: list[float] = []
    for number in range(pairs):
        if number % 2:
            after, before = ask(new), ask(old)
        else:
            before, after = ask(old), ask(new)
        ratios.append(before / after)
    return ratios


def compare(old: Peer, new: Peer, options: argparse.Namespace) -> bool:
    """Print each case's quartile and median of rounds; whether all quartiles reach the bar."""
    print("case          lower quartile   median   rounds")
    is_reached = True
    for name, sequences, context, steps in CASES:
        if options.only not in name:
            continue

        ask = question(sequences, context, steps)
        rounds: list[float] = []
        for number in range(options.rounds + 1):
            if sequences:
                for peer in (old, new):
                    peer.ask("start", context=context, sequences=sequences)
            ratios = slices(old, new, ask, options.slices if sequences else options.slices // 2)
            if number:  # the first one warms up
                rounds.append(statistics.median(ratios))
        low = statistics.quantiles(rounds, n=4, method="inclusive")[0]
        is_reached &= low >= options.bar
        each = " ".join(f"{ratio:.3f}" for ratio in rounds)
        print(f"{name:12s} {low:15.3f} {statistics.median(rounds):8.3f}   {each}", flush=True)
    return is_reached


def main() -> int:
    """Compare; the exit status is 1 where a lower quartile is below the bar."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=Path, help="the other one, with its library built")
    parser.add_argument("--model", choices=MODELS, default="q4_1")
    parser.add_argument("--only", default="", help="a part of the names of the wanted cases")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--slices", type=int, default=24, help="pairs of a round; of prompts half")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=("thread", "wall"), default="thread")
    parser.add_argument("--core", default="any", help="the core that both sides stay on")
    parser.add_argument("--bar", type=float, default=0.99)
    options = parser.parse_args()
    if options.threads > 1 and options.clock == "thread":
        parser.error("--clock thread sees one thread; take --clock wall with more.")
    ours = Path(cutaway.__file__).parents[2]
    with ExitStack() as stack:
        model = MODELS[options.model]()
        old, new = (
            stack.enter_context(side(each.resolve(), model, options))
            for each in (options.checkout, ours)
        )
        print(f"old {options.checkout}: {old.versions}; new {ours.name}: {new.versions}")
        print(f"{options.clock} clock, core {options.core}; load {os.getloadavg()[0]:.1f} before")
        is_reached = compare(old, new, options)
        print(f"load {os.getloadavg()[0]:.1f} after; bar {options.bar}: {is_reached}")
    return int(not is_reached)


if __name__ == "__main__":
    sys.exit(main())
