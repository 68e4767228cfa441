"""`cutaway trace` and `cutaway why`: one answer saved, opened without torch, compared, redacted."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path

import pytest

import tiny
from cutaway.trace.file import read
from cutaway.trace.viewer import VIEWER
from program import Cutaway, environment, spawn

PROMPT = "hello there"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    folder = tmp_path_factory.mktemp("trace")
    sizes = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}
    (folder / "config.json").write_text(json.dumps(tiny.config(vocab_size=320, **sizes)))
    return ("--model", f"random:{folder}/config.json", "--cache-tokens", "512")


@pytest.fixture(scope="module")
def saved(model: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "a.cutaway"
    views = ("--views", "tokens,residual,timeline,pages,cost", "--steps", "1,3")
    options = ("--max-tokens", "4", "--temperature", "0", "--ignore-eos")
    ended = spawn("trace", "save", PROMPT, str(path), *model, *views, *options)
    assert ended.code == 0, ended.err
    assert "4 tokens, 5 views at 6 places" in ended.err and ended.out == ""
    return path


def test_a_trace_opens_without_the_model_and_without_torch(cutaway: Cutaway, saved: Path) -> None:
    opened = cutaway("trace", "open", str(saved))
    assert opened.code == 0, opened.err
    assert "4 of the answer, ended by length" in opened.out and "first_token" in opened.out
    for name in ("tokens", "residual", "timeline", "pages", "cost"):
        assert name in opened.out
    shown = cutaway("trace", "open", str(saved), "--view", "residual")
    assert "residual: What does each layer add" in shown.out and "exact (invariant" in shown.out
    numbers = cutaway("trace", "open", str(saved), "--view", "residual", "--json").json
    assert len(numbers["stream"]) == 2 and numbers["view"] == "residual"
    code = (
        "import sys; from cutaway.cli.main import run; "
        f"assert run(['trace', 'open', {str(saved)!r}, '--view', 'cost']) == 0; "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], env=environment(), check=True)


def test_a_folder_that_is_not_there_is_told_before_anything_is_answered(
    cutaway: Cutaway, tmp_path: Path
) -> None:
    file = tmp_path / "nowhere" / "a.cutaway"
    ended = cutaway("trace", "save", PROMPT, str(file), "--model", "no-such-model")
    assert ended.code == 2 and ended.out == ""
    assert ended.err.startswith(f"error: {file}: its folder is not there. Make {file.parent}")


def test_what_was_saved_is_what_ran(saved: Path) -> None:
    trace = read(saved)
    assert [token["index"] for token in trace.of_kind("token")] == [0, 1, 2, 3]
    (prompt,) = trace.of_kind("prompt")
    assert isinstance(prompt["ids"], list) and prompt["ids"][-5:] == list(b"there")
    assert trace.section("answer")["num_tokens"] == 4
    (residual,) = (view for view in trace.views if view.name == "residual")
    # Its own choice is the last row, which is token 3's.
    assert [residual.query, *(place.query for place in residual.places)] == [
        {"position": 13},
        {"position": 11},
    ]
    assert trace.section("engine")["page_size"] == 16
    seconds = [step["seconds"] for step in trace.of_kind("step")]
    assert len(seconds) == 4 and all(isinstance(each, float) for each in seconds)
    assert trace.of_kind("end")[0]["reason"] == "length"


def test_redacted_it_tells_nothing_of_the_text(
    cutaway: Cutaway, model: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "hidden.cutaway"
    options = ("--max-tokens", "4", "--seed", "987654321", "--stop", "zebra", "--redact")
    views = ("--views", "tokens,timeline,pages,cost")
    ended = cutaway("trace", "save", PROMPT, str(path), *model, *views, *options)
    assert ended.code == 0, ended.err
    trace = read(path)
    assert [view.name for view in trace.views] == ["timeline", "pages", "cost"]
    assert trace.manifest["left_out"] == [{"view": "tokens", "reason": "redacted"}]
    for token in trace.of_kind("token"):
        assert set(token) == {"type", "index", "step", "at"}
    assert set(trace.of_kind("prompt")[0]) == {"type", "count"}
    everything = json.dumps([trace.manifest, trace.events]) + str([v.lines for v in trace.views])
    for telling in ("hello", "zebra", "987654321", "checksum", "logit", "llm-0"):
        assert telling not in everything, telling
    opened = cutaway("trace", "open", str(path))
    assert "redacted: ids and texts were left out" in opened.out


def test_two_files_and_other_formats(cutaway: Cutaway, saved: Path, tmp_path: Path) -> None:
    same = cutaway("trace", "diff", str(saved), str(saved), "--json").json
    assert same["settings"] == [] and same["same_prompt"] is True and same["logprob"] == 0
    page = tmp_path / "a.html"
    ended = cutaway("trace", "export", str(saved), "--to", "html", "-o", str(page))
    assert ended.code == 0 and "<pre>" in page.read_text(encoding="utf-8")
    whole = tmp_path / "b.html"
    ended = cutaway("trace", "export", str(saved), "--html", str(whole))
    if not VIEWER.is_file():
        assert ended.code == 2 and "make web" in ended.err
    else:
        assert ended.code == 0 and "it asks no server" in ended.err
        data = base64.b64encode(saved.read_bytes()).decode()
        assert f">{data}</script>" in whole.read_text(encoding="utf-8")
    chrome = cutaway("trace", "export", str(saved), "--to", "chrome")
    assert any(e["name"].startswith("prefill step") for e in chrome.json["traceEvents"])


def test_faults_are_one_line(cutaway: Cutaway, saved: Path, tmp_path: Path) -> None:
    broken = tmp_path / "b.cutaway"
    broken.write_bytes(saved.read_bytes()[:-40])
    for arguments, code, words in (
        (("open", str(broken)), 2, "is no trace file of Cutaway, or damaged"),
        (("open", str(saved), "--view", "lens"), 2, 'has no view "lens"; it has: tokens, '),
        (("export", str(saved), "--to", "pdf"), 2, "must be one of chrome, csv, otlp, html"),
        (("open", str(tmp_path / "none.cutaway")), 1, "No such file"),
        (("export", str(saved)), 2, "or give --html PAGE"),
    ):
        ended = cutaway("trace", *arguments)
        assert ended.code == code and words in ended.err, ended.err
        assert "Traceback" not in ended.err


def test_why_names_causes_and_what_was_measured(cutaway: Cutaway, model: tuple[str, ...]) -> None:
    options = ("--max-tokens", "6", "--temperature", "0", "--ignore-eos")
    prompt = "How many letters are in strawberry? " * 3
    ended = cutaway("why", prompt, *model, *options)
    assert ended.code == 0, ended.err
    for words in ("why slow?", "why expensive?", "why wrong?", "measured:", "prefill:"):
        assert words in ended.out, ended.out
    assert "truncated: cut after 6 tokens" in ended.out and "low confidence" in ended.out
    assert max(map(len, ended.out.splitlines())) <= 100
    causes = cutaway("why", prompt, *model, *options, "--json").json["causes"]
    assert {cause["question"] for cause in causes} == {"slow", "expensive", "wrong"}
