"""Anthropic's messages: order of events, streamed as whole, tools, stops, errors, counts."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx2
import jsonschema
import pytest
from scripted import THINKING_TEMPLATE, ScriptedService, scripted
from test_server_tools import CALL, SCHEMA, prompt_of

from cutaway.server.entry.auth import Keys
from cutaway.server.route_context import Context

URL = "/v1/messages"
KEY = "a-key-of-enough-characters"
WEATHER = {"name": "weather", "description": "The sky.", "input_schema": SCHEMA}
# A mask of tokens cannot hold to this keyword.
LOOSE = {"name": "f", "input_schema": {"type": "object", "minProperties": 1}}
USER = {"role": "user", "content": "hello"}


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "max_tokens": 60, "messages": [USER], "temperature": 0, **fields}


def read_events(text: str) -> list[dict[str, Any]]:
    """All events; each is named as its type."""
    read: list[dict[str, Any]] = []
    for part in text.split("\n\n"):
        if part and not part.startswith(":"):
            name, data = part.split("\n")
            read.append(json.loads(data.removeprefix("data: ")))
            assert name == f"event: {read[-1]['type']}"
    return read


def joined(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that events make up, as Anthropic's clients do it; the order is checked."""
    assert events[0]["type"] == "message_start" and events[-1]["type"] == "message_stop"
    message = events[0]["message"]
    assert message["content"] == [] and message["stop_reason"] is None
    raw: dict[int, str] = {}
    is_open = False
    for event in events[1:-1]:
        match event["type"]:
            case "content_block_start":
                assert not is_open and event["index"] == len(message["content"])
                message["content"].append(event["content_block"])
                is_open = True
            case "content_block_delta":
                assert is_open and event["index"] == len(message["content"]) - 1
                block, delta = message["content"][-1], event["delta"]
                if delta["type"] == "input_json_delta":
                    raw[event["index"]] = raw.get(event["index"], "") + delta["partial_json"]
                else:
                    name = delta["type"].removesuffix("_delta")
                    assert block["type"] == name
                    block[name] += delta[name]
            case "content_block_stop":
                is_open = False
            case "message_delta":
                assert not is_open and event is events[-2]
                message |= event["delta"] | {"usage": event["usage"]}
            case kind:
                assert kind == "ping"
    for index, text in raw.items():
        message["content"][index]["input"] = json.loads(text)
    return message


async def both(http: httpx2.AsyncClient, **fields: Any) -> dict[str, Any]:
    """What is answered; streamed and whole must be the same but for ids and times."""
    whole = await http.post(URL, json=body(**fields))
    assert whole.status_code == 200, whole.text
    streamed = joined(read_events((await http.post(URL, json=body(stream=True, **fields))).text))
    once = whole.json()
    once.pop("timings")
    for message in (once, streamed):
        assert message.pop("id").startswith("msg_")
        counts = message["usage"]
        counts["input_tokens"] += counts.pop("cache_read_input_tokens")  # the second finds more
        for block in message["content"]:
            assert block.pop("id", "toolu_").startswith("toolu_")
    assert once == streamed
    return once


def test_an_answer_streamed_and_whole(asked: Callable[..., Any]) -> None:
    async def ask(http: httpx2.AsyncClient, _: Context) -> Any:
        block = {"type": "text", "text": "hello", "cache_control": {"type": "ephemeral"}}
        parts = [{"role": "user", "content": [block]}]
        return [
            await both(http, system="Be brief."),
            await both(http, system=[{"type": "text", "text": "Be brief."}], messages=parts),
            await both(http, max_tokens=3),
        ]

    first, second, short = asked(ask)
    assert first == second and first["content"][0]["type"] == "text"
    assert first["role"] == "assistant" and first["type"] == "message" and first["model"] == "tiny"
    assert short["stop_reason"] == "max_tokens" and short["usage"]["output_tokens"] == 3


def test_h14_order_of_events(tmp_path: Path) -> None:
    async def ask(http: httpx2.AsyncClient, _: ScriptedService) -> Any:
        answer = await http.post(URL, json=body(max_tokens=500, stream=True, tools=[WEATHER]))
        return [each["type"] for each in read_events(answer.text)]

    names = scripted(tmp_path, f"<think>Hm.</think>So: {CALL}", ask, template=THINKING_TEMPLATE)
    order = [
        name
        for i, name in enumerate(names)
        if name != "content_block_delta" or names[i - 1] != name
    ]
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    first = ["content_block_start", "ping", "content_block_delta", "content_block_stop"]
    assert order == ["message_start", *first, *block, *block, "message_delta", "message_stop"]


