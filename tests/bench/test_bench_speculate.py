"""Guesses beside none: the same tokens, and what each case tells."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tiny
from cutaway import LLM
from cutaway.bench import speculate
from cutaway.core.errors import ConfigError, GrammarError


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    path = tmp_path_factory.mktemp("speculate") / "config.json"
    path.write_text(json.dumps(tiny.config(max_position_embeddings=4096)), encoding="utf-8")
    return _opened(path)


def _opened(path: Path) -> LLM:
    return LLM(f"random:{path}", dtype="float32", cache_tokens=8192, prefix_cache=False)


def test_each_case_tells_what_it_was(llm: LLM) -> None:
    said: list[str] = []
    names = ("chat", "random")
    report = speculate.run(
        llm, workloads=names, batches=(1, 2), rounds=2, tokens=8, say=said.append
    )
    assert [(row.workload, row.batch) for row in report.rows] == [
        (name, batch) for name in names for batch in (1, 2)
    ]
    assert len(said) == len(report.rows)
    for row in report.rows:
        assert row.ratio > 0 and row.plain > 0 and row.guessing > 0
        assert row.accepted is None or 0 <= row.accepted <= 1
        assert 1 <= row.tokens_per_step < 14


def test_what_there_is_not_is_refused_before_anything_is_measured(llm: LLM) -> None:
    with pytest.raises(ConfigError, match='workloads holds "poem"; it must be of repeat, edit'):
        speculate.run(llm, workloads=["poem"])
    with pytest.raises(ConfigError, match="batch is 65, above max_sequences, 64"):
        speculate.run(llm, batches=(1, 65))
    with pytest.raises(ConfigError, match="batch is 0; it must be at least 1"):
        speculate.run(llm, batches=(1, 0))


def test_structured_answers_are_forced_and_guessed(llm: LLM) -> None:
    pytest.importorskip("llguidance")
    (row,) = speculate.run(llm, workloads=["structured"], batches=(1,), rounds=1, tokens=120).rows
    assert row.accepted is not None, "a schema forces names and quotes, and they are guessed"


def test_an_answer_that_is_refused_ends_the_measurement(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("llguidance")
    monkeypatch.setattr(speculate, "_SCHEMA", '{"type": "nonsense"}')
    with pytest.raises(GrammarError, match="nonsense"):
        speculate.run(llm, workloads=["structured"], batches=(1,), rounds=1, tokens=8)
