"""Histories as agents keep them, on templates that are strict on whose turn it is.

Public reports: ollama/ollama#17774, anomalyco/opencode#24761, ggml-org/llama.cpp#20733,
QwenLM/Qwen3.8#244 (orders amid a conversation), vllm-project/vllm#6862, Gitlawb/openclaude#241
(two messages of one role), EricLBuehler/mistral.rs#506 (orders where there is no such role),
JustVugg/colibri#118, can1357/oh-my-pi#11179 (results out of order), scouzi1966/maclocal-api#67
(results without a name).
"""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from text_templates import STYLES

from cutaway.core.errors import TemplateError
from cutaway.text.call_order import order_results
from cutaway.text.chat_messages import from_dicts, to_dicts
from cutaway.text.reach import render_open, render_whole
from cutaway.text.template import ChatTemplate

Given = list[dict[str, Any]]

# As Qwen3.5's: orders at the start alone.
ORDERS_FIRST = """{% for m in messages %}{% if m.role == 'system' and not loop.first %}
{{- raise_exception('System message must be at the beginning.') }}{% endif %}
{{- '<' + m.role + '>' + m.content + '\\n' }}{% endfor %}"""
# As Mistral's: orders at the start alone, then user and assistant in turns.
IN_TURNS = """{% if messages[0].role == 'system' %}{{ '<system>' + messages[0].content + '\\n' }}
{%- set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}
{%- for m in rest %}{% if m.role != ['user', 'assistant'][loop.index0 % 2] %}
{{- raise_exception('roles must alternate user/assistant/user/assistant/...') }}{% endif %}
{{- '<' + m.role + '>' + m.content + '\\n' }}{% endfor %}"""
# As Gemma 2's: no orders at all.
NO_ORDERS = f"""{{% if messages[0].role == 'system' %}}
{{{{- raise_exception('System role not supported') }}}}{{% endif %}}{IN_TURNS}"""
STRICT = {"orders first": ORDERS_FIRST, "in turns": IN_TURNS, "no orders": NO_ORDERS}


def turns(*roles: str) -> Given:
    """Messages, each with a word of its own."""
    return [{"role": role, "content": f"word{index}."} for index, role in enumerate(roles)]


def written(source: str, messages: Given, **asked: Any) -> str:
    return render_whole(ChatTemplate(source), from_dicts(messages), **asked).text.strip()


def test_orders_amid_a_conversation_are_told_where_they_stand() -> None:
    given = turns("system", "user", "assistant", "system", "user")
    assert written(ORDERS_FIRST, given) == (
        "<system>word0.\n<user>word1.\n<assistant>word2.\n<user>word3.\n<user>word4."
    )
    assert written(IN_TURNS, given) == (
        "<system>word0.\n<user>word1.\n<assistant>word2.\n<user>word3.\n\nword4."
    )


def test_what_a_template_takes_is_not_told_otherwise() -> None:
    """A form that stands in for another is tried where the template refuses that one alone."""
    free = "{% for m in messages %}{{ '<' + m.role + '>' + m.content + '\n' }}{% endfor %}"
    given = turns("system", "user", "user", "system", "assistant", "assistant")
    roles = [message["role"] for message in given]
    assert [line[1:].split(">")[0] for line in written(free, given).split("\n")] == roles


def test_orders_stand_in_front_of_the_question_where_there_is_no_role_for_them() -> None:
    given = turns("system", "user", "assistant", "user")
    told = "<user>word0.\n\nword1.\n<assistant>word2.\n<user>word3."
    assert written(NO_ORDERS, given) == told
    gemma = STYLES["gemma"]
    template = ChatTemplate(gemma.source, bos_token=gemma.bos_token)
    assert "word0.\n\nword1." in render_whole(template, from_dicts(given)).text


def test_a_conversation_is_continued_behind_orders_amid() -> None:
    given = turns("user", "system", "assistant")
    text = render_open(ChatTemplate(IN_TURNS), from_dicts(given)).text
    assert text.strip() == "<user>word0.\n\nword1.\n<assistant>word2."


@pytest.mark.parametrize("name", STRICT)
def test_any_order_of_roles_is_told_whole_and_in_its_order(name: str) -> None:
    """All sequences of up to five, that begin with a question or an order before one."""
    roles = ("system", "user", "assistant")
    for length, first in itertools.product(range(5), ("user", "system")):
        for rest in itertools.product(roles, repeat=length):
            sequence = (first, *rest)
            spoken = [role for role in sequence if role != "system"]
            if not spoken or spoken[0] != "user":
                continue  # a conversation that the model began
            text = written(STRICT[name], turns(*sequence))
            places = [text.find(f"word{index}.") for index in range(len(sequence))]
            assert places == sorted(places) and places[0] > 0, (sequence, text)


