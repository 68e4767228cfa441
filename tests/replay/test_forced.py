"""Tokens put in the model's mouth: the rows are those of the model in NumPy, and of serving."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cutaway.core.errors import ReplayError
from cutaway.replay.look import Look
from cutaway.replay.teacher_forcing import force_tokens
from subjects import answered, engine_of, recomputed


def test_rows_of_another_answer_are_those_of_its_own_forward() -> None:
    engine = engine_of()
    answer = answered(engine, range(20))
    prompt, output = (9, 8, 7), tuple(range(30, 70))
    rows = [row.clone() for _, row in force_tokens(engine, answer, prompt=prompt, output=output)]
    wanted = recomputed(engine, (*prompt, *output[:-1])).logits[2:]
    np.testing.assert_allclose(torch.stack(rows).numpy(), wanted, rtol=1e-9, atol=1e-9)


def test_chunks_and_their_borders_change_nothing() -> None:
    import engines

    small = engines.engine(engines.loaded(dtype=torch.float64), prefill_chunk=16)
    answer = answered(small, range(20))
    output = tuple(range(30, 70))
    found = [(i, row.clone()) for i, row in force_tokens(small, answer, prompt=(9,), output=output)]
    assert [index for index, _ in found] == list(range(40))
    wanted = recomputed(small, (9, *output[:-1])).logits
    got = torch.stack([row for _, row in found]).numpy()
    np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-9)


def test_a_branch_leaves_from_any_token_of_the_answer() -> None:
    engine = engine_of()
    answer = answered(engine, range(20))
    subject = Look(engine, answer).subject
    rows = subject.branch(3, (5, 6))
    wanted = recomputed(engine, (*answer.token_ids[:23], 5)).logits[22:]
    np.testing.assert_allclose(rows.numpy(), wanted, rtol=1e-4, atol=1e-5)
    served = [token.logit for token in answer.tokens]
    own = subject.branch(0, answer.token_ids[20:])
    assert [float(own[i, t.token_id]) for i, t in enumerate(answer.tokens)] == pytest.approx(served)


def test_no_token_gives_no_row() -> None:
    engine = engine_of()
    with pytest.raises(ReplayError, match="it has no tokens yet"):
        next(force_tokens(engine, answered(engine, range(20)), prompt=(1,), output=()))


def test_what_decided_a_token_is_told_beside_its_logits() -> None:
    engine = engine_of()
    answer = answered(engine, range(20), temperature=0.7, seed=5, ignore_eos=False, min_tokens=2)
    row = Look(engine, answer).subject.row
    assert row(1).banned_token_ids and not row(2).banned_token_ids
    assert (row(2).seed, row(2).position) == (5, 22)
    assert row(2).output_token_ids == list(answer.token_ids[20:22])
