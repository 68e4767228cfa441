"""The lesson as a process of this server: one at a time, behind all answers, and ended with it.

It is the command `cutaway train lesson`. What it makes are runs in the folder of runs, which are
followed like all others.
"""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from cutaway.server.error_replies import HttpError

State = Literal["none", "running", "done", "stopped", "failed"]

MOST_LESSONS = 20  # in one folder: each takes some 10 MB
_NAME = "lesson"
_COMMAND = (sys.executable, "-P", "-m", "cutaway", "train", "lesson")
_POLITENESS = 10  # answers come first
_END_SECONDS = 5.0  # after the signal; a run may be killed at any moment and goes on afterwards
_MOST_SAID = 4000  # characters that are kept of what it says


class LessonProcess:
    """The lesson that runs, or ran last.

    name: how the names of its runs begin; empty before the first.   fault: why it failed.
    """

    def __init__(self, command: Sequence[str] = _COMMAND) -> None:
        self._command = command
        self.name = ""
        self.state: State = "none"
        self.fault = ""
        self._process: Process | None = None
        self._watch: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()

    async def start(self, runs: Path, settings: Mapping[str, object]) -> None:
        """Begin a new one in a folder of runs.

        Raises: HttpError where one runs, or the folder holds too many.
        """
        async with self._starting:
            if self.state == "running":
                raise HttpError(
                    status=409,
                    message=f"a lesson runs already, {self.name}. Wait for its end, or stop it: "
                    "DELETE /cutaway/v1/lesson.",
                    code="lesson_running",
                )
            name = _free_name(runs)
            told = [f"{key}={value}" for key, value in settings.items()]
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                "--end-with-stdin",
                f"out={runs / name}",
                "device=cpu",
                *told,
                stdin=PIPE,  # when this process is gone, it ends
                stdout=DEVNULL,
                stderr=PIPE,
                env={**os.environ, "OMP_NUM_THREADS": str(_threads())},
                process_group=0,  # a terminal's Ctrl-C is not for it
            )
            self.name, self.state, self.fault = name, "running", ""
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, self._process.pid, _POLITENESS)
            self._watch = asyncio.create_task(self._wait(self._process, runs))

    async def stop(self) -> None:
        """End it and wait until it is gone; nothing happens where none runs."""
        async with self._starting:
            process, watch = self._process, self._watch
            if process is None or watch is None or process.returncode is not None:
                return
            self.state = "stopped"
            with suppress(ProcessLookupError):
                process.terminate()
            try:
                await asyncio.wait_for(asyncio.shield(watch), _END_SECONDS)
            except TimeoutError:
                with suppress(ProcessLookupError):
                    process.kill()
                await watch

    async def _wait(self, process: Process, runs: Path) -> None:
        """Hear what it says, until it has ended."""
        assert process.stderr is not None, "the process was started with a pipe"
        said = ""
        while piece := await process.stderr.read(1 << 16):
            said = (said + piece.decode("utf-8", "replace"))[-_MOST_SAID:]
        code = await process.wait()
        if self.state == "running":
            self.state = "done" if code == 0 else "failed"
        if self.state == "failed":
            self.fault = _fault(said, code).replace(str(runs), runs.resolve().name)


def _threads() -> int:
    """Half of the processors that are to be had: the other half is the engine's."""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2
    return max(1, processors // 2)


def _free_name(runs: Path) -> str:
    """A name that no folder there begins with. Raises: HttpError."""
    there = list(runs.iterdir()) if runs.is_dir() else []
    taken = {each.name.rpartition("-")[0] for each in there}
    names = (_NAME, *(f"{_NAME}-{number}" for number in range(2, MOST_LESSONS + 1)))
    for name in names:
        if name not in taken:
            return name
    raise HttpError(
        status=409,
        message=f"{MOST_LESSONS} lessons lie in the folder {runs.resolve().name}. Remove some of "
        "them to make room.",
        code="too_many_lessons",
    )


def _fault(said: str, code: int) -> str:
    """Why it failed: its own error, or how it ended."""
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    if errors:
        return errors[-1].removeprefix("error: ")
    return f"it ended by itself with exit code {code}."