def test_a_call_stays_in_front_of_its_results_when_messages_are_joined() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    calling = """{% for m in messages %}{{ '<' + m.role + '>' + m.content }}
{%- for c in m.tool_calls or [] %}{{ '(' + c.function.name + ')' }}{% endfor %}
{%- if m.role == 'assistant' and not loop.last and messages[loop.index].role == 'assistant' %}
{{- raise_exception('two of the assistant') }}{% endif %}{{ '\\n' }}{% endfor %}"""
    given = [
        *turns("user", "assistant"),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "word3."},
    ]
    assert written(calling, given) == "<user>word0.\n<assistant>word1.(f)\n<tool>word3."
    turned = [given[0], given[2], given[3], *turns("assistant", "assistant")]
    assert written(calling, turned).endswith("<tool>word3.\n<assistant>word0.\n\nword1.")


def test_what_begins_with_the_model_is_refused_in_the_templates_own_words() -> None:
    with pytest.raises(TemplateError, match=r"^roles must alternate"):
        written(IN_TURNS, turns("assistant", "user"))


def a_round(count: int, chance: random.Random, *, has_names: bool) -> Given:
    """Calls at once, and their results as they came."""
    ids = [f"c{index}" for index in range(count)]
    results: Given = [
        {
            "role": "tool",
            "tool_call_id": each,
            "content": f"of {each}",
            **({"name": f"f_{each}"} if has_names else {}),
        }
        for each in ids
    ]
    chance.shuffle(results)
    functions = [{"name": f"f_{each}", "arguments": "{}"} for each in ids]
    calls = [
        {"id": each, "type": "function", "function": function}
        for each, function in zip(ids, functions, strict=True)
    ]
    return [*turns("user"), {"role": "assistant", "content": None, "tool_calls": calls}, *results]


@pytest.mark.parametrize("seed", range(40))
def test_results_stand_in_the_order_of_their_calls_with_their_names(seed: int) -> None:
    chance = random.Random(seed)
    counts = [chance.randint(1, 5) for _ in range(chance.randint(1, 3))]
    rounds = [a_round(count, chance, has_names=chance.random() < 0.5) for count in counts]
    placed = to_dicts(order_results(from_dicts([*itertools.chain(*rounds)])))
    results = [message for message in placed if message["role"] == "tool"]
    told = [(result["name"], result["content"]) for result in results]
    expected = [(f"f_c{index}", f"of c{index}") for count in counts for index in range(count)]
    assert told == expected


def test_results_that_say_not_whose_they_are_stay_where_they_stand() -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
    twice = [{**call, "id": "c"}, {**call, "id": "c"}]
    for calls, ids in (([call, call], [None, None]), (twice, ["c", "c"]), (twice, ["x", "c"])):
        results = [
            {"role": "tool", "tool_call_id": each, "content": f"word{index}."}
            for index, each in enumerate(ids)
        ]
        given = [*turns("user"), {"role": "assistant", "tool_calls": calls}, *results]
        messages = from_dicts(given)
        assert order_results(messages) == messages


def test_a_template_that_needs_names_of_results_finds_them() -> None:
    needing = """{% for m in messages %}{% if m.role == 'tool' %}{% if not m.name %}
{{- raise_exception("Invalid tool response: 'name' must be provided.") }}{% endif %}
{{- m.name + ': ' }}{% endif %}{{ m.content }}{% for c in m.tool_calls or [] %}
{{- c.function.name + c.function.arguments | tojson }}{% endfor %}{{ '\\n' }}{% endfor %}"""
    given = a_round(2, random.Random(1), has_names=False)
    text = written(needing, given)
    assert text.endswith("f_c0: of c0\nf_c1: of c1")


@pytest.mark.parametrize("content", [None, [], ""])
@pytest.mark.parametrize("role", ["assistant", "tool"])
def test_a_turn_may_be_over_without_a_word(role: str, content: object) -> None:
    """run-llama/llama_index#17555, docker/docker-agent#63, openai/openai-agents-python#1035."""
    (message,) = from_dicts([{"role": role, "content": content}])
    source = "{% for m in messages %}{{ '<' + m.role + '>' + m.content }}{% endfor %}"
    assert render_whole(ChatTemplate(source), [message]).text == f"<{role}>"
