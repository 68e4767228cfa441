"""Answers that were served are run again: equal row for row, or the cause is named."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.nn import functional

import tiny
from cutaway import LLM
from cutaway.core.errors import ReplayError
from cutaway.core.request import Request, SamplingParams
from cutaway.engine.drafters import NGramDrafter
from cutaway.engine.drafters.draft_models import early_layers
from cutaway.engine.drafters.model_drafter import ModelDrafter
from cutaway.engine.drafting import Drafting
from cutaway.engine.engine import Engine
from cutaway.kernels import capture
from cutaway.quantize.dense import DenseWeight
from cutaway.quantize.packed import Packed
from cutaway.replay.recorded_answers import replay_answer, verify_answer
from cutaway.sampling.seed import resolve_seed
from cutaway.trace.ledger import Ledger
from cutaway.trace.records import AnswerRecord
from engines import run, workload
from trials import patience

NATIVE = pytest.param(
    "auto",
    marks=pytest.mark.skipif(not capture.is_available(), reason="the native kernels are not built"),
)

EVERYWHERE = [pytest.param("float32", marks=pytest.mark.slow), NATIVE]

# Little of everything, so that prefixes are shared, prompts cut, and the young sent back.
TIGHT = {"cache_tokens": 112, "prefill_chunk": 16, "max_tokens_per_step": 48, "max_sequences": 6}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("replay")
    sizes = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}
    (path / "config.json").write_text(json.dumps(tiny.config(vocab_size=320, **sizes)))
    return path


def opened(folder: Path, dtype: str, **settings: object) -> Engine:
    given = {"cache_tokens": 4096, "page_size": 8, "dtype": dtype, **settings}
    return LLM(f"random:{folder}/config.json", **given).engine


def served(engine: Engine, *, seed: int = 0, count: int = 12) -> list[AnswerRecord]:
    """A mixed workload, answered; its records."""
    requests = workload(seed, count)
    chance = random.Random(seed)
    run(engine, requests, [chance.randrange(12) for _ in requests])
    return [answer for answer in records(engine).answers if answer.tokens]


def records(engine: Engine) -> Ledger:
    assert engine.ledger is not None
    return engine.ledger


def one(engine: Engine, prompt: range, number: int = 0, **params: object) -> AnswerRecord:
    """One request, answered alone."""
    request = Request(
        request_id=f"one{number}",
        prompt_token_ids=tuple(prompt),
        params=SamplingParams(
            **{"max_tokens": 6, "temperature": 0.0, "ignore_eos": True, **params}
        ),
    )
    run(engine, [request])
    found = records(engine).find(request.request_id)
    assert found is not None
    return found


@pytest.mark.parametrize("dtype", EVERYWHERE)
@pytest.mark.parametrize("seed", [0, 1])
def test_every_answer_comes_again(folder: Path, dtype: str, seed: int) -> None:
    engine = opened(folder, dtype, **TIGHT)
    answers = served(engine, seed=seed)
    assert any(len(answer.admissions) > 1 for answer in answers), "some were preempted"
    assert any(answer.admissions[0].num_hit for answer in answers), "some found a prefix"
    for answer in answers:
        verdict = verify_answer(engine, answer)
        assert verdict.is_exact and verdict.cause is None, str(verdict)
        assert verdict.num_tokens == verdict.num_equal == len(answer.tokens)
        assert str(verdict).startswith("exact (shape-faithful")


@pytest.mark.slow
@NATIVE.marks[0]
def test_200_answers_come_again(folder: Path) -> None:
    """Greedy and sampled, with prefix hits, chunks, preemption and changing company, both ways.

    50 of them in CI.
    """
    engine, wanted = opened(folder, "auto", **TIGHT), patience(200, in_ci=50)
    answers = served(engine, seed=5, count=wanted * 3 // 4)[:wanted]
    assert len(answers) == wanted, "some requests have three choices"
    assert sum(len(answer.admissions) > 1 for answer in answers) >= wanted // 40, "preempted"
    num_found = sum(answer.admissions[0].num_hit > 0 for answer in answers)
    assert num_found >= wanted // 5, "found a prefix"
    missed = [
        verdict for answer in answers if not (verdict := verify_answer(engine, answer)).is_exact
    ]
    assert not missed, missed
    again = (verify_answer(engine, answer, level="invariant") for answer in answers)
    missed = [verdict for verdict in again if not verdict.is_exact]
    assert not missed, missed


@NATIVE.marks[0]
def test_native_answers_come_again_alone_and_in_other_chunks(folder: Path) -> None:
    engine = opened(folder, "auto", **TIGHT)
    for answer in served(engine, seed=2):
        verdict = verify_answer(engine, answer, level="invariant")
        assert verdict.is_exact, str(verdict)


@pytest.mark.parametrize("dtype", EVERYWHERE)
def test_drafted_answers_come_again(folder: Path, dtype: str) -> None:
    engine = opened(folder, dtype)
    engine.drafting = Drafting.of(NGramDrafter(shortest=1))
    answers = served(engine, seed=1)
    assert engine.num_accepted > 0
    steps = [records(engine).step(number) for answer in answers for number in answer.steps]
    assert any(part.draft_token_ids for step in steps if step for part in step.parts)
    for answer in answers:
        assert verify_answer(engine, answer).is_exact


def test_answers_that_a_draft_model_guessed_for_come_again(folder: Path) -> None:
    """The replay needs no drafter: what was guessed is in the record."""
    engine = opened(folder, "float32", draft_model=f"random:{folder}/config.json")
    assert engine.drafting is not None
    for source in engine.drafting._sources.values():
        source._controller = None  # all guesses are taken, whatever they cost
    answers = served(engine, seed=1)
    assert engine.num_accepted > 0
    for answer in answers:
        assert verify_answer(engine, answer).is_exact


def test_a_replay_neither_disturbs_nor_is_disturbed(folder: Path) -> None:
    """It has pages of its own, and answers go on between its steps."""
    engine = opened(folder, "auto")
    first = one(engine, range(60))
    before = engine.cache_stats
    replay = replay_answer(engine, first)
    for number, _ in enumerate(replay.steps(), start=1):
        one(engine, range(5, 30), number)
    assert engine.cache_stats.used == before.used == 0
    assert verify_answer(engine, first).is_exact


def test_the_cost_is_known_before(folder: Path) -> None:
    engine = opened(folder, "float32", prefill_chunk=16)
    answer = one(engine, range(40))
    plan = replay_answer(engine, answer).plan
    assert len(plan.runs) == 3 + 5, "three chunks, and a step for each token but the first"
    assert plan.num_tokens == 40 + 5
    assert plan.num_pages == 1 + 6, "a scratch page, and pages for 45 tokens"


def test_another_seed_is_named(folder: Path) -> None:
    engine = opened(folder, "auto")
    answer = one(engine, range(30), temperature=1.0, seed=7)
    assert verify_answer(engine, answer).is_exact
    answer.seed = 8
    verdict = verify_answer(engine, answer)
    assert not verdict.is_exact and verdict.first == 0
    assert verdict.num_equal > 0, "the rows up to the first other token are equal"
    assert "the seed" in str(verdict)


def test_other_settings_are_named(folder: Path) -> None:
    engine = opened(folder, "auto")
    answer = one(engine, range(30), temperature=1.0, seed=7, top_k=2)
    params = replace(answer.request.params, top_k=0)
    answer.request = replace(answer.request, params=params)
    verdict = verify_answer(engine, answer)
    assert not verdict.is_exact and "the sampling settings" in str(verdict)


@pytest.mark.parametrize("dtype", ["float32", NATIVE])
def test_one_changed_bit_of_a_weight_is_named(folder: Path, dtype: str) -> None:
    engine = opened(folder, dtype)
    answer = one(engine, range(30))
    path, data = "blocks.1.mlp.down.segments.0", None
    module = engine.model.transformer.get_submodule(path)
    data = module.packed.data if isinstance(module, Packed) else module.weight.data
    words = data.view(torch.uint8).view(-1)
    words[len(words) // 2] ^= 0x10
    verdict = verify_answer(engine, answer)
    assert not verdict.is_exact and path in str(verdict) and "the weights" in str(verdict)
    words[len(words) // 2] ^= 0x10
    assert verify_answer(engine, answer).is_exact


@pytest.mark.parametrize("dtype", ["float32", NATIVE])
def test_one_changed_number_in_a_page_is_named(folder: Path, dtype: str) -> None:
    """A prefix that was spoilt in the cache: whoever finds it is answered wrongly."""
    engine = opened(folder, dtype)
    first = one(engine, range(40), 0)
    assert verify_answer(engine, first).is_exact
    key = engine.cache.keys(first.cache_root).between(0, 2, first.token_ids)[1]
    page = engine.cache.allocators[0].index.find(key)
    engine.runner.pool.layers[1].fields["value"][page, 3, 0, 5] += 1.0
    second = one(engine, range(40), 1)
    assert second.admissions[0].num_hit == 32
    verdict = verify_answer(engine, second)
    assert not verdict.is_exact and verdict.num_equal < verdict.num_tokens
    assert "value of token 11 in layer 1" in str(verdict)


@NATIVE.marks[0]
def test_other_chunk_borders_are_named_and_change_nothing_in_invariant_order(folder: Path) -> None:
    engine = opened(folder, "auto", prefill_chunk=16)
    answer = one(engine, range(40))
    verdict = verify_answer(engine, answer, level="invariant", prefill_chunk=11)
    assert verdict.is_exact and verdict.num_equal == verdict.num_tokens and not verdict.difference
    assert verdict.borders == "the prompt is cut at 11, 22, 33, serving cut it at 16, 32"
    assert str(verdict) == f"exact (invariant, 6 tokens; {verdict.borders})"
    alike = verify_answer(engine, answer, level="invariant")
    assert alike.is_exact and alike.borders is None


def test_other_chunk_borders_are_the_cause_outside_invariant_order(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = opened(folder, "float32")
    sum_by_rows(monkeypatch)
    answer = one(engine, range(40))
    assert verify_answer(engine, answer).is_exact, "the same borders give the same sums"
    verdict = verify_answer(engine, answer, level="invariant", prefill_chunk=11)
    assert not verdict.is_exact and 0 < verdict.difference < 1e-4
    words = "the plan: the prompt is cut at 11, 22, 33, serving cut it nowhere"
    assert verdict.cause is not None and verdict.cause.startswith(words)
    assert f"differ by at most {verdict.difference:.2g}" in str(verdict)


def test_a_record_with_other_chunk_borders_is_no_fault_of_the_cache(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recorded borders are not those that were served: kept pages differ by rounding alone."""
    engine = opened(folder, "float32", prefill_chunk=16)
    sum_by_rows(monkeypatch)
    answer = one(engine, range(40))
    first, second = (records(engine).step(number) for number in answer.steps[:2])
    assert first is not None and second is not None
    for step, start, end in ((first, 0, 13), (second, 13, 32)):
        part = replace(step.parts[0], start=start, count=end - start)
        records(engine)._steps[step.number] = step._replace(parts=(part,))
    verdict = verify_answer(engine, answer)
    assert not verdict.is_exact and 0 < verdict.difference < 1e-4
    assert verdict.cause is not None and "the plan: " in verdict.cause
    assert "differ from the rebuilt ones by rounding alone" in verdict.cause


