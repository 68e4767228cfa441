"""One folder with a tiny model for all tests of the server, and a runner for coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from server_app import client, make_folder, serving

from cutaway.server.entry.auth import Keys
from cutaway.server.route_context import Context

Ask = Callable[[httpx2.AsyncClient, Context], Awaitable[Any]]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("served") / "tiny")


@pytest.fixture(scope="session")
def long_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose context has room for descriptions of tools."""
    return make_folder(tmp_path_factory.mktemp("long") / "tiny", max_position_embeddings=2048)


@pytest.fixture
def asked_at_length(long_folder: Path) -> Callable[..., Any]:
    """Run a coroutine function with a client of that model's server."""
    return _asking(long_folder)


@pytest.fixture
def asked(folder: Path) -> Callable[..., Any]:
    """Run a coroutine function with a client of a server that is ready."""
    return _asking(folder)


def _asking(folder: Path) -> Callable[..., Any]:
    def run(ask: Ask, *, keys: Keys | None = None, key: str | None = None, **settings: Any) -> Any:
        async def body() -> Any:
            async with (
                serving(folder, keys=keys, **settings) as (app, context),
                client(app, key=key) as http,
            ):
                return await ask(http, context)

        return asyncio.run(body())

    return run
