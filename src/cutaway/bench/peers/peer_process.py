"""A peer as this process sees it: a script that runs beside, and what it answers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import cast

from cutaway.core.errors import CutawayError

_FOLDER = Path(__file__).parent


class PeerError(CutawayError):
    """A peer did not start, or could not do what was asked."""


class Peer:
    """One engine with one model, in a process of its own.

    script: a file of this folder or anywhere, run by `python`.   arguments: model, threads and what
    it takes.   environment: of its process, where it is not this one's.
    own_session: Ctrl-C is then ours alone, and Linux shares cores among sessions, not processes.
    Its context ends it: after an error at once, else when it has answered.
    Raises: PeerError with the last line that it wrote when it does not start.
    """

    def __init__(
        self,
        script: str,
        arguments: Sequence[str],
        *,
        python: str,
        own_session: bool = True,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._process = subprocess.Popen(
            [python, str(_FOLDER / script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=own_session,
            env=environment,
        )
        try:
            self.versions = str(self._read()["versions"])
        except BaseException:
            self._process.kill()
            self.close()
            raise

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if error is not None:
            self._process.kill()
        self.close()

    def ask(self, question: str, **values: object) -> float:
        """A question of question_loop.py's PeerEngine, and its answer. Raises: PeerError."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps({"ask": question, **values}) + "\n")
        self._process.stdin.flush()
        answer = self._read()
        if "error" in answer:
            raise PeerError(str(answer["error"]))
        return cast(float, answer["value"])

    def close(self) -> None:
        """End the peer's input and wait until its process has ended."""
        self._process.communicate()

    def _read(self) -> dict[str, object]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            _, said = self._process.communicate()
            last = said.strip().splitlines()[-1:] or ["it said nothing"]
            raise PeerError(f"{self._process.args[1]} ended: {last[0]}")  # pyright: ignore
        return json.loads(line)


def has_module(python: str, name: str) -> bool:
    """Whether an interpreter can import a module."""
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({name!r}) is None)"
    return subprocess.run([python, "-c", code], check=False).returncode == 0


OURS = sys.executable
