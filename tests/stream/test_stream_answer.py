"""Content, reasoning and calls in an answer's text: every format, every way of cutting it."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.core.errors import ConfigError
from cutaway.stream.answer import AnswerParser
from cutaway.stream.formats import (
    BY_NAME,
    FORMATS,
    ReasoningFormat,
    choose_format,
    choose_reasoning,
    knows_tools,
)
from cutaway.stream.text_events import (
    CallArguments,
    CallEnd,
    CallStart,
    Event,
    ParsedAnswer,
    ParsedCall,
    gather,
)

THINK = ReasoningFormat()

# format, text, content, calls
WHOLE: list[tuple[str, str, str, list[tuple[str, Any]]]] = [
    (
        "hermes",
        'Hi.\n<tool_call>\n{"name": "f", "arguments": {"a": "</tool_call>\\""}}\n</tool_call>\n'
        '<tool_call>{"arguments": {}, "name": "g"}</tool_call>\n',
        "Hi.",
        [("f", {"a": '</tool_call>"'}), ("g", {})],
    ),
    ("hermes", '<tool_call>{"name": "f"}</tool_call> and more', " and more", [("f", {})]),
    ("hermes", '<tool_call>{"name": "f", "parameters": {"a": [1]}}', "", [("f", {"a": [1]})]),
    ("hermes", '<tool_call>{"name": "f"}</tool', "", [("f", {})]),
    (
        "llama3",
        ' {"name": "f", "parameters": {"a": {"b": "}"}}}; {"name": "g", "parameters": {}}\n',
        "",
        [("f", {"a": {"b": "}"}}), ("g", {})],
    ),
    ("llama3", '<|python_tag|>{"name": "f", "parameters": {}}', "", [("f", {})]),
    ("llama3", '{"name": "f", "parameters": {}}\n\nso', "\n\nso", [("f", {})]),
    (
        "mistral",
        'So:\n[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]',
        "So:",
        [("f", {"a": 1}), ("g", {})],
    ),
    ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {}}, oops]', ", oops]", [("f", {})]),
    (
        "pythonic",
        "[f(a=1, b=\"x]\", c=[None, {'k': True}]), g.h()]",
        "",
        [("f", {"a": 1, "b": "x]", "c": [None, {"k": True}]}), ("g.h", {})],
    ),
    ("pythonic", "[f(a='it\\'s')] done", " done", [("f", {"a": "it's"})]),
    ("line", "So.\n TOOL f : 1*2 \nmore", "So.\nmore", [("f", {"argument": "1*2"})]),
    ("line", "TOOL f:", "", [("f", {"argument": ""})]),
]

# None of these is a call, and each comes back as it is.
BROKEN: list[tuple[str, str]] = [
    ("hermes", "plain  \n text \n"),
    ("hermes", "a <tool <tool_cal l> x"),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call> rest'),
    ("hermes", '<tool_call>{"name": "f"} tail</tool_call>'),
    ("hermes", '<tool_call>\n{"name": 5}\n</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments": "x"}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments": {}, "parameters": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "cut of'),
    ("hermes", "<tool_call>\n<tool_call>\n"),
    ("hermes", "<tool_call>" + "{" * 5000),
    ("llama3", '{"name": "Bob"} is JSON'),
    ("llama3", '{"name": "f", "parameters": {}, "age": 3}'),
    ("llama3", 'So {"name": "f", "parameters": {}}'),
    ("llama3", "<|python_tag|>print(1)"),
    ("llama3", '  {"name": "f", "para'),
    ("mistral", '[TOOL_CALLS]{"name": "f"}'),
    ("mistral", "[TOOL_CALLS][] [TOOL_"),
    ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {}} {'),
    ("pythonic", "[1, 2]"),
    ("pythonic", "[f(1)]"),
    ("pythonic", "[f(a=__import__('os'))]"),
    ("pythonic", "[f(a=1, a=2)]"),
    ("pythonic", "[f(**{})]"),
    ("pythonic", "[f, g]"),
    ("pythonic", "[f(a="),
    ("pythonic", "[f(a=1e999)]"),
    ("pythonic", "[a" + "(" * 3000),
    ("line", "Use TOOL f: 1\nTOOL: 1\ntool f: 1\nTOOL f 1\n TOO\n"),
]


def read(text: str, cuts: Sequence[int] = (), *args: Any, **settings: Any) -> list[Event]:
    parser = AnswerParser(*args, **settings)
    borders = [0, *sorted(cuts), len(text)]
    events: list[Event] = []
    for start, end in pairwise(borders):
        events += parser.push(text[start:end])
    return events + parser.finish()


@pytest.mark.parametrize(("name", "text", "content", "calls"), WHOLE)
def test_calls_are_read(name: str, text: str, content: str, calls: list[tuple[str, Any]]) -> None:
    answer = gather(read(text, (), BY_NAME[name]))
    assert answer.content == content
    assert [(call.name, json.loads(call.arguments)) for call in answer.calls] == calls
    assert all(call.is_whole for call in answer.calls)


@pytest.mark.parametrize(("name", "text"), BROKEN)
def test_what_is_no_call_comes_back_as_it_is(name: str, text: str) -> None:
    assert gather(read(text, (), BY_NAME[name])) == ParsedAnswer(text, "", ())


@pytest.mark.parametrize(
    ("name", "text"), [(name, text) for name, text, *_ in WHOLE] + [b for b in BROKEN]
)
def test_h14_every_place_to_cut_gives_the_same(name: str, text: str) -> None:
    text = "<think>\n a < b \n</think>\n" + text
    settings = {"reasoning": THINK}
    expected = gather(read(text, (), BY_NAME[name], **settings))
    assert expected.reasoning == "a < b"
    cuts = range(len(text)) if len(text) < 300 else range(0, len(text), 97)
    for cut in cuts:
        assert gather(read(text, [cut], BY_NAME[name], **settings)) == expected
    assert gather(read(text, range(len(text)), BY_NAME[name], **settings)) == expected


_PIECES = [
    *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "<think>", "</think>"),
    *('{"name": "f", "arguments": {"a": 1}}', '{"name": "f", "parameters": {}}', "[f(a=1)]"),
    *("TOOL f: 1", "\n", " ", "<", "[", "]", "{", "}", '"', "\\", ",", ";", "x", "TOOL"),
]


@given(
    st.sampled_from([*BY_NAME, None]),
    st.lists(st.sampled_from(_PIECES), max_size=14).map("".join),
    st.lists(st.integers(0, 200), max_size=8),
    st.booleans(),
    st.booleans(),
)
def test_any_text_cut_anywhere_gives_the_same_and_loses_nothing(
    name: str | None, text: str, cuts: list[int], is_reasoning: bool, is_forced: bool
) -> None:
    form = BY_NAME[name] if name else None
    settings: dict[str, Any] = {
        "reasoning": THINK,
        "is_reasoning": is_reasoning,
        "is_forced": is_forced,
    }
    inside = [cut for cut in cuts if cut <= len(text)]
    answer = gather(read(text, inside, form, **settings))
    assert answer == gather(read(text, (), form, **settings))
    if not is_forced and not is_reasoning and not answer.calls and "<think>" not in text:
        assert answer.content == text
    kept = "".join((answer.content, answer.reasoning, *(c.arguments for c in answer.calls)))
    assert kept.count("x") == text.count("x"), "x stands in no marker and in no call"


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
        ),
        max_leaves=8,
    ),
    st.booleans(),
)
def test_any_arguments_come_through_letter_for_letter(value: Any, is_forced: bool) -> None:
    arguments = json.dumps({"value": value})
    call = f'{{"name": "f", "arguments": {arguments}}}'
    for text, name in (
        (f"<tool_call>\n{call}\n</tool_call>", "hermes"),
        (f"[TOOL_CALLS][{call}]", "mistral"),
        (call, "llama3"),
    ):
        events = read(text, range(len(text)), BY_NAME[name], is_forced=is_forced)
        assert gather(events) == ParsedAnswer("", "", (ParsedCall("f", arguments, is_whole=True),))
        pieces = [event for event in events if isinstance(event, CallArguments)]
        assert (len(pieces) > 1) == is_forced, "forced calls are told while they come"
        assert sum(isinstance(event, CallStart) for event in events) == 1


def test_a_forced_call_that_is_cut_off_stays_as_far_as_it_came() -> None:
    text = '<tool_call>\n{"name": "f", "arguments": {"a": "lo'
    answer = gather(read(text, (), BY_NAME["hermes"], is_forced=True))
    assert answer == ParsedAnswer("", "", (ParsedCall("f", '{"a": "lo', is_whole=False),))


def test_calls_of_unknown_tools_are_content() -> None:
    text = '<tool_call>{"name": "g"}</tool_call>'
    assert gather(read(text, (), BY_NAME["hermes"], tools=["f"])).content == text
    assert gather(read(text, (), BY_NAME["hermes"], tools=["g"])).calls
    assert gather(read("[g()]", (), BY_NAME["pythonic"], tools=["f"])).content == "[g()]"
    assert gather(read("TOOL g: 1", (), BY_NAME["line"], tools=["f"])).content == "TOOL g: 1"


def test_without_a_format_nothing_is_a_call() -> None:
    for _, text, *_ in WHOLE:
        assert gather(read(text, ())) == ParsedAnswer(text, "", ())


def test_the_end_of_a_call_counts_the_characters_before_it() -> None:
    text = "abc\nTOOL f: 12\nmore"
    ends = [e for e in read(text, (), BY_NAME["line"]) if isinstance(e, CallEnd)]
    assert ends == [CallEnd(0, text.index("\nmore"))]


@pytest.mark.parametrize(
    ("text", "is_open", "content", "reasoning"),
    [
        ("<think>\nwhy\n\nnot\n</think>\n\nYes.", False, "Yes.", "why\n\nnot"),
        ("why</think>Yes.", True, "Yes.", "why"),
        ("why", True, "", "why"),
        ("<think>cut </thi", False, "", "cut </thi"),
        ("<thin> x", False, "<thin> x", ""),
        (" x <think>y</think>", False, " x <think>y</think>", ""),
        ("<think></think>Yes", False, "Yes", ""),
        ("", False, "", ""),
    ],
)
def test_reasoning_is_split_off(text: str, is_open: bool, content: str, reasoning: str) -> None:
    for cuts in ((), range(len(text))):
        answer = gather(read(text, cuts, reasoning=THINK, is_reasoning=is_open))
        assert (answer.content, answer.reasoning) == (content, reasoning)


def test_content_is_told_as_soon_as_it_is_certain() -> None:
    parser = AnswerParser(BY_NAME["hermes"])
    told = [gather(parser.push(char)).content for char in "ab <to x"]
    assert told == ["a", "b", "", "", "", "", " <to", " x"]


def test_the_work_grows_with_the_text_alone() -> None:
    chance = random.Random(1)
    for name in BY_NAME:
        text = "".join(chance.choice(_PIECES) for _ in range(20_000))
        parser = AnswerParser(BY_NAME[name], reasoning=THINK)
        assert gather(parser.push(text) + parser.finish())


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{ '[TOOL_CALLS]' }}", "mistral"),
        ("<tool_call>\\n{{ tools }}", "hermes"),
        ("<|python_tag|>", "llama3"),
        ("{{ '\"parameters\": ' }}", "llama3"),
        ("[func_name1(params_name1=params_value1)]", "pythonic"),
        ("{{ messages }}", "hermes"),
        (None, "hermes"),
    ],
)
def test_the_template_tells_the_format(template: str | None, name: str) -> None:
    assert choose_format(template).name == name


def test_the_format_can_be_named() -> None:
    assert choose_format("<tool_call>", name="mistral") is BY_NAME["mistral"]
    with pytest.raises(ConfigError, match="must be one of mistral, hermes"):
        choose_format(None, name="xml")
    assert len(BY_NAME) == len(FORMATS)


def test_the_template_tells_of_tools_and_reasoning() -> None:
    assert knows_tools("{% if tools %}") and not knows_tools("{{ messages }}")
    assert not knows_tools(None) and choose_reasoning(None) is None
    assert choose_reasoning("<think>") == THINK and choose_reasoning("x") is None
    assert THINK.is_open_after("<|im_start|>assistant\n<think>\n")
    assert not THINK.is_open_after("<think>\n\n</think>\n\n")


def test_markers_that_are_control_tokens_are_named() -> None:
    assert BY_NAME["mistral"].markers_among({"[TOOL_CALLS]": 5, "</s>": 2}) == {"[TOOL_CALLS]"}
    assert not BY_NAME["llama3"].markers_among({"</s>": 2})
