"""One engine's process as its starter sees it: from its start to its end.

Free of torch. It knows nothing of requests: what the process says goes to whoever asked for it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from cutaway.host.faults import again, note
from cutaway.host.read_sizes import read_in_pieces
from cutaway.service.engine_messages import (
    DUMP_SIGNAL,
    Command,
    Frames,
    Report,
    decode_report,
    encode_frame,
)

_DUMP_SECONDS = 0.5  # for writing where its threads stand
_END_SECONDS = 5.0  # a process whose link is closed ends by itself, unless it hangs


class EngineProcess(asyncio.Protocol):
    """A process and the link to it.

    hear: called in the event loop with what the process says.
    ended: set when the process is gone, or nothing is heard of it any more.
    """

    def __init__(self, hear: Callable[[Report], None]) -> None:
        self._hear = hear
        self._frames = Frames()
        self._link: asyncio.Transport | None = None
        self._process: Process | None = None
        self.ended = asyncio.Event()

    @classmethod
    async def start(
        cls, hear: Callable[[Report], None], *, environment: Mapping[str, str] | None = None
    ) -> EngineProcess:
        """A process that waits for its model's name. environment: beside this process's own."""
        ours, theirs = socket.socketpair()
        with theirs:
            loop = asyncio.get_running_loop()
            _, made = await loop.create_unix_connection(lambda: cls(hear), sock=ours)
            try:
                made._process = await _spawn(
                    theirs, environment or {}
                )  # last, or one may be left behind
            except BaseException:
                made.cut()
                raise
        return made

    @property
    def pid(self) -> int:
        """The process's number."""
        assert self._process is not None, "a process has a number once it is started"
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """How it ended; negative is a signal's number, None means that it runs."""
        assert self._process is not None, "a process has a code once it is started"
        return self._process.returncode

    def say(self, command: Command) -> None:
        """Tell it something; a process that has ended does not hear."""
        assert self._link is not None, "the link is made with the process"
        data = encode_frame(command)
        if not self.ended.is_set():
            self._link.write(data)

    @property
    def is_stopped(self) -> bool:
        """Whether a signal or a debugger has stopped it; False where that cannot be seen."""
        with suppress(OSError, IndexError):
            status = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii", errors="replace")
            return status.rpartition(")")[2].split()[0] in ("T", "t")
        return False

    async def dump(self) -> None:
        """Let it write on stderr where its threads stand."""
        self._signal(DUMP_SIGNAL)
        await asyncio.sleep(_DUMP_SECONDS)

    def cut(self) -> None:
        """Hear and say nothing more; the process ends by itself, unless it hangs."""
        assert self._link is not None, "the link is made with the process"
        self._link.abort()
        self.ended.set()

    async def close(self, *, at_once: bool = False) -> None:
        """End the process and wait until it is gone."""
        assert self._process is not None, "who is ended was started"
        self.cut()
        if at_once:
            self._signal(signal.SIGKILL)
        try:
            async with asyncio.timeout(_END_SECONDS):
                await self._process.wait()
        except TimeoutError:
            self._signal(signal.SIGKILL)
            await self._process.wait()

    def _signal(self, number: int) -> None:
        # Not by Process.kill: it collects the exit code of a process that has ended already, and
        # asyncio, which waits for that code, then reports 255 and warns.
        if self.exit_code is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the link, to speak over it."""
        assert isinstance(transport, asyncio.Transport)
        read_in_pieces(transport)
        self._link = transport

    def data_received(self, data: bytes) -> None:
        """Take in each whole message; what comes after the end is dropped."""
        for body in self._frames.feed(data):
            if not self.ended.is_set():
                self._take_in(body)

    def _take_in(self, body: bytes) -> None:
        """What cannot be read would be missing for somebody, nobody knows whom: that is the end."""
        try:
            again(lambda: self._hear(decode_report(body)))
        except Exception as fault:
            note("what the engine said cannot be read; it is ended.", fault)
            self.cut()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the link is closed: the process has ended or is about to."""
        self.ended.set()


async def _spawn(link: socket.socket, environment: Mapping[str, str]) -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",  # what lies in the current folder is not imported
        "-m",
        "cutaway.service.child",
        str(link.fileno()),
        pass_fds=(link.fileno(),),
        stdin=DEVNULL,
        stdout=2,  # what libraries print is no output of ours
        env={**os.environ, **environment},
        process_group=0,  # a terminal's Ctrl-C is not for it
    )
