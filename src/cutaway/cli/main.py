"""The command `cutaway`: its streams, and one clear line for every error."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from io import TextIOWrapper

from cutaway.cli.commands import program
from cutaway.cli.terminal import exits
from cutaway.cli.terminal.terminal import is_seen, note


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
        command = program(arguments[0] if arguments else None)
        code = command(list(arguments) or ["--help"], prog_name="cutaway", standalone_mode=False)
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


if __name__ == "__main__":
    main()
