"""A stage of training with as many updates as fit into some seconds.

    python bench/timed_stage.py speculator bench/speculator.toml --seconds 120 key=value ...

A few updates are timed, forward and backward, and thrown away; the run then has the updates that
fit, so that its schedule ends with it. Without --seconds it is `cutaway train` without its screen,
for machines that lack what the command line needs.
"""

from __future__ import annotations

import argparse
import importlib
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

from cutaway.train.stage import TrainingStage, UpdateReport
from cutaway.train.stage_config import read_settings

TIMED = 8  # updates; the first half warms up
SPARE = 1.05  # of an update's time, for the optimizer


def seconds_of(stage: TrainingStage[Any]) -> float:
    """What an update takes, without its step."""
    module = stage.model.transformer if stage.module is None else stage.module
    took: list[float] = []
    for update in range(TIMED):
        began = perf_counter()
        for batch in stage.feed(update):
            loss = stage.objective(batch)
            (loss.total / max(1, loss.count)).backward()
            float(loss.total)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        took.append(perf_counter() - began)
    for parameter in module.parameters():
        parameter.grad = None
    return median(took[TIMED // 2 :]) * SPARE


def tell(report: UpdateReport) -> None:
    """A line now and then."""
    updated = report.updated
    if report.measured or updated.update % 50 == 0:
        told = " ".join(f"{name} {value:.4f}" for name, value in report.measured.items())
        figures = " ".join(f"{name} {each:.3f}" for name, each in dict(updated.figures).items())
        line = f"{updated.update + 1}/{report.num_updates} loss {updated.loss:.4f}"
        print(f"{line} {report.seconds:.3f} s {figures} {told}", flush=True)


def main() -> None:
    """Prepare, time, run."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("stage")
    options.add_argument("config", type=Path)
    options.add_argument("--seconds", type=float, help="that all updates may take")
    options.add_argument("overrides", nargs="*", help="settings of the stage")
    args = options.parse_intermixed_args()
    module = importlib.import_module(f"cutaway.train.{args.stage}")
    kind = getattr(module, f"{args.stage.capitalize()}Settings")
    began = perf_counter()
    stage = module.prepare(read_settings(kind, args.config, args.overrides))
    print(f"prepared in {perf_counter() - began:.1f} s", flush=True)
    if args.seconds is not None:
        each = seconds_of(stage)
        updates = max(10, int(args.seconds / each))
        print(f"an update takes {each:.3f} s: {updates} of them", flush=True)
        stage = replace(stage, settings=replace(stage.settings, updates=updates))
    print(stage.run(tell))
    print(f"{perf_counter() - began:.1f} s")


if __name__ == "__main__":
    main()
