"""Every view of an answer in bfloat16, where taps are read in float32."""

from __future__ import annotations

import pytest
import torch

from cutaway.replay.look import Look
from cutaway.views import VIEWS
from cutaway.views.parts.query import Query
from cutaway.views.parts.view import View
from engines import engine, loaded
from subjects import answered


@pytest.fixture(scope="module")
def look() -> Look:
    target = engine(loaded(dtype=torch.bfloat16))
    return Look(target, answered(target, b"What is gravity?"))


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.name)
def test_it_is_drawn_and_proven(look: Look, view: View) -> None:
    shown = view.show(look.subject, Query())
    assert shown.payload.draw().text()
    assert shown.proof is None or shown.proof.is_exact
