"""Exit codes, and the hint that follows an error where its message does not tell what to do."""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass

import typer

from cutaway.cli.help_examples import OTHER_NAMES
from cutaway.cli.settings.setting_keys import BY_NAME
from cutaway.core.errors import (
    ConfigError,
    CutawayError,
    DownloadError,
    ModelFormatError,
    ModelNotFoundError,
)

OK, FAULT, INTERRUPTED, BROKEN_PIPE = 0, 1, 130, 141
USAGE, MODEL, DOWNLOAD, NUMERICS = 2, 3, 4, 5

EXIT_CODES: tuple[tuple[int, str], ...] = (
    (OK, "it did what was asked"),
    (
        FAULT,
        "a fault of the machine or of Cutaway itself; or `doctor` found what stops Cutaway",
    ),
    (USAGE, "the command, a setting or a request is wrong: option, value, length, messages"),
    (MODEL, "the model cannot be used: not there, malformed, not supported"),
    (DOWNLOAD, "the model could not be fetched, or what came has another checksum"),
    (NUMERICS, "the model gave NaN or infinity"),
    (INTERRUPTED, "ended by Ctrl-C"),
    (BROKEN_PIPE, "the reader of stdout went away"),
)

_HINTS: tuple[tuple[type[CutawayError], str], ...] = (
    (
        ModelNotFoundError,
        "`cutaway models ls` lists the names that Cutaway knows and what is here.",
    ),
    (ModelFormatError, "`cutaway models verify` compares files with their checksums."),
    (DownloadError, "`cutaway doctor` looks at this machine."),
    (ConfigError, "`cutaway config show --origin` tells where each value comes from."),
)

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
_WHOLE = "what was there of that name before is unchanged; free some space, or name another place."


@dataclass(frozen=True)
class Explained:
    """An error as it is said to a person."""

    message: str
    exit_code: int
    hint: str | None = None


def explain(error: Exception) -> Explained:
    """What is said about an error, and the exit code."""
    if isinstance(error, CutawayError):
        hint = next((hint for kind, hint in _HINTS if isinstance(error, kind)), None)
        if isinstance(error, ConfigError) and str(error).split()[0] not in BY_NAME:
            hint = None  # no file and no variable has it: it stands in the command itself
        return Explained(str(error), error.exit_code, hint)
    if isinstance(error, typer.TyperException):
        return _usage(error)
    if isinstance(error, MemoryError) or _is_out_of_memory(error):
        hint = "take a smaller --cache-tokens or model; `cutaway doctor` tells what is free."
        return Explained(f"memory ran out: {error}", FAULT, hint)
    if isinstance(error, OSError):
        place = f": {error.filename}" if error.filename is not None else ""
        hint = _WHOLE if error.errno in _FULL and error.filename is not None else None
        return Explained(f"{error.strerror or error}{place}", FAULT, hint)
    return Explained(
        f"a fault of Cutaway itself: {type(error).__name__}: {error}",
        FAULT,
        "CUTAWAY_DEBUG=1 shows where; a report with it is welcome.",
    )


def _usage(error: typer.TyperException) -> Explained:
    """A wrong option or command; typer's own classes know how to say it and where it was."""
    say = getattr(error, "format_message", None)
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "cutaway"
    message = str(say() if say is not None else error)
    unknown = re.match(r"No such command '([\w-]+)'\.", message)
    if unknown:
        group = path.removeprefix("cutaway").strip()
        meant = OTHER_NAMES.get(f"{group} {unknown[1]}".strip())
        message = f"{unknown[0]} Did you mean `cutaway {meant}`?" if meant else message
    return Explained(message, USAGE, f"`{path} --help` tells more.")


def _is_out_of_memory(error: Exception) -> bool:
    # torch has a class for the GPU and a bare RuntimeError for the CPU; neither is imported here.
    return type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error)
