"""What the server and its engine hold of their own is as before, once requests were answered."""

from __future__ import annotations

import asyncio
import gc
import types
from collections import Counter
from pathlib import Path

import httpx2
import pytest
from server_app import chat, client, completion, serving
from test_server_load import CHAT, ILL_WILL, TEXT

from cutaway.server.route_context import Context
from cutaway.service.bounds import TrafficConfig
from cutaway.service.local import LocalService

_WELL = tuple(
    (path, {**make("word " * 5), "max_tokens": most, "n": n, "stream": stream, "ignore_eos": True})
    for path, make in ((CHAT, chat), (TEXT, completion))
    for most, n, stream in ((1, 1, False), (6, 2, True), (6, 1, True))
)
_ILL = tuple((TEXT, {**completion(), **fields}) for fields in ILL_WILL)
_REFUSED = ((TEXT, completion(n=20, max_tokens=1)),) * 6  # of which one finds room
_TIMES = 8
_STATUSES = {
    "answers": (_WELL, {200}),
    "ill will": (_ILL, {200, 400}),
    "refusals": (_REFUSED, {200, 503}),
}


def held() -> Counter[str]:
    """How many objects of our own classes there are, and what errors keep of their way."""
    gc.collect()
    kinds = Counter[str]()
    for each in gc.get_objects():
        kind = type(each)
        # Not of the object: some of torch's warn when they are asked anything.
        is_error = issubclass(kind, (types.TracebackType, types.FrameType, BaseException))
        if is_error or str(kind.__module__).startswith("cutaway."):
            kinds[f"{kind.__module__}.{kind.__qualname__}"] += 1
    return kinds


async def idle(context: Context) -> None:
    """Wait until the engine has nothing of any request."""
    while (stats := await context.service.stats()).running or stats.waiting or stats.pages_used:
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("name", _STATUSES)
def test_what_is_answered_leaves_nothing(folder: Path, name: str) -> None:
    requests, statuses = _STATUSES[name]

    async def ask_all(http: httpx2.AsyncClient, times: int) -> None:
        for _ in range(times):
            told = await asyncio.gather(*(http.post(path, json=body) for path, body in requests))
            assert {each.status_code for each in told} == statuses, [each.text for each in told]

    async def body() -> Counter[str]:
        # Without a record of answers, which grows up to its bound.
        engine = {"dtype": "float32", "cache_tokens": 4096, "page_size": 8, "ledger_bytes": 0}
        service = LocalService(
            f"random:{folder / 'config.json'}",
            traffic=TrafficConfig(max_waiting=16),
            max_sequences=8,
            **engine,
        )
        async with serving(folder, service=service) as (app, context), client(app) as http:
            await ask_all(http, 2)  # what is made once and kept
            await idle(context)
            before = held()
            await ask_all(http, _TIMES)
            await idle(context)
            return held() - before

    # A step of a size that has not been may add one of a kind; what requests leave is one for each.
    grown = asyncio.run(body())
    assert not {kind: more for kind, more in grown.items() if more >= _TIMES}
