"""Sessions of agents that must go on: what an API said, or its clients keep, can be sent back.

Public reports: openai/codex#23186, vllm-project/vllm#46737, raullenchai/Rapid-MLX#2114 and
router-for-me/CLIProxyAPI#4255 (tools in a namespace), sgl-project/sglang#35216, ollama/ollama#18286
and lidge-jun/opencodex#3911 (agent_message), openai/codex#45401 (compaction),
anthropics/claude-code#19882 (long names), microsoft/vscode-copilot-release#11653 (many tools),
ollama/ollama#17774 (orders amid a conversation), scouzi1966/maclocal-api#67 (names of results).
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import httpx2
import jsonschema
import pytest
from scripted import ScriptedService, scripted
from server_app import events as chat_events
from test_server_histories import TOOL
from test_server_tools import prompt_of

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
Item = dict[str, Any]

SEARCH = {"type": "function", "name": "search", "description": "Finds.", "parameters": TOOL}
PATCH = {"type": "custom", "name": "patch", "description": "Patches."}
SPACES = [
    {"type": "namespace", "name": "mcp__code__", "description": "Of code.", "tools": [SEARCH]},
    {"type": "namespace", "name": "files", "tools": [SEARCH, PATCH]},
    {**SEARCH, "name": "plain"},
]
TOLD = {
    "mcp__code__search": ("search", "mcp__code__"),
    "files__search": ("search", "files"),
    "plain": ("plain", None),
}


def calling(name: str, arguments: str = "{}") -> str:
    """What a model writes to call a tool."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


class WideService(ScriptedService):
    """One with room for many tools."""

    def __init__(self, script: str, *, seed: int = 0) -> None:
        super().__init__(script, seed=seed)
        self.model = dataclasses.replace(self.model, max_length=100_000)


def posted(folder: Path, path: str, script: str = "Fine.", **fields: Any) -> tuple[Any, str]:
    """An answer, and the prompt that the request gave."""

    async def ask(http: httpx2.AsyncClient, service: ScriptedService) -> tuple[Any, str]:
        answer = await http.post(path, json={"model": "tiny", **fields})
        return answer, prompt_of(service) if service.requests else ""

    return scripted(folder, script, ask, kind=WideService)


def input_of(*items: Item) -> list[Item]:
    return [{"role": "user", "content": "Find it."}, *items]


@pytest.mark.parametrize("told", TOLD)
def test_a_call_of_a_tool_in_a_namespace_comes_back_under_both_names(
    tmp_path: Path, told: str
) -> None:
    answer, prompt = posted(tmp_path, RESPONSES, calling(told), input="Find.", tools=SPACES)
    assert all(f'"{each}"' in prompt for each in (*TOLD, "files__patch")) and "Of code." in prompt
    (call,) = answer.json()["output"]
    assert (call["name"], call.get("namespace")) == TOLD[told]
    given = input_of(
        call, {"type": "function_call_output", "call_id": call["call_id"], "output": "3"}
    )
    again, prompt = posted(tmp_path, RESPONSES, input=given, tools=SPACES)
    assert again.status_code == 200 and f'"name": "{told}"' in prompt.split("user:")[1]


def test_a_stream_tells_the_namespace_from_the_first_event_of_a_call(tmp_path: Path) -> None:
    script = calling("files__patch", '{"input": "+a"}')
    answer, _ = posted(tmp_path, RESPONSES, script, input="Go.", tools=SPACES, stream=True)
    lines = [line for line in answer.text.splitlines() if line.startswith("data: ")]
    told = [json.loads(line.removeprefix("data: ")) for line in lines]
    items = [each["item"] for each in told if "item" in each]
    assert [each["type"] for each in items] == ["custom_tool_call"] * 2
    assert all((each["name"], each["namespace"]) == ("patch", "files") for each in items)
    assert items[-1]["input"] == "+a"


@pytest.mark.parametrize(
    ("choice", "told"),
    [
        ({"type": "function", "name": "search", "namespace": "files"}, "files__search"),
        ({"type": "function", "name": "mcp__code__search"}, "mcp__code__search"),
        ({"type": "custom", "name": "patch"}, "files__patch"),
    ],
)
def test_a_tool_in_a_namespace_can_be_asked_for(tmp_path: Path, choice: Item, told: str) -> None:
    answer, _ = posted(
        tmp_path, RESPONSES, calling(told), input="Go.", tools=SPACES, tool_choice=choice
    )
    assert answer.status_code == 200, answer.text
    vague = {"type": "function", "name": "search"}  # which of the two?
    answer, _ = posted(tmp_path, RESPONSES, input="Go.", tools=SPACES, tool_choice=vague)
    assert answer.status_code == 400 and "mcp__code__search" in answer.text


