"""The view of tokens: what was asked and answered, as the tokenizer has it."""

from __future__ import annotations

import pytest

from cutaway import LLM
from cutaway.core.errors import RequestError
from cutaway.replay.look import Look
from cutaway.views import tokens, view_of
from cutaway.views.parts.drawing import columns
from cutaway.views.parts.query import Query
from cutaway.views.tokens import Tokens
from subjects import answered, engine_of


def shown(look: Look, text: str | None = None) -> Tokens:
    shown = view_of("tokens").show(look.subject, Query(text=text))
    assert isinstance(shown.payload, Tokens) and shown.proof is None
    return shown.payload


def test_tokens_are_those_of_prompt_and_answer() -> None:
    engine = engine_of()
    answer = answered(engine, b"hi \xe2\x82")
    payload = shown(Look(engine, answer))
    assert payload.texts[:5] == ("h", "i", "\u00b7", "\\xe2", "\\x82")
    assert payload.token_ids == answer.token_ids and payload.num_prompt == 5
    assert payload.num_bytes[:5] == (1,) * 5 and not any(payload.is_control[:5])
    assert payload.is_part[:5] == (False, False, False, True, True)
    lines = payload.draw().text().splitlines()
    assert lines[0] == "prompt  5 tokens, 5 bytes, 1.0 a token, 2.5 tokens a word"
    assert lines[1] == "  h\u2502i\u2502\u00b7\u2502\\xe2\u2502\\x82\u2502"
    num_parts = sum(payload.is_part)
    assert f"{num_parts} tokens hold parts of characters (\\xNN)" in lines


def test_letters_are_counted_inside_tokens() -> None:
    engine = engine_of()
    look = Look(engine, answered(engine, b"Eve 'n' \xc3\xa9", max_tokens=1))
    assert shown(look, "Ve").num_letters[:10] == (1, 1, 1, *[0] * 7)
    assert shown(look).num_letters[:10] == (1, 1, 1, 0, 0, 1, 0, 0, 0, 0)
    text = shown(look, "ve").draw().text()
    assert "letters ve: 3 in 3 tokens. The model sees the ids" in text
    assert "letters q: 0 in 0 tokens." in shown(look, "q").draw().text()


def test_a_long_prompt_is_drawn_in_part() -> None:
    engine = engine_of(max_position_embeddings=2048)
    payload = shown(Look(engine, answered(engine, [*range(200)] * 5, max_tokens=1)))
    lines = payload.draw().text().splitlines()
    assert "... 700 tokens are left out here ..." in lines and max(map(columns, lines)) <= 100
    assert len(payload.texts) == 1001 and len(lines) < 60


def test_of_a_very_long_text_the_last_tokens_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "MOST_TOLD", 8)
    engine = engine_of()
    answer = answered(engine, b"abc def ghi", max_tokens=3)
    payload = shown(Look(engine, answer))
    assert (payload.start, payload.num_prompt, payload.skipped_bytes) == (6, 5, 6)
    assert payload.token_ids == answer.token_ids[6:] and payload.texts[:2] == ("f", "\u00b7")
    assert payload.skipped_letters == 5 and sum(payload.num_letters[:5]) == 4
    lines = payload.draw().text().splitlines()
    assert lines[0].startswith("prompt  11 tokens, 11 bytes, 1.0 a token")
    assert lines[1] == "the first 6 are counted and not told"
    look = Look(engine, answer)
    for start in range(len(answer.token_ids)):
        page = view_of("tokens").show(look.subject, Query(start=start)).payload
        assert isinstance(page, Tokens) and page.start == start
        assert page.token_ids == answer.token_ids[start : start + 8]
        assert page.num_prompt == len(page.token_ids[: max(0, 11 - start)])
        assert page.skipped_bytes == start, "each token of this text is a byte"
    with pytest.raises(RequestError, match="start is 14; it must be from 0 to 13"):
        view_of("tokens").show(look.subject, Query(start=14))


@pytest.mark.slow
@pytest.mark.oracle
def test_questions_for_smollm2_are_as_many_tokens_as_the_checklist_has() -> None:
    llm = LLM("smollm2", cache_tokens=208)
    for question, pieces in (
        ("What is gravity?", "What| is| gravity|?"),
        ("How do I bake chocolate chip cookies?", "How| do| I| bake| chocolate| chip| cookies|?"),
    ):
        answer = answered(llm.engine, llm.encode(question), max_tokens=1)
        payload = shown(Look(llm.engine, answer), "k")
        cut = "|".join(payload.texts[: payload.num_prompt])
        assert cut == pieces.replace(" ", "\u00b7")
        assert sum(payload.num_letters[: payload.num_prompt]) == question.count("k")
