"""`cutaway trace`: an answer with its views in one file: write, open without the model, compare."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from cutaway.cli.session.opened_answer import look_at, words_of
from cutaway.cli.settings.integer_text import show_bytes
from cutaway.cli.settings.options import AsJson, Given, SettingsFile, with_settings
from cutaway.cli.settings.setting_keys import CHAT, ENGINE, MODEL, SAMPLING
from cutaway.cli.terminal.pictures import print_lines, print_title
from cutaway.cli.terminal.terminal import note, print_data, print_json, table
from cutaway.core.errors import ConfigError, RequestError, TraceFileError
from cutaway.core.limits import quote
from cutaway.host.whole_file import write_whole

if TYPE_CHECKING:
    from cutaway.trace.file import SavedView, TraceFile

app = typer.Typer(name="trace", help="Keep answers as files: write, open, compare, export them.")

TraceName = Annotated[Path, typer.Argument(metavar="FILE", help="a trace, as in name.cutaway")]


Force = Annotated[bool, typer.Option("--force", help="write over a file that is there")]


@app.command()
@with_settings(MODEL, ENGINE, SAMPLING, CHAT)
def save(
    *,
    prompt: Annotated[str, typer.Argument(help="the prompt; - reads stdin")],
    file: TraceName,
    given: Given,
    config: SettingsFile = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="send the prompt as a message, through the template")
    ] = False,
    views: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES", show_default=False, help="views, as in tokens,cost; all otherwise"
        ),
    ] = None,
    steps: Annotated[
        str | None,
        typer.Option(
            metavar="TOKENS",
            show_default=False,
            help="tokens of the answer at which the cheap views are saved, or all named views: "
            "all, none, or as in 0,7,20-30; 128 of them otherwise",
        ),
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option(metavar="LAYERS", show_default=False, help="layers too, as in 0,5,20-29"),
    ] = None,
    heads: Annotated[
        str | None,
        typer.Option(metavar="HEADS", show_default=False, help="heads of these layers too"),
    ] = None,
    redact: Annotated[
        bool, typer.Option("--redact", help="leave out ids, texts and all that tells them")
    ] = False,
    force: Force = False,
) -> None:
    """Answer a prompt and write the answer, its steps and what views show of it into a file."""
    words = words_of(prompt, given, is_chat=chat)
    _check_new(file, force=force)  # told before an answer is made that could not be kept
    if not file.parent.is_dir():
        raise ConfigError(f"{file}: its folder is not there. Make {file.parent}, or name another.")

    from cutaway.cli.session.session import open_session
    from cutaway.core.looks import FileRequest
    from cutaway.replay.trace_file import saving_of
    from cutaway.views import view_of

    names = () if views is None else tuple(_names(views))
    for name in names:
        view_of(name)  # a name that there is not is told before the model is loaded
    look = look_at(open_session(given, config=config), words, is_chat=chat)
    kept = FileRequest(views=names, steps=steps, layers=layers, heads=heads, redact=redact)
    trace = saving_of(look, kept).write(file)
    note(
        f"{file}: {show_bytes(file.stat().st_size)}, {trace.section('answer')['num_tokens']} "
        f"tokens, {len(trace.views)} views at {_num_places(trace):,} places."
    )


@app.command(name="open")
def open_(
    file: TraceName,
    *,
    view: Annotated[
        str | None, typer.Option(metavar="NAME", show_default=False, help="show a view of it")
    ] = None,
    json: AsJson = False,
) -> None:
    """Show what a trace holds. The model is not needed."""
    from cutaway.trace.file import read

    trace = read(file)
    if view is not None:
        saved = _saved_view(trace, view, file=file)
        if json:
            print_json(_numbers(saved))
        else:
            _show(saved)
        return
    if json:
        print_json({"manifest": trace.manifest, "events": list(trace.events)})
        return
    _summary(trace)


@app.command()
def diff(left: TraceName, right: TraceName, *, json: AsJson = False) -> None:
    """Compare two traces: settings, the first token that differs, times."""
    from dataclasses import asdict

    from cutaway.trace.difference import difference
    from cutaway.trace.file import read

    found = difference(read(left), read(right))
    if json:
        print_json(asdict(found))
        return
    prompts = {True: "the same prompt", False: "different prompts", None: "prompts not told"}
    print_data(prompts[found.same_prompt])
    if found.settings:
        rows = [(name, _cell(one), _cell(other)) for name, one, other in found.settings]
        print_data(table(("DIFFERS", "LEFT", "RIGHT"), rows))
    if found.texts is not None:
        one, other = found.texts
        print_data(f"answers part at token {found.first_token}: {one} left, {other} right")
    elif found.logprob is not None:
        print_data("the same tokens")
    if found.logprob is not None:
        print_data(f"log-probabilities until then differ by at most {found.logprob:.5f}")
    rows = [(name, _ms(one), _ms(other)) for name, one, other in found.timings]
    print_data(table(("TIME", "LEFT", "RIGHT"), rows, right="LEFT RIGHT"))


@app.command()
def export(
    file: TraceName,
    *,
    to: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="FORMAT", show_default=False, help="chrome, csv, otlp or html"
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", show_default=False, help="stdout otherwise")
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html",
            metavar="PAGE",
            show_default=False,
            help="write the page's viewer with the trace in it, as one file for any browser",
        ),
    ] = None,
    force: Force = False,
) -> None:
    """Write a trace for another tool: a browser, Perfetto, a spreadsheet, OpenTelemetry."""
    from cutaway.trace.export import FORMATS
    from cutaway.trace.file import read
    from cutaway.trace.viewer import with_viewer

    for made in (html, output):
        if made is not None:
            _check_new(made, force=force)
    trace = read(file)
    if html is not None:
        write_whole(html, with_viewer(file.read_bytes(), file=str(file)), is_private=True)
        note(f"{html}: {show_bytes(html.stat().st_size)}; open it in a browser, it asks no server.")
    if to is None and html is not None:
        return
    if to is None or to not in FORMATS:
        known = ", ".join(FORMATS)
        found = "no format is named" if to is None else f"to is {quote(to)}"
        raise RequestError(f"{found}; it must be one of {known}, or give --html PAGE.", param="to")
    text = FORMATS[to](trace)
    if output is None:
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
    else:
        write_whole(output, text.encode("utf-8", "backslashreplace"), is_private=True)


def _check_new(path: Path, *, force: bool) -> None:
    """Nothing is overwritten in silence; what is no plain file, as /dev/stdout, holds nothing."""
    if path.is_file() and not force:
        raise ConfigError(f"{path} is there already. Name another file, or add --force.")


def _num_places(trace: TraceFile) -> int:
    return sum(1 + len(view.places) for view in trace.views)


def _names(views: str) -> list[str]:
    return [name.strip() for name in views.split(",") if name.strip()]


def _saved_view(trace: TraceFile, name: str, *, file: Path) -> SavedView:
    for saved in trace.views:
        if saved.name == name:
            return saved
    held = ", ".join(saved.name for saved in trace.views) or "none"
    raise TraceFileError(f"has no view {quote(name)}; it has: {held}.", file=str(file))


def _numbers(saved: SavedView) -> dict[str, object]:
    """A saved view as `cutaway view --json` prints it: arrays stand where values name them."""

    def put(value: object) -> object:
        if isinstance(value, dict):
            items = cast("dict[str, object]", value)
            path = items.get("array")
            if len(items) == 1 and isinstance(path, str) and path in saved.arrays:
                return saved.arrays[path].tolist()
            return {key: put(each) for key, each in items.items()}
        if isinstance(value, list):
            return [put(each) for each in cast("list[object]", value)]
        return value

    values = put(dict(saved.values))
    numbers = cast("dict[str, object]", values)
    return {"view": saved.name, "proof": saved.proof, **numbers}


def _show(saved: SavedView) -> None:
    print_title(saved.name, saved.question, saved.proof)
    print_lines(saved.lines)


def _summary(trace: TraceFile) -> None:
    model, answer = trace.section("model"), trace.section("answer")
    privacy = trace.section("privacy")
    print_data(
        f"{model.get('name')}: {answer.get('num_prompt_tokens')} tokens of prompt "
        f"({answer.get('num_cached')} found in the cache), {answer.get('num_tokens')} of the "
        f"answer, ended by {answer.get('finish_reason')}"
    )
    for event in trace.of_kind("end"):
        if isinstance(event.get("text"), str):
            print_data(str(event["text"]))
    rows = [(name, _ms(value)) for name, value in trace.section("timings").items()]
    print_data(table(("TIME", "TOOK"), rows, right="TOOK"))
    if privacy.get("redacted"):
        print_data("redacted: ids and texts were left out")
    held = [
        (saved.name, str(1 + len(saved.places)), saved.question, saved.proof or "from the record")
        for saved in trace.views
    ]
    print_data(table(("VIEW", "PLACES", "ANSWERS", "PROOF"), held))


def _cell(value: object) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 40 else text[:39] + "\u2026"


def _ms(value: object) -> str:
    return f"{value * 1e3:.2f} ms" if isinstance(value, int | float) else "-"
