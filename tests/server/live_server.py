"""A server on a socket of the loopback, in this process, and clients made of bytes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from server_app import serving

from cutaway.kernels.large_blocks import give_back_large_blocks
from cutaway.server.entry.connection import Connection, protocol, settings
from cutaway.server.entry.door import Door
from cutaway.server.route_context import Context
from cutaway.server.run import listening
from cutaway.server.server_config import ServerConfig


@dataclass
class Live:
    """A server that listens."""

    app: Door
    context: Context
    port: int
    writers: list[asyncio.StreamWriter]  # closed at the end, whatever a test left
    connections: type[Connection]

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection of a client's own."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writers.append(writer)
        return reader, writer

    async def until_idle(self) -> None:
        """Wait until nothing is left of any request; a test that never comes here times out."""
        while True:
            stats = await self.context.service.stats()
            left = (stats.running, stats.waiting, stats.pages_used, self.app.num_open)
            if not any(left):
                return
            await asyncio.sleep(0.005)

    async def until_running(self, count: int = 1) -> None:
        """Wait until so many answers are with the engine."""
        while True:
            stats = await self.context.service.stats()
            if stats.running + stats.waiting >= count:
                return
            await asyncio.sleep(0.001)


@asynccontextmanager
async def live(folder: Path, **changes: Any) -> AsyncIterator[Live]:
    """Run a server for as long as the block lasts."""
    give_back_large_blocks()  # as a server does
    header_seconds = changes.get("header_seconds", 10)
    async with serving(folder, **changes) as (app, context):
        listener = listening(ServerConfig(port=0))
        connections = protocol(header_seconds=header_seconds)
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=1,
            **settings(connections),
        )
        server = uvicorn.Server(config)
        server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        running = asyncio.create_task(server._serve([listener]))
        while not server.started:
            await asyncio.sleep(0.001)
        writers: list[asyncio.StreamWriter] = []
        try:
            yield Live(app, context, listener.getsockname()[1], writers, connections)
        finally:
            for writer in writers:
                writer.close()
            server.should_exit = True
            await running


def post(path: str, body: Mapping[str, Any], *, length: int | None = None) -> bytes:
    """The bytes of a request."""
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data) if length is None else length}\r\n\r\n"
    )
    return head.encode() + data
