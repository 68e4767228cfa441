"""The view of a grammar's masks, on answers that a choice forces byte by byte."""

from __future__ import annotations

import json

import numpy as np
import pytest

from cutaway.core.grammar import Grammar
from cutaway.engine.engine import Engine
from cutaway.replay.look import Look
from cutaway.views import view_of
from cutaway.views.grammar import GrammarSteps
from cutaway.views.parts.query import Query
from subjects import answered, engine_of, recomputed, softmax

pytest.importorskip("llguidance")

CHOICES = ("yes", "yet", "no")


def shown(engine: Engine, look: Look, **query: int) -> GrammarSteps:
    payload = view_of("grammar").show(look.subject, Query(**query)).payload
    assert isinstance(payload, GrammarSteps)
    return payload


def next_bytes(written: bytes) -> set[int]:
    """Which bytes may follow by the list of choices alone."""
    texts = [each.encode() for each in CHOICES]
    return {t[len(written)] for t in texts if t.startswith(written) and len(t) > len(written)}


def test_masks_and_what_they_cut_are_those_of_the_choices() -> None:
    engine = engine_of()
    answer = answered(engine, b"yes or no?", grammar=Grammar.choice(list(CHOICES)), max_tokens=9)
    written = bytes(each.token_id for each in answer.tokens)
    assert written.decode() in CHOICES
    logits = recomputed(engine, answer.token_ids).logits
    for token in range(len(written)):
        payload = shown(engine, Look(engine, answer), token=token, top=4)
        allowed = sorted(next_bytes(written[:token]))
        assert payload.num_allowed[token] == len(allowed) and payload.fault is None
        raw = softmax(logits[answer.num_prompt_tokens - 1 + token])
        np.testing.assert_allclose(payload.probability[token], raw[written[token]], rtol=1e-4)
        row = payload.row
        assert row is not None and row.token == token
        np.testing.assert_allclose(row.allowed_mass, raw[allowed].sum(), rtol=1e-4)
        assert [each.token_id for each in row.likeliest] == np.argsort(-raw)[:4].tolist()
        assert [each.is_allowed for each in row.likeliest] == [
            each.token_id in allowed for each in row.likeliest
        ]
        assert {each.token_id for each in row.allowed} == set(allowed)
        for each in row.allowed:
            share = raw[each.token_id] / raw[allowed].sum()
            np.testing.assert_allclose(each.allowed_probability, share, rtol=1e-4)


def test_a_drawing_names_the_form_and_what_was_cut() -> None:
    engine = engine_of()
    grammar = Grammar.regex("[ab]{40}")
    answer = answered(engine, b"?", grammar=grammar, max_tokens=64)
    lines = shown(engine, Look(engine, answer), token=30).draw().text().splitlines()
    assert lines[0] == "regex  [ab]{40}" and max(map(len, lines)) <= 100
    assert lines[1].startswith("40 steps of 320 tokens; in 0 of them")
    assert any(line.startswith("token 30: what was allowed had ") for line in lines)
    assert "16 steps are not drawn; name one" in lines
    assert sum("forbidden" in line for line in lines) >= 8


def test_an_answer_without_a_grammar_is_not_run_again() -> None:
    engine = engine_of()
    shown_ = view_of("grammar").show(Look(engine, answered(engine, b"hi")).subject, Query())
    assert shown_.proof is None and isinstance(shown_.payload, GrammarSteps)
    assert shown_.payload.kind is None and shown_.payload.row is None
    assert "every token was allowed" in shown_.payload.draw().text()


def test_a_schema_is_told_as_it_was_asked() -> None:
    engine = engine_of()
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    schema["additionalProperties"] = False
    answer = answered(engine, b"?", grammar=Grammar.json_schema(schema), max_tokens=40)
    payload = shown(engine, Look(engine, answer))
    assert payload.kind == "json_schema" and json.loads(payload.grammar) == schema
    assert payload.num_allowed[0] == 1 and payload.texts[0] == "{"
