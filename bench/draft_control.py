"""What the controller of guesses makes of a machine whose speed changes, reckoned step by step.

    PYTHONPATH=src python bench/draft_control.py [--steps 1500] [--seeds 40]

One answer and a drafter whose chances are honest: a guess of chance q stands q times of all. Steps
take what the row says, in plain steps, times the machine's speed of the moment: quiet, or 1.6
times as slow for spells of some 30 steps, and a noise of a tenth on each step. Told are tokens a
second over those of plain decoding on the same machine, of all steps: the mean of the seeds and
the tenth from below. Beside the controller: one guess always, and each guess whose chance pays at
the row's true costs, which nobody can know.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import mean, quantiles

from cutaway.engine.drafters.controller import MOST_DRAFTS, Controller

SLOW, SPELL, NOISE = 1.6, 30, 0.1


@dataclass(frozen=True)
class Costs:
    """In plain steps.

    first:   the making of the first guess, kept or not.   more: of each further one.
    rows:    verifying one, two, three... guesses; each beyond costs what the last two differ by.
    chances: parameters of the Beta distribution of a guess' chance.
    """

    name: str
    first: float
    more: float
    rows: tuple[float, ...]
    chances: tuple[float, float] = (0.8, 0.8)

    def verified(self, count: int) -> float:
        """Of so many guesses."""
        if count == 0:
            return 0.0
        beyond = max(0, count - len(self.rows))
        step = self.rows[-1] - self.rows[-2]
        return self.rows[min(count, len(self.rows)) - 1] + beyond * step


ROWS = (
    Costs("AVX2, a guess made in a tenth of a step", 0.10, 0.04, (0.14, 0.35, 0.65)),
    Costs("AVX2, in a seventh", 0.14, 0.06, (0.14, 0.35, 0.65)),
    Costs("VNNI", 0.12, 0.04, (0.02, 0.12, 0.20)),
    Costs("rows as dear as steps", 0.35, 0.10, (0.30, 0.60, 1.00)),
    Costs("AVX2, one guess in six stands", 0.10, 0.04, (0.14, 0.35, 0.65), (0.4, 2.0)),
)


def speeds(chance: random.Random, changes: bool) -> Iterator[tuple[float, float]]:
    """The machine's factor, and with it what one step of that factor takes."""
    now = 1.0
    while True:
        if changes and chance.random() < 1 / SPELL:
            now = SLOW if now == 1.0 else 1.0
        yield now, now * max(0.5, chance.gauss(1.0, NOISE))


def drafted(
    costs: Costs, chance: random.Random, most: int, kept: float, followed: float
) -> tuple[int, int, float]:
    """Guesses that are verified, those of them that stand, and the whole step's time."""
    product, count, made, stands = 1.0, 0, 0.0, []
    while count < most:
        made += costs.more if made else costs.first
        one = chance.betavariate(*costs.chances)
        product *= one
        if product < kept:
            break
        stands.append(chance.random() < one)
        count += 1
        if product < followed:
            break
    right = stands.index(False) if False in stands else count
    return count, right, 1 + made + costs.verified(count)


def controlled(costs: Costs, steps: int, chance: random.Random, changes: bool) -> float:
    """Tokens by plain steps' time, as the controller takes guesses."""
    control, left, won, spent, plain = Controller(), 0, 0, 0.0, 0.0
    for _, (now, took) in zip(range(steps), speeds(chance, changes), strict=False):
        plain += now
        if left or not (most := control.most(1, 1)):
            spent, won = spent + took, won + 1
            if left:
                left -= 1
            else:
                left = control.skip(1)
                control.learn_time(1, 0, took)
            continue
        count, right, whole = drafted(costs, chance, most, *control.bounds(1))
        control.learn(0, "trained", tried=count, right=right)
        control.learn_time(1, count, whole * took, right=right, was_sought=True)
        spent, won, plain = spent + whole * took, won + 1 + right, plain + now * right
    return plain / spent


def fixed(
    costs: Costs, steps: int, chance: random.Random, most: int, kept: float, followed: float
) -> float:
    """The same with bounds that nobody changes, on a steady machine."""
    won = spent = 0.0
    for _ in range(steps):
        _, right, whole = drafted(costs, chance, most, kept, followed)
        won, spent = won + 1 + right, spent + whole
    return won / spent


def best(costs: Costs, steps: int) -> float:
    """Of some bounds, those that win most."""
    tried = [(kept, behind) for kept in (0.02, 0.1, 0.2, 0.3, 0.5) for behind in (0.1, 0.3, 0.6, 1)]
    return max(
        fixed(costs, steps, random.Random(0), MOST_DRAFTS, kept, max(kept, behind))
        for kept, behind in tried
    )


def told(run: Callable[[random.Random], float], seeds: int) -> str:
    """The mean of the seeds, and the tenth from below."""
    values = [run(random.Random(seed)) for seed in range(seeds)]
    return f"{mean(values):.2f} ({quantiles(values, n=10)[0]:.2f})"


def main() -> None:
    """Print a line of a table for each row of costs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--seeds", type=int, default=40)
    args = parser.parse_args()
    print("| costs | one guess | best bounds | controller, steady | speed changes |")
    print("|---|---|---|---|---|")
    for costs in ROWS:
        steady, changing = (
            told(
                lambda chance, costs=costs, way=way: controlled(costs, args.steps, chance, way),
                args.seeds,
            )
            for way in (False, True)
        )
        one = fixed(costs, 20 * args.steps, random.Random(0), 1, 0.0, 1.0)
        print(
            f"| {costs.name} | {one:.2f} | {best(costs, 20 * args.steps):.2f} | {steady} |"
            f" {changing} |"
        )


if __name__ == "__main__":
    main()