@pytest.mark.parametrize("seed", range(3))
def test_h14_tools_reasoning_and_text_are_blocks(tmp_path: Path, seed: int) -> None:
    async def ask(http: httpx2.AsyncClient, _: ScriptedService) -> Any:
        fields = {"tools": [WEATHER], "max_tokens": 500}
        single = {"type": "auto", "disable_parallel_tool_use": True}
        return [
            await both(http, **fields, thinking={"type": "enabled", "budget_tokens": 1024}),
            await both(http, **fields, tool_choice=single),
            await both(http, **fields, tool_choice={"type": "none"}),
        ]

    script = f"<think>Hm.</think>So:\n{CALL}\n{CALL}"
    free, single, none = scripted(tmp_path, script, ask, template=THINKING_TEMPLATE, seed=seed)
    kinds = [block["type"] for block in free["content"]]
    assert kinds == ["thinking", "text", "tool_use", "tool_use"]
    assert free["content"][2]["input"] == {"city": "Oslo", "days": 2}
    assert free["stop_reason"] == single["stop_reason"] == "tool_use"
    assert [block["type"] for block in single["content"]] == kinds[:3]
    assert none["stop_reason"] == "end_turn" and none["content"][1]["text"] == script[18:]


def test_a_call_that_is_cut_off_has_the_input_that_came(tmp_path: Path) -> None:
    async def ask(http: httpx2.AsyncClient, _: ScriptedService) -> Any:
        fields = {"tools": [WEATHER], "tool_choice": {"type": "any"}, "max_tokens": 62}
        return (await http.post(URL, json=body(**fields))).json()

    answer = scripted(tmp_path, CALL, ask)
    assert answer["stop_reason"] == "max_tokens"
    assert answer["content"][0]["input"] == {"city": "Oslo"}


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "weather"}])
def test_h14_forced_tools_are_valid_by_their_schema(
    asked_at_length: Callable[..., Any], choice: Any
) -> None:
    async def ask(http: httpx2.AsyncClient, _: Context) -> Any:
        choice["disable_parallel_tool_use"] = True
        fields = {"tools": [WEATHER], "tool_choice": choice, "temperature": 1.5, "max_tokens": 200}
        return [await both(http, **fields, seed=seed) for seed in range(2)]

    for answer in asked_at_length(ask):
        (block,) = answer["content"]
        assert block["name"] == "weather" and answer["stop_reason"] == "tool_use"
        jsonschema.validate(block["input"], SCHEMA)


def test_h16_a_schema_and_a_stop_sequence(asked: Callable[..., Any]) -> None:
    async def ask(http: httpx2.AsyncClient, _: Context) -> Any:
        form = {"format": {"type": "json_schema", "schema": SCHEMA}}
        fields = {"output_config": form, "temperature": 2, "seed": 3, "max_tokens": 120}
        return await both(http, **fields), await both(http, **fields, stop_sequences=['", "'])

    whole, stopped = asked(ask)
    jsonschema.validate(json.loads(whole["content"][0]["text"]), SCHEMA)
    assert whole["stop_reason"] == "end_turn" and whole["stop_sequence"] is None
    assert stopped["stop_reason"] == "stop_sequence" and stopped["stop_sequence"] == '", "'
    assert whole["content"][0]["text"].startswith(stopped["content"][0]["text"] + '", "')


