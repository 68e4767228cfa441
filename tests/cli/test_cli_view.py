"""`cutaway view`: all stages, or one as numbers; faults in one line."""

from __future__ import annotations

import json

import pytest

import tiny
from program import Cutaway, spawn


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    folder = tmp_path_factory.mktemp("view")
    sizes = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}
    (folder / "config.json").write_text(json.dumps(tiny.config(vocab_size=320, **sizes)))
    return ("--model", f"random:{folder}/config.json", "--cache-tokens", "512")


def test_all_stages_are_shown_in_100_columns(model: tuple[str, ...]) -> None:
    from cutaway.views import VIEWS

    ended = spawn("view", "hello there", *model, "--max-tokens", "4")
    assert ended.code == 0, ended.err
    lines = ended.out.splitlines()
    assert max(map(len, lines)) <= 100
    for view in VIEWS:
        assert any(line.startswith(f"{view.name}: {view.question}") for line in lines)
    assert "\x1b" not in ended.out and "  [exact (shape-faithful, " in ended.out


def test_one_view_gives_its_numbers(cutaway: Cutaway, model: tuple[str, ...]) -> None:
    options = ("--view", "residual", "--position", "3", "--json", "--max-tokens", "2")
    ended = cutaway("view", "hello there", *model, *options)
    assert ended.code == 0, ended.err
    assert ended.json["is_exact"] is True and ended.json["position"] == 3
    assert len(ended.json["stream"]) == 2


def test_what_cannot_be_shown_is_one_line(cutaway: Cutaway, model: tuple[str, ...]) -> None:
    cases = {
        ("--view", "nothing"): 'view is "nothing"; there are: ',
        ("--layer", "1"): "--layer belongs to one view; name it with --view",
        ("--view", "residual", "--position", "99"): "position is 99; it must be from 0 to 11",
        ("--view", "residual", "--head", "1"): "head is 1, but the view residual takes position",
        ("--view", "tokens", "--ledger-bytes", "0"): "nothing was recorded",
    }
    for options, words in cases.items():
        ended = cutaway("view", "hello there", *model, "--max-tokens", "2", *options)
        assert ended.code == 2 and words in ended.err, ended.err
        assert "Traceback" not in ended.err


def test_an_answer_of_a_form_shows_its_masks(cutaway: Cutaway, model: tuple[str, ...]) -> None:
    pytest.importorskip("llguidance")
    ended = cutaway("view", "yes or no?", *model, "--choice", "no", "--view", "grammar", "--json")
    assert ended.code == 0, ended.err
    assert ended.json["kind"] == "choice" and ended.json["num_allowed"] == [1, 1]
    assert ended.json["row"]["allowed"][0]["text"] == "n" and ended.json["is_exact"] is True
