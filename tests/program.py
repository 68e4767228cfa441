"""The program `cutaway` as tests run it: in their own process, or in one that it has to itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any, Protocol

from house_tree import PACKAGE


@dataclass(frozen=True)
class Ended:
    """What a run of the program left."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one object on stdout."""
        return json.loads(self.out)


class Cutaway(Protocol):
    """Runs one command; stdin is what it reads."""

    def __call__(self, *arguments: str, stdin: str | bytes = "") -> Ended: ...


def command(*arguments: str) -> list[str]:
    """The program as the installed script starts it."""
    return [sys.executable, "-c", "from cutaway.cli.main import main; main()", *arguments]


def environment(**more: str) -> dict[str, str]:
    """This process's environment, with the source tree where the package is looked for."""
    return {**os.environ, "PYTHONPATH": str(PACKAGE.parent), **more}


def spawn(*arguments: str, stdin: str | bytes = "", **more: str) -> Ended:
    """Run one command in a process of its own."""
    done = subprocess.run(
        command(*arguments),
        input=stdin.encode() if isinstance(stdin, str) else stdin,
        env=environment(**more),
        capture_output=True,
        timeout=300,
        check=False,
    )
    return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())
