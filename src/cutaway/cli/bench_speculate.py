"""`cutaway bench speculate`: what guessing ahead wins or costs on this machine."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer

from cutaway.cli.settings.options import AsJson, Given, SettingsFile, integer, with_settings
from cutaway.cli.settings.setting_keys import ENGINE, MODEL
from cutaway.cli.terminal.terminal import note, print_data, print_json, table

if TYPE_CHECKING:
    from cutaway.bench.speculate import SpeculateReport


@with_settings(MODEL, ENGINE)
def speculate(
    *,
    given: Given,
    config: SettingsFile = None,
    workloads: Annotated[
        str,
        typer.Option(
            metavar="NAMES", help="of repeat, edit, quote, chat, structured, random; commas"
        ),
    ] = "repeat,edit,quote,chat,structured,random",
    batch: Annotated[str, typer.Option(metavar="N,N", help="answers at once")] = "1,4,16",
    rounds: Annotated[int, typer.Option(min=1, help="paired rounds of every case")] = 5,
    tokens: Annotated[int, typer.Option(min=1, help="of each answer, in the mean")] = 128,
    json: AsJson = False,
) -> None:
    """Measure answers with guesses (draft=ngram) beside the same without, by workload and batch.

    Both must give the same tokens. The ratio is plain seconds over those with guesses: the lower
    quartile of the rounds, the median beside it.
    """
    from cutaway.bench import speculate as measured
    from cutaway.cli.session.session import open_llm
    from cutaway.cli.settings.settings import resolve

    settings = resolve(given, config=config)
    batches = [integer(each) for each in batch.split(",")]
    # Without a prefix cache: else the first of each pair would find less than the second.
    values = {**settings.values, "prefix_cache": False}
    report = measured.run(
        open_llm(replace(settings, values=values)),
        workloads=[each.strip() for each in workloads.split(",")],
        batches=batches,
        rounds=rounds,
        tokens=tokens,
        say=lambda line: note(line, dim=True),
    )
    if json:
        print_json(asdict(report))
    else:
        _print(report)


def _print(report: SpeculateReport) -> None:
    rows = [
        (
            row.workload,
            str(row.batch),
            f"{row.ratio:.2f} ({row.median:.2f})",
            "-" if row.accepted is None else f"{row.accepted:.0%}",
            f"{row.tokens_per_step:.2f}",
            f"{row.plain:,.0f}",
            f"{row.guessing:,.0f}",
        )
        for row in report.rows
    ]
    head = ("WORKLOAD", "BATCH", "RATIO", "ACCEPTED", "TOKENS A STEP", "PLAIN", "GUESSING")
    print_data(table(head, rows, right=" ".join(head[1:])))
    print_data(
        f"{report.model}, draft {report.draft}; {report.tokens} tokens an answer, "
        f"{report.rounds} rounds; ratio: plain seconds a token over those with guesses, quartile "
        "(median); tokens a step: of one answer; last columns: tokens a second of all answers"
    )
