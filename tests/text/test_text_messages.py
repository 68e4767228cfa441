"""Messages come in as OpenAI's dicts, are checked, and go out as templates expect them."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.core.errors import RequestError
from cutaway.text.chat_messages import (
    MAX_DEPTH,
    Message,
    Text,
    ToolCall,
    ToolResult,
    from_dicts,
    plain,
    to_dicts,
)

CALLS = [
    {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": [1, "b"]}'}}
]


def one(**fields: Any) -> Message:
    (message,) = from_dicts([{"role": "user", **fields}])
    return message


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "narrator"])
def test_h06_text_parts_of_every_role_are_joined_without_anything_between(role: str) -> None:
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    message = one(role=role, content=parts)
    assert message.content == (Text("one "), Text("two"))
    assert to_dicts([message]) == [{"role": role, "content": "one two"}]


def test_h06_a_tool_may_answer_in_parts() -> None:
    parts = [{"type": "text", "text": "21"}, {"type": "text", "text": " C"}]
    message = one(role="tool", tool_call_id="c1", name="f", content=parts)
    assert message.content == (ToolResult("21 C", "c1", "f"),)
    assert to_dicts([message]) == [
        {"role": "tool", "content": "21 C", "name": "f", "tool_call_id": "c1"}
    ]


@pytest.mark.parametrize("content", [None, ""])
def test_h06_an_assistant_that_only_calls_tools_has_no_content(content: str | None) -> None:
    message = one(role="assistant", content=content, tool_calls=CALLS)
    (fields,) = to_dicts([message])
    assert fields.get("content") == content and ("content" in fields) == (content is not None)
    function = {"name": "f", "arguments": {"a": [1, "b"]}}
    assert fields["tool_calls"] == [{"id": "c1", "type": "function", "function": function}]


@pytest.mark.parametrize(
    ("content", "param", "words"),
    [
        ([{"type": "image_url", "image_url": {"url": "x"}}], "[0].type", "image_url"),
        ([{"type": "text", "text": "a"}, {"type": "input_audio"}], "[1].type", "input_audio"),
        ([{"type": "text"}], "[0].text", "null; it must be a string"),
        ([{"type": "text", "text": 3}], "[0].text", "3; it must be a string"),
        ([{"text": "a"}], "[0].type", "null; this model reads parts"),
        ([{"type": {}}], "[0].type", "{}; this model reads parts"),
        ([{"type": ["text"]}], "[0].type", "; this model reads parts"),
        (["a"], "[0]", '"a"; it must be an object'),
        ([], "", "[]; it must be a string or a list"),
        (7, "", "7; it must be a string or a list"),
        ({"type": "text", "text": "a"}, "", "it must be a string or a list"),
        (None, "", "null; it must be a string or a list"),
    ],
)
def test_h06_a_part_that_is_not_text_is_refused_by_name(
    content: object, param: str, words: str
) -> None:
    with pytest.raises(RequestError) as caught:
        one(content=content)
    assert caught.value.param == f"messages[0].content{param}"
    assert words in str(caught.value) and str(caught.value).startswith(caught.value.param)


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user", "content": "\ud83d"}, "messages[0].content"),
        ({"role": "user\ud83d", "content": "a"}, "messages[0].role"),
        ({"role": "user", "content": "a", "name": "\udc00"}, "messages[0].name"),
        (
            {"role": "user", "content": [{"type": "text", "text": "\ud83d"}]},
            "messages[0].content[0].text",
        ),
        ({"role": "tool", "content": "\ud83d", "tool_call_id": "x"}, "messages[0].content"),
        ({"role": "assistant", "content": "a", "reasoning": "\ud83d"}, "messages[0].reasoning"),
        (
            {
                "role": "assistant",
                "tool_calls": [{"function": {"name": "f", "arguments": '{"a": "\\ud83d"}'}}],
            },
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            {
                "role": "assistant",
                "tool_calls": [{"function": {"name": "f", "arguments": "\ud83d"}}],
            },
            "messages[0].tool_calls[0].function.arguments",
        ),
    ],
)
def test_a_lone_surrogate_is_refused_wherever_it_stands(
    message: dict[str, Any], param: str
) -> None:
    with pytest.raises(RequestError, match="lone surrogate") as caught:
        from_dicts([message])
    assert caught.value.param == param


def test_n27_what_a_model_cannot_read_is_told_in_words_once_it_is_past() -> None:
    image = {"type": "image_url", "image_url": {"url": "x"}}
    asked = {"role": "user", "content": [{"type": "text", "text": "See "}, image]}
    with pytest.raises(RequestError, match="reads parts of type"):
        from_dicts([asked])
    past, *_ = from_dicts([asked, {"role": "user", "content": "Go on."}])
    assert past.text == "See [image_url: not shown, since this model reads text alone]"
    result = {"role": "tool", "tool_call_id": "c", "content": [image]}
    *_, told = from_dicts([{"role": "user", "content": "a"}, result])
    assert isinstance(told.content[0], ToolResult) and "not shown" in told.content[0].text


@pytest.mark.parametrize("name", ["id", "cache_control", "annotations", "status"])
def test_n27_notes_of_clients_on_a_message_change_nothing(name: str) -> None:
    assert one(content="a", **{name: {"type": "ephemeral"}}) == one(content="a")


@pytest.mark.parametrize(
    ("role", "meant"),
    [("asistant", "assistant"), ("User", "user"), ("systen", "system"), ("tools", "tool")],
)
def test_a_misspelt_role_is_refused_with_its_neighbour(role: str, meant: str) -> None:
    with pytest.raises(RequestError, match=f"did you mean {meant}") as caught:
        one(role=role, content="a")
    assert caught.value.param == "messages[0].role"


@pytest.mark.parametrize("role", ["narrator", "ipython", "model", "documents", "critic"])
def test_a_role_of_a_models_own_is_taken(role: str) -> None:
    assert one(role=role, content="a").role == role


def test_a_refusal_is_what_the_assistant_said() -> None:
    assert one(role="assistant", content=None, refusal="No.").text == "No."
    part = {"type": "refusal", "refusal": "No."}
    assert one(role="assistant", content=[part]).text == "No."


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "assistant", "content": "a", "prefix": True}, {"role": "user", "content": "b"}],
        [{"role": "user", "content": "b", "prefix": True}],
        [{"role": "assistant", "content": "b", "prefix": "yes"}],
    ],
)
def test_only_the_assistants_last_message_is_continued(messages: list[Any]) -> None:
    with pytest.raises(RequestError) as caught:
        from_dicts(messages)
    assert str(caught.value.param).endswith(".prefix")


@pytest.mark.parametrize("messages", [None, [], {}, "hello", 3, ({"role": "user"} for _ in "a")])
def test_messages_must_be_a_list_of_at_least_one(messages: object) -> None:
    with pytest.raises(RequestError, match=r"messages is .*; it must be a list of at least one"):
        from_dicts(messages)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("a", r'messages\[0\] is "a"; it must be an object'),
        ({"content": "a"}, r"messages\[0\].role is null; it must be a string"),
        ({"role": 1, "content": "a"}, r"messages\[0\].role is 1; it must be a string"),
        ({1: "a"}, r"messages\[0\] is 1; it must be a string"),
        ({"role": "user"}, r"messages\[0\].content is null"),
        ({"role": "system"}, r"messages\[0\].content is null"),
        (
            {"role": "user", "content": "a", "prefixes": True},
            r"prefixes is not a field of a message. Did you mean prefix\?",
        ),
        ({"role": "assistant", "tool_calls": {}}, r"tool_calls is {}; it must be a list"),
        ({"role": "assistant", "tool_calls": [3]}, r"tool_calls\[0\] is 3; it must be an object"),
        ({"role": "assistant", "tool_calls": [{}]}, r"tool_calls\[0\].function is null"),
        (
            {"role": "assistant", "tool_calls": [{"type": "custom", "function": {"name": "f"}}]},
            r'tool_calls\[0\].type is "custom"; it must be "function"',
        ),
        ({"role": "assistant", "tool_calls": [{"function": {}}]}, r"function.name is null"),
    ],
)
def test_a_malformed_message_is_refused_with_its_field(message: object, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        from_dicts([message])


def test_fields_that_a_client_sends_empty_are_ignored() -> None:
    dumped = {
        "role": "assistant",
        "content": "a",
        "refusal": None,
        "annotations": [],
        "tool_calls": None,
    }
    assert from_dicts([dumped]) == (Message("assistant", (Text("a"),)),)


@pytest.mark.parametrize("name", ["reasoning_content", "thinking", "reasoning"])
def test_reasoning_goes_by_any_of_its_names(name: str) -> None:
    message = one(role="assistant", content="4", **{name: "2+2"})
    assert message.reasoning == "2+2"
    assert to_dicts([message]) == [
        {"role": "assistant", "content": "4", "reasoning_content": "2+2", "thinking": "2+2"}
    ]


def test_tool_results_and_words_of_one_message_are_told_apart() -> None:
    message = Message("user", (ToolResult("21", "c1"), Text("and "), Text("now?")))
    assert to_dicts([message]) == [
        {"role": "tool", "content": "21", "tool_call_id": "c1"},
        {"role": "user", "content": "and now?"},
    ]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"a": 1}', {"a": 1}),
        ({"a": 1}, {"a": 1}),
        ("{}", {}),
        (None, {}),
        ("", {}),
        (" \n", {}),
        ("null", {}),
        ("not json", "not json"),
        ("[1]", "[1]"),
        ('{"a": NaN}', '{"a": NaN}'),
        ('{"a": 1', '{"a": 1'),
        ("1" * 5000, "1" * 5000),
    ],
)
def test_arguments_are_an_object_where_they_are_json_and_words_where_not(
    arguments: object, expected: object
) -> None:
    calls = [{"function": {"name": "f", "arguments": arguments}}]
    assert one(role="assistant", tool_calls=calls).content == (ToolCall("f", expected),)  # pyright: ignore


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 100_000])
def test_deep_arguments_are_refused(depth: int) -> None:
    calls = [{"function": {"name": "f", "arguments": '{"a":' * depth + "1" + "}" * depth}}]
    with pytest.raises(RequestError, match="nested too deeply; at most 64 levels"):
        one(role="assistant", tool_calls=calls)


def test_plain_data_is_copied_down_to_json_types() -> None:
    class Loud(str):
        def upper(self) -> str:
            raise AssertionError("a template reached the caller's own method")

    copied = plain({Loud("a"): (Loud("b"), 1, 2.5, True, None)}, "tools")
    assert copied == {"a": ["b", 1, 2.5, True, None]}
    assert isinstance(copied, dict)
    (key, value) = next(iter(copied.items()))
    assert type(key) is str and isinstance(value, list) and type(value[0]) is str


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (float("nan"), "numbers must be finite"),
        (float("inf"), "numbers must be finite"),
        (1 << 256, "257 bits; at most 256"),
        ({1: 2}, "1; it must be a string"),
        (b"a", "only JSON's types"),
        ({"a"}, "only JSON's types"),
        (sys, "only JSON's types"),
    ],
)
def test_data_that_json_does_not_know_is_refused(value: object, words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        plain([value], "tools")
    assert caught.value.param == "tools"


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**255), 2**255)
    | st.text(max_size=5)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(value=json_values)
def test_what_json_knows_is_copied_unchanged(value: object) -> None:
    assert plain(value, "tools") == value


@given(
    st.lists(
        st.tuples(st.sampled_from(["user", "assistant", "system"]), st.text(max_size=9)), min_size=1
    )
)
def test_i04_messages_come_out_as_they_went_in(turns: list[tuple[str, str]]) -> None:
    dicts = [{"role": role, "content": text} for role, text in turns]
    assert to_dicts(from_dicts(dicts)) == dicts
