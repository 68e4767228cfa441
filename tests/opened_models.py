"""Answers of tiny models of several architectures, opened for views."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import architectures
import tiny
from cutaway import LLM
from cutaway.engine.engine import Engine
from cutaway.kernels import capture
from cutaway.replay.look import Look
from cutaway.views import view_of
from cutaway.views.parts.query import query_of
from subjects import answered

NATIVE = pytest.mark.skipif(
    not capture.is_available(), reason="the native kernels are not built: run `make native`"
)
SIZES = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}


def random_engine(folder: Path, values: Mapping[str, Any], **settings: Any) -> Engine:
    """From a configuration alone, with weights drawn by the loader."""
    (folder / "config.json").write_text(json.dumps(values))
    return _engine(f"random:{folder}/config.json", **settings)


def llama_engine(folder: Path, **settings: Any) -> Engine:
    """A Llama that native kernels can run."""
    return random_engine(folder, tiny.config(**SIZES), **settings)


def engine_of_case(folder: Path, case: str, **settings: Any) -> Engine:
    """A model of an architecture, as transformers saves it; see architectures.CASES."""
    model = architectures.reference(case)
    architectures.save(model, folder)
    return _engine(str(folder), **settings)


def _engine(model: str, **settings: Any) -> Engine:
    given = {"cache_tokens": 512, "page_size": 8, "prefill_chunk": 16, **settings}
    torch.manual_seed(0)
    return LLM(model, **given).engine


def look_at(engine: Engine, prompt: Sequence[int], **params: Any) -> Look:
    return Look(engine, answered(engine, prompt, **params))


def payload(look: Look, view: str, **places: Any) -> Any:
    """What a view shows of an answer; its replay gave the served logits."""
    shown = view_of(view).show(look.subject, query_of(places))
    assert shown.proof is None or shown.proof.is_exact, shown.proof
    return shown.payload
