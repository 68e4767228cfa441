"""When nobody holds the other end of stdin any more: how a process ends with who started it."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable


def watch_stdin(ended: Callable[[], None]) -> None:
    """Have something called in the event loop once stdin has ended; what is written is dropped."""
    loop = asyncio.get_running_loop()

    def read() -> None:
        if not os.read(0, 4096):
            loop.remove_reader(0)
            ended()

    loop.add_reader(0, read)


def follow_stdin() -> None:
    """End this process, as by SIGTERM, once stdin has ended; what is written is dropped."""

    def read() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=read, name="cutaway-stdin", daemon=True).start()
