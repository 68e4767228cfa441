"""The view of guesses: each beside what the draw gave, with its probability in the model's row."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
import torch

import engines
from cutaway.core.step import Step
from cutaway.engine.config import EngineConfig
from cutaway.engine.drafters.model_drafter import ModelDrafter
from cutaway.engine.drafting import Drafting
from cutaway.engine.engine import Engine
from cutaway.replay.look import Look
from cutaway.sampling.seed import resolve_seed
from cutaway.trace.records import AnswerRecord
from cutaway.views import view_of
from cutaway.views.parts.query import Query
from cutaway.views.speculation import ACCEPTED, REFUSED, UNUSED, Speculation
from drafters import EachAlone
from subjects import answered, engine_of, recomputed, softmax

PROMPT = b"one two three"
NUM_TOKENS = 24


class Knowing(EachAlone):
    """Knows the answer, and is wrong at some places of it."""

    def __init__(self, prompt: Sequence[int], answer: Sequence[int], wrong: Sequence[int]) -> None:
        said = [*prompt, *answer]
        self._said = [(t + 1) % 256 if i - len(prompt) in wrong else t for i, t in enumerate(said)]

    def guess(self, token_ids: Sequence[int]) -> list[int]:
        return self._said[len(token_ids) : len(token_ids) + 4]


def guessed(wrong: Sequence[int], **params: object) -> tuple[Engine, AnswerRecord]:
    """An engine and an answer of it for which all but some tokens were guessed right."""
    plain = answered(engine_of(), PROMPT, max_tokens=NUM_TOKENS, **params)
    engine = engine_of()
    engine.drafting = Drafting.of(Knowing(PROMPT, [t.token_id for t in plain.tokens], wrong))
    answer = answered(engine, PROMPT, max_tokens=NUM_TOKENS, **params)
    assert [t.token_id for t in answer.tokens] == [t.token_id for t in plain.tokens]
    return engine, answer


def shown(engine: Engine, answer: AnswerRecord, token: int) -> Speculation:
    payload = view_of("speculation").show(Look(engine, answer).subject, Query(token=token)).payload
    assert isinstance(payload, Speculation)
    return payload


def test_each_guess_stands_beside_what_came() -> None:
    engine, answer = guessed(wrong=[3, 9])
    payload = shown(engine, answer, token=1)
    assert (payload.num_guessed, payload.num_accepted) == (engine.num_drafted, engine.num_accepted)
    assert payload.num_tokens == NUM_TOKENS == sum(step.given for step in payload.steps)
    texts = [Look(engine, answer).subject.text(each.token_id) for each in answer.tokens]
    for step in payload.steps:
        is_open = True
        for place, guess in enumerate(step.guesses):
            token = step.token + place
            if not is_open or token >= step.token + step.given:
                assert (guess.verdict, guess.came) == (UNUSED, "")
                continue
            assert guess.came == texts[token]
            is_open = guess.token_id == answer.tokens[token].token_id
            assert guess.verdict == (ACCEPTED if is_open else REFUSED)
    refused = [g for step in payload.steps for g in step.guesses if g.verdict == REFUSED]
    assert len(refused) == 2


@pytest.mark.parametrize("token", [0, 1, 4, 9, NUM_TOKENS - 1])
def test_its_probability_is_that_of_a_recomputation(token: int) -> None:
    engine, answer = guessed(wrong=[3, 9], temperature=0.8, top_k=5, seed=3)
    row = shown(engine, answer, token).row
    assert row is not None and row.token <= token < row.token + row.given
    logits = recomputed(engine, answer.token_ids).logits
    for place, guess in enumerate(row.guesses):
        if guess.verdict == UNUSED:
            assert guess.probability is None and guess.chance is None
            continue
        raw = logits[answer.num_prompt_tokens - 1 + row.token + place]
        np.testing.assert_allclose(guess.probability, softmax(raw)[guess.token_id], rtol=1e-6)
        best = np.argsort(-raw)[:5]
        wanted = softmax(raw[best] / 0.8)[best == guess.token_id].sum()
        np.testing.assert_allclose(guess.chance, wanted, atol=1e-6)
        assert guess.u == answer.tokens[row.token + place].u and guess.q is None
        if guess.verdict == REFUSED:
            shares = softmax(raw[best] / 0.8)
            came = shares[best == answer.tokens[row.token + place].token_id].sum()
            np.testing.assert_allclose(guess.residual, came / (1 - wanted), atol=1e-6)


def test_q_is_what_a_draft_model_gave() -> None:
    engine = engine_of()
    draft = engines.nearly(engine.model, noise=0.05)
    config = EngineConfig(page_size=8)
    drafter = ModelDrafter(draft, config, kind="model", num_pages=100, vocab_size=320)
    engine.drafting = Drafting.of(drafter)
    answer = answered(engine, PROMPT, max_tokens=NUM_TOKENS)
    payload = shown(engine, answer, token=1)
    guesses = [guess for step in payload.steps for guess in step.guesses]
    assert guesses and all(guess.q is not None and 0 < guess.q <= 1 for guess in guesses)
    step = next(step for step in payload.steps if step.guesses)
    known = [*PROMPT, *answer.token_ids[len(PROMPT) : len(PROMPT) + step.token]]
    with torch.inference_mode():
        row = draft.transformer(Step.without_cache([known]))[-1]
    wanted = softmax(row.numpy())[step.guesses[0].token_id]
    np.testing.assert_allclose(step.guesses[0].q, wanted, rtol=1e-5)


def test_rejection_is_told_by_p_q_u_and_residual(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a seed: a guess stood where u was below p / q, else the residual's share is told."""
    seeds = partial(resolve_seed, entropy=random.Random(4).randbytes)
    monkeypatch.setattr("cutaway.engine.admission.prerequisites.resolve_seed", seeds)
    engine = engine_of()
    draft = engines.nearly(engine.model, noise=0.3)
    config = EngineConfig(page_size=8)
    drafter = ModelDrafter(draft, config, kind="model", num_pages=100, vocab_size=320)
    engine.drafting = Drafting.of(drafter)
    answer = answered(engine, PROMPT, max_tokens=60, temperature=0.9)
    verdicts: set[str] = set()
    token = 0
    while token < 60:
        row = shown(engine, answer, token=token).row
        assert row is not None
        for place, guess in enumerate(row.guesses):
            if guess.verdict == UNUSED:
                continue
            verdicts.add(guess.verdict)
            assert guess.u is not None and guess.q and guess.chance is not None
            assert (guess.verdict == ACCEPTED) == (guess.u / 2**32 < guess.chance / guess.q)
            assert (guess.residual is None) == (guess.verdict == ACCEPTED)
            came = answer.tokens[row.token + place]
            assert came.residual == guess.residual
        token += row.given
    assert verdicts == {ACCEPTED, REFUSED}
    sampling = view_of("sampling").show(Look(engine, answer).subject, Query(token=1)).payload
    assert sampling.is_guess or sampling.is_same


