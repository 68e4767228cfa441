"""What a template is given, what it may say, and how its faults are told."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from cutaway.core.errors import RequestError, TemplateError
from cutaway.text.chat_messages import from_dicts
from cutaway.text.prompt import Prompt, Segment
from cutaway.text.template import ChatTemplate, choose_source

TALK = from_dicts([{"role": "user", "content": "hi"}])


def text_of(source: str, **given: Any) -> str:
    return ChatTemplate(source, **given).render(TALK).text


@pytest.mark.parametrize(
    ("roles", "words"),
    [
        (["system", "user"], "System role not supported"),
        (["user", "user"], "Conversation roles must alternate"),
        (["assistant"], "Conversation roles must alternate"),
        (["user", "narrator"], "Conversation roles must alternate"),
    ],
)
def test_i02_a_refusal_carries_the_templates_own_words(roles: list[str], words: str) -> None:
    source = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}"
        "{% endif %}{% for m in messages %}"
        "{% if m.role != ['user', 'assistant'][loop.index0 % 2] %}"
        "{{ raise_exception('Conversation roles must alternate') }}{% endif %}{% endfor %}"
    )
    messages = from_dicts([{"role": role, "content": "x"} for role in roles])
    with pytest.raises(TemplateError) as caught:
        ChatTemplate(source).render(messages)
    assert str(caught.value) == words


def test_a_long_refusal_is_cut() -> None:
    with pytest.raises(TemplateError) as caught:
        text_of("{{ raise_exception('a' * 10000) }}")
    assert len(str(caught.value)) == 500 and str(caught.value).endswith("...")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("\n\n{{ x.y }}", "at fault, line 3: 'x' is undefined."),
        ("\n{% for %}", "at fault, line 2: "),
        ("{{ 1 // 0 }}", "at fault, line 1: integer division or modulo by zero."),
        (
            "{% macro f() %}\n{{ x.y }}{% endmacro %}{{ f() }}",
            "at fault, line 2: 'x' is undefined.",
        ),
        ("{{ 'a' | center(9) }}", "line 1: No filter named 'center'."),
        ("\n{% include 'x' %}", "line 2: Include has no place in a chat template."),
        ("{{ namespace() }}", "it prints a "),
    ],
)
def test_a_fault_names_the_line_of_the_template(source: str, words: str) -> None:
    with pytest.raises(TemplateError) as caught:
        text_of(source)
    assert words in str(caught.value)


def test_i03_a_missing_template_is_an_error_and_no_guess() -> None:
    for missing in (None, "", []):
        with pytest.raises(TemplateError, match="this model has no chat template"):
            choose_source(missing)
    with pytest.raises(TemplateError, match="this model has no chat template"):
        ChatTemplate(None)


def test_i03_a_list_of_named_templates_gives_the_one_that_fits() -> None:
    both = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]
    assert choose_source(both) == "d"
    assert choose_source(both, has_tools=True) == "t"
    assert choose_source(both[:1], has_tools=True) == "d"
    assert choose_source("only", has_tools=True) == "only"


@pytest.mark.parametrize(
    "value", [3, {"default": "d"}, [{"name": "rag", "template": "r"}], [3], [{"name": "default"}]]
)
def test_i03_a_template_of_another_kind_is_an_error(value: object) -> None:
    with pytest.raises(TemplateError, match="it must be a string, or a list of named templates"):
        choose_source(value)


def test_i03_blocks_leave_no_line_behind() -> None:
    loop = "    {% for m in messages %}\n[{{ m.content }}]\n    {% endfor %}\n"
    assert text_of("{% if true %}\n" + loop + "{% endif %}\n") == "[hi]\n"


def test_i03_the_date_is_that_of_the_clock_that_was_given() -> None:
    clock = lambda: datetime(2026, 11, 27)  # noqa: E731
    assert text_of("{{ strftime_now('%d %b %Y') }}", now=clock) == "27 Nov 2026"


def test_i03_a_loop_may_break() -> None:
    assert (
        text_of("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}")
        == "01"
    )


def test_i04_what_a_message_says_reaches_the_prompt_unchanged() -> None:
    content = (
        "hello </think> world {{ 1 }} {% if %} {# #} &lt;<b>'\"\\ \r\n\t\u2028\ue000\U000f0000"
    )
    messages = from_dicts([{"role": "assistant", "content": content}])
    prompt = ChatTemplate("<{{ messages[0].content }}>").render(messages)
    assert prompt.text == f"<{content}>"


def test_special_tokens_are_there_under_their_names_and_absent_where_the_model_has_none() -> None:
    source = "{{ bos_token }}|{{ eos_token }}|{{ pad_token }}|{{ unk_token is defined }}"
    given = {"bos_token": "<s>", "eos_token": None, "special_tokens": {"pad_token": "<pad>"}}
    assert text_of(source, **given) == "<s>||<pad>|False"


def test_tools_and_documents_are_none_unless_given() -> None:
    assert (
        text_of("{{ tools is none }} {{ documents is none }} {{ x is defined }}")
        == "True True False"
    )


def test_an_extra_reaches_the_template_that_reads_it() -> None:
    template = ChatTemplate("{% if enable_thinking %}think{% endif %}{{ effort | default('low') }}")
    assert template.variables == {"enable_thinking", "effort"}
    extras = {"enable_thinking": True, "effort": "high"}
    assert template.render(TALK, extras=extras).text == "thinkhigh"
    assert template.render(TALK).text == "low"


@pytest.mark.parametrize(
    "name",
    [
        *("enable_thinkin", "messages", "tools", "add_generation_prompt", "bos_token"),
        *("raise_exception", "range", "namespace", "self", "loop", "m", "set_here"),
    ],
)
def test_an_extra_that_the_template_does_not_read_or_that_is_not_the_callers_is_refused(
    name: str,
) -> None:
    template = ChatTemplate(
        "{{ bos_token }}{{ tools }}{{ range(2) }}{% set set_here = 1 %}{% for m in messages %}"
        "{{ loop.index }}{{ set_here }}{% endfor %}{{ enable_thinking }}",
        bos_token="<s>",
    )
    with pytest.raises(RequestError) as caught:
        template.render(TALK, extras={name: "x"})
    assert caught.value.param == f"chat_template_kwargs.{name}"
    assert str(caught.value).endswith("it reads enable_thinking.")


def test_an_extra_or_a_tool_that_is_no_data_is_refused() -> None:
    template = ChatTemplate("{{ x }}{{ tools }}")
    with pytest.raises(RequestError, match=r"chat_template_kwargs.x is .*only JSON's types"):
        template.render(TALK, extras={"x": object()})
    with pytest.raises(RequestError, match=r"tools is .*lone surrogate"):
        template.render(TALK, tools=[{"name": "\ud800"}])


def test_a_control_token_of_absurd_length_is_refused() -> None:
    with pytest.raises(TemplateError, match="a control token of 257 characters"):
        ChatTemplate("a", control_strings=frozenset(["<" * 257]))


def test_thousands_of_control_strings_are_told_apart() -> None:
    names = frozenset(f"<|reserved_{i}|>" for i in range(3000)) | {"a" * n for n in range(1, 200)}
    source = "<|reserved_17|><|reserved_2999|><|reserved_3000|>" + "a" * 250
    prompt = ChatTemplate(source, control_strings=names).render(TALK)
    found = [segment.text for segment in prompt.segments if segment.is_control]
    assert found == ["<|reserved_17|>", "<|reserved_2999|>", "a" * 199, "a" * 51]


def test_the_sink_is_told_every_prompt_and_where_the_template_wrote() -> None:
    told: list[tuple[str, Prompt]] = []
    template = ChatTemplate(
        "<s>[{{ messages[0].content }}]",
        control_strings=frozenset(["<s>"]),
        sink=lambda name, prompt: told.append((name, prompt)),
    )
    prompt = template.render(TALK)
    assert told == [("text.prompt", prompt)]
    assert prompt.segments == (Segment("<s>", is_control=True), Segment("[hi]", is_control=False))
    assert [prompt.text[a:b] for a, b in prompt.template_spans] == ["<s>[", "]"]
