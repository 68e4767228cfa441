"""`cutaway compare`: one thing changed, drawn or as numbers; faults in one line."""

from __future__ import annotations

import json

import pytest

import tiny
from program import Cutaway, spawn


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    folder = tmp_path_factory.mktemp("compare")
    sizes = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}
    (folder / "config.json").write_text(json.dumps(tiny.config(vocab_size=320, **sizes)))
    return ("--model", f"random:{folder}/config.json", "--cache-tokens", "512")


def test_each_change_is_compared_alone(model: tuple[str, ...]) -> None:
    options = ("--change", "temperature=2", "--change", "kv_dtype=int8", "--runs", "1")
    drawn = spawn("compare", "hello there", *model, *options, "--max-tokens", "4", "--seed", "1")
    assert drawn.code == 0, drawn.err
    lines = drawn.out.splitlines()
    assert max(map(len, lines)) <= 100 and "\x1b" not in drawn.out
    titles = ["temperature=2, and nothing else", "kv_dtype=int8, and nothing else"]
    assert [line for line in lines if line.endswith("nothing else")] == titles
    assert "a second pool beside: " in drawn.err  # told before it is made


def test_numbers_come_as_an_object(cutaway: Cutaway, model: tuple[str, ...]) -> None:
    options = ("--change", "seed=1", "--runs", "2", "--price", "3600", "--json")
    ended = cutaway("compare", "hello there", *model, *options, "--max-tokens", "4", "--seed", "1")
    assert ended.code == 0, ended.err
    found = ended.json
    assert found["first_difference"] is None and found["is_as_served"] is True
    assert found["divergence"]["kl"] == [0, 0, 0, 0] and found["num_runs"] == 2
    assert found["recorded"]["money"] == pytest.approx(found["recorded"]["seconds"]["median"])


def test_what_cannot_be_compared_is_one_line(cutaway: Cutaway, model: tuple[str, ...]) -> None:
    cases = {
        (): "nothing is to be changed; say what, as in --change temperature=0.5",
        ("--change", "temprature=1"): '"temprature" is nothing to change; did you mean',
        ("--change", "system=x"): "this answer has none. Add --chat",
        ("--change", "seed=1", "--runs", "0"): "runs is 0; it must be at least 1",
    }
    for options, words in cases.items():
        ended = cutaway("compare", "hello there", *model, *options, "--max-tokens", "2")
        assert ended.code == 2 and words in ended.err, ended.err
        assert "Traceback" not in ended.err
