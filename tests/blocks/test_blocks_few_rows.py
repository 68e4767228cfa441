"""The last block of a prompt's step: only rows whose logits are wanted pass its feed-forward."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from cutaway.blocks import transformer
from cutaway.core.request import Request, SamplingParams
from cutaway.core.step import Step
from cutaway.engine.batch import build_batch
from engines import engine, loaded


def a_step(chunk: int = 64) -> tuple[transformer.Transformer, Step]:
    """Two prompts of 12 and 7 tokens in one step, the first perhaps not to its end."""
    model = loaded()
    target = engine(model, prefill_chunk=chunk)
    for number, length in enumerate((12, 7)):
        request = Request(
            request_id=str(number),
            prompt_token_ids=tuple(range(1, length + 1)),
            params=SamplingParams(temperature=0.0, max_tokens=2),
        )
        target.add(request)
    scheduled = target.scheduler.schedule()
    layers = target.runner.pool.layers
    batch = build_batch(scheduled, layers, device=model.device)
    return model.transformer, Step.of(batch.numbers, layers, device=model.device)


@pytest.fixture
def spares(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU."""
    monkeypatch.setattr(transformer, "SPARES_ROWS", frozenset({"cpu"}))


def widths(model: transformer.Transformer, step: Step) -> tuple[Tensor, dict[int, int]]:
    """The logits, and the rows that each block's feed-forward got."""
    rows: dict[int, int] = {}
    hooks = [
        block.mlp.register_forward_pre_hook(
            lambda _, args, layer=layer: rows.__setitem__(layer, len(args[0]))
        )
        for layer, block in enumerate(model.blocks)
    ]
    with torch.inference_mode():
        logits = model(step)
    for hook in hooks:
        hook.remove()
    return logits, rows


def test_logits_are_the_same_and_the_last_feed_forward_gets_their_rows(spares: None) -> None:
    model, step = a_step()
    few, rows = widths(model, step)
    assert rows == {layer: 2 if layer + 1 == len(model.blocks) else 19 for layer in rows}
    transformer.SPARES_ROWS = frozenset()
    every, rows = widths(model, step)
    assert set(rows.values()) == {19}
    assert torch.allclose(few, every, rtol=1e-5, atol=1e-5)


def test_where_no_logits_are_wanted_the_last_feed_forward_is_left_out(spares: None) -> None:
    model, step = a_step(chunk=4)
    assert not len(step.logit_rows)
    logits, rows = widths(model, step)
    assert logits.shape[0] == 0 and len(model.blocks) - 1 not in rows


def test_who_watches_sees_all_rows_and_changes_no_bit(spares: None) -> None:
    model, step = a_step()
    plain, _ = widths(model, step)
    seen: dict[tuple[str, int | None], int] = {}

    def sink(name: str, value: Tensor, layer: int | None) -> None:
        seen[name, layer] = len(value)

    streams: dict[int, int] = {}

    class Read:
        layers = tuple(range(len(model.blocks)))

        def __call__(self, stream: Tensor, layer: int) -> None:
            streams[layer] = len(stream)

    watched, _ = widths(model, replace(step, sink=sink, streams=Read()))
    last = len(model.blocks) - 1
    assert torch.equal(watched, plain)
    assert seen["blocks.hidden", last] == seen["blocks.mlp.update", last] == 19
    assert seen["logits", None] == 2
    assert streams == dict.fromkeys(range(last + 1), 19)


def test_a_value_that_is_put_in_the_last_block_counts(spares: None) -> None:
    model, step = a_step()
    plain, _ = widths(model, step)

    def sink(name: str, value: Tensor, layer: int | None) -> Tensor | None:
        if (name, layer) == ("blocks.mlp.update", len(model.blocks) - 1):
            return torch.zeros_like(value)
        return None

    changed, _ = widths(model, replace(step, sink=sink))
    assert not torch.allclose(changed, plain, atol=1e-3)
