"""What clients that people run send with every request: obeyed, taken, or refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import jsonschema
import pytest
from scripted import THINKING_TEMPLATE, TOOL_TEMPLATE, ScriptedService, scripted
from server_app import chat, completion
from test_server_anthropic import read_events
from test_server_tools import CALL, SCHEMA, WEATHER, prompt_of

from cutaway.server.route_context import Context

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
OPEN = {
    "type": "object",
    "properties": {"zip": {"type": "integer", "maximum": 9}},
    "required": ["zip"],
    "additionalProperties": False,
}
SWITCHED = (
    THINKING_TEMPLATE + "{% if enable_thinking is defined %}[{{ enable_thinking }}]{% endif %}"
)
GRADED = TOOL_TEMPLATE + "{{ reasoning_effort }}"


def body(path: str, **fields: Any) -> dict[str, Any]:
    if path == CHAT:
        return {**chat("hi"), **fields}
    if path == RESPONSES:
        return {"model": "tiny", "input": "hi", **fields}
    messages = [{"role": "user", "content": "hi"}]
    return {"model": "tiny", "max_tokens": 60, "messages": messages, **fields}


def posted(folder: Path, path: str, *, template: str = TOOL_TEMPLATE, **fields: Any) -> Any:
    """The answer to one request, and the prompt that it gave where it was taken."""

    async def ask(http: httpx2.AsyncClient, service: ScriptedService) -> Any:
        answer = await http.post(path, json=body(path, **fields))
        return answer, prompt_of(service) if service.requests else ""

    return scripted(folder, "Fine.", ask, template=template)


TAKEN: list[tuple[str, dict[str, Any]]] = [
    *((CHAT, {name: value}) for name, value in {
        "store": True,
        "verbosity": "low",
        "reasoning_effort": "high",
        "prediction": {"type": "content", "content": "x"},
        "chat_id": "a",
        "top_logprobs": 0,
        "max_tokens": 3.0,
        "seed": 3e0,
        "n": 1.0,
        "top_k": 5.0,
        "stop_token_ids": [3.0],
    }.items()),
    *((RESPONSES, fields) for fields in [
        {"reasoning": {"effort": None, "summary": None}},
        {"reasoning": {"effort": "medium", "summary": "auto"}},
        {"text": {"verbosity": "medium"}},
        {"client_metadata": {"x": "y"}},
        {"truncation": "auto"},
        {"tools": [{"type": "web_search"}, {"type": "local_shell"}]},
        {"tools": [{"type": "web_search_preview_2025_03_11"}], "max_tool_calls": 3},
        {"tools": [{"type": "custom", "name": "patch", "format": {"type": "text"}}]},
        {"include": ["reasoning.encrypted_content", "web_search_call.action.sources"]},
        {"store": False, "prompt_cache_key": "k"},
        {"max_output_tokens": 9.0},
    ]),
    *((MESSAGES, fields) for fields in [
        {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        {"thinking": {"type": "adaptive"}},
        {"thinking": {"type": "disabled"}},
        {"output_config": {"effort": "high"}},
        {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}},
        {"tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 5}]},
        {"max_tokens": 32000},
        {"max_tokens": 64000.0, "metadata": {"user_id": "u"}},
    ]),
]  # fmt: skip


@pytest.mark.parametrize(("path", "fields"), TAKEN)
def test_n25_n26_n27_what_changes_nothing_is_taken(
    tmp_path: Path, path: str, fields: dict[str, Any]
) -> None:
    answer, _ = posted(tmp_path, path, **fields)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("value", [3.5, "3", True, [3]])
def test_n25_what_is_no_integer_for_json_schema_is_refused(tmp_path: Path, value: Any) -> None:
    answer, _ = posted(tmp_path, CHAT, max_tokens=value)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "max_tokens"


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"reasoning_effort": "none"}),
        (RESPONSES, {"reasoning": {"effort": "none"}}),
        (MESSAGES, {"output_config": {"effort": "none"}}),
        (MESSAGES, {"thinking": {"type": "disabled"}}),
    ],
)
def test_effort_reaches_a_template_that_reads_it(
    tmp_path: Path, path: str, fields: dict[str, Any]
) -> None:
    _, prompt = posted(tmp_path, path, template=SWITCHED, **fields)
    assert prompt.endswith("[False]")
    if "thinking" not in fields:
        graded = json.loads(json.dumps(fields).replace("none", "high"))
        assert posted(tmp_path, path, template=GRADED, **graded)[1].endswith("high")
        always, _ = posted(tmp_path, path, template=THINKING_TEMPLATE, **fields)
        assert always.status_code == 400 and "always reasons" in always.text


def test_n26_a_response_can_be_asked_again_as_it_came(tmp_path: Path) -> None:
    async def ask(http: httpx2.AsyncClient, _: ScriptedService) -> Any:
        first = (await http.post(RESPONSES, json=body(RESPONSES))).json()
        names = ("reasoning", "text", "tools", "tool_choice", "truncation", "metadata", "store")
        more = [*first["output"], {"role": "user", "content": "And?"}]
        again = {name: first[name] for name in names} | {"input": more, "model": "tiny"}
        return await http.post(RESPONSES, json=again)

    assert scripted(tmp_path, "Fine.", ask).status_code == 200


PATCH = {"type": "custom", "name": "patch", "description": "Patches."}
PATCH_CALL = (
    '<tool_call>\n{"name": "patch", "arguments": {"input": "*** Begin\\n+a"}}\n</tool_call>'
)


@pytest.mark.parametrize("seed", range(3))
def test_n26_a_custom_tool_gets_free_text(tmp_path: Path, seed: int) -> None:
    async def ask(http: httpx2.AsyncClient, service: ScriptedService) -> Any:
        fields = {"tools": [PATCH], "input": "Patch."}
        whole = (await http.post(RESPONSES, json=body(RESPONSES, **fields))).json()
        streamed = await http.post(RESPONSES, json=body(RESPONSES, stream=True, **fields))
        (call,) = whole["output"]
        result = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "Done."}
        again = body(RESPONSES, tools=[PATCH], input=[fields_of("Patch."), call, result])
        assert (await http.post(RESPONSES, json=again)).status_code == 200
        return call, read_events(streamed.text), prompt_of(service)

    call, events, prompt = scripted(tmp_path, PATCH_CALL, ask, seed=seed)
    assert call["type"] == "custom_tool_call" and call["input"] == "*** Begin\n+a"
    told = [each for each in events if "custom_tool_call_input" in each["type"]]
    assert told[0]["delta"] == told[-1]["input"] == call["input"]
    assert '"input": "*** Begin\\n+a"' in prompt and "tool: Done." in prompt


def fields_of(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def test_n27_what_claude_code_sends_back_reaches_the_prompt(tmp_path: Path) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "x"}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "Look.", "cache_control": {}}]},
        {
            "role": "assistant",
            "content": [
                {"type": "redacted_thinking", "data": "x"},
                {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"q": "w1"}},
                {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
                {"type": "tool_use", "id": "t", "name": "read", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t", "content": [image], "is_error": True}
            ],
        },
    ]
    answer, prompt = posted(tmp_path, MESSAGES, messages=messages)
    assert answer.status_code == 200, answer.text
    assert '"q": "w1"' in prompt and "Error: [image: not shown" in prompt
    first, _ = posted(tmp_path, MESSAGES, messages=[{"role": "user", "content": [image]}])
    assert first.status_code == 400


def test_n27_a_document_and_what_a_search_found_are_read(tmp_path: Path) -> None:
    blocks = [
        {"type": "document", "source": {"type": "text", "data": "Water."}, "title": "Seas"},
        {
            "type": "search_result",
            "title": "Land",
            "source": "a.org",
            "content": [{"type": "text", "text": "Sand."}],
        },
    ]
    _, prompt = posted(tmp_path, MESSAGES, messages=[{"role": "user", "content": blocks}])
    assert "Seas\nWater." in prompt and "Land (a.org)\nSand." in prompt


@pytest.mark.parametrize(
    "form",
    [
        {"type": "json_object", "schema": OPEN},
        {"type": "json_object", "json_schema": {"schema": OPEN}},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": OPEN, "strict": True}},
    ],
)
def test_n06_a_schema_holds_wherever_it_stands(
    asked: Callable[..., Any], form: dict[str, Any]
) -> None:
    async def ask(http: httpx2.AsyncClient, _: Context) -> Any:
        sent = chat(response_format=form, max_tokens=40)
        return (await http.post(CHAT, json=sent)).json()["choices"][0]["message"]["content"]

    jsonschema.validate(json.loads(asked(ask)), OPEN)


@pytest.mark.parametrize("format", ["password", "uri-reference", "color"])
def test_n30_a_tool_with_an_unknown_format_can_be_forced(
    asked_at_length: Callable[..., Any], format: str
) -> None:
    schema = {**OPEN, "properties": {"zip": {"type": "string", "format": format, "maxLength": 4}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}

    async def ask(http: httpx2.AsyncClient, _: Context) -> Any:
        sent = chat(tools=[tool], tool_choice="required", max_tokens=80, seed=1)
        return await http.post(CHAT, json=sent)

    answer = asked_at_length(ask)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["tool_calls"]


def test_n30_what_cannot_be_held_to_is_refused_by_its_path(asked: Callable[..., Any]) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    cases = [
        (
            CHAT,
            {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}},
            "response_format.json_schema.schema.properties.a.uniqueItems",
        ),
        (
            RESPONSES,
            {"text": {"format": {"type": "json_schema", "name": "x", "schema": schema}}},
            "text.format.schema.properties.a.uniqueItems",
        ),
        (
            RESPONSES,
            {
                "tools": [{"type": "function", "name": "f", "parameters": schema}],
                "tool_choice": "required",
            },
            "tools[0].parameters.properties.a.uniqueItems",
        ),
    ]

    async def ask(http: httpx2.AsyncClient, _: Context) -> Any:
        return [(await http.post(path, json=body(path, **f))).json() for path, f, _ in cases]

    for answer, (_, _, place) in zip(asked(ask), cases, strict=True):
        assert answer["error"]["param"] == place, answer
        assert answer["error"]["message"].startswith(f"{place}")


FORMED: dict[str, dict[str, Any]] = {
    CHAT: {
        "tools": [WEATHER],
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": OPEN}},
    },
    RESPONSES: {
        "tools": [{"type": "function", "name": "weather", "parameters": SCHEMA}],
        "text": {"format": {"type": "json_schema", "name": "x", "schema": OPEN}},
    },
    MESSAGES: {
        "tools": [{"name": "weather", "input_schema": SCHEMA}],
        "output_config": {"format": {"type": "json_schema", "schema": OPEN}},
    },
}


@pytest.mark.parametrize("path", FORMED)
@pytest.mark.parametrize("script", [CALL, '{"zip": 3}'])
def test_n32_calls_until_done_and_then_the_form(tmp_path: Path, path: str, script: str) -> None:
    async def ask(http: httpx2.AsyncClient, service: ScriptedService) -> Any:
        sent = body(path, **FORMED[path]) | ({} if path == RESPONSES else {"max_tokens": 200})
        answer = await http.post(path, json=sent)
        assert answer.status_code == 200, answer.text
        assert service.requests[0].params.grammar is not None
        told = answer.json()
        return json.dumps(told.get("choices") or told.get("output") or told["content"])

    text = scripted(tmp_path, script, ask)
    assert ("Oslo" in text) == (script == CALL) and ("zip" in text) == (script != CALL)


def test_n32_an_answer_is_one_or_the_other(asked_at_length: Callable[..., Any]) -> None:
    """By the engine: whatever a model likes, what comes is a whole call or the whole form."""

    async def ask(http: httpx2.AsyncClient, _: Context) -> Any:
        answers: list[Any] = []
        for first in ("<", "{"):
            bias = {str(ord(first)): 100}
            sent = chat(**FORMED[CHAT], max_tokens=120, logit_bias=bias, parallel_tool_calls=False)
            answers.append((await http.post(CHAT, json=sent)).json())
        return answers

    call, form = (each["choices"][0] for each in asked_at_length(ask))
    arguments = json.loads(call["message"]["tool_calls"][0]["function"]["arguments"])
    jsonschema.validate(arguments, SCHEMA)
    jsonschema.validate(json.loads(form["message"]["content"]), OPEN)
    assert (call["finish_reason"], form["finish_reason"]) == ("tool_calls", "stop")


def test_a_completion_takes_what_is_left_where_it_asks_for_nothing(
    asked: Callable[..., Any],
) -> None:
    async def ask(http: httpx2.AsyncClient, context: Context) -> Any:
        prompt = "a" * (context.service.model.max_length - 2)
        sent = {**completion(prompt), "max_tokens": None}
        return (await http.post("/v1/completions", json=sent)).json()

    assert asked(ask)["usage"]["completion_tokens"] <= 2
