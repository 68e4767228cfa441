"""`cutaway bench latency` and `throughput`, on a tiny model."""

from __future__ import annotations

import random

import pytest

from cutaway.bench.speed import Limits, measure_latency, measure_throughput
from cutaway.bench.workloads import workload_of
from cutaway.core.errors import ConfigError
from engines import engine, loaded

LIMITS = Limits("nothing", 1e9, 1e9)
SIZES = {"requests": 3, "prompt_tokens": 20, "answer_tokens": 12, "vocab_size": 300, "seed": 1}


def test_the_set_of_nano_vllm_is_drawn_in_its_order() -> None:
    sizes = {"requests": 5, "prompt_tokens": 1024, "answer_tokens": 1024}
    made = workload_of("spread", **sizes, vocab_size=151936, seed=0)
    random.seed(0)
    prompts = [
        [random.randint(0, 10000) for _ in range(random.randint(100, 1024))] for _ in range(5)
    ]
    assert list(map(list, made.prompts)) == prompts
    assert list(made.answer_tokens) == [random.randint(100, 1024) for _ in range(5)]


def test_workloads_have_the_lengths_that_are_asked_for() -> None:
    fixed, prefix = (workload_of(name, **SIZES) for name in ("fixed", "prefix"))
    assert {len(each) for each in (*fixed.prompts, *prefix.prompts)} == {20}
    assert fixed.answer_tokens == (12, 12, 12)
    assert len({each[:15] for each in prefix.prompts}) == 1 == 4 - len(set(prefix.prompts))
    with pytest.raises(ConfigError, match='workload is "slow"; it must be one of fixed'):
        workload_of("slow", **SIZES)
    with pytest.raises(ConfigError, match="requests is 0; it must be at least 1"):
        workload_of("fixed", **{**SIZES, "requests": 0})


def test_a_workload_is_run_to_its_end_and_counted() -> None:
    target = engine(loaded())
    work = workload_of("spread", **SIZES)
    for _ in range(2):  # a second run of the same requests
        report = measure_throughput(target, work, promises=(1e6, 1e6), limits=LIMITS)
    assert report.answer_tokens == sum(work.answer_tokens)
    assert report.prompt_tokens == sum(map(len, work.prompts))
    assert report.goodput == pytest.approx(report.requests_per_second)
    assert report.tokens_per_second == pytest.approx(report.answer_tokens / report.seconds)
    assert sum(report.steps.values()) == max(work.answer_tokens)
    assert 0 < report.first_token_ms["p50"] <= report.first_token_ms["p99"]
    assert report.bandwidth_share > 0 and report.flops_share > 0
    late = measure_throughput(target, work, promises=(0.0, 0.0), limits=LIMITS)
    assert late.goodput == 0


def test_steps_are_measured_with_all_answers_side_by_side() -> None:
    target = engine(loaded())
    report = measure_latency(target, workload_of("fixed", **SIZES), steps=4, limits=LIMITS)
    assert (report.sequences, report.context) == (3, 20)
    assert report.tokens_per_second == pytest.approx(3e3 / report.step_ms)
    assert report.bandwidth_share == pytest.approx(report.floor_ms / report.step_ms)
    assert not target.has_work and target.cache_stats.used == 0


def test_what_does_not_fit_is_said_first() -> None:
    target = engine(loaded(), max_sequences=2, num_pages=20)
    with pytest.raises(ConfigError, match="requests is 3, and max_sequences is 2"):
        measure_latency(target, workload_of("fixed", **SIZES), steps=4, limits=LIMITS)
    long = workload_of("fixed", **{**SIZES, "answer_tokens": 500})
    with pytest.raises(ConfigError, match="may take 520 tokens; the model and its cache hold 1"):
        measure_throughput(target, long, promises=(1, 1), limits=LIMITS)
