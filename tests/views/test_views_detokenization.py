"""The view of detokenization, on answers whose bytes are known because a choice forces them."""

from __future__ import annotations

import pytest

from cutaway.core.grammar import Grammar
from cutaway.engine.engine import Engine
from cutaway.replay.look import Look
from cutaway.views import view_of
from cutaway.views.detokenization import MAX_ROWS, Detokenization
from cutaway.views.parts.drawing import columns
from cutaway.views.parts.query import Query
from subjects import answered, engine_of

pytest.importorskip("llguidance")


@pytest.fixture(scope="module")
def engine() -> Engine:
    return engine_of(max_position_embeddings=1024)


def saying(engine: Engine, text: str, **params: object) -> Look:
    """An answer of these bytes, a token each."""
    grammar = Grammar.choice([text])
    return Look(engine, answered(engine, b"?", grammar=grammar, max_tokens=600, **params))


def shown(look: Look, **query: int) -> Detokenization:
    payload = view_of("detokenization").show(look.subject, Query(**query)).payload
    assert isinstance(payload, Detokenization)
    return payload


def test_bytes_wait_for_their_character(engine: Engine) -> None:
    payload = shown(saying(engine, "a\u20acb"))
    told = [(each.data, each.shows, each.held_bytes) for each in payload.rows]
    assert told[:5] == [
        ("61", "a", ""),
        ("e2", "", "e2"),
        ("82", "", "e282"),
        ("ac", "\u20ac", ""),
        ("62", "b", ""),
    ]
    assert payload.characters[:5].tolist() == [1, 1, 1, 2, 3] and payload.num_held == 2
    assert payload.text == "a\u20acb" and payload.rest == "" and payload.num_bytes == 5
    text = payload.draw().text()
    assert "e282 for the rest of its character" in text and "assembled a\u20acb" in text


def test_the_start_of_a_stop_string_waits_until_it_is_none(engine: Engine) -> None:
    payload = shown(saying(engine, "abcabd", stop=("abd",)))
    assert [each.held_text for each in payload.rows] == ["a", "ab", "", "a", "ab", ""]
    assert [each.shows for each in payload.rows] == ["", "", "abc", "", "", ""]
    assert payload.stopped_by == "abd" and payload.text == "abc"
    lines = payload.draw().text().splitlines()
    assert "ended by the stop string abd" in lines
    assert any(line.endswith("ab: may begin a stop string") for line in lines)


def test_what_still_waits_at_the_end_is_set_free(engine: Engine) -> None:
    grammar = Grammar.choice(["x\u20ac"])
    answer = answered(engine, b"?", grammar=grammar, max_tokens=3)
    payload = shown(Look(engine, answer))
    assert payload.rest == "\ufffd" and payload.text == "x\ufffd"
    assert "the end set free: \ufffd" in payload.draw().text()


def test_pieces_together_are_the_whole_decoded_at_once(engine: Engine) -> None:
    answer = answered(engine, b"any", temperature=1.5, seed=3, max_tokens=40)
    payload = shown(Look(engine, answer))
    data = b"".join(bytes.fromhex(each.data) for each in payload.rows)
    joined = "".join(each.shows for each in payload.rows) + payload.rest
    assert joined == data.decode(errors="replace") == payload.text


def test_a_long_answer_is_shown_in_part(engine: Engine) -> None:
    look = saying(engine, "\u00e9 " * 150)
    payload = shown(look, token=300)
    assert payload.num_tokens >= 450 and len(payload.rows) == MAX_ROWS
    assert payload.rows[0].token == 172 and len(payload.characters) == payload.num_tokens
    lines = payload.draw().text().splitlines()
    assert any(line.split()[:1] == ["300"] for line in lines) and len(lines) < 45
    assert max(map(columns, lines)) <= 100
    assert f"{payload.num_tokens - 36} tokens are not drawn; name one with token" in lines
