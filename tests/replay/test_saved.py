"""Saved answers: bytes per token, and redaction under which two texts give the same file."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clocks
import subjects
from cutaway.core.errors import RequestError
from cutaway.replay.look import Look
from cutaway.replay.places import Places, places_of, spread
from cutaway.replay.recorded_answers import replay_answer
from cutaway.replay.trace_file import save_trace
from cutaway.text.chat_messages import from_dicts
from cutaway.trace.export import FORMATS
from cutaway.trace.file import read
from cutaway.views import VIEWS, view_of
from cutaway.views.parts.payload import split
from cutaway.views.parts.query import query_of


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
    empty = {"grammar", "experts", "speculation"}  # the answers and the model have none
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
        chosen = [view_of(name) for name in views]
        save_trace(Look(engine, answer), path, chosen, places=Places(steps=()))
        sizes.append(path.stat().st_size)
    per_token = (sizes[1] - sizes[0]) / 200
    assert 50 < per_token < 250, per_token


def test_a_view_in_a_file_is_the_view_that_a_look_gives_at_that_place(tmp_path: Path) -> None:
    engine = subjects.engine_of()
    answer = subjects.answered(engine, list(b"whales"), temperature=1.0, seed=3, max_tokens=9)
    names = ("probabilities", "sampling", "detokenization", "residual", "arithmetic", "attention")
    path = tmp_path / "a.cutaway"
    chosen = [view_of(name) for name in names]
    places = Places(steps=(), each=(2, 5), layers=(1,), heads=(0, 3))
    save_trace(Look(engine, answer), path, chosen, places=places)
    counts: dict[str, int] = {}
    for view in read(path).views:
        counts[view.name] = len(view.places)
        for place in view.places:
            look = Look(engine, answer)  # of its own: nothing is shared with the file's pass
            shown = view_of(view.name).show(look.subject, query_of(place.query))
            values, arrays = split(shown.payload)
            found = dict(place.values if place.is_whole else {**view.values, **place.values})
            assert found.keys() == values.keys()
            for name, array in arrays.items():
                saved = next(
                    view.arrays[each]
                    for each in (f"{name}@{view.places.index(place) + 1}", name)
                    if each in view.arrays
                )
                np.testing.assert_array_equal(saved, array)
            plain = {key: each for key, each in values.items() if "array" not in str(each)}
            assert json.dumps({key: found[key] for key in plain}) == json.dumps(plain)
            assert place.proof is None or place.proof.startswith("exact")
    assert counts == dict(zip(names, (2, 2, 2, 2, 4, 4), strict=True))


def test_unless_told_otherwise_the_cheap_views_are_at_steps_spread_evenly(tmp_path: Path) -> None:
    engine = subjects.engine_of()
    answer = subjects.answered(engine, list(b"whales"), seed=3, max_tokens=6)
    path = tmp_path / "a.cutaway"
    save_trace(Look(engine, answer), path, [view_of(n) for n in ("probabilities", "residual")])
    likely, ledger = read(path).views
    assert [each.query["token"] for each in likely.places] == [1, 2, 3, 4, 5]
    assert likely.query == {"token": 0} and ledger.places == ()
    assert list(spread(1000, 5)) == [0, 250, 500, 749, 999] and len(spread(9, 128)) == 9


def test_steps_are_told_as_people_list_them() -> None:
    assert places_of("0, 7,2-4", count=8, param="steps") == (0, 2, 3, 4, 7)
    assert places_of("all", count=3, param="steps") == (0, 1, 2)
    assert places_of("none", count=3, param="steps") == ()
    assert places_of(None, count=3, param="steps") is None
    for wrong, words in (
        ("x", 'steps has "x"; it must be all, none, or as in'),
        ("1-", 'steps has "1-"; it must be all'),
        ("3-8", "steps has 3-8; it must be from 0 to 7"),
    ):
        with pytest.raises(RequestError, match=words):
            places_of(wrong, count=8, param="steps")


def test_too_many_places_are_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = subjects.engine_of()
    answer = subjects.answered(engine, list(b"whales"), max_tokens=4)
    monkeypatch.setattr("cutaway.replay.trace_file.MOST_PLACES", 3)
    with pytest.raises(RequestError, match="5 places of views; a file has at most 3"):
        save_trace(Look(engine, answer), tmp_path / "a", [view_of("sampling")])


def test_chunks_that_give_other_bits_are_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What native kernels served is run in chunks; a row that differs has all run as served."""
    engine = subjects.engine_of()
    answer = subjects.answered(engine, list(b"whales"), max_tokens=4)
    both = ("invariant", "shape-faithful")
    monkeypatch.setattr("cutaway.replay.gathering.levels_of", lambda *_: both)
    levels: list[str] = []
    replay = replay_answer

    def counted(*given: Any, **more: Any) -> Any:
        levels.append(more["level"])
        made = replay(*given, **more)
        if more["level"] == "invariant":  # plant a difference where checksums are told
            made.steps = lambda stop: (
                (run, logits + 1) for run, logits in type(made).steps(made, stop)
            )
        return made

    monkeypatch.setattr("cutaway.replay.passes.replay_answer", counted)
    path = tmp_path / "a.cutaway"
    save_trace(Look(engine, answer), path, [view_of("probabilities"), view_of("residual")])
    assert levels == ["invariant", "shape-faithful"]
    assert all(view.proof == "exact (shape-faithful, 4 rows)" for view in read(path).views)
