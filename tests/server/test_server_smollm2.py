"""Calls that a grammar forces, by every API, from a model that was never trained to call tools."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx2
import jsonschema
import pytest
from server_app import client, events
from test_server_anthropic import joined as joined_blocks
from test_server_anthropic import read_events
from test_server_responses import joined as joined_items
from test_server_tools import NAMED, SCHEMA, WEATHER, joined, whole

from cutaway.server.app import build_app
from cutaway.server.route_context import Context
from cutaway.server.server_config import ServerConfig
from cutaway.service.local import LocalService
from cutaway.weights.find.find import find
from oracles import smollm2_gguf

pytestmark = [pytest.mark.oracle, pytest.mark.slow]

QUESTION = {"role": "user", "content": "Will it rain in Oslo tomorrow?"}
FUNCTION = {"name": "weather", "description": "Tell the weather of a city."}
DRAWN = {"model": "smollm2", "temperature": 0}


async def by_chat(http: httpx2.AsyncClient, *, is_named: bool) -> list[Any]:
    body = {
        **{**DRAWN, "messages": [QUESTION], "tools": [WEATHER], "max_tokens": 100},
        **{"tool_choice": NAMED if is_named else "required", "parallel_tool_calls": False},
    }
    url = "/v1/chat/completions"
    at_once, _ = whole((await http.post(url, json=body)).json())
    streamed = await http.post(url, json={**body, "stream": True})
    again, reason = joined(events(streamed.text)[:-1])
    assert reason == ("stop" if is_named else "tool_calls")
    return [call for message in (at_once, again) for call in message["calls"]]


async def by_messages(http: httpx2.AsyncClient, *, is_named: bool) -> list[Any]:
    choice = {"type": "tool", "name": "weather"} if is_named else {"type": "any"}
    body = {
        **{**DRAWN, "messages": [QUESTION], "max_tokens": 100},
        **{"tools": [{**FUNCTION, "input_schema": SCHEMA}]},
        **{"tool_choice": {**choice, "disable_parallel_tool_use": True}},
    }
    at_once = (await http.post("/v1/messages", json=body)).json()
    streamed = await http.post("/v1/messages", json={**body, "stream": True})
    again = joined_blocks(read_events(streamed.text))
    assert at_once["stop_reason"] == again["stop_reason"] == "tool_use"
    blocks = [block for message in (at_once, again) for block in message["content"]]
    return [{"name": b["name"], "arguments": json.dumps(b["input"])} for b in blocks]


async def by_responses(http: httpx2.AsyncClient, *, is_named: bool) -> list[Any]:
    body = {
        **{**DRAWN, "input": [QUESTION], "max_output_tokens": 100, "parallel_tool_calls": False},
        **{"tools": [{"type": "function", **FUNCTION, "parameters": SCHEMA}]},
        **{"tool_choice": {"type": "function", "name": "weather"} if is_named else "required"},
    }
    at_once = (await http.post("/v1/responses", json=body)).json()
    streamed = await http.post("/v1/responses", json={**body, "stream": True})
    again = joined_items(read_events(streamed.text))
    assert at_once["status"] == again["status"] == "completed"
    return [item for response in (at_once, again) for item in response["output"]]


def test_h14_named_and_required_calls_of_the_real_model() -> None:
    async def body() -> None:
        found = find(str(smollm2_gguf()))
        service = LocalService(str(smollm2_gguf()), cache_tokens=8192)
        context = Context.of(found, service, ServerConfig(), name="smollm2")
        await service.start()
        try:
            async with client(build_app(context)) as http:
                for ask in (by_chat, by_messages, by_responses):
                    for is_named in (True, False):
                        calls = await ask(http, is_named=is_named)
                        assert [call["name"] for call in calls] == ["weather"] * 2
                        first, again = (json.loads(call["arguments"]) for call in calls)
                        jsonschema.validate(first, SCHEMA)
                        assert first == again
            assert (await service.stats()).pages_used == 0
        finally:
            await service.close()
            context.worker.close()

    asyncio.run(body())