def test_calls_of_tools_in_no_namespace_may_name_the_plain_one(tmp_path: Path) -> None:
    call = {"type": "function_call", "call_id": "c", "name": "plain", "arguments": "{}"}
    _, plain = posted(tmp_path, RESPONSES, input=input_of(call), tools=SPACES)
    named = {**call, "namespace": "functions"}
    assert posted(tmp_path, RESPONSES, input=input_of(named), tools=SPACES)[1] == plain


@pytest.mark.parametrize("kind", ["additional_tools", "tool_search_output"])
def test_tools_that_stand_in_the_input_are_offered(tmp_path: Path, kind: str) -> None:
    given = input_of({"type": kind, "tools": [SEARCH, SPACES[0]]})
    answer, prompt = posted(tmp_path, RESPONSES, calling("search"), input=given)
    assert '"search"' in prompt and '"mcp__code__search"' in prompt
    assert answer.json()["output"][0]["type"] == "function_call"
    wrong = input_of({"type": kind, "tools": [{"type": "function", "name": "a b"}]})
    answer, _ = posted(tmp_path, RESPONSES, input=wrong)
    assert answer.json()["error"]["param"] == "input[1].tools[0].name"


PICTURE = "data:image/png;base64," + "iVBORw0KGgo" * 200
PROVIDERS: list[tuple[Item, str]] = [
    ({"type": "web_search_call", "id": "x", "action": {"query": "wordone"}}, "wordone"),
    ({"type": "local_shell_call", "call_id": "c", "action": {"command": ["wordone"]}}, "wordone"),
    ({"type": "local_shell_call_output", "call_id": "c", "output": "wordone"}, "wordone"),
    ({"type": "shell_call_output", "call_id": "c", "output": [{"stdout": "wordone"}]}, "wordone"),
    ({"type": "mcp_call", "name": "wordone", "arguments": "{}", "output": "4"}, "wordone"),
    ({"type": "mcp_list_tools", "server_label": "wordone", "tools": []}, "wordone"),
    ({"type": "code_interpreter_call", "code": "print('wordone')"}, "print('wordone')"),
    ({"type": "image_generation_call", "result": PICTURE}, "not shown"),
    ({"type": "computer_call_output", "output": {"image_url": PICTURE}}, "not shown"),
    ({"type": "compaction", "encrypted_content": "gAAAAAB" + "x" * 2000}, "not shown"),
    ({"type": "compaction_summary", "encrypted_content": "y" * 2000}, "not shown"),
]


@pytest.mark.parametrize(("item", "told"), PROVIDERS)
def test_what_a_providers_tools_left_in_a_history_is_told(
    tmp_path: Path, item: Item, told: str
) -> None:
    given = [*input_of(item), {"role": "user", "content": "And now?"}]
    answer, prompt = posted(tmp_path, RESPONSES, input=given)
    assert answer.status_code == 200, answer.text
    assert f"[{item['type']}: " in prompt and told in prompt and "And now?" in prompt
    assert "iVBORw0KGgoiVBOR" not in prompt and "xxxx" not in prompt


@pytest.mark.parametrize("kind", ["compaction_trigger", "context_compaction", "nonsense", "_call"])
def test_what_would_ask_for_more_than_an_answer_is_refused_by_its_place(
    tmp_path: Path, kind: str
) -> None:
    answer, _ = posted(tmp_path, RESPONSES, input=input_of({"type": kind}))
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "input[1].type"


def test_what_one_agent_tells_another_reaches_the_prompt(tmp_path: Path) -> None:
    task = {
        "type": "agent_message",
        "id": "amsg_1",
        "author": "main",
        "recipient": "main/child",
        "content": [
            {"type": "input_text", "text": "Count words. "},
            {"type": "encrypted_content", "encrypted_content": "In wordone.md."},
        ],
    }
    _, prompt = posted(tmp_path, RESPONSES, input=[task])
    assert "user: [from main to main/child]\nCount words. In wordone.md." in prompt
    task["content"] = [{"type": "encrypted_content", "encrypted_content": "gAAAAABsecret"}]
    _, prompt = posted(tmp_path, RESPONSES, input=[task])
    assert "secret" not in prompt and "not shown" in prompt
    task["content"] = [{"type": "input_text", "txt": "a"}]
    answer, _ = posted(tmp_path, RESPONSES, input=[task])
    assert answer.json()["error"]["param"] == "input[0].content[0].txt"


