"""What was run, a line for each slice, kept beside the table that is made of it."""

from __future__ import annotations

import datetime
import fcntl
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from cutaway.host import processor

FILE = Path(__file__).resolve().parents[1] / "results" / "reliability.jsonl"


@dataclass(frozen=True)
class Record:
    """One slice of one row's part: trials that were done, and what went wrong.

    mended: the commit that mended what a slice of this part found, this one or a later one: its
    trials were of something else than what is there now, so they count no more. Or, in words, why
    a slice told nothing of what it was to measure.
    """

    row: int
    what: str
    seed: int
    count: int
    failures: int
    seconds: float
    figures: dict[str, float]
    said: str
    date: str
    commit: str
    machine: str
    mended: str = ""


def now() -> tuple[str, str, str]:
    """Date, commit (with a + where the tree differs from it) and machine of a record."""
    # Where the tree was copied without its history, PLAN_COMMIT says what it is of.
    commit = _git("rev-parse", "--short=7", "HEAD") or os.environ.get("PLAN_COMMIT", "")
    changed = _git("diff", "--name-only", "HEAD", "--", "src", "native", "tests", "bench/*.py")
    return datetime.date.today().isoformat(), commit + "+" * bool(changed), machine()


def _git(*words: str) -> str:
    command = ["git", *words]
    root = FILE.parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def machine() -> str:
    """Processor and cores that this process may use, and whose Python it is where not CPython."""
    name = processor.model_name() or platform.processor() or platform.machine()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    python = platform.python_implementation()
    return f"{name}, {cores} cores" + (f", {python}" if python != "CPython" else "")


def read(lines: Path | None = None) -> list[Record]:
    """All records, oldest first."""
    file = lines or FILE
    if not file.exists():
        return []
    return [Record(**json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]


def merge(lines: Path) -> int:
    """Take in what another machine ran, but for what is here already; how many slices."""
    known = {(each.row, each.what, each.seed) for each in read()}
    new = [each for each in read(lines) if (each.row, each.what, each.seed) not in known]
    for each in new:
        append(each)
    return len(new)


def without_places(text: str) -> str:
    """The text without where the tree, Python, homes and temporary files lie on this machine."""
    text = text.replace(f"{FILE.parents[2]}/", "")
    text = re.sub(r"[^\s'\":]*/(?=python\d\.\d+/)", "", text)  # libraries, however cut
    places = {sys.prefix, sys.base_prefix, str(Path.home()), tempfile.gettempdir()}
    for place in sorted(places, key=len, reverse=True):
        text = text.replace(f"{place}/", "")
    return text


def append(record: Record, lines: Path | None = None) -> None:
    """Keep it without places of this machine; several processes may do so at once."""
    record = replace(record, said=without_places(record.said))
    with (lines or FILE).open("a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(json.dumps(asdict(record)) + "\n")


def mend(row: int, commit: str, what: str = "") -> int:
    """Let slices of a row's parts that failed, and what ran before them, count no more; how many.

    commit: of the repair, or why nothing was to be mended; the table gives it too.
    what: only the parts that are called so.
    """
    records, num_mended = read(), 0
    last: dict[str, int] = {}
    for place, each in enumerate(records):
        if each.row == row and what in each.what and each.failures and not each.mended:
            last[each.what] = place
    for place, each in enumerate(records):
        if each.row == row and place <= last.get(each.what, -1) and not each.mended:
            records[place] = replace(each, mended=commit)
            num_mended += 1
    write(records)
    return num_mended


def write(records: list[Record]) -> None:
    """Put these in place of all that there were."""
    lines = [json.dumps(asdict(each)) + "\n" for each in records]
    FILE.write_text("".join(lines), encoding="utf-8")


def forget(row: int) -> None:
    """Drop a row's records, to begin it anew."""
    write([record for record in read() if record.row != row])
