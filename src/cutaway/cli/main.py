"""The command `cutaway`: its list of commands, and one clear line for every error."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from io import TextIOWrapper
from typing import Annotated

import typer

from cutaway import __version__
from cutaway.cli import (
    bench,
    bench_context,
    bench_paper,
    bench_serve,
    chat,
    compare,
    complete,
    config,
    detokenize,
    doctor,
    exits,
    models,
    serve,
    tokenize,
    trace,
    view,
    why,
)
from cutaway.cli import run as run_page
from cutaway.cli.terminal import is_seen, note

app = typer.Typer(
    name="cutaway",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Data goes to stdout, everything else to stderr.",
)

# In the order of the help.
COMMANDS: tuple[Callable[..., object], ...] = (
    chat.chat,
    complete.complete,
    view.view,
    why.why,
    compare.compare,
    run_page.run,
    serve.serve,
    tokenize.tokenize,
    detokenize.detokenize,
    doctor.doctor,
)
for _command in COMMANDS:
    app.command()(_command)
app.add_typer(models.app)
app.add_typer(config.app)
app.add_typer(trace.app)
bench.app.command()(bench_serve.serve)
bench.app.command()(bench_paper.paper)
bench.app.command()(bench_context.context)
app.add_typer(bench.app)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"cutaway {__version__}")
        raise typer.Exit


@app.callback()
def cutaway(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="print the version and end"
        ),
    ] = False,
) -> None:
    """An LLM inference engine that people can see into."""


def main() -> None:
    """Run this process's command line and end with its exit code."""
    _open_streams()
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; errors are said on stderr.

    With CUTAWAY_DEBUG set, their traceback follows.
    """
    stdout = sys.stdout
    try:
        code = app(list(arguments) or ["--help"], prog_name="cutaway", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else exits.OK
    except BrokenPipeError:
        _forget_stdout()
        return exits.BROKEN_PIPE
    except SystemExit as end:
        # Typer ends so after completing for a shell, and when a reader went away: then it has put
        # a stream in the place of stdout that says nothing of it.
        is_broken = sys.stdout is not stdout
        return exits.BROKEN_PIPE if is_broken else end.code if isinstance(end.code, int) else 0
    except KeyboardInterrupt:
        return exits.INTERRUPTED
    except Exception as error:
        fault = exits.explain(error)
        note(f"error: {' '.join(fault.message.split())}")
        if fault.hint is not None:
            note(f"hint: {fault.hint}")
        if os.environ.get("CUTAWAY_DEBUG", "0") not in ("", "0"):
            traceback.print_exception(error)
        return fault.exit_code


def _open_streams() -> None:
    """Make the standard streams usable, however this process was started."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by whoever started us
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))
    for stream in (sys.stdout, sys.stderr):
        # A console may have another encoding; whatever a model writes must fit through.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    if not is_seen(sys.stderr):
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # the hub client's own bars


def _forget_stdout() -> None:
    """Send what is still buffered nowhere: nobody reads it, and flushing at exit would fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
