"""The table of all rows: what ran, how often, what failed, and what that says about the rest."""

from __future__ import annotations

import re
from pathlib import Path

from plan.records import FILE, Record, read
from plan.rows import ROWS, Row
from plan.run import Run, together

TABLE = FILE.with_suffix(".md")
HEAD = """# Reliability: every row of the plan, and what was run of it

    python bench/reliability.py ROW|all [--jobs N] [--minutes M]

Written by that command from the lines of `reliability.jsonl`, one for each slice that ran. With 0
failures in N trials the true rate is below 3/N (at 95 %); that says something about trials drawn as
these were, and nothing about others. *wanted* is the plan's figure; a row that fell short shows
what was really done. Seconds are wall time, mostly on a machine that did other work as well.
Slices of a part up to its last failure count no more once that is mended, or once it is known that
they measured something else (`--mended COMMIT_OR_WHY`); what they found stands below.

"""
COLUMNS = (
    *("row", "class", "a trial", "wanted", "done", "failures", "true rate below", "seeds"),
    *("seconds", "date, commit", "machine"),
)


def bound(count: int, failures: int) -> str:
    """The rule of three; with failures there is nothing to promise."""
    if not count or failures:
        return "-"
    return f"{3 / count:.1g}" if count > 3 else "-"


def seeds_of(records: list[Record]) -> str:
    seeds = [record.seed for record in records]
    if not seeds:
        return "-"
    return str(seeds[0]) if min(seeds) == max(seeds) else f"{min(seeds)} to {max(seeds)}"


def records_of(records: list[Record], row: Row, run: Run) -> list[Record]:
    """The slices of one part that count."""
    own = (each for each in records if (each.row, each.what) == (row.number, run.what))
    return [each for each in own if not each.mended]


def line_of(row: Row, run: Run, records: list[Record], machines: list[str]) -> str:
    """One line of the table, from the records of that run alone."""
    count = sum(record.count for record in records)
    failures = sum(record.failures for record in records)
    last = records[-1] if records else None
    cells = [
        str(row.number), row.name, run.what, f"{run.figure:,}", f"{count:,}", str(failures),
        "-" if run.once else bound(count, failures), seeds_of(records),
        f"{sum(record.seconds for record in records):,.0f}",
        f"{last.date}, {last.commit}" if last else "-",
        machines_of(records, machines),
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def machines_of(records: list[Record], machines: list[str]) -> str:
    """Letters of the machines, whose names stand below the table."""
    letters: list[str] = []
    for record in records:
        if record.machine not in machines:
            machines.append(record.machine)
        letter = chr(ord("A") + machines.index(record.machine))
        if letter not in letters:
            letters.append(letter)
    return ", ".join(letters) or "-"


def because_of(mended: str) -> str:
    """Why a slice counts no more: the commit that mended what it found, or what it measured."""
    return f"mended by {mended}" if re.fullmatch(r"[0-9a-f]{7,40}", mended) else mended


def figures_of(row: Row, run: Run, records: list[Record]) -> list[str]:
    """What was measured beside: totals of all slices, and the largest of them."""
    largest: dict[str, float] = {}
    for record in records:
        for name, value in record.figures.items():
            largest[name] = together(name, largest.get(name), value)
    said = ", ".join(f"{name.replace('_', ' ')} {value:,.6g}" for name, value in largest.items())
    return [f"- row {row.number}, {run.what}: {said}"] if said else []


def write() -> Path:
    """Write the table anew from all records."""
    records, lines, machines, figures = read(), list[str](), list[str](), list[str]()
    for row in ROWS:
        if row.none:
            lines.append(f"| {row.number} | {row.name} | none: {row.none} |" + " - |" * 8)
        for run in row.runs:
            own = records_of(records, row, run)
            lines.append(line_of(row, run, own, machines))
            figures += figures_of(row, run, own)
    names = [f"- {chr(ord('A') + number)}: {name}" for number, name in enumerate(machines)]
    failures = [each for each in records if each.failures]
    failed = [f"- row {r.row}, seed {r.seed}: {r.said[-300:]!r}" for r in failures if not r.mended]
    mended = [
        f"- row {r.row}, {r.what}, seed {r.seed}, {r.commit}, {because_of(r.mended)}: "
        f"{r.said.strip().splitlines()[-2:]!r}"
        for r in failures
        if r.mended
    ]
    parts = [
        HEAD + "\n".join([f"| {' | '.join(COLUMNS)} |", "|" + " --- |" * len(COLUMNS), *lines]),
        "## Machines",
        *names,
    ]
    if figures:
        parts += [
            "",
            "## Measured beside (totals, and else the largest of all slices)",
            "",
            *figures,
        ]
    if failed:
        parts += ["", "## Failures", "", *failed]
    if mended:
        parts += ["", "## Failures that were mended since, or were none", "", *mended]
    TABLE.write_text("\n".join(parts) + "\n", encoding="utf-8")
    return TABLE
