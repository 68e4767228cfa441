"""OpenAI's Responses: order of events, streamed as whole, tools, forms, items, refusals."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import httpx2
import jsonschema
import msgspec
import pytest
from scripted import THINKING_TEMPLATE, ScriptedService, scripted
from server_app import check_near
from test_server_anthropic import read_events
from test_server_tools import CALL, SCHEMA, prompt_of

from cutaway.core.errors import NumericsError
from cutaway.core.output import Delta, TokenLogprob
from cutaway.core.request import Request
from cutaway.server.route_context import Context

URL = "/v1/responses"
WEATHER = {"type": "function", "name": "weather", "parameters": SCHEMA, "strict": True}


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "input": "hello", "temperature": 0, "max_output_tokens": 60, **fields}


def joined(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The whole response of the last event; every other event must agree with it."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    whole = events[-1]["response"]
    texts: dict[int, str] = {}
    items: list[dict[str, Any]] = []
    for event in events[2:-1]:
        kind, index = event["type"], event["output_index"]
        item = whole["output"][index]
        assert event.get("item_id", item["id"]) == item["id"]
        if kind == "response.output_item.added":
            assert index == len(items) and event["item"]["status"] == "in_progress"
        elif kind == "response.output_item.done":
            items.append(event["item"])
        elif kind.endswith(".delta"):
            texts[index] = texts.get(index, "") + event["delta"]
        elif kind.endswith((".text.done", "arguments.done")):
            assert event.get("text", event.get("arguments")) == texts[index]
    assert items == whole["output"]
    said = [each.get("arguments") or each["content"][0]["text"] for each in items]
    assert said == list(texts.values())
    return whole


async def both(http: httpx2.AsyncClient, **fields: Any) -> dict[str, Any]:
    """What is answered; streamed and whole must be the same but for ids and times."""
    whole = await http.post(URL, json=body(**fields))
    assert whole.status_code == 200, whole.text
    streamed = joined(read_events((await http.post(URL, json=body(stream=True, **fields))).text))
    once = whole.json()
    for response in (once, streamed):
        assert response.pop("id").startswith("resp_")
        response["usage"].pop("input_tokens_details")  # the second finds more in the cache
        for name in ("timings", "created_at", "completed_at"):
            response.pop(name)
        for item in response["output"]:
            item.pop("id")
            assert item.pop("call_id", "call_").startswith("call_")
    assert once == streamed
    return once


def text_of(response: dict[str, Any]) -> str:
    (item,) = response["output"]
    assert item["type"] == "message" and item["role"] == "assistant"
    return item["content"][0]["text"]


def test_an_answer_streamed_and_whole(asked: Callable[..., Any]) -> None:
    message = {"role": "user", "content": [{"type": "input_text", "text": "hello"}]}

    async def ask(http: httpx2.AsyncClient, _: Context) -> Any:
        return [
            await both(http, instructions="Be brief.", metadata={"a": "b"}),
            await both(http, input=[{"role": "system", "content": "Be brief."}, message]),
            await both(http, max_output_tokens=3, store=True),
        ]

    first, second, short = asked(ask)
    assert text_of(first) == text_of(second)
    assert first["metadata"] == {"a": "b"} and first["model"] == "tiny"
    assert short["status"] == "incomplete" and short["store"] is False
    assert short["incomplete_details"] == {"reason": "max_output_tokens"}
    usage = short["usage"]
    assert usage["output_tokens"] == 3
    assert usage["total_tokens"] == usage["input_tokens"] + 3


INCLUDED = {"include": ["message.output_text.logprobs"]}


def tokens_of(part: dict[str, Any]) -> bytes:
    return b"".join(bytes(each["bytes"]) for each in part["logprobs"])


def test_logprobs_are_those_of_chat(asked: Callable[..., Any]) -> None:
    async def ask(http: httpx2.AsyncClient, _: Context) -> Any:
        messages = [{"role": "user", "content": "hello"}]
        sent = {"model": "tiny", "messages": messages, "temperature": 0, "max_tokens": 20}
        chat = await http.post("/v1/chat/completions", json={**sent, **SCORED})
        limits = {"max_output_tokens": 20}
        whole = await both(http, **INCLUDED, **limits, top_logprobs=3)
        alone = await both(http, **INCLUDED, **limits)
        events = read_events((await http.post(URL, json=body(**INCLUDED, stream=True))).text)
        return chat.json(), whole, alone, await both(http, **limits), events

    chat, whole, alone, none, events = asked(ask)
    (part,) = whole["output"][0]["content"]
    check_near(part["logprobs"], chat["choices"][0]["logprobs"]["content"])
    assert len(part["logprobs"]) == 20 and whole["top_logprobs"] == 3
    assert [len(each["top_logprobs"]) for each in part["logprobs"]] == [3] * 20
    (part,) = alone["output"][0]["content"]
    assert [len(each["top_logprobs"]) for each in part["logprobs"]] == [0] * 20
    assert none["output"][0]["content"][0]["logprobs"] == []
    told = [each["logprobs"] for each in events if each["type"] == "response.output_text.delta"]
    (done,) = [each for each in events if each["type"] == "response.output_text.done"]
    said = [each for scores in told for each in scores]
    assert done["logprobs"][: len(said)] == said  # an ending token has no words of its own


SCORED = {"logprobs": True, "top_logprobs": 3}


@pytest.mark.parametrize("seed", range(3))
def test_logprobs_of_reasoning_and_calls_are_left_out(tmp_path: Path, seed: int) -> None:
    class Scored(ScriptedService):
        async def follow(self, request: Request) -> AsyncGenerator[Delta]:
            async for delta in super().follow(request):
                scores = (TokenLogprob(each, -0.5, 1, ()) for each in delta.token_ids)
                yield msgspec.structs.replace(delta, logprobs=tuple(scores))

    async def ask(http: httpx2.AsyncClient, _: ScriptedService) -> Any:
        fields = {"tools": [WEATHER], "max_output_tokens": 500, "stream": True, **INCLUDED}
        return joined(read_events((await http.post(URL, json=body(**fields))).text))

    script = f"<think>Hm, what now?</think>Let me have a look at that.{CALL}"
    whole = scripted(tmp_path, script, ask, template=THINKING_TEMPLATE, seed=seed, kind=Scored)
    reasoning, message, call = whole["output"]
    assert "logprobs" not in reasoning["content"][0] and "logprobs" not in call
    said = tokens_of(message["content"][0]).decode()
    # News are pieces of at most nine bytes: what shares one with a marker may come along or not.
    assert "et me have a look at that." in said
    assert "Hm, " not in said and "weather" not in said


def test_h14_order_of_events(tmp_path: Path) -> None:
    async def ask(http: httpx2.AsyncClient, _: ScriptedService) -> Any:
        fields = {"max_output_tokens": 500, "stream": True, "tools": [WEATHER]}
        answer = await http.post(URL, json=body(**fields))
        return [each["type"].removeprefix("response.") for each in read_events(answer.text)]

    names = scripted(tmp_path, f"<think>Hm.</think>So: {CALL}", ask, template=THINKING_TEMPLATE)

    def text(kind: str) -> list[str]:
        before = ["output_item.added", "content_part.added", f"{kind}.delta", f"{kind}.done"]
        return [*before, "content_part.done", "output_item.done"]

    arguments = ["function_call_arguments.delta", "function_call_arguments.done"]
    assert [name for name, _ in groupby(names)] == [
        *("created", "in_progress"),
        *text("reasoning_text"),
        *text("output_text"),
        *("output_item.added", *arguments, "output_item.done", "completed"),
    ]


@pytest.mark.parametrize("seed", range(3))
def test_h14_reasoning_text_and_calls_are_items(tmp_path: Path, seed: int) -> None:
    async def ask(http: httpx2.AsyncClient, _: ScriptedService) -> Any:
        fields = {"tools": [WEATHER], "max_output_tokens": 500}
        return [
            await both(http, **fields),
            await both(http, **fields, parallel_tool_calls=False),
            await both(http, **fields, tool_choice="none"),
        ]

    script = f"<think>Hm.</think>So:\n{CALL}\n{CALL}"
    free, single, none = scripted(tmp_path, script, ask, template=THINKING_TEMPLATE, seed=seed)
    kinds = [item["type"] for item in free["output"]]
    assert kinds == ["reasoning", "message", "function_call", "function_call"]
    assert json.loads(free["output"][3]["arguments"]) == {"city": "Oslo", "days": 2}
    assert free["output"][0]["content"] == [{"type": "reasoning_text", "text": "Hm."}]
    assert free["usage"]["output_tokens_details"]["reasoning_tokens"] == len("Hm.")
    assert [item["type"] for item in single["output"]] == kinds[:3]
    assert none["output"][1]["content"][0]["text"] == script[18:]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "weather"}])
def test_h14_forced_calls_are_valid_by_their_schema(
    asked_at_length: Callable[..., Any], choice: Any
) -> None:
    async def ask(http: httpx2.AsyncClient, _: Context) -> Any:
        fields = {"tools": [WEATHER], "tool_choice": choice, "parallel_tool_calls": False}
        return await both(http, **fields, temperature=1.5, seed=2, max_output_tokens=200)

    (item,) = asked_at_length(ask)["output"]
    assert item["name"] == "weather" and item["status"] == "completed"
    jsonschema.validate(json.loads(item["arguments"]), SCHEMA)


def test_h16_a_schema_holds_the_answer(asked: Callable[..., Any]) -> None:
    form = {"format": {"type": "json_schema", "name": "place", "schema": SCHEMA, "strict": True}}

    async def ask(http: httpx2.AsyncClient, _: Context) -> Any:
        return await both(http, text=form, temperature=2, seed=3, max_output_tokens=120)

    response = asked(ask)
    jsonschema.validate(json.loads(text_of(response)), SCHEMA)
    assert response["text"] == form and response["status"] == "completed"


def test_items_reach_the_prompt_as_one_turn(tmp_path: Path) -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"a": 1}'}
    items = [
        {"role": "user", "content": "hello"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": []},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Let me look."}]},
        {**call, "id": "fc_1", "status": "completed"},
        {**call, "call_id": "c2", "arguments": "not JSON"},
        {"type": "function_call_output", "call_id": "c1", "output": "rain"},
        {
            "type": "function_call_output",
            "call_id": "c2",
            "output": [{"type": "input_text", "text": "sun"}],
        },
    ]
    items[1].pop("content")

    async def ask(http: httpx2.AsyncClient, service: ScriptedService) -> Any:
        answer = await http.post(URL, json=body(input=items, tools=[WEATHER]))
        assert answer.status_code == 200, answer.text
        return prompt_of(service)

    prompt = scripted(tmp_path, "Sun.", ask)
    words = ["user: hello", "assistant: Let me look.", '{"a": 1}', "not JSON", "rain (c1)"]
    places = [prompt.index(word) for word in [*words, "sun (c2)"]]
    assert places == sorted(places) and prompt.count("assistant:") == 2


def test_h04_what_is_wrong_is_named(asked: Callable[..., Any]) -> None:
    def item(**fields: Any) -> dict[str, Any]:
        return {"input": [fields]}

    image = {"type": "input_image", "image_url": "x"}
    shape = {"format": {"type": "json_schema", "name": "x", "schema": {"type": "nonsense"}}}
    schema = {"type": "object", "minProperties": 1}  # a mask of tokens cannot hold to it
    loose = {"type": "function", "name": "f", "parameters": schema}
    cases: list[tuple[str, dict[str, Any]]] = [
        ("input", {"input": []}),
        ("input", {"input": None}),
        ("input[0].role", item(role="x", content="y")),
        ("input[0].content", item(role="user")),
        ("input[0].content[0].type", item(role="user", content=[image])),
        ("input[0].type", item(type="item_reference", id="x")),
        ("input[0].call_id", item(type="function_call", name="x", arguments="{}")),
        ("input[0].output", item(type="function_call_output", call_id="c")),
        ("max_output_tokens", {"max_output_tokens": 0}),
        ("max_output_tokens", {"max_output_tokens": -1}),
        ("input", {"input": "x" * 999}),
        ("previous_response_id", {"previous_response_id": "resp_1"}),
        ("conversation", {"conversation": "c"}),
        ("background", {"background": True}),
        ("tools[0].type", {"tools": [{"type": "oracle"}]}),
        ("tools[0].name", {"tools": [{"type": "function", "name": "a b"}]}),
        ("tool_choice", {"tools": [WEATHER], "tool_choice": "any"}),
        ("tool_choice", {"tool_choice": "required"}),
        ("tools[0].parameters", {"tools": [loose], "tool_choice": "required"}),
        ("text.format.schemas", {"text": {"format": {"type": "json_object", "schemas": {}}}}),
        ("text.format.type", {"text": {"format": {"type": "xml"}}}),
        ("text.verbose", {"text": {"verbose": "low"}}),
        ("text.format", {"text": shape}),
        ("text.format", {"text": shape, "stream": True}),
        ("max_tokens", {"max_tokens": 3}),
        ("top_logprobs", {"top_logprobs": 3}),
        ("include[1]", {"include": ["message.output_text.logprobs", "file_search_call"]}),
    ]

    async def ask(http: httpx2.AsyncClient, _: Context) -> Any:
        return [await http.post(URL, json=body(**fields)) for _, fields in cases]

    for (param, fields), answer in zip(cases, asked(ask), strict=True):
        assert answer.status_code == 400, (fields, answer.text)
        assert answer.json()["error"]["param"] == param, (fields, answer.text)


def test_h10_a_fault_amid_a_stream_is_its_last_event(tmp_path: Path) -> None:
    class Failing(ScriptedService):
        async def follow(self, request: Request) -> AsyncGenerator[Delta]:
            yield Delta(request.request_id, 0, (65,), "A")
            error = NumericsError("the model gave no number.")
            yield Delta(request.request_id, 0, finish_reason="error", error=error)

    async def ask(http: httpx2.AsyncClient, _: ScriptedService) -> Any:
        responses = await http.post(URL, json=body(stream=True))
        sent = {"model": "tiny", "max_tokens": 9, "stream": True}
        messages = [{"role": "user", "content": "x"}]
        anthropic = await http.post("/v1/messages", json={**sent, "messages": messages})
        return [responses.text, anthropic.text]

    responses, anthropic = scripted(tmp_path, "", ask, kind=Failing)
    (last,) = read_events(responses)[-1:]
    assert last["type"] == "error" and last["message"] == last["error"]["message"]
    assert "response.completed" not in responses and last["sequence_number"] == 5
    (last,) = read_events(anthropic)[-1:]
    assert last["type"] == "error" and last["error"]["type"] == "api_error"
    assert "message_stop" not in anthropic
