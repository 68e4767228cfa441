"""A forward is recorded by being called once: what hangs on the step is told from what does not."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

from cutaway.core.step import Step
from cutaway.kernels import capture, recording
from cutaway.kernels.recording import Recorded, Recording

BLOCKS = Path(__file__).parents[2] / "src" / "cutaway" / "blocks"


def tape(forward, *, keeps: bool = False) -> capture.Tape:
    return capture.Tape(forward, (), num_tokens=8, num_rows=8, max_length=16, keeps=keeps)


def step(count: int, sink=None) -> Step:
    return Step.without_cache([range(count)], sink=sink)


native = pytest.mark.skipif(not capture.is_available(), reason="the kernels are not built")


@native
def test_one_recording_serves_any_number_of_rows() -> None:
    def forward(step: Step) -> torch.Tensor:
        rows = step.token_ids[step.logit_rows].float()[:, None] * torch.arange(1.0, 4.0)
        return rows.view(len(rows), 3).cumsum(-1)

    recorded = tape(forward)
    for count in (1, 5, 8):
        recorded.run(step(count))
        torch.testing.assert_close(recorded.result[:count], forward(step(count)))
    assert not recorded.takes_numbers and "cumsum" in recorded.torch_calls


def test_a_number_computed_from_the_rows_is_refused() -> None:
    hidden = Recording.over((), is_tapped=False).step.token_ids
    with pytest.raises(AssertionError, match="is computed from the number of rows"):
        hidden.repeat(2).view(2 * len(hidden))


def test_what_asks_for_numbers_or_changes_them_is_refused() -> None:
    hidden = Recording.over((), is_tapped=False).step.token_ids
    for ask in (lambda: hidden.add_(1), lambda: hidden.__setitem__(0, 1)):
        with pytest.raises(AssertionError, match="changes a value"):
            ask()
    assert isinstance(hidden + 1, Recorded)


@native
def test_a_sink_may_put_another_value_in_the_place_of_a_recorded_one() -> None:
    def forward(step: Step) -> torch.Tensor:
        rows = step.tap("rows", step.token_ids[step.logit_rows].float()[:, None].expand(-1, 2) + 0)
        return rows * 2.0

    recorded = tape(forward, keeps=True)
    recorded.run(step(3, sink=lambda name, value, layer: torch.ones_like(value)))
    assert recorded.result[:3].tolist() == [[2.0, 2.0]] * 3
    recorded.run(step(3, sink=lambda name, value, layer: None))
    assert recorded.result[:3].tolist() == [[0.0, 0.0], [2.0, 2.0], [4.0, 4.0]]


def test_a_call_that_was_seen_before_gives_the_same_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second recording asks torch for no shape of a new value; views are views again."""
    monkeypatch.setattr(recording, "_NEW_VALUES", {})

    def described(dtype: torch.dtype, last: int) -> list[tuple[object, ...]]:
        made = Recording.over((), is_tapped=False)
        rows = made.step.token_ids[:, None].to(dtype) * torch.ones(last, dtype=dtype)
        turned = rows.view(-1, 2, last // 2).transpose(1, 2)
        best = (turned + 1).reshape(-1, last).topk(2)
        assert best.values.shape == best.indices.shape, "a named result stays one"
        left, right = rows.chunk(2, dim=-1)
        torch.cat((left, right, rows[:, 1:2], turned.reshape(-1, last)), dim=-1).softmax(-1)
        torch.nn.functional.pad(rows, (0, 1)).where(rows[:, :1] > 0, 2.5)
        return [
            (
                call.function.__name__,
                call.is_view,
                *((v.shape, v.stride(), v.dtype, v.root is v) for v in call.values),
            )
            for call in made.calls
        ]

    first = described(torch.float32, 6)
    kept = dict(recording._NEW_VALUES)
    assert len(kept) >= 5 and described(torch.float32, 6) == first
    assert recording._NEW_VALUES == kept, "nothing was asked again"
    monkeypatch.setattr(recording, "_key_of", lambda tree: None)
    cold = [described(dtype, last) for dtype, last in ((torch.float32, 6), (torch.float64, 8))]
    monkeypatch.undo()
    assert cold == [first, described(torch.float64, 8)] and cold[0] != cold[1]


def test_a_layer_has_one_text() -> None:
    """One forward for a class, and nothing beside it that says the same for a recording."""
    classes = 0
    for path in BLOCKS.rglob("*.py"):
        text = path.read_text()
        assert "kernels.native" not in text and "kernels import native" not in text, path.name
        # Which form an operation has is asked inside of it: a block has no text for a device.
        assert "uses_triton" not in text and "is_fused(" not in text, path.name
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.ClassDef):
                continue
            names = [part.name for part in node.body if isinstance(part, ast.FunctionDef)]
            classes += "forward" in names
            assert names.count("forward") <= 1, node.name
            assert not {"record", "can_record", "_show"} & set(names), node.name
    assert classes > 15, "the layers are no longer found"