def test_calls_and_results_reach_the_prompt_and_are_counted(tmp_path: Path) -> None:
    rain = {"type": "text", "text": "rain"}
    messages = [
        USER,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": ""},
                {"type": "text", "text": "Let me look."},
                {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Oslo"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "t1",
                    "content": [rain],
                },
                {"type": "text", "text": "And tomorrow?"},
            ],
        },
    ]

    async def ask(http: httpx2.AsyncClient, service: ScriptedService) -> Any:
        fields = {"messages": messages, "system": "Be brief.", "tools": [WEATHER]}
        answer = (await http.post(URL, json=body(**fields))).json()
        count = await http.post(f"{URL}/count_tokens", json={"model": "tiny", **fields})
        return answer, count.json(), prompt_of(service), service.requests[0]

    answer, count, prompt, request = scripted(tmp_path, "Sun.", ask)
    words = ["The sky.", "Be brief.", "hello", "Let me look.", '{"city": "Oslo"}', "rain (t1)"]
    places = [prompt.index(word) for word in [*words, "And tomorrow?"]]
    assert places == sorted(places)
    assert count == {"input_tokens": len(request.prompt_token_ids)}
    usage = answer["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == count["input_tokens"]


def test_h04_errors_have_anthropics_shape(asked: Callable[..., Any]) -> None:
    image = {"type": "image", "source": {}}
    shape = {"format": {"type": "json_schema", "schema": {"type": "nonsense"}}}
    cases: list[tuple[int, str, dict[str, Any]]] = [
        (400, "max_tokens", {"max_tokens": None}),
        (400, "max_tokens is 0", {"max_tokens": 0}),
        (400, "temperature is 9", {"temperature": 9}),
        (400, "messages is", {"messages": []}),
        (400, "messages[0].role", {"messages": [{"role": "narrator", "content": "x"}]}),
        (400, "messages[0].content[0].type", {"messages": [{"role": "user", "content": [image]}]}),
        (400, "system[0].text", {"system": [{"type": "text"}]}),
        (400, "stop_sequences is", {"stop_sequences": "x"}),
        (400, "stop_sequences holds", {"stop_sequences": [""]}),
        (400, "tool_choice", {"tool_choice": {"type": "any"}}),
        (400, "tool_choice.type", {"tools": [WEATHER], "tool_choice": {"type": "required"}}),
        (400, "weather", {"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "x"}}),
        (400, "tools[0].type", {"tools": [{"type": "oracle_20250305", "name": "w"}]}),
        (400, "tools[0].input_schema", {"tools": [{"name": "w", "input_schema": 1}]}),
        (400, "tools[0].input_schema: ", {"tools": [LOOSE], "tool_choice": {"type": "any"}}),
        (400, "thinking.type", {"thinking": {"type": "sometimes"}}),
        (400, "output_config.effort", {"output_config": {"effort": "huge"}}),
        (400, "nonsense", {"output_config": shape}),
        (400, "nonsense", {"output_config": shape, "stream": True}),
        (400, "mcp_servers", {"mcp_servers": [{}]}),
        (400, "max_token", {"max_token": 3}),
        (404, "model is", {"model": "another"}),
    ]

    async def ask(http: httpx2.AsyncClient, _: Context) -> Any:
        answers = [await http.post(URL, json=body(**fields)) for _, _, fields in cases]
        version = {"anthropic-version": "1999-01-01"}
        old = await http.post(URL, json=body(), headers=version)
        return answers, old, await http.get(f"{URL}/batches")

    answers, old, absent = asked(ask)
    for (status, words, fields), answer in zip(cases, answers, strict=True):
        told = answer.json()
        assert answer.status_code == status, (fields, answer.text)
        assert told["type"] == "error" and set(told["error"]) == {"type", "message"}
        assert words in told["error"]["message"], (fields, told)
        kind = "not_found_error" if status == 404 else "invalid_request_error"
        assert told["error"]["type"] == kind
    assert old.status_code == 400 and "2023-06-01" in old.text
    assert absent.json()["error"]["type"] == "not_found_error"


def test_keys_come_by_either_header(asked: Callable[..., Any]) -> None:
    async def ask(http: httpx2.AsyncClient, _: Context) -> Any:
        sent = [{}, {"x-api-key": "wrong"}, {"x-api-key": KEY}, {"authorization": f"Bearer {KEY}"}]
        return [await http.post(URL, json=body(max_tokens=1), headers=each) for each in sent]

    missing, wrong, own, bearer = asked(ask, keys=Keys([("alice", KEY)]))
    for refused in (missing, wrong):
        assert refused.status_code == 401
        assert refused.json()["error"]["type"] == "authentication_error"
    assert own.status_code == bearer.status_code == 200


def test_models_have_anthropics_shape_where_its_header_stands(asked: Callable[..., Any]) -> None:
    own = {"anthropic-version": "2023-06-01"}

    async def ask(http: httpx2.AsyncClient, _: Context) -> Any:
        listed = await http.get("/v1/models", headers=own, params={"limit": 20})
        one = await http.get("/v1/models/tiny", headers=own)
        unknown = await http.get("/v1/models/other", headers=own)
        plain = [await http.get(f"/v1/models{end}") for end in ("", "/tiny", "/other")]
        return listed.json(), one.json(), unknown, [each.json() for each in plain]

    listed, one, unknown, plain = asked(ask)
    assert listed == {"data": [one], "has_more": False, "first_id": "tiny", "last_id": "tiny"}
    assert one["type"] == "model" and one["id"] == one["display_name"] == "tiny"
    assert datetime.fromisoformat(one["created_at"]).tzinfo and one["max_input_tokens"] == 256
    assert unknown.status_code == 404
    assert unknown.json()["error"]["type"] == "not_found_error"
    assert plain[0]["object"] == "list" and plain[0]["data"] == [plain[1]]
    assert plain[1]["object"] == "model" and plain[2]["error"]["code"] == "model_not_found"


def test_the_doors_errors_have_the_shape_of_the_api_too(asked: Callable[..., Any]) -> None:
    keys = Keys([("alice", KEY)])

    async def ask(http: httpx2.AsyncClient, _: Context) -> Any:
        own = {"anthropic-version": "2023-06-01"}
        return await http.get("/v1/models", headers=own), await http.get("/v1/models")

    own, plain = asked(ask, keys=keys)
    assert own.status_code == plain.status_code == 401
    assert own.json()["error"] == {
        "type": "authentication_error",
        "message": plain.json()["error"]["message"],
    }
