"""Errors are short, whatever a client sends: 2 MB in each field of each route that takes text."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from server_app import client, completion, serving
from test_server_limits import NOTHING_THERE, ROUTES

from cutaway.core.limits import quote

SENT = "Q" * (2 * 2**20 - 4096)  # as much as a body holds, and a letter that no message has alone
JSON = {"content-type": "application/json"}
# Inside lists, objects and fields of their own language a sixteenth says as much: whole, those are
# a gigabyte for each route.
LONG = SENT[: 2**17]
MOST_ECHOED, MOST_BYTES = 200, 1_500


def long_values(name: str) -> Iterator[Any]:
    """Where a text may stand in a field."""
    yield from (SENT, [LONG], {LONG: 1}, [{"type": LONG}], {"type": LONG})
    if name in ("messages", "input"):
        yield [{"role": LONG, "content": "x"}]
        yield [{"role": "user", "content": [{"type": LONG, "text": "x"}]}]
        yield [{"role": "user", "content": "x", LONG: 1}]
        yield [{"role": "assistant", "content": "x", "tool_calls": [{"id": "a", "type": LONG}]}]
    if name == "tools":
        yield [{"type": "function", "function": {"name": LONG}}]
        yield [{"type": "function", "function": {"name": "f", "parameters": {"type": LONG}}}]
    if name == "response_format":
        yield {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": LONG}}}
    if name == "structured_outputs":
        yield from ({"regex": f"({LONG}"}, {"grammar": f"start: {LONG}"}, {"json": {"$ref": LONG}})
    if name == "change":
        for change in ("token@Q", "token@0=Q", "ablate=Q", "patch=0@Q", "top_k=Q", "context=Q"):
            yield change.replace("Q", LONG)
        yield f"token@{'9' * len(LONG)}=5"
        yield f"ablate={'9' * len(LONG)}"
    if name in ("steps", "layers", "heads"):
        yield from ("0," + LONG, "9" * len(LONG))


def extra_bodies(path: str) -> Iterator[dict[str, Any]]:
    """Fields that need another beside them."""
    if path.endswith("/views"):
        for view in ("embeddings", "weights", "merges", "probabilities", "tokens", "template"):
            yield {"view": view, "text": SENT}
            yield {"view": view, "text": f"{SENT} + a - b ="}


@pytest.mark.parametrize("path", ROUTES)
def test_no_error_echoes_more_than_a_few_words(folder: Path, path: str) -> None:
    kind, base = ROUTES[path]

    async def walk() -> int:
        num_refused = 0
        async with serving(folder) as (app, _), client(app) as http:
            short = completion(max_tokens=2, ignore_eos=True)
            trace = (await http.post("/v1/completions", json=short)).json()["id"]
            bodies = [
                {**base, name: value} for name in kind.model_fields for value in long_values(name)
            ]
            for body in (*bodies, {**base, SENT: 1}, *extra_bodies(path)):
                sent = msgspec.json.encode(body)  # the client's own takes 10 ms
                answer = await http.post(path.format(trace_id=trace), content=sent, headers=JSON)
                if answer.status_code >= 400:
                    num_refused += 1
                    told = f"{path} {body!s:.90}: {answer.text:.300}"
                    assert len(answer.content) <= MOST_BYTES, told
                    assert answer.text.count("Q") <= MOST_ECHOED, told
                    assert answer.text.count("9") <= MOST_ECHOED, told
                    assert answer.status_code in (400, 404, 413), told
            good = await http.post(path.format(trace_id=trace), json=base)
            assert good.status_code == (400 if path in NOTHING_THERE else 200)
        return num_refused

    assert asyncio.run(walk()) >= 5


def test_a_long_name_in_the_path_is_cut(folder: Path) -> None:
    async def walk() -> None:
        async with serving(folder) as (app, _), client(app) as http:
            for path in ("/v1/models/Q", "/cutaway/v1/traces/Q/views", "/Q"):
                url = path.replace("Q", "Q" * 20_000)
                body = {"view": "tokens"}
                answer = await (http.post(url, json=body) if "views" in path else http.get(url))
                assert answer.status_code == 404 and answer.text.count("Q") <= MOST_ECHOED

    asyncio.run(walk())


def test_a_value_of_any_kind_is_shown_in_a_few_characters() -> None:
    for value in (SENT, SENT.encode(), [SENT], 10**5000, {10**5000: 1}, list(range(10**5))):
        assert len(quote(value)) <= 80
    assert quote("it's") == '"it\'s"' and quote(5) == "5"
    assert quote("x" * 78) == f'"{"x" * 78}"' and quote("x" * 79).endswith("...")
