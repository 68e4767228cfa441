"""Objects inside requests: at every depth a field acts, is taken without effect, or is refused."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx2
import pytest
from scripted import THINKING_TEMPLATE, ScriptedService, scripted
from server_app import chat, completion

from cutaway.core.errors import RequestError
from cutaway.server import constraints, reasoning, tools
from cutaway.server.anthropic import messages_fields as ours_of_messages
from cutaway.server.openai import responses_fields as ours_of_responses
from cutaway.text import chat_fields as ours_of_chat
from cutaway.text.chat_messages import from_dicts
from cutaway.text.object_fields import ObjectFields

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FORM = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
FUNCTION = {"name": "f", "description": "d", "parameters": SCHEMA}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
CHOICE = {"type": "function", "function": {"name": "f"}}

# Every kind of object that an API has, in one body that its server answers.
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {
        **chat(),
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hello"}]},
            {
                "role": "assistant",
                "content": [{"type": "refusal", "refusal": "no"}],
                "tool_calls": [CALL],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "3"},
        ],
        "tools": [{"type": "function", "function": FUNCTION}],
        "tool_choice": CHOICE,
        "reasoning": {"effort": "low", "enabled": True},
        "thinking": {"type": "enabled"},
    },
    COMPLETIONS: {**completion(), "response_format": FORM},
    RESPONSES: {
        "model": "tiny",
        "max_output_tokens": 4,
        "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "message", "role": "assistant", "content": [
                {"type": "refusal", "refusal": "no"},
            ]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
            {"type": "custom_tool_call", "call_id": "c2", "name": "g", "input": "x"},
            {"type": "function_call_output", "call_id": "c1", "output": "3"},
            {"type": "agent_message", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "additional_tools", "tools": [{"type": "function", "name": "k"}]},
        ],
        "tools": [
            {"type": "function", **FUNCTION},
            {"type": "custom", "name": "g", "format": {
                "type": "grammar", "syntax": "lark", "definition": "start: /x/",
            }},
            {"type": "namespace", "name": "n", "description": "all", "tools": [
                {"type": "function", "name": "h"},
            ]},
        ],
        "tool_choice": {"type": "function", "name": "f"},
        "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}},
        "reasoning": {"effort": "low"},
    },
    MESSAGES: {
        "model": "tiny",
        "max_tokens": 4,
        "system": [{"type": "text", "text": "Be brief."}],
        "messages": [
            {"role": "user", "content": [
                {"type": "document", "source": {"type": "text", "data": "words"}, "context": "c"},
                {"type": "search_result", "title": "t", "source": "s", "content": [
                    {"type": "text", "text": "found"},
                ]},
            ]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": ""},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [
                    {"type": "tool_reference", "tool_name": "f"},
                ]},
            ]},
        ],
        "tools": [{"name": "f", "description": "d", "input_schema": SCHEMA}],
        "tool_choice": {"type": "tool", "name": "f"},
        "thinking": {"type": "enabled"},
        "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}},
    },
}  # fmt: skip
# Where each stands: the path to it in its API's body.
Place = tuple[str | int, ...]
C, R, M = ours_of_chat, ours_of_responses, ours_of_messages
PLACES: list[tuple[str, Place, ObjectFields]] = [
    (CHAT, ("messages", 0), C.MESSAGE),
    (CHAT, ("messages", 0, "content", 0), C.TEXT_PART),
    (CHAT, ("messages", 1, "content", 0), C.REFUSAL_PART),
    (CHAT, ("messages", 1, "tool_calls", 0), C.TOOL_CALL),
    (CHAT, ("messages", 1, "tool_calls", 0, "function"), C.CALLED_FUNCTION),
    (CHAT, ("tools", 0), tools.TOOL),
    (CHAT, ("tools", 0, "function"), tools.FUNCTION),
    (CHAT, ("tool_choice",), tools.TOOL_CHOICE),
    (CHAT, ("tool_choice", "function"), tools.CHOSEN_FUNCTION),
    (CHAT, ("reasoning",), reasoning.CHAT_REASONING),
    (CHAT, ("thinking",), reasoning.THINKING),
    (COMPLETIONS, ("response_format",), constraints.RESPONSE_FORMAT),
    (COMPLETIONS, ("response_format", "json_schema"), constraints.NAMED_SCHEMA),
    (RESPONSES, ("input", 0), R.MESSAGE),
    (RESPONSES, ("input", 0, "content", 0), R.TEXT_PART),
    (RESPONSES, ("input", 1, "content", 0), R.REFUSAL_PART),
    (RESPONSES, ("input", 2), R.REASONING_ITEM),
    (RESPONSES, ("input", 2, "summary", 0), R.TEXT_PART),
    (RESPONSES, ("input", 3), R.FUNCTION_CALL),
    (RESPONSES, ("input", 4), R.CUSTOM_CALL),
    (RESPONSES, ("input", 5), R.CALL_OUTPUT),
    (RESPONSES, ("input", 6), R.AGENT_MESSAGE),
    (RESPONSES, ("input", 6, "content", 0), R.TEXT_PART),
    (RESPONSES, ("input", 7), R.ADDED_TOOLS),
    (RESPONSES, ("input", 7, "tools", 0), R.FUNCTION),
    (RESPONSES, ("tools", 0), R.FUNCTION),
    (RESPONSES, ("tools", 1), R.CUSTOM_TOOL),
    (RESPONSES, ("tools", 1, "format"), R.CUSTOM_FORMAT),
    (RESPONSES, ("tools", 2), R.NAMESPACE),
    (RESPONSES, ("tools", 2, "tools", 0), R.FUNCTION),
    (RESPONSES, ("tool_choice",), R.TOOL_CHOICE),
    (RESPONSES, ("text",), R.TEXT),
    (RESPONSES, ("text", "format"), constraints.TEXT_FORMAT),
    (RESPONSES, ("reasoning",), R.REASONING),
    (MESSAGES, ("system", 0), M.TEXT),
    (MESSAGES, ("messages", 0), M.MESSAGE),
    (MESSAGES, ("messages", 0, "content", 0), M.DOCUMENT),
    (MESSAGES, ("messages", 0, "content", 0, "source"), M.DOCUMENT_SOURCE),
    (MESSAGES, ("messages", 0, "content", 1), M.SEARCH_RESULT),
    (MESSAGES, ("messages", 0, "content", 1, "content", 0), M.TEXT),
    (MESSAGES, ("messages", 1, "content", 0), M.THINKING),
    (MESSAGES, ("messages", 1, "content", 1), M.REDACTED),
    (MESSAGES, ("messages", 1, "content", 2), M.TOOL_USE),
    (MESSAGES, ("messages", 2, "content", 0), M.TOOL_RESULT),
    (MESSAGES, ("messages", 2, "content", 0, "content", 0), M.TOOL_REFERENCE),
    (MESSAGES, ("tools", 0), M.TOOL),
    (MESSAGES, ("tool_choice",), M.TOOL_CHOICE),
    (MESSAGES, ("thinking",), M.THINKING_SWITCH),
    (MESSAGES, ("output_config",), M.OUTPUT_CONFIG),
    (MESSAGES, ("output_config", "format"), M.OUTPUT_FORMAT),
]
# These two want an answer that was kept: tests/server/test_server_state.py goes on from one.
KEPT_ALONE = (R.REFERENCE, R.CONVERSATION)
ANYTHING: tuple[Any, ...] = ("x", 3, True, ["x"], {"type": "ephemeral"}, 0.5, [{"a": []}])


def put(body: Mapping[str, Any], place: Place, name: str | int, value: object) -> Any:
    """The body with one field more in one of its objects."""
    made = json.loads(json.dumps(body))
    inner = made
    for each in place:
        inner = inner[each]
    inner[name] = value
    return made


def path_of(place: Place, name: str) -> str:
    """How a message writes that place."""
    parts = [f"[{each}]" if isinstance(each, int) else f".{each}" for each in (*place, name)]
    return "".join(parts).removeprefix(".")


def every_object() -> Iterator[ObjectFields]:
    """All kinds of objects that the APIs describe."""
    for objects in (
        C.OBJECTS,
        tools.OBJECTS,
        constraints.OBJECTS,
        R.OBJECTS,
        M.OBJECTS,
        reasoning.OBJECTS,
    ):
        yield from objects


def test_every_kind_of_object_has_its_place_in_these_tests() -> None:
    seen = [fields for _, _, fields in PLACES]
    assert [each for each in every_object() if each not in (*seen, *KEPT_ALONE)] == []


def asked_of(service: ScriptedService) -> tuple[Any, Any]:
    """What of a request reaches the engine: its prompt and how it is drawn."""
    request = service.requests[-1]
    return request.prompt_token_ids, request.params


def test_n06_at_every_depth_a_field_is_refused_by_its_path_or_changes_nothing(
    tmp_path: Path,
) -> None:
    """Kind B over every kind of object: unknown names, near ones, null, notes with any value."""
    chance = random.Random(17)

    async def walk(http: httpx2.AsyncClient, service: ScriptedService) -> list[Any]:
        wrong: list[Any] = []
        whole: dict[str, Any] = {}
        for path, body in BODIES.items():
            answer = await http.post(path, json=body)
            assert answer.status_code == 200, answer.text
            whole[path] = asked_of(service)
        for path, place, fields in PLACES:
            near = f"{chance.choice(fields.read)}x"
            for name in ("zz_unknown", near, fields.read[0].upper()):
                answer = await http.post(path, json=put(BODIES[path], place, name, {"a": 1}))
                told = answer.json()["error"]["message"] if answer.is_error else ""
                begins = f"{path_of(place, name)} is not a field of {fields.kind}."
                if answer.status_code != 400 or not told.startswith(begins):
                    wrong.append((path, place, name, answer.text[:200]))
            taken = [
                ("zz_unknown", None),
                *((name, chance.choice(ANYTHING)) for name in fields.notes),
            ]
            for name, value in taken:
                answer = await http.post(path, json=put(BODIES[path], place, name, value))
                if answer.status_code != 200 or asked_of(service) != whole[path]:
                    wrong.append((path, place, name, value, answer.text[:200]))
            for name, refusal in fields.refused.items():
                answer = await http.post(path, json=put(BODIES[path], place, name, {"on": 1}))
                if answer.status_code != 400 or refusal.advice not in answer.text:
                    wrong.append((path, place, name, answer.text[:200]))
                for value in refusal.neutral:
                    answer = await http.post(path, json=put(BODIES[path], place, name, value))
                    if answer.status_code != 200 or asked_of(service) != whole[path]:
                        wrong.append((path, place, name, value, answer.text[:200]))
        return wrong

    assert scripted(tmp_path, '{"a": 1}', walk, template=THINKING_TEMPLATE) == []


def every_place(value: object, begin: Place = ()) -> Iterator[Place]:
    """The paths to all that stands in a body."""
    inner = value.items() if isinstance(value, dict) else ()
    for each, part in enumerate(value) if isinstance(value, list) else inner:
        yield (*begin, each)
        yield from every_place(part, (*begin, each))


def test_any_json_value_at_any_place_is_answered_or_refused(tmp_path: Path) -> None:
    """An object for a kind of part was a fault of our own in three APIs."""
    values = ({}, [], [{}], {"a": {}}, True, 1.5, 10**30, "\0", None)

    async def walk(http: httpx2.AsyncClient, _: ScriptedService) -> list[Any]:
        wrong: list[Any] = []
        for path, body in BODIES.items():
            for *place, name in every_place(body):
                for value in values:
                    made = json.dumps(put(body, tuple(place), name, value))
                    answer = await http.post(
                        path, content=made, headers={"content-type": "application/json"}
                    )
                    if answer.status_code not in (200, 400, 404, 413):
                        wrong.append((path, place, name, value, answer.text[:200]))
        return wrong

    assert scripted(tmp_path, '{"a": 1}', walk, template=THINKING_TEMPLATE) == []


@pytest.mark.parametrize("fields", KEPT_ALONE, ids=lambda each: each.kind)
def test_objects_of_what_was_kept_refuse_what_nobody_knows(fields: ObjectFields) -> None:
    fields.check({"id": "x", "zz": None}, "at")
    with pytest.raises(RequestError, match=rf"at\.zz is not a field of {fields.kind}"):
        fields.check({"id": "x", "zz": 0}, "at")


def test_n06_openapi_says_of_every_object_what_is_taken(tmp_path: Path) -> None:
    """Every note and refusal of every kind of object stands in the schema of its API's body."""

    async def walk(http: httpx2.AsyncClient, _: ScriptedService) -> dict[str, Any]:
        return (await http.get("/openapi.json")).json()

    document = scripted(tmp_path, "x", walk)

    def titled(node: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(node, dict):
            if isinstance(node.get("title"), str) and "properties" in node:
                yield node["title"], node["properties"]
            for each in node.values():
                yield from titled(each)
        elif isinstance(node, list):
            for each in node:
                yield from titled(each)

    missing: list[Any] = []
    kinds = [(path, fields) for path, _, fields in PLACES]
    for path, fields in [*kinds, *((RESPONSES, each) for each in KEPT_ALONE)]:
        body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        shown = [names for title, names in titled(body["schema"]) if title == fields.kind]
        if not any(set(fields.names) <= set(names) for names in shown):
            missing.append((path, fields.kind))
        for names in shown:
            if set(fields.names) == set(names):
                assert all("without effect" in names[each]["description"] for each in fields.notes)
                assert all("not supported" in names[each]["description"] for each in fields.refused)
    assert missing == []


OTHER = {"name": "code_only", "allowed_callers": ["code_execution_20250825"]}


@pytest.mark.parametrize(
    ("path", "tool", "said"),
    [
        (MESSAGES, {"input_examples": [{"a": 7}]}, '{"a": 7}'),
        (MESSAGES, {"allowed_callers": ["direct", "code"]}, '"name": "f"'),
        (RESPONSES, {"output_schema": {"type": "integer"}}, '{"type": "integer"}'),
        (CHAT, {"function": {**FUNCTION, "return": {"type": "integer"}}}, '"return"'),
    ],
)
def test_what_a_tool_says_of_itself_reaches_the_prompt(
    tmp_path: Path, path: str, tool: dict[str, Any], said: str
) -> None:
    """And what only a provider's code may call does not."""

    async def walk(http: httpx2.AsyncClient, service: ScriptedService) -> str:
        tools = [{**BODIES[path]["tools"][0], **tool}]
        if path != CHAT:
            tools.append({**BODIES[path]["tools"][0], **OTHER})
        answer = await http.post(path, json={**BODIES[path], "tools": tools})
        assert answer.status_code == 200, answer.text
        return bytes(service.requests[-1].prompt_token_ids).decode()

    prompt = scripted(tmp_path, '{"a": 1}', walk)
    assert said in prompt.replace('\\"', '"') and "code_only" not in prompt


def test_a_summary_of_thoughts_reaches_the_prompt_where_they_were_kept_back(
    tmp_path: Path,
) -> None:
    from cutaway.server.openai.responses_input import messages_of

    item = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]}
    (message,) = messages_of(None, [item])
    assert message.reasoning == "Hm."
    whole = {**item, "content": [{"type": "reasoning_text", "text": "All of it."}]}
    (message,) = messages_of(None, [whole])
    assert message.reasoning == "All of it."


def test_messages_in_python_are_held_to_the_same(tmp_path: Path) -> None:
    content = [{"type": "text", "txet": "hello"}]
    with pytest.raises(
        RequestError, match=r"content\[0\]\.txet is not a field of a text part. Did"
    ):
        from_dicts([{"role": "user", "content": content}])
