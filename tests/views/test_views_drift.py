"""The view of drift against cosines of streams in NumPy, from weights and ids alone."""

from __future__ import annotations

import numpy as np
import pytest

from cutaway import LLM
from cutaway.replay.look import Look
from cutaway.views import view_of
from cutaway.views.drift import MAX_APART, Drift
from cutaway.views.parts.query import Query
from subjects import answered, engine_of, recomputed


def shown(look: Look, position: int | None = None) -> Drift:
    shown = view_of("drift").show(look.subject, Query(position=position))
    assert shown.proof is not None and shown.proof.is_exact
    assert isinstance(shown.payload, Drift)
    return shown.payload


def cosine(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(one, axis=-1) * np.linalg.norm(other, axis=-1)
    return (one * other).sum(-1) / norms


def test_two_places_of_a_token_begin_alike_and_context_parts_them() -> None:
    engine = engine_of()
    answer = answered(engine, b"so b by by", max_tokens=3)
    payload = shown(Look(engine, answer), position=8)
    streams = np.stack(recomputed(engine, answer.token_ids[:-1]).streams)
    assert payload.other == 3 and payload.text == "b" and not payload.is_far
    own = cosine(streams[:, 8], streams[:1, 8])
    np.testing.assert_allclose(payload.own, own, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(payload.between, cosine(streams[:, 8], streams[:, 3]), rtol=1e-4)
    assert payload.own[0] == payload.between[0] == 1 and (payload.between[1:] < 0.9999).all()
    lines = payload.draw().text().splitlines()
    assert lines[0].startswith("token b at 8: ...b\u00b7by\u00b7[b]y")
    assert lines[1] == "the same token at 3: ...so\u00b7[b]\u00b7by\u00b7b..."
    assert len(lines) == 4 + len(own) and max(map(len, lines)) <= 100


def test_the_longest_word_that_stands_twice_is_looked_at() -> None:
    engine = engine_of()
    payload = shown(Look(engine, answered(engine, b"1x2 1a1x", max_tokens=1)))
    assert (payload.position, payload.other) == (7, 1)


def test_a_token_alone_or_far_from_its_like_says_so() -> None:
    engine = engine_of(max_position_embeddings=1024)
    ids = [97, *[98] * (MAX_APART + 1), 97]
    answer = answered(engine, ids, max_tokens=1)
    payload = shown(Look(engine, answer), position=len(ids) - 1)
    assert payload.is_far and payload.other is None and len(payload.between) == 0
    assert f"more than {MAX_APART} positions away" in payload.draw().text()
    alone = shown(Look(engine, answered(engine, [*range(40)], max_tokens=1)), position=7)
    assert alone.other is None and not alone.is_far
    assert "the same token is nowhere else" in alone.draw().text()


def test_many_layers_are_drawn_in_steps() -> None:
    own = np.linspace(1, -0.2, 91, dtype=np.float32)
    payload = Drift(3, "b", own, None, own[:0], ("...[b]...",), is_far=False)
    lines = payload.draw().text().splitlines()
    assert len(lines) < 45 and lines[3].lstrip().startswith("the row itself")
    assert lines[-2].startswith("after layer 89")


@pytest.mark.slow
@pytest.mark.oracle
def test_smollm2_parts_the_bank_of_a_river_from_one_with_accounts() -> None:
    llm = LLM("smollm2", cache_tokens=208)
    prompt = "The bank by the river was slippery, so he went to the bank to open an account."
    answer = answered(llm.engine, llm.encode(prompt), max_tokens=1)
    first, second = (
        at for at, each in enumerate(answer.token_ids) if each == llm.encode(" bank")[0]
    )
    payload = shown(Look(llm.engine, answer), position=second)
    assert payload.other == first and payload.between[0] == pytest.approx(1)
    assert payload.between[-1] < 0.8 < payload.between[1]
