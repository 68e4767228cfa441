"""Logits: what the view tells is enough to draw the recorded token again, in plain Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cutaway.core.grammar import Grammar
from cutaway.replay.look import Look
from cutaway.views import view_of
from cutaway.views.logits import LogitRow
from cutaway.views.parts.query import Query
from sampling.plain_sampler import float32, sample
from subjects import answered, engine_of, recomputed

CUTS = {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.001, "seed": 2**62 + 1}
EDITS = {
    "repetition_penalty": 1.3,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.25,
    "logit_bias": {3: 1.5, 9: -2.0},
    "min_tokens": 2,
}


def shown(look: Look, query: Query) -> LogitRow:
    payload = view_of("logits").show(look.subject, query).payload
    assert isinstance(payload, LogitRow)
    return payload


def edited(payload: LogitRow) -> list[float]:
    """The row after grammar, bias, bans and penalties, from the payload alone."""
    row = payload.logits.copy()
    if payload.allowed.size:
        bits = np.unpackbits(payload.allowed, count=len(row), bitorder="little")
        row[bits == 0] = -np.inf
    row[payload.bias_token_ids] += payload.bias.astype(np.float32)
    row[payload.banned_token_ids] = -np.inf
    repetition = np.float32(payload.settings["repetition_penalty"])
    said = row[payload.said_token_ids]
    row[payload.said_token_ids] = np.where(said > 0, said / repetition, said * repetition)
    frequency, presence = (payload.settings[f"{n}_penalty"] for n in ("frequency", "presence"))
    amounts = payload.output_counts * frequency + presence
    row[payload.output_token_ids] -= amounts.astype(np.float32)
    return [float32(each) for each in row.tolist()]


@pytest.mark.parametrize(
    "more", [{}, EDITS, {"grammar": Grammar.choice(["yes", "no"])}], ids=["cuts", "edits", "form"]
)
def test_the_recorded_token_is_drawn_from_what_is_told(more: dict[str, Any]) -> None:
    engine = engine_of()
    answer = answered(engine, range(20), **CUTS, **more, ignore_eos=False)
    look = Look(engine, answer)
    for token, record in enumerate(answer.tokens):
        payload = shown(look, Query(token=token))
        assert (payload.recorded, payload.u) == (record.token_id, record.u)
        assert payload.seed == str(CUTS["seed"])
        cuts = {name: payload.settings[name] for name in ("temperature", "min_p", "top_p")}
        drawn = sample(edited(payload), payload.u, top_k=int(payload.settings["top_k"]), **cuts)
        assert drawn.token_id == record.token_id


def test_the_row_is_the_models_own() -> None:
    engine = engine_of()
    answer = answered(engine, range(20), **CUTS)
    payload = shown(Look(engine, answer), Query(token=3, top=5))
    row = recomputed(engine, answer.token_ids[:-1]).logits[22]
    np.testing.assert_allclose(payload.logits, row, rtol=1e-4, atol=1e-4)
    order = np.argsort(-payload.logits, kind="stable")[:5].tolist()
    assert payload.top_token_ids.tolist()[:5] == order
    assert set(payload.top_token_ids.tolist()) == {*order, payload.recorded}
    assert len(payload.top_texts) == len(payload.top_token_ids)


def test_the_picture_counts_every_entry() -> None:
    engine = engine_of()
    payload = shown(Look(engine, answered(engine, range(20))), Query())
    lines = payload.draw().text().splitlines()
    assert max(map(len, lines)) <= 100
    bins = [line.split() for line in lines[2:-1]]
    assert sum(int(words[3].replace(",", "")) for words in bins) == len(payload.logits)