def test_what_it_won_is_counted_by_place() -> None:
    engine, answer = guessed(wrong=[3, 9])
    payload = shown(engine, answer, token=0)
    assert payload.right.sum() == payload.num_accepted
    shares = payload.right / np.maximum(payload.tried, 1)
    np.testing.assert_allclose(payload.expected, 1 + np.cumprod(shares).sum())
    guessing = [step.given for step in payload.steps if step.guesses]
    np.testing.assert_allclose(payload.measured, np.mean(guessing))
    assert payload.num_guessing == len(guessing) and payload.num_steps == len(payload.steps)


def test_a_drawing_says_what_stood_and_what_came_instead() -> None:
    engine, answer = guessed(wrong=[3])
    text = shown(engine, answer, token=1).draw().text()
    assert f"{engine.num_accepted} of {engine.num_drafted} guesses stood" in text
    assert "refused" in text and "→" in text


def test_without_guesses_it_says_so_and_costs_no_replay() -> None:
    engine = engine_of()
    answer = answered(engine, PROMPT, max_tokens=4)
    payload = shown(engine, answer, token=0)
    assert (payload.num_guessed, payload.num_steps) == (0, 4) and payload.speed_up is None
    assert "nothing was guessed" in payload.draw().text()
    assert view_of("speculation").wants(Look(engine, answer).subject, Query(token=0)).is_empty
