"""Stored matrices against NumPy: figures, histogram, thumbnail, and bytes as they are kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cutaway.core.errors import RequestError
from cutaway.views.weights import Weights
from opened_models import NATIVE, engine_of_case, llama_engine, look_at, payload
from subjects import engine_of, weights

NAME = "blocks.1.mlp.down.segments.0"


def test_figures_are_those_of_the_matrix() -> None:
    engine = engine_of()
    shown: Weights = payload(look_at(engine, range(5)), "weights", text=NAME)
    matrix = weights(engine)[f"{NAME}.weight"]
    assert (shown.name, (shown.rows, shown.columns)) == (NAME, matrix.shape)
    assert (shown.stored, shown.num_bytes, shown.bits_per_number) == ("float64", 48 * 96 * 8, 64)
    for name, value in (
        *(("mean", matrix.mean()), ("deviation", matrix.std())),
        *(("least", matrix.min()), ("most", matrix.max()), ("zeros", 0.0)),
    ):
        assert getattr(shown, name) == pytest.approx(value, rel=1e-4, abs=1e-7)
    counts, _ = np.histogram(matrix.astype(np.float32), shown.edges)
    assert np.abs(shown.counts - counts).sum() <= 2, "edges in float32"
    assert shown.outside == pytest.approx(1 - shown.counts.sum() / matrix.size, abs=1e-6)
    assert shown.thumbnail.shape == (32, 32) and shown.thumbnail.dtype == np.uint8
    corner = np.abs(matrix[:2, :3]).mean()  # 48 rows in 32 tiles overlap; the first spans two
    assert shown.thumbnail[0, 0] * shown.thumbnail_scale == pytest.approx(
        corner, abs=shown.thumbnail_scale
    )
    assert max(map(len, shown.draw().text().splitlines())) <= 100


def test_a_tensor_is_found_by_a_part_of_its_name() -> None:
    look = look_at(engine_of(), range(5))
    default: Weights = payload(look, "weights")
    assert default.name == "blocks.0.attention.qkv.segments.0" and len(default.others) == 5
    other: Weights = payload(look, "weights", layer=1, text="attention")
    assert other.name == "blocks.1.attention.qkv.segments.0"
    assert other.others == (
        "blocks.1.attention.output.segments.0",
        "blocks.1.attention_norm.weight",
    )
    norm: Weights = payload(look, "weights", text="unembedding.norm.weight")
    assert (norm.rows, norm.columns, norm.least, norm.most) == (1, 48, 1.0, 1.0)
    text = other.draw().text()
    assert "--text NAME shows another:" in text and max(map(len, text.splitlines())) <= 100
    assert "unembedding.norm.weight  1 x 48\nkept as float64: 384 bytes" in norm.draw().text()
    with pytest.raises(RequestError, match='no tensor\'s name has "nothing" in it; there are'):
        payload(look, "weights", text="nothing")


@NATIVE
def test_packed_weights_are_told_as_they_are_kept(tmp_path: Path) -> None:
    engine = llama_engine(tmp_path)
    shown: Weights = payload(look_at(engine, range(5)), "weights", text=NAME)
    module = engine.model.transformer.get_submodule(NAME)
    assert shown.stored == "packed f32" and shown.num_bytes == module.num_bytes
    assert shown.bits_per_number == 32
    matrix = module.dense().double().numpy()
    assert shown.deviation == pytest.approx(matrix.std(), rel=1e-5)


def test_one_expert_of_a_stack_is_shown_and_all_are_counted(tmp_path: Path) -> None:
    engine = engine_of_case(tmp_path, "mixtral", dtype="float32")
    look = look_at(engine, range(5))
    name = "blocks.2.mlp.experts.down"
    shown: Weights = payload(look, "weights", text=name, expert=3)
    stack = engine.model.transformer.get_submodule(name).weight.detach().numpy()
    assert shown.most == pytest.approx(stack[3].max()) and shown.num_bytes == stack.nbytes
    assert shown.stored == "DenseStack, expert 3 of 4" and shown.bits_per_number == 32
    with pytest.raises(RequestError, match="expert is 4; it must be from 0 to 3"):
        payload(look, "weights", text=name, expert=4)