def tool_of(path: str, name: str) -> Item:
    """A tool as an API writes it."""
    if path == MESSAGES:
        return {"name": name, "input_schema": TOOL}
    function = {"name": name, "parameters": TOOL}
    if path == RESPONSES:
        return {"type": "function", **function}
    return {"type": "function", "function": function}


def body_of(path: str, **fields: Any) -> Item:
    """A question as an API writes it."""
    said = [{"role": "user", "content": "Hi"}]
    more = {"input": said} if path == RESPONSES else {"messages": said}
    return {**more, **({"max_tokens": 99} if path == MESSAGES else {}), **fields}


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_names_may_be_long_and_tools_many(tmp_path: Path, path: str) -> None:
    long = "mcp__plugin_chrome-devtools-mcp_chrome-devtools__get_console_message"
    names = [long, "x" * 128, *(f"tool{index}" for index in range(298))]
    tools = [tool_of(path, name) for name in names]
    answer, prompt = posted(tmp_path, path, **body_of(path, tools=tools))
    assert answer.status_code == 200, answer.text
    assert long in prompt and "tool297" in prompt
    answer, _ = posted(tmp_path, path, **body_of(path, tools=[tool_of(path, "x" * 129)]))
    assert answer.status_code == 400 and "1 to 128 letters" in answer.text


def said_again(path: str, answer: Item) -> Item:
    """The conversation with an answer sent back, as a client does that keeps what it was sent."""
    first, last = {"role": "user", "content": "Hi"}, {"role": "user", "content": "And?"}
    if path == RESPONSES:
        return {"input": [first, *answer["output"], last]}
    if path == MESSAGES:
        back = {"role": "assistant", "content": answer["content"]}
        return {"messages": [first, back, last], "max_tokens": 99}
    return {"messages": [first, answer["choices"][0]["message"], last]}


SCRIPTS = {
    "words": "Fine.",
    "nothing": "",
    "a call": calling("f"),
    "words and a call": f"Well. {calling('f')}",
    "a call that was cut": '<tool_call>\n{"name": "f", "arg',
}


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_whatever_an_api_answers_can_be_sent_back(tmp_path: Path, path: str, script: str) -> None:
    tools = {"tools": [tool_of(path, "f")]}
    answer, _ = posted(tmp_path, path, SCRIPTS[script], **body_of(path, **tools))
    assert answer.status_code == 200, answer.text
    again, prompt = posted(tmp_path, path, **said_again(path, answer.json()), **tools)
    assert again.status_code == 200 and "And?" in prompt, again.text


def test_a_client_that_keeps_content_alone_can_go_on_after_thoughts_that_were_cut(
    tmp_path: Path,
) -> None:
    given = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None},
        {"role": "user", "content": "And?"},
    ]
    answer, prompt = posted(tmp_path, CHAT, messages=given)
    assert answer.status_code == 200 and prompt == "user: Hiassistant: user: And?assistant:"


@pytest.mark.parametrize("nothing", [None, [], ""])
def test_a_function_may_have_no_result(tmp_path: Path, nothing: Any) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    said = {"role": "user", "content": "Hi"}
    histories: dict[str, Item] = {
        CHAT: {
            "messages": [
                said,
                {"role": "assistant", "content": nothing, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c", "content": nothing},
            ]
        },
        RESPONSES: {
            "input": [
                said,
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": nothing},
            ]
        },
        MESSAGES: {
            "max_tokens": 9,
            "messages": [
                said,
                {
                    "role": "assistant",
                    "content": [
                        {"type": "tool_use", "id": "c", "name": "f", "input": nothing or {}}
                    ],
                },
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": "c", "content": nothing}],
                },
            ],
        },
    }
    prompts = set[str]()
    for path, fields in histories.items():
        answer, prompt = posted(tmp_path, path, **fields, tools=[tool_of(path, "f")])
        assert answer.status_code == 200, answer.text
        prompts.add(prompt)
    assert len(prompts) == 1, prompts


