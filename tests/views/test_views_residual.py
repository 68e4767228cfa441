"""The residual ledger against sums and norms in NumPy, from weights and ids alone."""

from __future__ import annotations

import numpy as np

from cutaway.replay.look import Look
from cutaway.views import view_of
from cutaway.views.parts.query import Query
from cutaway.views.residual import Residual
from subjects import answered, engine_of, recomputed


def test_norms_and_cosines_are_those_of_the_stream() -> None:
    engine = engine_of()
    answer = answered(engine, range(20))
    shown = view_of("residual").show(Look(engine, answer).subject, Query(position=7))
    assert shown.proof is not None and shown.proof.is_exact
    payload = shown.payload
    assert isinstance(payload, Residual)
    inner = recomputed(engine, answer.token_ids[:-1])
    stream, attention, mlp = (
        np.stack(each)[:, 7] for each in (inner.streams, inner.attention, inner.mlp)
    )
    norm = np.linalg.norm
    np.testing.assert_allclose(payload.embedding, norm(stream[0]), rtol=1e-5)
    np.testing.assert_allclose(payload.stream, norm(stream[1:], axis=-1), rtol=1e-4)
    np.testing.assert_allclose(payload.attention, norm(attention, axis=-1), rtol=1e-4)
    np.testing.assert_allclose(payload.mlp, norm(mlp, axis=-1), rtol=1e-4)
    products = (stream[1:] * stream[:-1]).sum(-1)
    cosines = products / norm(stream[1:], axis=-1) / norm(stream[:-1], axis=-1)
    np.testing.assert_allclose(payload.cosine, cosines, rtol=1e-4, atol=1e-5)
    lines = payload.draw().text().splitlines()
    assert len(lines) == 2 + engine.model.facts.num_layers and max(map(len, lines)) <= 100
