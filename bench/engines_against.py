"""This engine against that of another checkout: whole engines, in turn, on the same core.

Each side is a process of its own with its own checkout's code and library, so structs may differ.
A round starts some of each at once, for equal processes were seen to differ by some percent, and is
a row of short slices: old, new, new, old and so on, so that both meet the same machine. Its ratio
is the geometric mean over pairs of processes of the median over pairs of slices. What is judged is
the lower quartile of the rounds' ratios, old seconds over new: above 1, this checkout is faster. On
one thread the clock is the processor's time of that thread, since a busy machine takes the wall's.
Run it against the same commit first: how far from 1 it comes then is its error on this machine;
more --pairs make it smaller. Seven rounds of two pairs take four minutes on two threads.

    git worktree add /tmp/old COMMIT && (cd /tmp/old && python native/build.py)
    python bench/engines_against.py /tmp/old
    python bench/engines_against.py /tmp/old --threads 2 --clock wall     # on a quiet machine
    python bench/engines_against.py /tmp/old --calls     # the host's work, on any machine
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import cutaway
from cutaway.bench import model_files
from cutaway.bench.peers import peer_process
from cutaway.bench.peers.peer_process import Peer
from cutaway.core.errors import ConfigError

Ratios = dict[str, float]  # by case
HERE = Path(__file__).resolve().parent
LIBRARY = Path("src/cutaway/kernels/_native.so")
MODELS: dict[str, Callable[[], Path]] = {
    "q4_1": model_files.smollm2,
    "q4_0": lambda: model_files.convert("Q4_0"),
    "experts": model_files.random_experts,
}
# Name, sequences (0: prompts), context of each or tokens of a prompt, steps of a slice.
CASES = (
    ("decode 1", 1, 16, 24),
    ("decode 8", 8, 16, 12),
    ("decode 32", 32, 16, 4),
    ("prefill 512", 0, 512, 1),
)
# Seconds after a slice of several threads: so long those of the other side spin for a next step.
REST = 0.06


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


def question(sequences: int, context: int, steps: int, rest: float) -> Callable[[Peer], float]:
    """What is asked of both for one slice, when the other's threads have gone to sleep."""

    def ask(peer: Peer) -> float:
        time.sleep(rest)
        if sequences:
            return peer.ask("steps", number=steps)
        return peer.ask("prompt", tokens=context)

    return ask


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


def run_round(old: Path, new: Path, model: Path, options: argparse.Namespace) -> Ratios:
    """Old seconds over new, by case: the geometric mean of some pairs of new processes.

    Which of two equal processes is faster is settled when they start, by where their memory comes
    to lie: one round of equals gave 0.80.
    """
    found: Ratios = {}
    with ExitStack() as stack, ThreadPoolExecutor(4) as starting:
        # Who of a pair starts first changes with each.
        starts = [
            [
                starting.submit(side, each, model, options)
                for each in ((old, new), (new, old))[number % 2]
            ]
            for number in range(options.pairs)
        ]
        peers = [[stack.enter_context(each.result()) for each in two] for two in starts]
        forms = {each.versions for two in peers for each in two}
        assert len(forms) == 1, f"sides run in different forms: {'; '.join(sorted(forms))}"
        for name, sequences, context, steps in CASES:
            if options.only not in name:
                continue
            ask = question(sequences, context, steps, REST if options.threads > 1 else 0.0)
            pairs = options.slices if sequences else options.slices // 2
            ratios: list[float] = []
            for number, two in enumerate(peers):
                before, after = two if number % 2 == 0 else reversed(two)
                for peer in (before, after) if sequences else ():
                    peer.ask("start", context=context, sequences=sequences)
                slices(before, after, ask, 1)  # warms up
                ratios.append(statistics.median(slices(before, after, ask, pairs)))
                for peer in (before, after) if sequences else ():
                    peer.ask("start", context=context, sequences=0)
            found[name] = math.prod(ratios) ** (1 / len(ratios))
    return found


def count_calls(old: Path, new: Path, model: Path, options: argparse.Namespace) -> bool:
    """Print the calls of functions in a decoding step; whether the new side has no more."""
    is_reached = True
    with ExitStack() as stack:
        peers = [stack.enter_context(side(each, model, options)) for each in (old, new)]
        for name, sequences, context, _ in CASES:
            if sequences and options.only in name:
                for peer in peers:
                    peer.ask("start", context=context, sequences=sequences)
                before, after = (peer.ask("calls", number=64) for peer in peers)
                is_reached &= after <= before
                print(f"{name:12s} calls a step: old {before:,.0f}, new {after:,.0f}")
    return is_reached


def report(rounds: Sequence[Ratios], bar: float) -> bool:
    """Print each case's quartile and median of rounds; whether all quartiles reach the bar."""
    print("case          lower quartile   median   rounds")
    is_reached = True
    for name in rounds[0]:
        ratios = [each[name] for each in rounds]
        low = statistics.quantiles(ratios, n=4, method="inclusive")[0] if ratios[1:] else ratios[0]
        is_reached &= low >= bar
        every = " ".join(f"{ratio:.3f}" for ratio in ratios)
        print(f"{name:12s} {low:15.3f} {statistics.median(ratios):8.3f}   {every}")
    return is_reached


def main() -> int:
    """Compare; the exit status is 1 where a lower quartile is below the bar."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=Path, help="the other one, with its library built")
    parser.add_argument("--new", type=Path, help="in this checkout's place")
    parser.add_argument("--model", choices=MODELS, default="q4_1")
    parser.add_argument("--only", default="", help="a part of the names of the wanted cases")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--slices", type=int, default=6, help="pairs of two processes in a round; of prompts half"
    )
    parser.add_argument("--pairs", type=int, default=2, help="of processes in a round")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=("thread", "wall"), default="thread")
    parser.add_argument("--core", default="any", help="the core that both sides stay on")
    parser.add_argument("--calls", action="store_true", help="count functions called, no seconds")
    parser.add_argument("--bar", type=float, default=0.99)
    options = parser.parse_args()
    if options.threads > 1 and options.clock == "thread":
        parser.error("--clock thread sees one thread; take --clock wall with more.")
    ours = options.new or Path(cutaway.__file__).parents[2]
    model, old = MODELS[options.model](), options.checkout.resolve()
    print(f"old {old.name}, new {ours.name}: {options.threads} threads, {options.clock} clock")
    if options.calls:
        return int(not count_calls(old, ours.resolve(), model, options))
    rounds: list[Ratios] = []
    for number in range(options.rounds):
        rounds.append(run_round(old, ours.resolve(), model, options))
        shown = "  ".join(f"{name} {ratio:.3f}" for name, ratio in rounds[-1].items())
        print(f"round {number + 1}, load {os.getloadavg()[0]:.1f}: {shown}", flush=True)
    is_reached = report(rounds, options.bar)
    print(f"bar {options.bar} for each lower quartile: {'reached' if is_reached else 'missed'}")
    return int(not is_reached)


if __name__ == "__main__":
    sys.exit(main())
