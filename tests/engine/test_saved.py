"""Saved answers: bytes per token, and redaction under which two texts give the same file."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import clocks
import subjects
from cutaway.engine.look import Look
from cutaway.engine.saved import save_trace
from cutaway.text.messages import from_dicts
from cutaway.trace.export import FORMATS
from cutaway.trace.file import read
from cutaway.views import VIEWS, view_of


@pytest.fixture
def even_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks.tick(monkeypatch)


def saved(path: Path, prompt: bytes, *, redact: bool, **params: Any) -> Path:
    """An answer of 20 tokens by an engine of its own, with every view that there is."""
    engine = subjects.engine_of()
    given = {"temperature": 1.0, "max_tokens": 20, **params}
    answer = subjects.answered(engine, list(prompt), **given)
    messages = from_dicts([{"role": "user", "content": prompt.decode()}])
    look = Look(engine, answer)
    look.subject = replace(look.subject, messages=messages)
    save_trace(look, path, VIEWS, redact=redact)
    return path


def entries(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


@pytest.mark.usefixtures("even_time")
def test_redacted_two_texts_of_the_same_lengths_give_the_same_file(tmp_path: Path) -> None:
    """Whatever could tell a guess from the truth would differ: ids, bytes, logits, draws, ranks."""
    secrets: list[dict[str, Any]] = [
        {"seed": 1, "stop": ("zebra",), "logit_bias": {5: 1.0}, "stop_token_ids": (7,)},
        {"seed": 2, "stop": ("a whale", "b"), "logit_bias": {9: -2.0, 8: 1.0}},
    ]
    texts = (b"the patient is ill.", b"no money is missing")
    paths = [
        saved(tmp_path / f"{secret['seed']}.cutaway", text, redact=True, **secret)
        for text, secret in zip(texts, secrets, strict=True)
    ]
    left, right = (entries(path) for path in paths)
    assert left.keys() == right.keys() and {"views/timeline.json", "views/cost.json"} <= set(left)
    for name, data in left.items():
        assert data == right[name], f"{name} tells two texts apart"
    for name, form in FORMATS.items():
        assert form(read(paths[0])) == form(read(paths[1])), name


@pytest.mark.usefixtures("even_time")
def test_not_redacted_they_differ_in_every_view_of_content(tmp_path: Path) -> None:
    """So the test above can fail: nothing but redaction makes the files alike."""
    left, right = (
        entries(saved(tmp_path / f"{seed}.cutaway", text, redact=False, seed=seed))
        for seed, text in enumerate((b"the patient is ill.", b"no money is missing"))
    )
    alike = {name for name in left.keys() & right.keys() if left[name] == right[name]}
    kept = {view.name for view in VIEWS if not view.is_content}
    empty = {"grammar", "experts"}  # the answers and the model have none
    assert {Path(name).stem for name in alike if "/" in name} <= kept | empty
    assert len(left.keys() & right.keys()) > 15
    told = json.loads(left["events.ndjson"].splitlines()[0])
    assert told == {"type": "message", "role": "user", "content": "the patient is ill."}


def test_a_trace_grows_by_few_bytes_a_token(tmp_path: Path) -> None:
    """4 MB for 2,000 tokens are 2,000 bytes a token; an eighth of that is kept to."""
    engine = subjects.engine_of(vocab_size=2048)
    sizes: list[int] = []
    for length in (20, 220):
        answer = subjects.answered(
            engine, list(range(30)), temperature=1.0, seed=0, max_tokens=length
        )
        path = tmp_path / f"{length}.cutaway"
        views = ("tokens", "characters", "sampling", "detokenization", "timeline", "pages", "cost")
        save_trace(Look(engine, answer), path, [view_of(name) for name in views])
        sizes.append(path.stat().st_size)
    per_token = (sizes[1] - sizes[0]) / 200
    assert 50 < per_token < 250, per_token
