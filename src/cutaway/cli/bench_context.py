"""`cutaway bench context`: what becomes of a model behind the length that it was trained on."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cutaway.cli.settings.options import AsJson, Given, SettingsFile, integer, with_settings
from cutaway.cli.settings.setting_keys import MODEL
from cutaway.cli.terminal.terminal import note, print_data, print_json, table
from cutaway.core.errors import ConfigError

if TYPE_CHECKING:
    from cutaway.bench.long_context import ContextReport


@with_settings(MODEL)
def context(
    *,
    text: Annotated[Path, typer.Option(metavar="FILE", help="a long text, UTF-8")],
    given: Given,
    config: SettingsFile = None,
    tokens: Annotated[
        int | None,
        typer.Option(
            parser=integer,
            metavar="N",
            show_default=False,
            help="how many of its tokens are read; default: twice what the model was made for",
        ),
    ] = None,
    scaling: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="of linear, dynamic, yarn, llama3; commas between; or off",
        ),
    ] = "linear,dynamic,yarn,llama3",
    json: AsJson = False,
) -> None:
    """Measure perplexity over the position, behind the trained length too, with each scaling.

    Scalings stretch rotary frequencies by how many times longer the text is. Beside them stand the
    same tokens with the context begun anew, so that a harder stretch of the text is not mistaken.
    """
    try:
        words = text.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{text} cannot be read as UTF-8 text: {error}.") from None

    from cutaway.cli.session.session import open_llm
    from cutaway.cli.settings.settings import resolve

    settings = resolve(given, config=config)
    # Each reading has a cache of its own; this one holds nothing.
    small = {"cache_tokens": settings.values["page_size"]}
    llm = open_llm(replace(settings, values={**settings.values, **small}))

    from cutaway.bench import long_context as measured

    length = 2 * llm.engine.model.facts.max_length if tokens is None else tokens
    token_ids = llm.encode(words[: 16 * max(length, 0)])[: max(length, 0)]
    if len(token_ids) < length:
        raise ConfigError(
            f"tokens is {length:,}, and {text} has {len(token_ids):,}. Take a longer text, or ask "
            "for fewer."
        )
    names = (
        [] if scaling == "off" else [name.strip() for name in scaling.split(",") if name.strip()]
    )
    report = measured.run(
        llm.engine.model,
        llm.engine.config,
        token_ids,
        scalings=names,
        say=lambda line: note(line, dim=True),
    )
    if json:
        print_json(asdict(report))
        return
    _print(report)


def _print(report: ContextReport) -> None:
    rows = [
        (
            f"{start:,} to {start + report.width - 1:,}",
            "within" if start + report.width <= report.trained else "behind",
            *(f"{each.perplexities[at]:,.2f}" for each in report.readings),
        )
        for at, start in enumerate(report.starts)
    ]
    names = [each.name.upper() for each in report.readings]
    print_data(table(("POSITIONS", "TRAINED", *names), rows, right=" ".join(names)))
    print_data(
        f"perplexity; {report.model} in {report.dtype}, made for {report.trained:,} tokens; "
        f"scalings by {report.factor:g}; anew: the same tokens, the context begun anew at every "
        f"{report.trained:,}"
    )
