"""A member's side of its links: fronts that have the key ask its engine, each for itself.

Free of torch. The other side is service/links/link_service.py. What a front asked ends with its
link; the engine stays, and another front, or the same one, finds it loaded.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Final

import msgspec

from cutaway.core.errors import ConfigError, EngineClosedError
from cutaway.host.end_of_stdin import watch_stdin
from cutaway.host.faults import note
from cutaway.host.link_key import LinkKey
from cutaway.host.sealed_link import LinkLostError, SealedLink, grant_link
from cutaway.service.engine_messages import Loaded
from cutaway.service.links.front_session import AskedService, FrontSession
from cutaway.service.links.link_messages import (
    Beat,
    Introduce,
    check_introduced,
    decode_asked,
    encode,
)

BEAT_SECONDS: Final = 0.5
# Connections at once that have not proved the key; more are cut as they come.
MOST_STRANGERS: Final = 16


class LinkServer:
    """Listens for fronts, over one engine.

    tell: hears who comes and who is refused; it must not wait for anybody.
    """

    def __init__(
        self, service: AskedService, key: LinkKey, *, tell: Callable[[str], None] = print
    ) -> None:
        self._service, self._key, self._tell = service, key, tell
        self._sessions: dict[FrontSession, SealedLink] = {}
        self._loaded_at: dict[FrontSession, int] = {}  # the engine's start that was told last
        self._tasks: set[asyncio.Task[None]] = set()
        self._num_strangers = 0
        self._server: asyncio.Server | None = None

    @property
    def num_fronts(self) -> int:
        """Fronts that are linked now."""
        return len(self._sessions)

    async def start(self, listener: socket.socket) -> None:
        """Take connections from now on."""
        self._server = await asyncio.start_server(self._meet, sock=listener)
        self._run(self._beat())

    async def close(self) -> None:
        """End all links; what was asked over them ends too."""
        if self._server is not None:
            self._server.close()
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def change(self) -> None:
        """The engine's state has changed: all fronts are told."""
        for session in tuple(self._sessions):
            self._tell_state(session)

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._num_strangers >= MOST_STRANGERS:
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None, "a connection is a task"
        self._tasks.add(task)
        try:
            where = _name(writer)
            link = await self._admit(reader, writer, where)
            if link is not None:
                await self._answer(link, where)
        except asyncio.CancelledError:
            writer.transport.abort()  # this side ends; asyncio would log a task that was cancelled
        finally:
            self._tasks.discard(task)

    async def _admit(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, where: str
    ) -> SealedLink | None:
        self._num_strangers += 1
        try:
            return await grant_link(reader, writer, self._key)
        except LinkLostError as error:
            self._tell(f"{where} is refused: {error}.")
            return None
        finally:
            self._num_strangers -= 1

    async def _answer(self, link: SealedLink, where: str) -> None:
        """All that one front asks, until it is gone."""
        session = FrontSession(self._service, link.send)
        try:
            link.send(encode(Introduce(role="member")))
            check_introduced(decode_asked(await link.receive()), role="front", where=where)
            self._sessions[session] = link
            self._tell(f"{where} is linked.")
            self._tell_state(session)
            while True:
                session.take(decode_asked(await link.receive()))
        except ConfigError as error:
            self._tell(f"{where} is refused: {error}")
        except LinkLostError as error:
            self._tell(f"the link of {where} has ended: {error}.")
        except (msgspec.DecodeError, ValueError) as fault:
            note(f"what {where} says cannot be read; its link ends.", fault)
        finally:
            self._sessions.pop(session, None)
            self._loaded_at.pop(session, None)
            session.end()
            with suppress(asyncio.CancelledError):
                await link.close()

    def _tell_state(self, session: FrontSession) -> None:
        service = self._service
        if service.state in ("ready", "draining") and service.num_starts:
            if self._loaded_at.get(session) != service.num_starts:
                self._loaded_at[session] = service.num_starts
                session.say(Loaded(service.model, service.terms))
        session.say(Beat(service.state, service.num_starts, service.silent_seconds))

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            self.change()

    def _run(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _name(writer: asyncio.StreamWriter) -> str:
    peer: tuple[object, ...] | None = writer.get_extra_info("peername")
    return "somebody" if not peer else f"{peer[0]}:{peer[1]}"


async def run_member(
    make: Callable[[Callable[[], None]], AskedService],
    key: LinkKey,
    listener: socket.socket,
    *,
    drain_seconds: float,
    with_stdin: bool = False,
    lease_seconds: float | None = None,
    tell: Callable[[str], None] = print,
) -> None:
    """Start an engine and answer fronts until a signal says otherwise, and the rest is answered.

    make: of what to call when the engine's state has changed.
    with_stdin: end as well, and at once, when nobody holds the other end of stdin any more.
    lease_seconds: end as well when nobody was linked for so long.
    Raises: what keeps the model from being loaded; EngineClosedError when it is given up.
    """
    loop, asked, orphaned = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked.set)
    if with_stdin:
        watch_stdin(orphaned.set)
    server: LinkServer | None = None
    service = make(lambda: server.change() if server is not None else None)
    server = LinkServer(service, key, tell=tell)
    await server.start(listener)
    starting = asyncio.create_task(service.start())
    stopping = asyncio.create_task(asked.wait())
    alone = asyncio.create_task(_wait_alone(server, orphaned, lease_seconds))
    gone = asyncio.create_task(service.wait_until_gone())
    try:
        await asyncio.wait({starting, stopping, alone}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            tell("the engine is ready.")
            await asyncio.wait({stopping, gone, alone}, return_when=asyncio.FIRST_COMPLETED)
        if gone.done():
            raise EngineClosedError(f"{gone.result()} The member ends with it.")
        if alone.done():
            tell(f"the engine ends: {alone.result()}.")
            return
        tell(f"it takes nothing new in and ends in {drain_seconds:g} seconds at most.")
        draining = asyncio.create_task(service.drain(drain_seconds))
        await asyncio.sleep(0)  # the state has changed
        server.change()
        await draining
    finally:
        for task in (starting, stopping, gone, alone):
            task.cancel()
        await asyncio.gather(starting, stopping, gone, alone, return_exceptions=True)
        await server.close()  # first: a lost link is an engine lost, to which nobody comes back
        await service.close()


async def _wait_alone(
    server: LinkServer, orphaned: asyncio.Event, lease_seconds: float | None
) -> str:
    """Why nobody needs the engine any more; returns when that is so."""
    left = lease_seconds or 0.0
    while lease_seconds is None or left > 0:
        with suppress(TimeoutError):
            async with asyncio.timeout(BEAT_SECONDS):
                await orphaned.wait()
            return "who started it is gone"
        left = (lease_seconds or 0.0) if server.num_fronts else left - BEAT_SECONDS
    return f"nobody was linked for {lease_seconds:g} seconds"
