"""The view of cost: shares of a tiny engine's steps, added up again."""

from __future__ import annotations

from unittest.mock import Mock

import numpy as np
import pytest

import engines
from cutaway.core.errors import RequestError
from cutaway.core.work import STAGES
from cutaway.replay.look import Look
from cutaway.trace.cost import PLAIN, Rates
from cutaway.views import view_of
from cutaway.views.cost import TEXT, AnswerCost
from cutaway.views.parts.query import Query, query_of
from subjects import answered, engine_of


def cost(price: float | None = None) -> tuple[AnswerCost, Look]:
    engine = engine_of()
    answered(engine, range(30))
    look = Look(engine, answered(engine, range(40)))
    payload = view_of("cost").show(look.subject, Query(price=price)).payload
    assert isinstance(payload, AnswerCost)
    return payload, look


def test_shares_add_up_and_the_hit_is_free() -> None:
    payload, look = cost(price=7.2)
    ledger, answer = look.subject.ledger, look.subject.answer
    steps = [step for n in answer.steps if (step := ledger.step(n)) is not None]
    alone = sum(step.ended - step.began for step in steps)
    assert payload.seconds == pytest.approx(alone) and payload.busy == pytest.approx(alone)
    assert [stage.name for stage in payload.stages] == [*STAGES, "sampling", TEXT]
    assert sum(stage.seconds for stage in payload.stages) == pytest.approx(alone)
    assert float(payload.token_seconds.sum()) == pytest.approx(alone, rel=1e-5)
    assert float(payload.token_flops.sum()) == pytest.approx(sum(s.flops for s in payload.stages))
    for name in ("seconds", "bytes", "flops"):
        by_stage = getattr(payload, f"stage_{name}")  # [S, N]
        totals = [getattr(stage, name.replace("bytes", "num_bytes")) for stage in payload.stages]
        np.testing.assert_allclose(by_stage.sum(axis=1), totals, rtol=1e-5)
        np.testing.assert_allclose(by_stage.sum(axis=0), getattr(payload, f"token_{name}"), 1e-5)
    # Pages of 8: of the 30 equal tokens 24 are found; 16 are computed, and one per further token.
    assert payload.num_cached == 24 and [mode.num_tokens for mode in payload.modes] == [16, 5]
    assert payload.money == pytest.approx(7.2 / 3600 * alone)
    assert payload.per_million is not None
    prefill, decode = payload.modes
    assert payload.per_million[0] == pytest.approx(2000 * prefill.seconds / 16)
    assert payload.per_million[1] == pytest.approx(2000 * decode.seconds / 5)


def test_operations_are_those_of_the_model_by_hand() -> None:
    payload, look = cost()
    facts = look.subject.facts
    width, heads = facts.width, facts.num_heads * facts.head_size
    groups = facts.num_groups * facts.head_size
    matrices = 2 * (2 * width * heads + 2 * width * groups)
    pairs = sum(2 * 2 * heads * (position + 1) for position in range(24, 45))
    by_name = {stage.name: stage for stage in payload.stages}
    assert by_name["attention"].flops == facts.num_layers * (21 * matrices + pairs)
    assert by_name["mlp"].flops == facts.num_layers * 21 * 2 * 3 * width * facts.inner
    assert by_name["unembedding"].flops == 6 * 2 * width * facts.vocab_size
    assert payload.token_flops.dtype == np.float32 and len(payload.token_flops) == 6


def test_the_picture_says_what_it_is_worth() -> None:
    text = cost(price=2.5)[0].draw().text()
    assert max(map(len, text.splitlines())) <= 100
    for words in (
        "attention",
        "24 prompt tokens were free",
        "at 2.5 an hour",
        "a million tokens: ",
    ):
        assert words in text, text
    assert "do not tell what a longer context adds" in text
    assert "no price" in cost()[0].draw().text()


def test_a_longer_context_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engines.engine(engines.loaded(max_position_embeddings=1024), prefill_chunk=64)
    answered(engine, [3] * 700)
    look = Look(engine, answered(engine, range(5)))
    # Rates as steps were found to have: of all kinds of work, and of none that a context adds.
    for rates, is_told in ((PLAIN, True), (Rates((1e-10, 0.0, 1e-11, 0.0)), False)):
        monkeypatch.setattr("cutaway.views.cost.fit_rates", Mock(return_value=rates))
        payload = view_of("cost").show(look.subject, Query()).payload
        assert isinstance(payload, AnswerCost)
        assert (payload.slope is not None and payload.slope > 0) == is_told
        assert ("1,000 more tokens of context add" in payload.draw().text()) == is_told


def test_a_price_is_a_number() -> None:
    for value, words in (
        ("x", 'price is "x"; it must be a number'),
        (-1.0, "price is -1.0; it must be a number from 0 up"),
        (float("nan"), "price is nan"),
    ):
        with pytest.raises(RequestError, match=words):
            query_of({"price": value})
