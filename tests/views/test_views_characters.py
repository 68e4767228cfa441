"""The view of characters: code points and bytes as Unicode has them, signs as readers see them."""

from __future__ import annotations

from dataclasses import replace

import pytest

import engines
from cutaway.core.errors import RequestError
from cutaway.replay.look import Look
from cutaway.text.chat_messages import from_dicts
from cutaway.views import view_of
from cutaway.views.characters import MAX_CHARACTERS, Characters
from cutaway.views.parts.drawing import columns
from cutaway.views.parts.query import Query, query_of
from cutaway.views.parts.subject import Subject
from subjects import answered, engine_of


@pytest.fixture(scope="module")
def subject() -> Subject:
    engine = engine_of()
    return Look(engine, answered(engine, b"Hi you", max_tokens=1)).subject


def shown(subject: Subject, text: str | None = None) -> Characters:
    payload = view_of("characters").show(subject, Query(text=text)).payload
    assert isinstance(payload, Characters)
    return payload


def test_each_character_has_its_number(subject: Subject) -> None:
    payload = shown(subject)
    assert payload.text == "Hi you" and payload.names[0] == "LATIN CAPITAL LETTER H"
    assert payload.code_points.tolist() == [72, 105, 32, 121, 111, 117]
    lines = payload.draw().text().splitlines()
    assert lines[0] == "6 characters, 6 bytes in UTF-8, seen as 6 signs"
    assert lines[1:4] == [
        "        H  i   \u00b7  y   o   u",
        "number  72 105 32 121 111 117",
        "bytes   48 69  20 79  6f  75",
    ]
    assert lines[4:] == ["characters: 6 of 1 byte"]


def test_a_sign_may_be_several_characters_and_a_character_several_bytes(subject: Subject) -> None:
    payload = shown(subject, "e\u0301\u5b57\U0001f469\u200d\U0001f680")
    assert payload.num_bytes_each.tolist() == [1, 2, 3, 4, 3, 4] and payload.num_bytes == 17
    assert payload.graphemes.tolist() == [0, 0, 1, 2, 2, 2] and payload.num_graphemes == 3
    assert payload.by_size == (1, 1, 2, 2) and payload.forms == {"NFC": 5, "NFD": 6}
    text = payload.draw().text()
    for words in ("COMBINING ACUTE ACCENT", "\\u{200d}  U+200D      ZERO WIDTH JOINER", "f09f9a80"):
        assert words in text
    assert "the same signs in other characters: 5 in NFC, 6 in NFD" in text


def test_a_long_text_is_counted_whole_and_shown_in_part(subject: Subject) -> None:
    payload = shown(subject, "\u00e9" + "\n\U0001f680x" * 1000)
    assert payload.num_characters == 3001 and len(payload.code_points) == MAX_CHARACTERS
    assert payload.num_bytes == 2 + 6 * 1000
    lines = payload.draw().text().splitlines()
    assert max(map(columns, lines)) <= 100
    assert "2905 characters more are counted and not drawn" in lines


def test_the_question_is_the_last_message_of_a_user() -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    engine = engines.engine(replace(engines.loaded(), template_source=template))
    messages = [{"role": "user", "content": "one"}, {"role": "user", "content": "two"}]
    answer = answered(engine, b"ids that came of it", max_tokens=1)
    assert Look(engine, answer).subject.asked == "ids that came of it"
    assert Look(engine, answer, messages=from_dicts(messages)).subject.asked == "two"


def test_a_lone_surrogate_is_no_text() -> None:
    with pytest.raises(RequestError, match="text holds a lone surrogate; use valid Unicode"):
        query_of({"text": "a\ud800"})
