"""A row per published file of a folder: the command line, the JSON lines and the page of a bench.

It knows neither templates nor tokenizers: a row is a dict with the name of what was tried.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

Row = dict[str, Any]
Found = TypeVar("Found")
MOST_TOLD = 300  # characters of a line


def command_line(doc: str) -> argparse.ArgumentParser:
    """The options that all such benches have. doc: of the script."""
    options = argparse.ArgumentParser(description=doc.splitlines()[0])
    options.add_argument("folder", type=Path)
    options.add_argument("--only", default="", help="files whose path has this in it")
    options.add_argument("--slice", default="0/1", help="K/N: every N-th from the K-th")
    options.add_argument("--json", type=Path, help="add the rows to this file, one JSON a line")
    options.add_argument("--rows", type=Path, help="take the rows of such a file, and try nothing")
    options.add_argument("--markdown", type=Path, help="write the table here")
    return options


def rows_of(
    asked: argparse.Namespace,
    found: Iterable[tuple[str, Found]],
    try_one: Callable[[str, Found], Row],
    *,
    tell: Callable[[Row], str],
) -> list[Row]:
    """A row for each that was found, told and kept as it comes; or the rows of --rows.

    found: name and content, of which --only and --slice leave some.   tell: a row as a line.
    """
    if asked.rows is not None:
        return [json.loads(line) for line in asked.rows.read_text("utf-8").splitlines()]
    rows: list[Row] = []
    first, step = map(int, asked.slice.split("/"))
    for name, each in islice((pair for pair in found if asked.only in pair[0]), first, None, step):
        began = perf_counter()
        rows.append(try_one(name, each))
        if asked.json is not None:
            with asked.json.open("a", encoding="utf-8") as opened:
                opened.write(json.dumps(rows[-1], ensure_ascii=False) + "\n")
        print(f"{tell(rows[-1])[:MOST_TOLD]} {perf_counter() - began:.1f} s", flush=True)
    return rows


def finish(
    asked: argparse.Namespace,
    title: str,
    summary: str,
    *,
    script: str,
    head: Sequence[str],
    cells: Iterable[Sequence[object]],
) -> None:
    """Print the summary and write the page, if one is wanted.

    script: whose docstring says what the words mean.   head, cells: the table.
    """
    print(summary)
    if asked.markdown is None:
        return
    lines = [f"# {title}", "", f"{summary}.", ""]
    lines += [f"`python {script} FOLDER` says what each word means.", ""]
    lines += [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for row in cells:
        lines.append("| " + " | ".join(str(each).replace("|", "\\|") for each in row) + " |")
    asked.markdown.write_text("\n".join(lines) + "\n", encoding="utf-8")
