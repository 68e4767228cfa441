"""Tools, forms and reasoning in chat completions: chosen freely, forced, cut, streamed or not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import jsonschema
import pytest
from scripted import THINKING_TEMPLATE, ScriptedService, scripted
from server_app import chat, events

from cutaway.server.route_context import Context

URL = "/v1/chat/completions"
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Bonn"]}, "days": {"type": "integer", "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
CLOCK = {"type": "function", "function": {"name": "clock", "description": "The time."}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo", "days": 2}}\n</tool_call>'
NAMED = {"type": "function", "function": {"name": "weather"}}


def joined(chunks: list[Any]) -> tuple[dict[str, Any], str | None]:
    """The message and the finish reason that the chunks of one choice make up."""
    message: dict[str, Any] = {"role": "", "content": "", "reasoning_content": ""}
    calls: dict[int, dict[str, str]] = {}
    reasons: list[str] = []
    for choice in (each for chunk in chunks for each in chunk["choices"]):
        delta = choice["delta"]
        for name in message:
            message[name] += delta.get(name) or ""
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                assert call["index"] not in calls and call["type"] == "function"
                calls[call["index"]] = {"name": call["function"]["name"], "arguments": ""}
            calls[call["index"]]["arguments"] += call["function"]["arguments"]
        reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
    assert len(reasons) == 1
    return {**message, "calls": list(calls.values())}, reasons[0]


def whole(answer: Any) -> tuple[dict[str, Any], str | None]:
    """The same of an answer that came at once."""
    (choice,) = answer["choices"]
    message = choice["message"]
    calls = [each["function"] for each in message.get("tool_calls", ())]
    return {
        "role": message["role"],
        "content": message["content"] or "",
        "reasoning_content": message.get("reasoning_content", ""),
        "calls": calls,
    }, choice["finish_reason"]


async def both(http: httpx2.AsyncClient, **fields: Any) -> tuple[dict[str, Any], str | None]:
    """What is answered; streamed and whole must be the same."""
    at_once = await http.post(URL, json=chat(**{"max_tokens": 500, **fields}))
    assert at_once.status_code == 200, at_once.text
    streamed = await http.post(URL, json=chat(stream=True, **{"max_tokens": 500, **fields}))
    assert joined(events(streamed.text)[:-1]) == whole(at_once.json())
    return whole(at_once.json())


@pytest.mark.parametrize("seed", range(4))
def test_h14_a_call_that_the_model_chose(tmp_path: Path, seed: int) -> None:
    async def ask(http: httpx2.AsyncClient, _: ScriptedService) -> Any:
        return await both(http, tools=[WEATHER, CLOCK])

    script = f"Let me look.\n{CALL}\n{CALL.replace('Oslo', 'Bonn')}"
    message, reason = scripted(tmp_path, script, ask, seed=seed)
    assert reason == "tool_calls" and message["content"] == "Let me look."
    assert [json.loads(each["arguments"])["city"] for each in message["calls"]] == ["Oslo", "Bonn"]
    assert [each["name"] for each in message["calls"]] == ["weather", "weather"]


def test_h14_what_becomes_of_a_call(tmp_path: Path) -> None:
    async def ask(http: httpx2.AsyncClient, _: ScriptedService) -> Any:
        offered = {"tools": [WEATHER]}
        return [
            await both(http),
            await both(http, **offered, tool_choice="none"),
            await both(http, tools=[CLOCK]),
            await both(http, **offered, max_tokens=60),
            await both(http, **offered, tool_choice=NAMED),
            await both(http, **offered, tool_choice="required", max_tokens=60),
            await both(http, **offered, parallel_tool_calls=False),
        ]

    answers = scripted(tmp_path, f"{CALL}\n{CALL}", ask)
    free, none, foreign, cut, named, cut_required, single = answers
    for message, reason in (free, none, foreign):
        assert message["content"] == f"{CALL}\n{CALL}" and not message["calls"]
        assert reason == "stop"
    assert cut[1] == "length" and not cut[0]["calls"] and cut[0]["content"] == CALL[:60]
    assert named[1] == "stop" and named[0]["calls"]
    assert cut_required[1] == "length"
    assert cut_required[0]["calls"][0]["arguments"] == '{"city": "Oslo"'
    assert len(single[0]["calls"]) == 1 and single[1] == "tool_calls" and not single[0]["content"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_single_call_ends_the_engines_work(tmp_path: Path, stream: bool) -> None:
    offered = {"tools": [WEATHER], "max_tokens": 2000, "n": 2, "stream": stream}

    async def ask(http: httpx2.AsyncClient, service: ScriptedService) -> Any:
        answer = await http.post(URL, json=chat(**offered, parallel_tool_calls=False))
        assert answer.status_code == 200, answer.text
        assert service.ended == [(service.requests[0].request_id, choice) for choice in range(2)]
        # The call, and what came with the news that completed it.
        assert service.num_said <= 2 * (len(CALL) + 20)
        await http.post(URL, json=chat(**offered))
        assert len(service.ended) == 2, "several calls may come"
        chunks = events(answer.text)[:-1] if stream else [answer.json()]
        return [choice for each in chunks for choice in each["choices"]]

    choices = scripted(tmp_path, f"{CALL} and then I go on." * 9, ask)
    reasons = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    assert reasons == ["tool_calls"] * 2


def test_h14_ids_of_calls_are_their_own(tmp_path: Path) -> None:
    async def ask(http: httpx2.AsyncClient, _: ScriptedService) -> Any:
        body = chat(tools=[WEATHER], n=2, max_tokens=500)
        return (await http.post(URL, json=body)).json()["choices"]

    choices = scripted(tmp_path, f"{CALL}\n{CALL}", ask)
    ids = [call["id"] for choice in choices for call in choice["message"]["tool_calls"]]
    assert len(set(ids)) == 4 and all(each.startswith("call_") for each in ids)
    assert all(choice["message"]["content"] is None for choice in choices)


def test_reasoning_stands_apart(tmp_path: Path) -> None:
    async def ask(http: httpx2.AsyncClient, _: ScriptedService) -> Any:
        return await both(http, tools=[WEATHER])

    script = f"<think>\nWhere is it?\n</think>\n\nSo:\n{CALL}"
    message, reason = scripted(tmp_path, script, ask, template=THINKING_TEMPLATE)
    assert message["reasoning_content"] == "Where is it?" and message["content"] == "So:"
    assert len(message["calls"]) == 1 and reason == "tool_calls"


def prompt_of(service: ScriptedService) -> str:
    return bytes(each for each in service.requests[-1].prompt_token_ids if each < 256).decode()


@pytest.mark.parametrize("template", ["tools", "plain"])
def test_tools_calls_and_results_reach_the_prompt(tmp_path: Path, template: str) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "clock", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What time?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "noon"},
    ]

    async def ask(http: httpx2.AsyncClient, service: ScriptedService) -> str:
        body = {**chat(tools=[CLOCK]), "messages": messages}
        answer = await http.post(URL, json=body)
        assert answer.status_code == 200, answer.text
        return prompt_of(service)

    plain = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    more = {} if template == "tools" else {"template": plain}
    prompt = scripted(tmp_path, "It is noon.", ask, **more)
    for word in ("Be brief.", "What time?", "The time.", '"name": "clock"', '{"a": 1}', "noon"):
        assert word in prompt, word
    if template == "plain":
        assert prompt.index("The time.") < prompt.index("What time?")
        assert "<user>Result of clock:\nnoon" in prompt and "<tool>" not in prompt


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_h14_forced_calls_are_valid_by_their_schema(
    asked_at_length: Callable[..., Any], choice: Any
) -> None:
    async def ask(http: httpx2.AsyncClient, _: Context) -> Any:
        fields = {"tools": [WEATHER], "tool_choice": choice, "max_tokens": 120}
        return [
            await both(http, **fields, parallel_tool_calls=False, temperature=1.5, seed=seed)
            for seed in range(3)
        ]

    for message, reason in asked_at_length(ask):
        (call,) = message["calls"]
        assert call["name"] == "weather" and not message["content"]
        jsonschema.validate(json.loads(call["arguments"]), SCHEMA)
        assert reason == ("tool_calls" if choice == "required" else "stop")


def test_h16_a_schema_holds_the_answer(asked: Callable[..., Any]) -> None:
    named = {"name": "place", "schema": SCHEMA, "strict": True}
    shape = {"type": "json_schema", "json_schema": named}

    async def ask(http: httpx2.AsyncClient, _: Context) -> Any:
        return [
            await both(http, response_format=shape, max_tokens=120, temperature=2, seed=seed)
            for seed in range(3)
        ]

    for message, reason in asked(ask):
        jsonschema.validate(json.loads(message["content"]), SCHEMA)
        assert reason == "stop"


def test_what_cannot_be_is_refused_by_name(asked_at_length: Callable[..., Any]) -> None:
    def tool(**function: Any) -> dict[str, Any]:
        return {"type": "function", "function": {"name": "f", **function}}

    cases: list[tuple[str, dict[str, Any]]] = [
        ("response_format.schem", {"response_format": {"type": "json_object", "schem": {}}}),
        ("structured_outputs", {"tools": [CLOCK], "structured_outputs": {"regex": "a"}}),
        ("tool_choice", {"tools": [CLOCK], "tool_choice": "any"}),
        ("tool_choice", {"tools": [CLOCK], "tool_choice": NAMED}),
        ("tools[0].function.parameters", {"tools": [tool(parameters=1)]}),
        ("tools[0].function.description", {"tools": [tool(description=1)]}),
        (
            "tools[0].function.parameters.not",
            {"tools": [tool(parameters={"not": {}})], "tool_choice": "required"},
        ),
    ]

    async def ask(http: httpx2.AsyncClient, _: Context) -> Any:
        return [await http.post(URL, json=chat(**fields)) for _, fields in cases]

    for (param, _), answer in zip(cases, asked_at_length(ask), strict=True):
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"] == param


def test_h17_a_model_that_likes_blanks_comes_to_an_end(asked: Callable[..., Any]) -> None:
    """Blanks are what it likes best, then the end of what is open: the form lets it end."""
    shape = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}}
    blanks = {str(ord(blank)): 100 for blank in " \n\t\r"}
    likes = {**blanks, str(ord("}")): 90, str(ord('"')): 80}

    async def ask(http: httpx2.AsyncClient, _: Context) -> Any:
        free = {"response_format": {"type": "json_object"}, "logit_bias": likes}
        held = {"response_format": shape, "logit_bias": likes}
        return [
            await both(http, **free, max_tokens=100),
            await both(http, **held, max_tokens=100),
            await both(http, **held, max_tokens=9),
        ]

    free, held, cut = asked(ask)
    assert free == ({**free[0], "content": "{}"}, "stop")
    jsonschema.validate(json.loads(held[0]["content"]), SCHEMA)
    assert held[1] == "stop" and "  " not in held[0]["content"]
    assert cut[1] == "length" and held[0]["content"].startswith(cut[0]["content"])
    assert len(cut[0]["content"]) == 9


def test_i04_what_an_assistant_said_reaches_the_prompt_whole(tmp_path: Path) -> None:
    """Also where the template has reasoning, by every API and in every way to write it."""
    said = "hello </think> world <think> {{ 1 }} <tool_call>"

    async def ask(http: httpx2.AsyncClient, service: ScriptedService) -> list[str]:
        question = {"role": "user", "content": "and?"}
        parts = [{"type": "text", "text": said}]
        output = [{"type": "output_text", "text": said}]
        sent: list[tuple[str, str, Any, dict[str, Any]]] = [
            (URL, "messages", said, {}),
            (URL, "messages", parts, {}),
            ("/v1/messages", "messages", said, {"max_tokens": 5}),
            ("/v1/messages", "messages", parts, {"max_tokens": 5}),
            ("/v1/responses", "input", said, {}),
            ("/v1/responses", "input", output, {}),
        ]
        for path, name, content, more in sent:
            turns = [question, {"role": "assistant", "content": content}, question]
            answer = await http.post(path, json={"model": "tiny", name: turns, **more})
            assert answer.status_code == 200, answer.text
        return [
            bytes(each for each in request.prompt_token_ids if each < 256).decode()
            for request in service.requests
        ]

    prompts = scripted(tmp_path, "Yes.", ask, template=THINKING_TEMPLATE)
    assert len(prompts) == 6 and len(set(prompts)) == 1
    assert f"assistant: {said}user:" in prompts[0]
