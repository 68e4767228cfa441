"""A program of ours in a process of its own, which may hang, crash or take long in our stead.

It is a module that runs by `python -m`: it says in a line that it is ready, then a line for each
line that it is told.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final

from cutaway.host.aside import CLOCK_OF_PROCESS, computed_seconds

HAS_FORKS: Final = hasattr(os, "fork")
# By the clock: on a machine that is busy, what computes for a moment may take long.
_START_SECONDS: Final = 60.0  # to import what it needs


class ApartProcess:
    """One process, started when it is first asked and again after it was lost. Not thread-safe."""

    def __init__(self, module: str, *words: str) -> None:
        self._module, self._words = module, words
        self.process: subprocess.Popen[str] | None = None
        self._answers: SimpleQueue[str] = SimpleQueue()

    def ask(self, line: str) -> None:
        """Tell it a line; what comes of it is heard."""
        process = self.process or self._start()
        assert process.stdin is not None, "the process was started with a pipe"
        with suppress(BrokenPipeError):  # it has ended, which is heard
            process.stdin.write(line + "\n")
            process.stdin.flush()

    def hear(self, seconds: float) -> str | None:
        """What it answers, a line; empty where it ended, None where it says nothing for so long."""
        try:
            return self._answers.get(timeout=seconds)
        except Empty:
            return None

    @property
    def computed_seconds(self) -> float:
        """How long it has computed; endless where that is not known, or it has ended."""
        pid = None if self.process is None else self.process.pid
        return computed_seconds(pid, CLOCK_OF_PROCESS)

    def close(self) -> None:
        """End the process, and those that it forked."""
        process, self.process = self.process, None
        if process is None:
            return
        if HAS_FORKS:
            with suppress(ProcessLookupError):  # its forks have its group
                os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.wait()
        assert process.stdin is not None, "the process was started with a pipe"
        with suppress(BrokenPipeError):
            process.stdin.close()

    def _start(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", self._module, *self._words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            cwd=Path(__file__).parents[2],
            process_group=0 if HAS_FORKS else None,
        )
        self.process, self._answers = process, SimpleQueue()
        threading.Thread(
            target=_read, args=(process, self._answers), name="cutaway-apart", daemon=True
        ).start()
        if not self.hear(_START_SECONDS):  # it says when it is ready
            process.kill()
            self._answers.put("")
        return process


def _read(process: subprocess.Popen[str], answers: SimpleQueue[str]) -> None:
    """Hand on every line, and an empty one at the end."""
    assert process.stdout is not None, "the process was started with a pipe"
    with process.stdout as lines:
        for line in lines:
            answers.put(line)
    answers.put("")


def say(value: object) -> None:
    """Answer with a line, from within such a process."""
    print(json.dumps(value), flush=True)
