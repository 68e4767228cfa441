"""What was run, a line for each slice, kept beside the table that is made of it."""

from __future__ import annotations

import datetime
import fcntl
import json
import os
import platform
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path

FILE = Path(__file__).resolve().parents[1] / "results" / "reliability.jsonl"


@dataclass(frozen=True)
class Record:
    """One slice of one row's part: trials that were done, and what went wrong."""

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


def now() -> tuple[str, str, str]:
    """Date, commit (with a + where the tree differs from it) and machine of a record."""
    commit = _git("rev-parse", "--short=7", "HEAD")
    changed = _git("diff", "--name-only", "HEAD", "--", "src", "native", "tests", "bench/*.py")
    return datetime.date.today().isoformat(), commit + "+" * bool(changed), machine()


def _git(*words: str) -> str:
    command = ["git", *words]
    root = FILE.parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def machine() -> str:
    """Processor and cores that this process may use, and whose Python it is where not CPython."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    python = platform.python_implementation()
    return f"{name}, {cores} cores" + (f", {python}" if python != "CPython" else "")


def read() -> list[Record]:
    """All records, oldest first."""
    if not FILE.exists():
        return []
    return [Record(**json.loads(line)) for line in FILE.read_text(encoding="utf-8").splitlines()]


def append(record: Record) -> None:
    """Keep it; several processes may do so at once."""
    with FILE.open("a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(json.dumps(asdict(record)) + "\n")


def forget(row: int) -> None:
    """Drop a row's records, to begin it anew."""
    kept = [record for record in read() if record.row != row]
    FILE.write_text("".join(json.dumps(asdict(each)) + "\n" for each in kept), encoding="utf-8")
