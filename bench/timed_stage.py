"""A stage of training for some seconds.

    python bench/timed_stage.py speculator bench/speculator.toml --seconds 120 key=value ...

The rate's course follows the clock, so that it ends in time however fast updates come: a number of
updates that was reckoned before is wrong as soon as something else uses the device. Without
--seconds it is `cutaway train` without its screen, for machines that lack what the command line
needs.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

from cutaway.train import stage as stages
from cutaway.train.loop import Pull, Updated, descend, pull_back
from cutaway.train.losses.losses import Loss
from cutaway.train.optimizers import Optimizers
from cutaway.train.schedules import COURSES, Schedule
from cutaway.train.stage import UpdateReport
from cutaway.train.stage_config import read_settings

WARMUP = 0.02  # of the time, in which the rate rises
LEAST = 1e-3  # of the time: what the first update counts as
MOST_UPDATES = 1_000_000  # more than come


class UntilTime:
    """Takes the place of the loop's run(): updates until so many seconds are over."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __call__(
        self,
        feed: Callable[[int], Sequence[Any]],
        objective: Callable[[Any], Loss],
        optimizers: Optimizers,
        *,
        schedule: Schedule,
        first: int = 0,
        after: Callable[[Updated], None],
        pull: Pull = pull_back,
    ) -> None:
        began, update = perf_counter(), first
        while (share := (perf_counter() - began) / self._seconds) < 1:
            done = max(0.0, share - WARMUP) / (1 - WARMUP)
            factor = COURSES[schedule.name](done, WARMUP / (1 - WARMUP))
            factor *= min(1.0, (share + LEAST) / WARMUP)
            batches = feed(update)
            after(descend(batches, objective, optimizers, update=update, factor=factor, pull=pull))
            update += 1
        print(f"{update} updates in {perf_counter() - began:.1f} s", flush=True)


def tell(report: UpdateReport) -> None:
    """A line now and then."""
    updated = report.updated
    if report.measured or updated.update % 50 == 0:
        told = " ".join(f"{name} {value:.4f}" for name, value in report.measured.items())
        figures = " ".join(f"{name} {each:.3f}" for name, each in dict(updated.figures).items())
        line = f"{updated.update + 1}/{report.num_updates} loss {updated.loss:.4f}"
        print(f"{line} {report.seconds:.3f} s {figures} {told}", flush=True)


def main() -> None:
    """Prepare and run."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("stage")
    options.add_argument("config", type=Path)
    options.add_argument("--seconds", type=float, help="that all updates take")
    options.add_argument("overrides", nargs="*", help="settings of the stage")
    args = options.parse_intermixed_args()
    module = importlib.import_module(f"cutaway.train.{args.stage}")
    kind = getattr(module, f"{args.stage.capitalize()}Settings")
    began = perf_counter()
    stage = module.prepare(read_settings(kind, args.config, args.overrides))
    print(f"prepared in {perf_counter() - began:.1f} s", flush=True)
    if args.seconds is not None:
        stages.run = UntilTime(args.seconds)
        stage = replace(stage, settings=replace(stage.settings, updates=MOST_UPDATES))
    print(stage.run(tell), {} if stage.measure is None else stage.measure())
    print(f"{perf_counter() - began:.1f} s")


if __name__ == "__main__":
    main()