def test_three_apis_tell_results_out_of_order_alike(tmp_path: Path) -> None:
    ids = ("a", "b")
    calls = [
        {"id": each, "type": "function", "function": {"name": f"f{each}", "arguments": "{}"}}
        for each in ids
    ]
    said = {"role": "user", "content": "Hi"}
    chat: Item = {
        "messages": [
            said,
            {"role": "assistant", "content": None, "tool_calls": calls},
            *({"role": "tool", "tool_call_id": each, "content": f"of {each}"} for each in "ba"),
        ],
    }
    responses: Item = {
        "input": [
            said,
            *(
                {"type": "function_call", "call_id": each, "name": f"f{each}", "arguments": "{}"}
                for each in ids
            ),
            *(
                {"type": "function_call_output", "call_id": each, "output": f"of {each}"}
                for each in "ba"
            ),
        ]
    }
    uses = [{"type": "tool_use", "id": each, "name": f"f{each}", "input": {}} for each in ids]
    results = [
        {"type": "tool_result", "tool_use_id": each, "content": f"of {each}"} for each in "ba"
    ]
    messages: Item = {
        "max_tokens": 9,
        "messages": [
            said,
            {"role": "assistant", "content": uses},
            {"role": "user", "content": results},
        ],
    }
    prompts = {
        posted(tmp_path, path, **fields, tools=[tool_of(path, f"f{each}") for each in ids])[1]
        for path, fields in ((CHAT, chat), (RESPONSES, responses), (MESSAGES, messages))
    }
    assert len(prompts) == 1
    (prompt,) = prompts
    assert prompt.index("of a") < prompt.index("of b")


def test_orders_amid_a_conversation_do_not_end_it(tmp_path: Path) -> None:
    strict = (
        "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
        "{{ raise_exception('System message must be at the beginning.') }}{% endif %}"
        "{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
    )
    said = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yes?"},
        {"role": "system", "content": "Agents: none."},
        {"role": "user", "content": "And?"},
    ]
    bodies: list[tuple[str, Item]] = [
        (CHAT, {"messages": said}),
        (RESPONSES, {"input": said}),
        (MESSAGES, {"messages": said, "max_tokens": 9, "system": "Be brief."}),
    ]
    for path, fields in bodies:

        async def ask(
            http: httpx2.AsyncClient,
            service: ScriptedService,
            path: str = path,
            fields: Item = fields,
        ) -> str:
            answer = await http.post(path, json={"model": "tiny", **fields})
            assert answer.status_code == 200, answer.text
            return prompt_of(service)

        prompt = scripted(tmp_path, "Fine.", ask, template=strict)
        assert prompt.endswith("assistant: Yes?\nuser: Agents: none.\nuser: And?\nassistant:")


def test_a_chat_streams_the_name_that_the_model_was_told(tmp_path: Path) -> None:
    """In chat there are no namespaces: names come back as they were sent."""
    tools = [tool_of(CHAT, "mcp__code__search")]
    answer, _ = posted(
        tmp_path, CHAT, calling("mcp__code__search"), **body_of(CHAT, tools=tools, stream=True)
    )
    deltas = [each["choices"][0]["delta"] for each in chat_events(answer.text)[:-1]]
    (first, *_) = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    assert first["function"]["name"] == "mcp__code__search" and first["index"] == 0 and first["id"]


SWITCHED = "{% for m in messages %}{{ m.content }}{% endfor %}<think>[{{ thinking }}]"


def thought_of(folder: Path, template: str, **fields: Any) -> tuple[int, str]:
    async def ask(http: httpx2.AsyncClient, service: ScriptedService) -> tuple[int, str]:
        answer = await http.post(CHAT, json={"model": "tiny", **body_of(CHAT, **fields)})
        return answer.status_code, prompt_of(service) if service.requests else answer.text

    return scripted(folder, "Fine.", ask, template=template)


@pytest.mark.parametrize("name", ["thinking", "enable_thinking"])
@pytest.mark.parametrize(
    ("on", "off"),
    [
        ({"thinking": {"type": "enabled"}}, {"thinking": {"type": "disabled"}}),
        ({"thinking": True}, {"thinking": False}),
        ({"enable_thinking": True}, {"enable_thinking": False}),
        ({"reasoning": {"enabled": True}}, {"reasoning": {"enabled": False}}),
        ({"reasoning": {"effort": "high", "max_tokens": 9}}, {"reasoning": {"effort": "none"}}),
        ({"reasoning_effort": "low"}, {"reasoning_effort": "none"}),
    ],
)
def test_every_way_to_ask_for_thoughts_reaches_the_template(
    tmp_path: Path, name: str, on: Item, off: Item
) -> None:
    """vllm-project/vllm#25234, sgl-project/sglang#9488, SillyTavern/SillyTavern#5526,
    MinLL/SkyrimNet-GamePlugin#451, abue-ammar/tinycast#973, danny-avila/LibreChat#6076.
    """
    template = SWITCHED.replace("{{ thinking }}", f"{{{{ {name} }}}}")
    assert thought_of(tmp_path, template, **on) == (200, "Hi<think>[True]")
    assert thought_of(tmp_path, template, **off) == (200, "Hi<think>[False]")
    plain = "{% for m in messages %}{{ m.content }}{% endfor %}"
    assert thought_of(tmp_path, plain, **on) == thought_of(tmp_path, plain, **off) == (200, "Hi")


