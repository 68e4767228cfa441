"""Probabilities of a row, of its tail and of words, against a softmax in NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from cutaway import LLM
from cutaway.core.errors import RequestError
from cutaway.replay.look import Look
from cutaway.views import view_of
from cutaway.views.parts.query import Query
from cutaway.views.probabilities import Probabilities
from subjects import answered, engine_of, recomputed, softmax


def shown(look: Look, query: Query) -> Probabilities:
    payload = view_of("probabilities").show(look.subject, query).payload
    assert isinstance(payload, Probabilities)
    return payload


def test_bars_tail_and_entropy_are_those_of_the_softmax() -> None:
    engine = engine_of()
    answer = answered(engine, range(20))
    payload = shown(Look(engine, answer), Query(token=2, top=7))
    shares = softmax(recomputed(engine, answer.token_ids[:-1]).logits[21])
    order = np.argsort(-shares)
    assert [each.token_id for each in payload.top] == order[:7].tolist()
    assert [each.rank for each in payload.top] == list(range(1, 8))
    np.testing.assert_allclose([e.probability for e in payload.top], shares[order[:7]], rtol=1e-4)
    assert payload.tail_mass == pytest.approx(1 - shares[order[:7]].sum(), rel=1e-4)
    assert payload.entropy == pytest.approx(-(shares * np.log2(shares)).sum(), rel=1e-4)
    for each in payload.below:
        is_below = shares < each.probability
        assert each.num_entries == is_below.sum()
        assert each.mass == pytest.approx(shares[is_below].sum(), rel=1e-3)
    assert payload.chosen == payload.top[0] and payload.vocab_size == 320


def test_k4_a_word_of_several_pieces_is_chained_through_its_branch() -> None:
    engine = engine_of()
    answer = answered(engine, range(20))
    payload = shown(Look(engine, answer), Query(token=1, text="abc"))
    assert [each.text for each in payload.lookups] == ["abc", " abc"]
    for found in payload.lookups:
        ids = list(found.text.encode())
        rows = recomputed(engine, [*answer.token_ids[:21], *ids[:-1]]).logits[20:]
        shares = softmax(rows)[range(len(ids)), ids]
        np.testing.assert_allclose([e.probability for e in found.pieces], shares, rtol=1e-4)
        assert found.probability == pytest.approx(shares.prod(), rel=1e-4)
        assert found.num_tokens == 21 + len(ids) - 1
    text = payload.draw().text()
    assert "the text abc: 3 pieces, " in text and "of the row behind the pieces before it" in text


def test_a_word_of_one_piece_costs_nothing_more() -> None:
    engine = engine_of()
    payload = shown(Look(engine, answered(engine, range(20))), Query(text=" "))
    (found,) = payload.lookups
    assert found.num_tokens == 0 and found.pieces[0].token_id == 32
    assert found.probability == pytest.approx(found.pieces[0].probability)


def test_a_text_that_is_no_word_is_refused() -> None:
    look = Look(engine := engine_of(), answered(engine, range(20)))
    with pytest.raises(RequestError, match="text has 33 tokens; it must have from 1 to 32"):
        shown(look, Query(text="x" * 33))


@pytest.mark.parametrize("query", [Query(), Query(token=3, text="Zamboni"), Query(top=1)])
def test_the_picture_fits_and_tells_what_was_taken(query: Query) -> None:
    engine = engine_of()
    answer = answered(engine, range(20), temperature=3.0, seed=1)
    lines = shown(Look(engine, answer), query).draw().text().splitlines()
    assert max(map(len, lines)) <= 100
    assert sum(line.endswith("taken") for line in lines) == 1
    assert any("equally likely tokens" in line for line in lines)


@pytest.mark.slow
@pytest.mark.oracle
def test_k4_zamboni_is_possible_and_hardly_ever_comes() -> None:
    llm = LLM("smollm2", cache_tokens=512)
    for question in ("What is gravity?", "How do I bake chocolate chip cookies?"):
        prompt = llm.encode_chat([{"role": "user", "content": question}])
        look = Look(llm.engine, answered(llm.engine, prompt, max_tokens=2))
        payload = shown(look, Query(text="Zamboni"))
        assert payload.chosen.rank == 1 and payload.vocab_size == 49152
        assert len(payload.lookups[0].pieces) >= 2
        assert 0 < payload.lookups[0].probability < 1e-6
