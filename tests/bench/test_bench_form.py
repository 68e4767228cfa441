"""Benches tell which form of a model they measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tiny
from cutaway.bench import form
from cutaway.engine.build import load_model
from cutaway.engine.config import EngineConfig
from cutaway.kernels import capture
from cutaway.weights.find.find import find
from engines import engine


def form_in(folder: Path, dtype: str) -> str:
    config = folder / "config.json"
    config.write_text(json.dumps(tiny.config()), encoding="utf-8")
    settings = EngineConfig(device="cpu", dtype=dtype)
    return form.form_of(engine(load_model(find(f"random:{config}"), settings)))


@pytest.mark.skipif(not capture.is_available(), reason="native kernels are not built")
def test_native_kernels_are_told_with_what_they_run_on(tmp_path: Path) -> None:
    told = form_in(tmp_path, "auto")
    assert told.startswith("native kernels, ") and told.endswith(("1 thread", "threads"))


def test_torch_is_told_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(form, "why_missing", lambda: "")
    assert form_in(tmp_path, "float32") == (
        "torch in float32: weights are not packed, as auto packs them"
    )
    monkeypatch.setattr(form, "why_missing", lambda: "_native.so is not built: run `make native`")
    assert form_in(tmp_path, "float32") == (
        "torch in float32: _native.so is not built: run `make native`"
    )
