"""What the plan of reliability and the Makefile run by name is there under that name."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from house_tree import ROOT


def test_every_row_names_tests_and_scripts_that_are_there() -> None:
    """In a process of its own, since the plan is imported from bench/ as its command does."""
    code = (
        "from plan.rows import ROWS\n"
        "for row in ROWS:\n    for run in row.runs:\n        print(*run.nodes, sep='\\n')"
    )
    made = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "bench", capture_output=True, text=True, check=True
    )
    named = [n for n in made.stdout.split("\n") if n.startswith(("tests/", "bench/"))]
    assert len(named) > 30
    for node in named:
        file, _, test = node.partition("::")
        name = re.sub(r"\[.*", "", test)
        assert (ROOT / file).is_file(), node
        assert not name or f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), node


def test_the_makefile_names_tests_that_are_there() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    files = re.findall(r"tests/\w+/\w+\.py", text)
    assert files and all((ROOT / file).is_file() for file in files), files


def test_what_was_mended_counts_no_more_and_stays_told(tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
from plan import records, table
from plan.records import Record
from plan.rows import ROWS

records.FILE = Path({str(tmp_path)!r}) / "lines.jsonl"
table.TABLE = records.FILE.with_suffix(".md")
(row,) = (each for each in ROWS if each.number == 26)
what, other = (run.what for run in row.runs)
for name, seed, failures in ((what, 1, 0), (other, 1, 1), (what, 2, 1), (what, 3, 0)):
    said = "it broke" * failures
    records.append(Record(26, name, seed, 10, failures, 1.0, {{}}, said, "2026", "abc", "this"))
assert records.mend(26, "other", "no part is called so") == 0
assert records.mend(26, "def0123") == 3, "a slice, and those of its own part before it"
kept = [table.records_of(records.read(), row, run) for run in row.runs]
assert [[each.seed for each in own] for own in kept] == [[3], []]
assert records.mend(26, "later") == 0, "what ran since counts"
told = table.write().read_text()
assert told.count("it broke") == 2 and "mended by def0123" in told
elsewhere = records.FILE.with_name("elsewhere.jsonl")
for seed in (3, 1001):
    records.append(Record(26, what, seed, 5, 0, 1.0, {{}}, "", "2026", "abc", "that"), elsewhere)
assert records.merge(elsewhere) == 1 and records.merge(elsewhere) == 0, "each slice once"
own = table.records_of(records.read(), row, row.runs[0])
assert [(each.seed, each.machine) for each in own] == [(3, "this"), (1001, "that")]
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT / "bench", check=True)


def test_no_record_tells_where_things_lie_on_a_machine(tmp_path: Path) -> None:
    code = f"""
import asyncio, os, tempfile
from pathlib import Path
from plan import records
from plan.records import Record

records.FILE = Path({str(tmp_path)!r}) / "lines.jsonl"
said = f"{{asyncio.__file__}}:1: in x\\n{{tempfile.gettempdir()}}/a/b {{Path.home()}}/c"
said += " env/lib/python3.11/d"
records.append(Record(1, "x", 1, 0, 1, 1.0, {{}}, said, "2026", "abc", "this"))
(kept,) = records.read()
assert kept.said.endswith("asyncio/__init__.py:1: in x\\na/b c python3.11/d"), kept.said
assert not kept.said.startswith("/"), kept.said
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT / "bench", check=True)
    told = {path: path.read_text(encoding="utf-8") for path in ROOT.glob("bench/results/*")}
    places = re.compile(r"/(?:root|home|Users|work|mnt|tmp)/[\w.]|\.pyenv")
    assert len(told) > 10
    assert {
        path.name: places.findall(text) for path, text in told.items() if places.search(text)
    } == {}
