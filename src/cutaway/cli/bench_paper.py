"""`cutaway bench paper`: the field's headline figures, ours and the published, with sources."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer

from cutaway.cli.settings.options import AsJson
from cutaway.cli.settings.setting_keys import DEFAULT_MODEL
from cutaway.cli.terminal.terminal import note, print_data, print_json, table

if TYPE_CHECKING:
    from cutaway.bench.paper_rows import PaperReport


def paper(
    *,
    only: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="of gqa, mla, quantization, window, moe, levers, attention, prefix, cache, cost; "
            "commas between",
        ),
    ] = "",
    base: Annotated[
        str, typer.Option("--model", metavar="NAME", help="for the rows that need a model")
    ] = DEFAULT_MODEL,
    small: Annotated[bool, typer.Option("--small", help="short lengths, to try it")] = False,
    json: AsJson = False,
) -> None:
    """Reproduce published figures with our own code, each beside its source.

    Rows are computed from a shape, allocated by the engine's cache, counted from operations, or
    measured here. What needs a model takes a real one; other shapes have random weights.
    """
    from cutaway.bench.paper import run
    from cutaway.bench.paper_rows import SMALL, PaperSize

    size = replace(SMALL if small else PaperSize(), model=base)
    report = run(size, only=only, say=lambda text: note(text, dim=True))
    if json:
        print_json(asdict(report))
        return
    print_data(_drawn(report))


def _drawn(report: PaperReport) -> str:
    rows = [
        (
            row.section,
            row.name,
            f"{_number(row.value)} {row.unit}".strip(),
            "" if row.published is None else _number(row.published),
            row.how,
            row.model,
            row.note,
            row.source,
        )
        for row in report.rows
    ]
    header = ("SECTION", "FIGURE", "OURS", "PUBLISHED", "HOW", "ON", "NOTE", "SOURCE")
    machine = ", ".join(f"{name} {value}" for name, value in report.machine.items())
    return f"{table(header, rows, right='OURS PUBLISHED')}\n{machine}\n{report.seconds:.0f} s"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