def sum_by_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products whose order of summation depends on the number of rows, as on many machines."""

    def multiply(self: DenseWeight, x: torch.Tensor) -> torch.Tensor:
        cut = x[..., 0].numel() % x.shape[-1]
        left = functional.linear(x[..., :cut], self.weight[:, :cut])
        return left + functional.linear(x[..., cut:], self.weight[:, cut:])

    monkeypatch.setattr(DenseWeight, "multiply", multiply)


def test_a_changed_number_is_named_under_another_plan_too(folder: Path) -> None:
    engine = opened(folder, "float32")
    answer = one(engine, range(40))
    key = engine.cache.keys(answer.cache_root).between(0, 2, answer.token_ids)[1]
    page = engine.cache.allocators[0].index.find(key)
    engine.runner.pool.layers[1].fields["key"][page, 3, 0, 5] += 1.0
    again = one(engine, range(40), 1)
    verdict = verify_answer(engine, again, level="invariant", prefill_chunk=11)
    assert not verdict.is_exact and "key of token 11 in layer 1" in str(verdict)


def test_a_lost_writer_of_a_prefix_is_told(folder: Path) -> None:
    engine = opened(folder, "float32")
    first = one(engine, range(40), 0)
    second = one(engine, range(40), 1, max_tokens=4)
    records(engine)._drop(first)
    plan = replay_answer(engine, second).plan
    assert plan.cause is not None and "another plan" in plan.cause
    assert sum(run.part.count for run in plan.runs) == 40 + 3


def test_an_answer_whose_steps_are_gone_is_refused(folder: Path) -> None:
    engine = opened(folder, "auto", ledger_bytes=20_000)
    params = SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True)
    engine.add(Request(request_id="long", prompt_token_ids=tuple(range(40)), params=params))
    for _ in range(100):
        engine.step()
    answer = records(engine).find("long")
    assert answer is not None and not answer.is_whole
    assert records(engine).num_bytes <= 20_000 + 320 * len(answer.tokens)
    with pytest.raises(ReplayError, match="ledger_bytes"):
        verify_answer(engine, answer)


def test_nothing_is_recorded_when_asked(folder: Path) -> None:
    engine = opened(folder, "float32", ledger_bytes=0)
    run(engine, workload(0, 3))
    assert engine.ledger is None and engine.recorder is None


@pytest.mark.parametrize("dtype", EVERYWHERE)
def test_guesses_that_rejection_verified_come_again(
    folder: Path, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = partial(resolve_seed, entropy=random.Random(3).randbytes)
    monkeypatch.setattr("cutaway.engine.admission.prerequisites.resolve_seed", seeds)
    engine = opened(folder, dtype)
    early = early_layers(engine.model, 1)
    made = ModelDrafter(early, engine.config, kind="early", num_pages=100, vocab_size=320)
    engine.drafting = Drafting.of(made)
    params = SamplingParams(temperature=2.0, max_tokens=60, ignore_eos=True, n=2, logprobs=2)
    run(engine, [Request(request_id="a", prompt_token_ids=(1, 2, 3), params=params)])
    answers = list(records(engine).answers)
    tokens = [token for answer in answers for token in answer.tokens]
    assert engine.num_accepted > 5 and any(token.residual is not None for token in tokens)
    for answer in answers:
        verdict = verify_answer(engine, answer)
        assert verdict.is_exact, verdict
