"""Sampling: the record's own token from the recorded row, and each filter held against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cutaway.core.grammar import Grammar
from cutaway.replay.look import Look
from cutaway.views import view_of
from cutaway.views.parts.query import Query
from cutaway.views.sampling import RowSampling
from subjects import answered, engine_of, recomputed, softmax

SETTINGS = {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.001, "seed": 7}


def shown(look: Look, query: Query) -> RowSampling:
    payload = view_of("sampling").show(look.subject, query).payload
    assert isinstance(payload, RowSampling)
    return payload


def test_l6_the_chain_keeps_what_sorting_and_summing_keep() -> None:
    engine = engine_of()
    answer = answered(engine, range(20), **SETTINGS)
    payload = shown(Look(engine, answer), Query(token=3))
    assert [e.name for e in payload.effects] == [
        *("logits", "temperature", "min_p", "top_k", "top_p")
    ]
    assert payload.settings == {"temperature": 0.8, "min_p": 0.001, "top_k": 40, "top_p": 0.9}
    shares = softmax(recomputed(engine, answer.token_ids[:-1]).logits[22] / 0.8)
    kept = [320, 320]
    masses = [1.0, 1.0]
    left = np.where(shares >= 0.001 * shares.max(), shares, 0)
    for cut in (left, _top_k(left, 40), _top_p(_top_k(left, 40), 0.9)):
        masses.append(cut.sum() / left.sum() if len(masses) > 2 else cut.sum())
        kept.append(int((cut > 0).sum()))
        left = cut
    assert [each.num_kept for each in payload.effects] == kept
    np.testing.assert_allclose([each.kept_mass for each in payload.effects], masses, rtol=1e-4)
    final = left / left.sum()
    np.testing.assert_allclose(
        payload.effects[-1].probabilities, final[list(payload.watched)], rtol=1e-3
    )


def _top_k(shares: np.ndarray[Any, Any], k: int) -> np.ndarray[Any, Any]:
    kept = np.zeros_like(shares)
    best = np.argsort(-shares, kind="stable")[:k]
    kept[best] = shares[best]
    return kept


def _top_p(shares: np.ndarray[Any, Any], p: float) -> np.ndarray[Any, Any]:
    order = np.argsort(-shares, kind="stable")
    before = np.cumsum(shares[order]) - shares[order]
    kept = np.zeros_like(shares)
    best = order[before < p * shares.sum()]
    kept[best] = shares[best]
    return kept


def test_every_token_of_an_answer_is_drawn_again() -> None:
    engine = engine_of()
    settings = {"repetition_penalty": 1.3, "presence_penalty": 0.5, "min_tokens": 2}
    answer = answered(engine, range(20), **SETTINGS, **settings, ignore_eos=False)
    look = Look(engine, answer)
    for token, record in enumerate(answer.tokens):
        payload = shown(look, Query(token=token))
        assert payload.is_same and payload.redrawn == record.token_id
        drawn = payload.draw_effect
        assert drawn is not None and drawn.u == record.u
        assert drawn.seed == str(answer.seed), "of 64 bits, which JavaScript would round"
        assert drawn.low <= drawn.target < drawn.high <= drawn.total
        assert drawn.target == drawn.u * drawn.total >> 32


def test_a_greedy_answer_has_no_draw_and_a_grammar_masks_first() -> None:
    engine = engine_of()
    greedy = shown(Look(engine, answered(engine, range(20))), Query())
    assert greedy.draw_effect is None and greedy.is_same
    assert greedy.strategies[0].token_id == greedy.recorded
    grammar = Grammar.choice(["yes", "no"])
    masked = answered(engine, range(20), temperature=1.0, seed=1, grammar=grammar, max_tokens=8)
    payload = shown(Look(engine, masked), Query())
    assert payload.effects[1].name == "grammar" and payload.effects[1].num_kept == 2
    assert payload.is_same


def test_l1_strategies_share_the_row_and_the_random_number() -> None:
    engine = engine_of()
    answer = answered(engine, range(20), temperature=1.0, seed=7)
    payload = shown(Look(engine, answer), Query(token=1))
    found = {each.name: each for each in payload.strategies}
    assert found["as it is"].token_id == payload.recorded
    assert found["greedy"].num_kept == 1 and found["top_k 40"].num_kept == 40
    assert found["temperature 0.5"].num_kept == found["temperature 1.5"].num_kept == 320


def test_l1_repetition_is_counted_in_the_answer_up_to_the_token() -> None:
    engine = engine_of()
    answer = answered(engine, range(20), temperature=0.1, seed=7, max_tokens=24)
    said = [each.token_id for each in answer.tokens]
    look = Look(engine, answer)
    for token in (0, 3, len(said) - 1):
        payload = shown(look, Query(token=token))
        so_far = said[: token + 1]
        for each in payload.repetition:
            grams = list(zip(*(so_far[start:] for start in range(each.size)), strict=False))
            assert each.num_all == len(grams)
            assert each.num_again == sum(gram in grams[:at] for at, gram in enumerate(grams))
        again = [
            size
            for size in range(1, token + 1)
            if any(so_far[-size:] == so_far[at : at + size] for at in range(token + 1 - size))
        ]
        assert payload.said_again == max(again, default=0)


@pytest.mark.parametrize("params", [{"temperature": 0.0}, SETTINGS, {"temperature": 1.0}])
def test_the_picture_fits_and_says_that_it_is_the_record(params: dict[str, Any]) -> None:
    engine = engine_of()
    everything = {"repetition_penalty": 1.3, "logit_bias": {3: 1.0}, "min_tokens": 3, **params}
    answer = answered(engine, range(20), **everything)
    lines = shown(Look(engine, answer), Query()).draw().text().splitlines()
    assert max(map(len, lines)) <= 100
    assert any(line.endswith("the very token of the record") for line in lines)
