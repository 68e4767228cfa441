"""A server of its own for a measurement: started on a free port, its processes watched, ended.

It knows the server as a program alone: what it prints, and what the system says of its processes.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from cutaway.core.errors import CutawayError

END_SECONDS = 60  # for a server to end when it is told to
_TRY = re.compile(r"curl (http://[^/]+)/")  # what it prints once it takes requests in


@dataclass(frozen=True)
class Started:
    """A server that takes requests in. pids: of each process, the client's own among them."""

    url: str
    pids: dict[str, int]


@contextmanager
def start_server(arguments: Sequence[str]) -> Generator[Started]:
    """`cutaway serve` with these arguments, for as long as the block lasts.

    Raises: CutawayError with its last words when it ends before it is ready.
    """
    program = [sys.executable, "-c", "from cutaway.cli.main import main; main()"]
    process = subprocess.Popen(
        [*program, "serve", *arguments, "--port", "0"],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    said = process.stderr
    assert said is not None, "a pipe was asked for"
    # Whatever it logs is read and dropped, so that it never waits for a full pipe.
    reader = threading.Thread(target=_drop, args=(said,), daemon=True)
    try:
        url = _until_ready(said)
        reader.start()
        pids = {"client": os.getpid(), "server": process.pid}
        engines = children(process.pid)  # elsewhere than on Linux nobody tells
        pids |= {"engine": engines[0]} if len(engines) == 1 else {}
        pids |= {f"engine {i}": pid for i, pid in enumerate(engines)} if engines[1:] else {}
        yield Started(url, pids)
    finally:
        process.terminate()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if reader.ident is not None:
            reader.join()
        said.close()


@contextmanager
def killing(server: Started, seconds: float | None) -> Generator[None]:
    """Kill one of the server's engines after so many seconds of the block; None kills none.

    Raises: CutawayError where there is none to kill.
    """
    if seconds is None:
        yield
        return
    engines = [pid for name, pid in server.pids.items() if name.startswith("engine")]
    if not engines:
        raise CutawayError("the system does not tell which processes are engines.")
    timer = threading.Timer(seconds, os.kill, (engines[0], signal.SIGKILL))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def children(pid: int) -> list[int]:
    """Processes that a process has started; none where the system does not say."""
    tasks = Path(f"/proc/{pid}/task")
    if not tasks.is_dir():
        return []
    return [int(each) for task in tasks.iterdir() for each in _words(task / "children")]


def cpu_seconds(pid: int) -> float | None:
    """Seconds of a core that a process has used; None where the system does not say."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _words(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").split()
    except OSError:
        return []  # a thread that has ended meanwhile


def _until_ready(lines: IO[str]) -> str:
    last: deque[str] = deque(maxlen=5)
    for line in lines:
        found = _TRY.match(line)
        if found:
            return found[1]
        last.append(line.strip())
    raise CutawayError(f"the server ended before it was ready: {' '.join(last)}")


def _drop(lines: IO[str]) -> None:
    for _ in lines:
        pass
