"""What decided each token, besides its logits, takes memory that grows with the answer alone."""

from __future__ import annotations

import tracemalloc

import numpy as np

from cutaway.core.request import SamplingParams
from cutaway.replay.recorded_answers import verify_answer
from cutaway.replay.teacher_forcing import forced_record
from cutaway.replay.verify import Prefix, bytes_of_rows, rows_of
from cutaway.trace.records import AnswerRecord
from subjects import answered, engine_of


def record_of(num_tokens: int) -> AnswerRecord:
    answer = answered(engine_of(), range(20))
    return forced_record(answer, prompt=range(20), output=[7] * num_tokens)


def peak_of(num_tokens: int) -> tuple[int, int]:
    """Bytes at the most, and how many rows were made."""
    answer = record_of(num_tokens)
    tracemalloc.start()
    rows = rows_of(answer, end_ids=frozenset({1}), state=None)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak, len(rows)


def test_rows_of_an_answer_grow_with_its_tokens_and_not_with_their_square() -> None:
    for num_tokens in (1_000, 4_000):
        peak, count = peak_of(num_tokens)
        assert count == num_tokens
        assert peak <= bytes_of_rows(num_tokens, vocab_size=320, has_grammar=False)


def test_a_prefix_is_what_a_copy_would_be() -> None:
    token_ids = list(range(50, 80))
    for length in (0, 1, 7, 30):
        prefix, copy = Prefix(token_ids, length), token_ids[:length]
        assert len(prefix) == length and [*prefix] == copy and prefix[2:5] == copy[2:5]
        assert np.array(prefix, np.int64).tolist() == copy
        assert all(prefix[at] == copy[at] for at in range(-length, length))
        try:
            prefix[length]
        except IndexError:
            continue
        raise AssertionError("nothing is behind it")


def test_rows_with_penalties_draw_what_the_engine_drew() -> None:
    engine = engine_of()
    params = {"temperature": 1.0, "seed": 3, "repetition_penalty": 1.4, "frequency_penalty": 0.5}
    answer = answered(engine, range(20), max_tokens=12, **params)
    assert verify_answer(engine, answer).is_exact
    assert SamplingParams(**params).has_penalties
