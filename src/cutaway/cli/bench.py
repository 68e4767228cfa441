"""`cutaway bench`: measure this machine, Cutaway on it, and other engines beside."""

from __future__ import annotations

import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from cutaway.cli import bench_context, bench_paper, bench_serve, bench_speculate, bench_speed
from cutaway.cli.settings.options import AsJson
from cutaway.cli.terminal import exits
from cutaway.cli.terminal.terminal import note, print_data, print_json, table
from cutaway.core.errors import ConfigError
from cutaway.core.limits import quote

if TYPE_CHECKING:
    from cutaway.bench.cpu import CpuReport

app = typer.Typer(name="bench", help="Measure Cutaway beside other engines.")


@app.callback()
def bench() -> None:
    """Measure Cutaway beside other engines."""


@app.command()
def cpu(
    *,
    rounds: Annotated[int, typer.Option(min=2, help="paired rounds of every case")] = 7,
    threads: Annotated[
        int, typer.Option(help="of every engine; 0 takes what this process may use")
    ] = 0,
    python: Annotated[
        str, typer.Option(metavar="PATH", help="an interpreter that has the peers")
    ] = sys.executable,
    models: Annotated[
        str,
        typer.Option(
            metavar="NAMES", help="of q4_1, q4_0, q8_0, 1b, experts, gemma; commas between"
        ),
    ] = "q4_1,q4_0,q8_0,1b",
    only: Annotated[str, typer.Option(metavar="TEXT", help="cases whose name has it")] = "",
    json: AsJson = False,
) -> int:
    """Measure decoding, prefill and start-up beside llama.cpp, OpenVINO and transformers.

    Peers that are not installed are left out. The ratio is the lower quartile of the rounds.
    Ctrl-C or SIGTERM ends it with the cases that are done.
    """
    from cutaway.bench import cpu as measured
    from cutaway.kernels import hardware

    names = models.split(",")
    unknown = [name for name in names if name not in measured.MODELS]
    if unknown:
        known = ", ".join(measured.MODELS)
        raise ConfigError(f"models holds {quote(unknown[0])}; it must be of {known}.")
    with _terminated_as_by_ctrl_c():
        report = measured.run(
            rounds=rounds,
            threads=threads or hardware.chosen_threads(),
            python=python,
            models=names,
            only=only,
            say=lambda text: note(text, dim=True),
        )
    if json:
        print_json(asdict(report))
    else:
        _print(report)
    if not report.is_whole:
        ended = "interrupted" if report.fault is None else f"ended by a fault: {report.fault}"
        note(f"{ended}; rows of cases that were done before: {len(report.rows)}")
        return exits.INTERRUPTED if report.fault is None else exits.FAULT
    if not json:
        short = {row.name for row in measured.misses(report)}
        told = ", ".join(sorted(short))
        note(f"short of a target: {told}" if short else "every target was reached")
    return exits.OK


for _command in (
    *(bench_speed.latency, bench_speed.throughput, bench_serve.serve),
    *(bench_paper.paper, bench_context.context, bench_speculate.speculate),
):
    app.command()(_command)


@contextmanager
def _terminated_as_by_ctrl_c() -> Generator[None]:
    """SIGTERM too lets what was measured be printed."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _print(report: CpuReport) -> None:
    shown = [
        (
            row.name,
            f"{row.ours:.2f} {row.unit}" if row.ours < 10 else f"{row.ours:,.0f} {row.unit}",
            row.peer or "",
            _number(row.peer_value, ".2f" if row.unit == "s" else ",.1f"),
            _number(row.ratio, ".2f"),
            _number(row.ratio_median, ".2f"),
            _number(row.target, "g"),
            _number(row.limit_share, ".2f"),
            _number(row.limit_target, "g"),
        )
        for row in report.rows
    ]
    header = ("CASE", "OURS", "PEER", "THEIRS", "RATIO", "MEDIAN", "TARGET", "FLOOR", "LEAST")
    print_data(table(header, shown, right="OURS THEIRS RATIO MEDIAN TARGET FLOOR LEAST"))
    if report.bandwidth:
        print_data(f"read bandwidth {report.bandwidth / 1e9:.1f} GB/s, median of all rounds")
    for name, version in report.versions.items():
        print_data(f"{name}: {version}")


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
