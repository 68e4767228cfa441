"""The view of tokens: what was asked and answered, as the tokenizer has it."""

from __future__ import annotations

from cutaway.engine.look import Look
from cutaway.views import view_of
from cutaway.views.query import Query
from cutaway.views.tokens import Tokens
from subjects import answered, engine_of


def test_tokens_are_those_of_prompt_and_answer() -> None:
    engine = engine_of()
    answer = answered(engine, b"hi \xe2\x82")
    shown = view_of("tokens").show(Look(engine, answer).subject, Query())
    payload = shown.payload
    assert isinstance(payload, Tokens) and shown.proof is None
    assert payload.texts[:5] == ("h", "i", "\u00b7", "\\xe2", "\\x82")
    assert payload.token_ids == answer.token_ids and payload.num_prompt == 5
    assert payload.num_bytes[:5] == (1,) * 5 and not any(payload.is_control[:5])
    lines = payload.draw().text().splitlines()
    assert lines[0] == "prompt  5 tokens, 5 bytes, 1.0 a token"
    assert lines[1] == "  h\u2502i\u2502\u00b7\u2502\\xe2\u2502\\x82\u2502"
