"""The view of the template: every character of the prompt with its writer, checked by the ids."""

from __future__ import annotations

from dataclasses import replace

import pytest

import engines
from cutaway import LLM
from cutaway.engine.engine import Engine
from cutaway.replay.look import Look
from cutaway.text.chat_messages import from_dicts
from cutaway.views import view_of
from cutaway.views.parts.query import Query
from cutaway.views.template import Expansion
from subjects import answered

SOURCE = "{% for m in messages %}{{ m.role }}: {{ m.content }}<eos>\n{% endfor %}assistant:"
MESSAGES = from_dicts([{"role": "user", "content": "Hi <eos>"}])


def shown(look: Look) -> Expansion:
    payload = view_of("template").show(look.subject, Query()).payload
    assert isinstance(payload, Expansion)
    return payload


def chatting() -> Engine:
    return engines.engine(replace(engines.loaded(), template_source=SOURCE))


def test_every_stretch_has_its_writer_and_no_message_writes_a_control_token() -> None:
    engine = chatting()
    ids = [*b"user: Hi <eos>", engines.END, *b"\nassistant:"]
    payload = shown(Look(engine, answered(engine, ids), messages=MESSAGES))
    assert payload.is_known and payload.num_control == 1 and payload.num_tokens == len(ids)
    assert [(each.writer, each.text) for each in payload.stretches] == [
        ("template", "user: "),
        ("conversation", "Hi <eos>"),
        ("control", "<eos>"),
        ("template", "\nassistant:"),
    ]
    lines = payload.draw().text().splitlines()
    assert lines[0] == "1 message of 8 characters; the template adds 17 and 1 control tokens"
    assert lines[2:5] == [
        "template      user:\u00b7",
        "conversation  Hi <eos>",
        "control       <eos>",
    ]
    assert "The model gets 26 ids, 1 of them control tokens" in lines[-2]


def test_ids_that_other_messages_gave_are_read_off() -> None:
    engine = chatting()
    ids = [*b"another date", engines.END, engines.END, 0xE2]
    payload = shown(Look(engine, answered(engine, ids), messages=MESSAGES))
    assert not payload.is_known
    assert [(each.writer, each.text) for each in payload.stretches] == [
        ("prompt", "another date"),
        ("control", "<eos>"),
        ("control", "<eos>"),
        ("prompt", "\ufffd"),
    ]
    assert "so this is read off the ids" in payload.draw().text()


def test_a_plain_prompt_and_a_long_one_are_drawn_in_part() -> None:
    engine = engines.engine(engines.loaded())
    ids = [*b"x" * 90, *[engines.END, 97] * 40]
    payload = shown(Look(engine, answered(engine, ids)))
    lines = payload.draw().text().splitlines()
    assert lines[0] == "a plain prompt: no template was used" and len(lines) == 38
    assert lines[2] == "prompt" + " " * 6 + "x" * 84 and lines[3] == " " * 12 + "x" * 6
    assert any("49 stretches are left out here" in line for line in lines)
    assert max(map(len, lines)) <= 100


@pytest.mark.slow
@pytest.mark.oracle
def test_smollm2s_template_adds_a_system_message_that_nobody_wrote() -> None:
    llm = LLM("smollm2", cache_tokens=208)
    messages = [{"role": "user", "content": "How do I bake chocolate chip cookies?"}]
    ids = llm.encode_chat(messages)
    answer = answered(llm.engine, ids, max_tokens=1)
    payload = shown(Look(llm.engine, answer, messages=from_dicts(messages)))
    assert payload.is_known and payload.num_control == 5
    said = [each.text for each in payload.stretches if each.writer == "conversation"]
    assert said == ["How do I bake chocolate chip cookies?"]
    assert any("You are a helpful AI assistant" in each.text for each in payload.stretches)
    assert answer.num_prompt_tokens == payload.num_tokens == len(ids)