def test_two_fields_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    both = {"reasoning_effort": "high", "thinking": {"type": "disabled"}}
    status, told = thought_of(tmp_path, SWITCHED, **both)
    assert status == 400 and json.loads(told)["error"]["param"] == "thinking"
    status, told = thought_of(tmp_path, SWITCHED, reasoning={"exclude": True})
    assert status == 400 and json.loads(told)["error"]["param"] == "reasoning.exclude"


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_content": "Let me see."},
        {"reasoning_text": "Let me see."},
        {"reasoning_details": [
            {"type": "reasoning.text", "text": "Let me ", "index": 0, "format": "x"},
            {"type": "reasoning.summary", "summary": "see."},
            {"type": "reasoning.encrypted", "data": "gAAAA"},
        ]},
        {"thinking_blocks": [{"type": "thinking", "thinking": "Let me see.", "signature": "s"}]},
        {"reasoning": "Let me see.", "reasoning_details": [{"text": "Other."}]},
        {"reasoning_content": "Let me see.", "id": 1947269257, "opts": {"visible": False}},
    ],
)  # fmt: skip
def test_thoughts_come_back_under_every_name_that_others_have(tmp_path: Path, fields: Item) -> None:
    """earendil-works/pi#4514, BerriAI/litellm#30835, NousResearch/hermes-agent#34182,
    can1357/oh-my-pi#1157, vllm-project/vllm#10463.
    """
    template = "{% for m in messages %}<{{ m.reasoning_content }}>{{ m.content }}{% endfor %}"
    said = {"role": "assistant", "content": "Yes?", **fields}
    status, prompt = thought_of(
        tmp_path, template, messages=[{"role": "user", "content": "Hi"}, said]
    )
    assert status == 200 and prompt.endswith("<Let me see.>Yes?"), prompt


def test_what_anthropics_tools_left_in_a_history_is_told_without_what_nobody_reads(
    tmp_path: Path,
) -> None:
    found = {"type": "web_search_result", "title": "wordone", "encrypted_content": "x" * 3000}
    blocks = [
        {"type": "compaction", "content": "So far: wordtwo."},
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}},
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": [found]},
        {"type": "text", "text": "Found."},
    ]
    said = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": blocks},
        {"role": "user", "content": "And?"},
    ]
    answer, prompt = posted(tmp_path, MESSAGES, messages=said, max_tokens=9)
    assert answer.status_code == 200, answer.text
    assert all(word in prompt for word in ("wordone", "wordtwo", "not shown", "Found.", "And?"))
    assert "xxxx" not in prompt


@pytest.mark.parametrize(
    "parameters",
    [
        {"$defs": {"A": {**TOOL, "properties": {"x": {"type": "integer"}}, "required": ["x"]}},
         "$ref": "#/$defs/A"},
        {"type": "object", "oneOf": [
            {"properties": {"k": {"const": "a"}}, "required": ["k"]},
            {"properties": {"k": {"const": "b"}}, "required": ["k"]},
        ]},
        {"type": "object", "anyOf": [{"properties": {"x": {"enum": [1]}}, "required": ["x"]}]},
        {"allOf": [{"properties": {"x": {"enum": [1]}}, "required": ["x"]}]},
    ],
)  # fmt: skip
def test_a_forced_call_follows_a_schema_that_lists_its_names_elsewhere(
    asked_at_length: Any, parameters: Item
) -> None:
    """firecrawl/firecrawl#4512, openai/openai-node#1997: names in $ref, oneOf, anyOf or allOf."""
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}

    async def ask(http: httpx2.AsyncClient, _: Any) -> Any:
        body = body_of(CHAT, tools=[tool], tool_choice="required", max_tokens=200)
        return await http.post(CHAT, json={"model": "tiny", **body})

    answer = asked_at_length(ask)
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    arguments = choice["message"]["tool_calls"][0]["function"]["arguments"]
    if choice["finish_reason"] != "length":
        jsonschema.validate(json.loads(arguments), parameters)
    assert arguments.startswith('{"')
