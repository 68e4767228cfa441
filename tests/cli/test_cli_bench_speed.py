"""`cutaway bench latency` and `throughput` as they are called."""

from __future__ import annotations

import pytest


def test_latency_prints_words_or_json(cutaway, tiny_model):
    asked = ("bench", "latency", "--model", tiny_model, "--batch", "2", "--prompt-tokens", "16")
    made = cutaway(*asked, "--steps", "4", "--json")
    assert made.code == 0, made.err
    assert (made.json["sequences"], made.json["context"]) == (2, 16)
    assert made.json["bandwidth_share"] > 0 and made.json["step_ms"] > 0
    shown = cutaway(*asked, "--steps", "4")
    assert shown.code == 0, shown.err
    assert shown.out.startswith("2 x 16 tokens: a step ")


def test_throughput_prints_a_table_or_json(cutaway, tiny_model):
    asked = ("bench", "throughput", "--model", tiny_model, "--requests", "3", "--no-prefix-cache")
    sizes = ("--prompt-tokens", "16", "--answer-tokens", "8", "--workload", "fixed")
    made = cutaway(*asked, *sizes, "--json")
    assert made.code == 0, made.err
    assert (made.json["prompt_tokens"], made.json["answer_tokens"]) == (48, 24)
    assert set(made.json["gap_ms"]) == {"p50", "p90", "p99"}
    shown = cutaway(*asked, *sizes, "--repeat", "1")
    assert shown.code == 0, shown.err
    assert shown.out.splitlines()[0].split() == ["MILLISECONDS", "P50", "P90", "P99"]
    assert "3 requests, 48 tokens in, 24 out, in " in shown.out


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("throughput", "--workload", "slow"), 'workload is "slow"; it must be one of fixed'),
        (("latency", "--prompt-tokens", "9000"), "may take 9,040 tokens; the model and its cache"),
    ],
)
def test_wrong_arguments_are_one_line(cutaway, tiny_model, given, message):
    ended = cutaway("bench", *given, "--model", tiny_model)
    assert ended.code == 2
    assert message in ended.err
