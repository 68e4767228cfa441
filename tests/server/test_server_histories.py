"""Histories through all three APIs: what was sent reaches the prompt, and answers go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import pytest
from scripted import ScriptedService, scripted
from server_app import chat
from test_server_tools import prompt_of

# As published ones do: it adds to contents, and knows four roles.
ADDING = (
    "{% for m in messages %}{% if m.role in ['system', 'user', 'assistant', 'tool'] %}"
    "{{ m.role + ': ' + m.content }}{% for c in m.tool_calls or [] %}"
    "<tool_call>{{ c.function.name }} {{ c.function.arguments | tojson }}</tool_call>"
    "{% endfor %}{{ '\n' }}{% endif %}{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
TOOL = {"type": "object", "properties": {}}


def asked(folder: Path, path: str, **fields: Any) -> str:
    """The prompt that a request gave."""

    async def ask(http: httpx2.AsyncClient, service: ScriptedService) -> str:
        answer = await http.post(path, json={"model": "tiny", **fields})
        assert answer.status_code == 200, answer.text
        return prompt_of(service)

    return scripted(folder, "Fine.", ask, template=ADDING)


HISTORIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": [
            {"role": "user", "content": "Weather?"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "c", "type": "function", "function": {"name": "f", "arguments": ""}}
                ],
            },
            {"role": "tool", "tool_call_id": "c", "content": "3"},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": TOOL}}],
    },
    "/v1/responses": {
        "input": [
            {"role": "user", "content": "Weather?"},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": ""},
            {"type": "function_call_output", "call_id": "c", "output": "3"},
        ],
        "tools": [{"type": "function", "name": "f", "parameters": TOOL}],
    },
    "/v1/messages": {
        "max_tokens": 9,
        "messages": [
            {"role": "user", "content": "Weather?"},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}],
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "c", "content": "3"}],
            },
        ],
        "tools": [{"name": "f", "input_schema": TOOL}],
    },
}


@pytest.mark.parametrize("path", HISTORIES)
def test_n01_n02_a_call_without_words_comes_back_in_every_api(tmp_path: Path, path: str) -> None:
    prompt = asked(tmp_path, path, **HISTORIES[path])
    assert "assistant: <tool_call>f {}</tool_call>\ntool: 3\n" in prompt


def test_n03_a_developers_words_reach_the_prompt(tmp_path: Path) -> None:
    given = [{"role": "developer", "content": "SECRETWORD"}, {"role": "user", "content": "Hi"}]
    for path, fields in (
        ("/v1/responses", {"input": given}),
        ("/v1/chat/completions", {"messages": given}),
        ("/v1/responses", {"instructions": "SECRETWORD", "input": "Hi"}),
    ):
        assert asked(tmp_path, path, **fields).startswith("system: SECRETWORD\nuser: Hi\n")


def test_n03_what_a_template_leaves_out_is_refused_in_the_apis_own_place(tmp_path: Path) -> None:
    given = [{"role": "user", "content": "Hi"}, {"role": "narrator", "content": "Rain."}]

    async def ask(http: httpx2.AsyncClient, _: ScriptedService) -> Any:
        return (await http.post("/v1/chat/completions", json=chat(messages=given))).json()

    error = scripted(tmp_path, "x", ask, template=ADDING)["error"]
    assert error["param"] == "messages[1]" and "narrator" in error["message"]


OPENED = "According to "


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/messages", {"max_tokens": 9}),
        ("/v1/chat/completions", {"continue_final_message": True}),
        (
            "/v1/chat/completions",
            {"continue_final_message": True, "add_generation_prompt": False},
        ),
    ],
)
def test_an_assistants_message_is_continued(
    tmp_path: Path, path: str, fields: dict[str, Any]
) -> None:
    given = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": OPENED}]
    prompt = asked(tmp_path, path, messages=given, **fields)
    assert prompt == f"user: Hi\nassistant: {OPENED}"
    given[1]["prefix"] = True  # type: ignore[assignment]
    if path == "/v1/chat/completions":
        assert asked(tmp_path, path, messages=given) == prompt


def test_without_being_asked_a_chat_begins_a_new_message(tmp_path: Path) -> None:
    given = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": OPENED}]
    prompt = asked(tmp_path, "/v1/chat/completions", messages=given)
    assert prompt == f"user: Hi\nassistant: {OPENED}\nassistant:"
    bare = asked(tmp_path, "/v1/chat/completions", messages=given, add_generation_prompt=False)
    assert bare == f"user: Hi\nassistant: {OPENED}\n"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": [{"role": "user", "content": "Hi"}]}, "messages[0]"),
        ({"add_generation_prompt": True}, "continue_final_message"),
        ({"response_format": {"type": "json_object"}}, "messages[1]"),
    ],
)
def test_what_cannot_be_continued_is_refused(
    tmp_path: Path, fields: dict[str, Any], param: str
) -> None:
    given = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": OPENED}]

    async def ask(http: httpx2.AsyncClient, _: ScriptedService) -> Any:
        sent = {"messages": given, "continue_final_message": True, **fields}
        answer = await http.post("/v1/chat/completions", json=chat(**sent))
        assert answer.status_code == 400
        return answer.json()["error"]["param"]

    assert scripted(tmp_path, "x", ask, template=ADDING) == param
