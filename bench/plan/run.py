"""One part of a row: what counts as a trial, how many are wanted, and the command for some."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from plan.records import Record, now, without_places

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Run:
    """Trials of one kind.

    what: what one trial is, in the plural.
    figure: how many the plan wants.
    nodes: tests that do them, or a script under bench/ with its arguments.
    each: how many one slice does, so that a run that is cut short has counted what it did.
    once: there is nothing to draw: figure is the number of cases that there are at least.
    counts: for a script that reads no PLAN_: {count} and {seed} stand among its words, and this
    finds the numbers of trials in what it prints; it ends with another status than 0 on a fault.
    is_optimized: by python -O, which drops assertions, those of tests excepted.
    """

    what: str
    figure: int
    nodes: tuple[str, ...]
    each: int = 0
    is_script: bool = False
    once: bool = False
    is_optimized: bool = False
    counts: str = ""

    @property
    def slice(self) -> int:
        """Trials that one call of the command does at most."""
        return self.each or self.figure


def command(run: Run) -> list[str]:
    """The words that start it; counts and seeds are given by the environment."""
    if run.is_script:
        return [sys.executable, *run.nodes]
    pytest = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--timeout=0", "-rf"]
    if not run.is_optimized:
        return [sys.executable, *pytest, *run.nodes]
    # pytest says that assertions of what is no test are gone: that is what is wanted.
    quiet = ["-W", "ignore:assertions not in test modules"]
    return [sys.executable, "-O", *pytest, *quiet, *run.nodes]


def together(name: str, before: float | None, value: float) -> float:
    """A figure of two slices: the sum where its name begins with total, else the larger one."""
    if before is None:
        return value
    return before + value if name.startswith("total") else max(before, value)


def run_slice(row: int, run: Run, seed: int, count: int) -> Record:
    """Run so many trials from that seed; what failed is one failure, with its last words."""
    with tempfile.TemporaryDirectory(prefix="cutaway-plan-") as folder:
        log = Path(folder) / "log"
        sources = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sources),
            "PLAN_LOG": str(log),
        }
        if not run.once:  # all cases there are: as often as in the suite
            environment |= {"PLAN_TRIALS": str(count), "PLAN_SEED": str(seed)}
        words = [word.format(count=count, seed=seed) for word in command(run)]
        if not run.is_script:
            words += [f"--hypothesis-seed={seed}", f"--basetemp={folder}/pytest"]
        began = time.monotonic()
        done = subprocess.run(
            words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        seconds = time.monotonic() - began
        lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    figures: dict[str, float] = {}
    for line in lines:
        for name, value in line["figures"].items():
            figures[name] = together(name, figures.get(name), value)
    failed = done.returncode != 0
    counted = sum(line["count"] for line in lines)
    if run.counts:
        counted = sum(map(int, re.findall(run.counts, done.stdout, re.MULTILINE)))
    if run.once and not run.is_script and (passed := re.search(r"(\d+) passed", done.stdout)):
        counted = max(counted, int(passed[1]))  # a test is a case, where it does not say more
    if run.once and counted < run.figure:
        failed, done.stdout = True, f"{done.stdout}\n{counted} cases, not {run.figure}."
    if not counted and not failed:
        failed, done.stdout = True, f"{done.stdout}\nIt counted no trial: a skipped test, perhaps."
    printed = without_places(done.stdout + done.stderr)  # before it is cut
    said = printed.strip()[-3000:] if failed else ""
    return Record(
        row, run.what, seed, counted, int(failed), round(seconds, 1), figures, said, *now()
    )
