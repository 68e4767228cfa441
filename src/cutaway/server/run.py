"""From a context to a running server: socket, signals, draining, the end.

The first SIGTERM or SIGINT stops taking in and lets answers finish; the second ends at once.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

import uvicorn

from cutaway.core.errors import ConfigError, EngineClosedError
from cutaway.host.end_of_stdin import watch_stdin
from cutaway.kernels.large_blocks import give_back_large_blocks
from cutaway.server.app import build_app
from cutaway.server.entry.auth import Keys
from cutaway.server.entry.connection import protocol, settings
from cutaway.server.entry.descriptors import Listener
from cutaway.server.route_context import Context
from cutaway.server.server_config import ServerConfig, host_in_url
from cutaway.server.watching import log

# What the loop waits for a thread that renders or encodes, each time it has news: with Python's own
# 5 ms a neighbour's next token came after 24 ms (p99), with this after 13 to 18.
_TURN_SECONDS = 0.0005
# What the system takes of an answer that its reader does not. It takes 4 MB else, which is all of
# most answers: nobody would see that they are not read, and they kept their running slots.
_MOST_UNSENT_BYTES = 16 * 1024
_TCP_NOTSENT_LOWAT = 25  # as Linux has it; Python names it from 3.12 on
# What a signal asks for; it may take its time.
Signalled = Callable[[], Coroutine[None, None, None]]
CLOSE_SECONDS = 5  # for the last bytes of answers that were cut off


def listening(config: ServerConfig) -> Listener:
    """A socket that listens there. Raises: ConfigError when the address cannot be had."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        plain = socket.create_server((config.host, config.port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else error
        raise ConfigError(
            f"cannot listen on {host_in_url(config.host)}:{config.port}: {reason}. "
            "Take another --port, or 0 for a free one."
        ) from None
    # Connections have it from here: asyncio leaves it off where a socket does not name TCP. Without
    # it a small write waits for the client's word on the one before, 40 ms where that is delayed.
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if sys.platform == "linux":
        plain.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, _MOST_UNSENT_BYTES)
    return Listener(plain)


def url_of(listener: socket.socket) -> str:
    """Where a socket listens."""
    host, port = listener.getsockname()[:2]
    return f"http://{host_in_url(host)}:{port}"


async def serve(
    context: Context,
    listener: Listener,
    *,
    keys: Keys,
    ready: Callable[[], None] = lambda: None,
    signals: Mapping[int, Signalled] = MappingProxyType({}),
    with_stdin: bool = False,
) -> None:
    """Serve until a signal says otherwise. ready is called once requests are taken in.

    signals: what further signals ask for, by number.
    with_stdin: end as well when nobody holds the other end of stdin any more; the address is free
        at once, for who comes after, and answers that run are finished.

    Raises: whatever keeps the model from being loaded; EngineClosedError when the engine is given
    up later.
    """
    give_back_large_blocks()  # bodies, which would grow the server for good
    config = context.config
    sys.setswitchinterval(_TURN_SECONDS)
    asyncio.get_running_loop().set_exception_handler(log.loop_fault)
    app = build_app(context, keys=keys)
    connections = protocol(header_seconds=config.header_seconds)
    listener.make_room = connections.make_room
    server = _Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=CLOSE_SECONDS,
            backlog=2048,
            **settings(connections),
        )
    )
    ending = _StopSignals(server)
    ending.listen()
    if with_stdin:
        watch_stdin(lambda: _leave(server, ending))
    asked = _listen(signals)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    starting = asyncio.create_task(_start(context, ready))
    stopping = asyncio.create_task(ending.asked.wait())
    gone = asyncio.create_task(context.service.wait_until_gone())
    try:
        await asyncio.wait({starting, stopping, serving}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            await asyncio.wait({stopping, serving, gone}, return_when=asyncio.FIRST_COMPLETED)
        if gone.done():
            raise EngineClosedError(f"{gone.result()} The server ends with it.")
        await _drained(context, ending)
    finally:
        tasks = (starting, stopping, gone, *asked)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await context.service.close()
        server.should_exit = True
        await serving


def _leave(server: uvicorn.Server, ending: _StopSignals) -> None:
    """Free the address and end, once what runs has ended."""
    for each in server.servers:
        each.close()
    ending.asked.set()


def _listen(signals: Mapping[int, Signalled]) -> set[asyncio.Task[None]]:
    """Take further signals from now on. Returns what they have begun, as long as it runs."""
    begun: set[asyncio.Task[None]] = set()
    loop = asyncio.get_running_loop()

    def begin(wanted: Signalled) -> None:
        task = loop.create_task(wanted())
        begun.add(task)
        task.add_done_callback(begun.discard)

    for number, wanted in signals.items():
        loop.add_signal_handler(number, begin, wanted)
    return begun


async def _start(context: Context, ready: Callable[[], None]) -> None:
    await context.service.start()
    log.event("ready", model=context.name)
    ready()


async def _drained(context: Context, ending: _StopSignals) -> None:
    """Let answers finish, until the time or a second signal says otherwise."""
    log.event("draining", seconds=context.config.drain_seconds)
    draining = asyncio.create_task(context.service.drain(context.config.drain_seconds))
    hurry = asyncio.create_task(ending.again.wait())
    await asyncio.wait({draining, hurry}, return_when=asyncio.FIRST_COMPLETED)
    for task in (draining, hurry):
        task.cancel()
    await asyncio.gather(draining, hurry, return_exceptions=True)


class _Server(uvicorn.Server):
    """uvicorn without its own signals: it would stop to listen at once."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


class _StopSignals:
    """What signals ask for: an end, and an end at once."""

    def __init__(self, server: uvicorn.Server) -> None:
        self._server = server
        self.asked = asyncio.Event()
        self.again = asyncio.Event()

    def listen(self) -> None:
        """Take signals from now on."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._hear)

    def _hear(self) -> None:
        if self.asked.is_set():
            self.again.set()
        self.asked.set()
