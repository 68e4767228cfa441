"""The view of embeddings against cosines and principal axes in NumPy, from the table alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import engines
from cutaway import LLM
from cutaway.core.errors import RequestError
from cutaway.engine.engine import Engine
from cutaway.kernels import capture
from cutaway.quantize.packed import Packed
from cutaway.replay.look import Look
from cutaway.text.chat_messages import from_dicts
from cutaway.views import view_of
from cutaway.views.embeddings import MAX_WINDOW, NUM_BINS, Embeddings
from cutaway.views.parts.drawing import columns
from cutaway.views.parts.query import Query
from cutaway.views.parts.token_words import Equation, equation_of
from subjects import answered, engine_of, weights


def shown(look: Look, **query: Any) -> Embeddings:
    shown = view_of("embeddings").show(look.subject, Query(**query))
    assert isinstance(shown.payload, Embeddings) and shown.proof is None
    return shown.payload


def table_of(engine: Engine) -> np.ndarray:
    return weights(engine)["embedding.table.weight"]


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def test_a_row_and_its_neighbours_are_those_of_the_table() -> None:
    engine = engine_of()
    answer = answered(engine, b"some words", max_tokens=3)
    payload = shown(Look(engine, answer), position=2, top=7)
    table = table_of(engine)
    row, cosines = table[ord("m")], unit(table) @ unit(table[ord("m")])
    assert payload.text == "m" and payload.token_ids == (109,) and payload.position == 2
    np.testing.assert_allclose(payload.first, row[:6], rtol=1e-6)
    told = (payload.lowest, payload.highest, payload.norm, payload.mean_cosine)
    expected = (row.min(), row.max(), np.linalg.norm(row), cosines.mean())
    np.testing.assert_allclose(told, expected, rtol=1e-5, atol=1e-7)
    order = [each for each in np.argsort(-cosines) if each != 109][:7]
    assert [each.token_id for each in payload.neighbours] == order
    assert [each.rank for each in payload.neighbours] == [2, 3, 4, 5, 6, 7, 8]
    np.testing.assert_allclose([n.cosine for n in payload.neighbours], cosines[order], rtol=1e-5)
    bins = np.array_split(row, min(NUM_BINS, len(row)))
    np.testing.assert_allclose(payload.strip, [[f(b) for b in bins] for f in (min, np.mean, max)])


def test_the_window_has_cosines_and_principal_axes() -> None:
    engine = engine_of()
    payload = shown(Look(engine, answered(engine, b"abcab", max_tokens=1)), position=1, top=3)
    table = table_of(engine)
    rows = table[list(b"abcab")]
    np.testing.assert_allclose(payload.window.cosines, unit(rows) @ unit(rows).T, atol=1e-5)
    rows = np.concatenate((rows, table[[each.token_id for each in payload.neighbours]]))
    centred = rows - rows.mean(0)
    values, vectors = np.linalg.eigh(centred.T @ centred)
    shares = values[::-1][:2] / values.sum()
    np.testing.assert_allclose(payload.window.explained, shares, rtol=1e-6)
    points = centred @ vectors[:, ::-1][:, :2]
    np.testing.assert_allclose(np.abs(payload.window.points), np.abs(points), atol=1e-5)
    largest = np.abs(points).argmax(0)
    assert (payload.window.points[largest, [0, 1]] > 0).all()


def test_words_are_added_and_the_rank_of_what_was_expected_is_told() -> None:
    engine = engine_of()
    look = Look(engine, answered(engine, b"any", max_tokens=1))
    payload = shown(look, text="ab - c + d = e", top=4)
    table = table_of(engine)
    directions = unit(np.stack([table[list(b"ab")].mean(0), table[99], table[100]]))
    cosines = unit(table) @ unit(directions[0] - directions[1] + directions[2])
    analogy = payload.analogy
    assert analogy.terms == ((1, "ab", (97, 98)), (-1, "c", (99,)), (1, "d", (100,)))
    assert [n.token_id for n in analogy.nearest] == np.argsort(-cosines)[:4].tolist()
    above = set(np.flatnonzero(cosines > cosines[101]).tolist())
    assert analogy.expected is not None and analogy.expected.rank == len(above) + 1
    assert analogy.rank_without == len(above - {97, 98, 99, 100}) + 1
    text = payload.draw().text()
    assert "ab is 2 tokens; their mean stands for it" in text
    assert f"e has rank {len(above) + 1} of 320" in text


def test_a_word_of_several_tokens_is_their_mean() -> None:
    engine = engine_of()
    payload = shown(Look(engine, answered(engine, b"any", max_tokens=1)), text="hey")
    assert payload.position is None and payload.token_ids == tuple(b"hey")
    mean = table_of(engine)[list(b"hey")].mean(0)
    np.testing.assert_allclose(payload.norm, np.linalg.norm(mean), rtol=1e-5)
    assert not {*b"hey"} & {each.token_id for each in payload.neighbours}


def test_a_drawing_of_a_long_prompt_fits_and_says_what_is_left_out() -> None:
    engine = engine_of(max_position_embeddings=2048)
    payload = shown(Look(engine, answered(engine, [*range(256)] * 3, max_tokens=1)), position=400)
    assert payload.window.start == 400 - MAX_WINDOW // 2 and len(payload.window.texts) == MAX_WINDOW
    lines = payload.draw().text().splitlines()
    assert max(map(columns, lines)) <= 100
    assert f"{MAX_WINDOW - 11} tokens more are not drawn" in lines


@pytest.mark.skipif(not capture.is_available(), reason="the native kernels are not built")
def test_packed_tables_are_read_too() -> None:
    import torch

    dense = engines.loaded(dtype=torch.float32)
    with_dense = engines.engine(dense)
    rows = dense.transformer.embedding.table
    engine = engines.engine(engines.loaded(dtype=torch.float32))
    table = engine.model.transformer.embedding
    table.table = Packed.of(rows.dense().detach(), row_order=None, widens=False)
    answers = [answered(each, b"words", max_tokens=1) for each in (with_dense, engine)]
    looks = [Look(with_dense, answers[0]), Look(engine, answers[1])]
    one, other = (shown(look, position=1) for look in looks)
    assert one.neighbours == other.neighbours and one.norm == other.norm


def test_equations_are_words_and_signs_in_turn() -> None:
    assert equation_of("a - b + c d = e") == Equation(((1, "a"), (-1, "b"), (1, "c d")), "e")
    assert equation_of("- a + b") == Equation(((-1, "a"), (1, "b")), None)
    assert equation_of("well-known") is None and equation_of("two words") is None
    for text in ("a + + b", "a - b =", " + ".join("abcdefghi")):
        with pytest.raises(RequestError, match="words and signs must take turns, at most 8"):
            equation_of(text)


@pytest.mark.slow
@pytest.mark.oracle
def test_smollm2s_queen_is_where_it_is_said_to_be() -> None:
    llm = LLM("smollm2", cache_tokens=208)
    messages = [{"role": "user", "content": "How do I bake chocolate chip cookies?"}]
    answer = answered(llm.engine, llm.encode_chat(messages), max_tokens=1)
    payload = shown(Look(llm.engine, answer, messages=from_dicts(messages)))
    assert payload.text == "\u00b7chocolate" and payload.window.texts[0] == "How"
    assert len(payload.window.texts) == 8 and payload.neighbours[0].text == "\u00b7Chocolate"
    analogy = payload.analogy
    assert analogy.expected is not None and analogy.expected.text == "\u00b7queen"
    assert analogy.nearest[analogy.expected.rank - 1].text == "\u00b7queen"
    table = llm.engine.model.transformer.embedding.table.dense().double().numpy()
    king, man, woman = (unit(table[ids[0]]) for _, _, ids in analogy.terms)
    cosines = unit(table) @ unit(king - man + woman)
    queen = cosines[analogy.expected.token_id]
    assert analogy.expected.rank == 1 + int((cosines > queen + 1e-6).sum())
