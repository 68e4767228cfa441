"""Forward and backward captured where lengths come again: the bits of plain launches, always."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from smallest_shape import model_table
from torch import Tensor, nn

import tiny
from cutaway.core.errors import NumericsError
from cutaway.host.run_record import read_record
from cutaway.tokens.files.tokenizer_files import load_folder
from cutaway.train import captured, pretrain
from cutaway.train.captured import CapturedLoss, CapturedPull
from cutaway.train.data import packing
from cutaway.train.data.packing import MicroBatch, ScoredSequence
from cutaway.train.loop import Pull, Updated, descend, pull_back
from cutaway.train.losses.likelihood import likelihood
from cutaway.train.losses.losses import Loss, cross_entropy
from cutaway.train.model import compute_forms
from cutaway.train.optimizers import Optimizers, OptimizerSettings
from cutaway.train.stage import deterministic
from cutaway.train.stage_config import read_settings
from cutaway.train.vocabulary import VocabularySettings, learn
from cutaway.weights.files.safetensors import SafetensorsWeights

HAS_GPU = torch.cuda.is_available()
gpu = [pytest.mark.gpu, pytest.mark.skipif(not HAS_GPU, reason="no GPU")]
DEVICES = ["cpu", pytest.param("cuda", marks=gpu)]


@pytest.fixture(autouse=True)
def a_cpu_reads_what_a_gpu_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands for one here."""
    monkeypatch.setattr(packing, "leaves_out", lambda device: False)  # type: ignore[arg-type]


class Rerun:
    """Stands for a graph: it does the call again, and leaves results where they were captured."""

    def __init__(self, parameters: Sequence[nn.Parameter], *, has_room: bool = True) -> None:
        self.parameters, self.has_room = parameters, has_room
        self.num_captured = self.num_replayed = 0

    def capture(self, call: Callable[[], Loss]) -> CapturedLoss:
        before = [(each, each.grad, _copy(each.grad)) for each in self.parameters]
        loss = call()
        self.num_captured += 1
        grads = [each.grad for each in self.parameters]
        for _, grad, value in before:  # a capture runs nothing
            if grad is not None and value is not None:
                grad.copy_(value)

        def replay() -> None:
            self.num_replayed += 1
            for parameter, grad, _ in before:
                parameter.grad = grad
            again = call()
            _leave(loss.total, again.total)
            for name, figure in again.figures.items():
                _leave(loss.figures[name].total, figure.total)
            for parameter, grad in zip(self.parameters, grads, strict=True):
                _leave(grad, parameter.grad)
                parameter.grad = grad

        return CapturedLoss(replay, loss)


def _copy(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.clone()


def _leave(place: Any, value: Any) -> None:
    if place is not value:
        place.copy_(value)


def batch(lengths: Sequence[int], seed: int) -> MicroBatch:
    """Sequences of random tokens, wholly scored."""
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.randint(0, 300, (each,), generator=generator).tolist() for each in lengths]
    return MicroBatch(tuple(map(ScoredSequence.whole, rows)))


class Trained:
    """A small model, its optimizers and the capturers that were made for it."""

    def __init__(
        self,
        device: str = "cpu",
        *,
        captures: bool,
        recomputes: bool = False,
        has_room: bool = True,
    ) -> None:
        # Fused attention of 16 bits wants heads of a multiple of 8.
        _, model = tiny.random_model(tiny.config(head_dim=16), dtype=torch.float32)
        self.model = model.to(device)
        if device == "cuda":
            compute_forms.multiply_in(model, torch.bfloat16)
        if recomputes:
            compute_forms.recompute_blocks(model)
        self.optimizers = Optimizers(model, OptimizerSettings(rate=1e-2))
        parameters = list(self.optimizers.parameters.values())
        self.made: list[Rerun] = []

        def rerun(device: torch.device) -> Rerun:
            self.made.append(Rerun(parameters, has_room=has_room))
            return self.made[-1]

        self.pull: Pull = pull_back
        if captures:
            self.pull = (
                CapturedPull(parameters) if device == "cuda" else CapturedPull(parameters, rerun)
            )

    def objective(self, given: MicroBatch) -> Loss:
        return cross_entropy(likelihood(self.model, given), z_weight=1e-4)

    # A bound method is another object each time that it is asked for.
    def update(self, batches: Sequence[MicroBatch], update: int) -> Updated:
        if not hasattr(self, "kept"):
            self.kept = self.objective
        return descend(
            batches, self.kept, self.optimizers, update=update, factor=1.0, pull=self.pull
        )

    def weights(self) -> list[Tensor]:
        return [each.detach().cpu() for each in self.model.parameters()]


EVEN, ODD, SHORT = (9, 9, 9), (5, 12, 7), (9, 9)
COURSES = {
    "one micro-batch": [[EVEN]] * 6,
    "several": [[EVEN, EVEN, EVEN]] * 5,
    "another between": [[EVEN, ODD, EVEN]] * 4,
    "another in front": [[EVEN, ODD]] * 4 + [[ODD, EVEN]] * 3 + [[EVEN, ODD]],
    "another behind": [[EVEN, SHORT]] * 5 + [[SHORT]] * 3 + [[SHORT] * 3] * 8 + [[EVEN]] * 4,
    "uneven": [[ODD]] * 6,
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("course", COURSES)
@pytest.mark.parametrize("recomputes", [False, True], ids=["kept", "recomputed"])
def test_captured_updates_have_the_bits_of_plain_ones(
    course: str, recomputes: bool, device: str
) -> None:
    """Losses, norms and weights of every update, whatever comes between two replays."""
    ours = Trained(device, captures=True, recomputes=recomputes)
    plain = Trained(device, captures=False, recomputes=recomputes)
    with deterministic():
        for index, lengths in enumerate(COURSES[course]):
            batches = [batch(each, 10 * index + place) for place, each in enumerate(lengths)]
            assert ours.update(batches, index) == plain.update(batches, index)
            for one, other in zip(ours.weights(), plain.weights(), strict=True):
                assert torch.equal(one, other), index
    if device == "cuda" and course != "uneven":
        assert ours.pull._held is not None  # type: ignore[attr-defined]


def numbers(course: str, **named: Any) -> list[tuple[int, int]]:
    """Of each capturer that a course made: what it captured and what it replayed."""
    trained = Trained(captures=True, **named)
    for index, lengths in enumerate(COURSES[course]):
        trained.update([batch(each, place) for place, each in enumerate(lengths)], index)
    return [(each.num_captured, each.num_replayed) for each in trained.made]


def test_a_layout_is_captured_when_it_came_twice() -> None:
    assert numbers("one micro-batch") == [(1, 4)]


def test_the_first_micro_batch_and_those_behind_it_have_a_graph_each() -> None:
    assert numbers("several") == [(2, 12)]


def test_uneven_lengths_are_never_captured() -> None:
    assert numbers("uneven") == []


def test_what_follows_other_launches_is_launched_too() -> None:
    """Behind an uneven micro-batch gradients lie elsewhere than where a capture adds."""
    assert numbers("another between") == [(2, 6)]
    assert numbers("another in front") == [(1, 3)]


def test_a_layout_that_went_gives_its_place_to_the_one_that_came() -> None:
    assert len(numbers("another behind")) == 2


def test_without_room_for_another_layout_the_captures_go() -> None:
    course = [[EVEN]] * 4 + [[SHORT]] + [[EVEN]] * 3
    trained = Trained(captures=True, has_room=False)
    for index, lengths in enumerate(course):
        trained.update([batch(each, place) for place, each in enumerate(lengths)], index)
    assert [(each.num_captured, each.num_replayed) for each in trained.made] == [(1, 2), (1, 1)]


def test_without_memory_for_a_capture_kernels_are_launched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(self: Rerun, call: Callable[[], Loss]) -> CapturedLoss:
        call()
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(Rerun, "capture", full)
    ours, plain = Trained(captures=True), Trained(captures=False)
    for index in range(5):
        assert ours.update([batch(EVEN, index)], index) == plain.update([batch(EVEN, index)], index)
    assert len(ours.made) == 1


def test_another_objective_is_not_replayed() -> None:
    trained = Trained(captures=True)
    for index in range(4):
        trained.update([batch(EVEN, index)], index)

    def half(given: MicroBatch) -> Loss:
        loss = trained.objective(given)
        return Loss(loss.total / 2, loss.count)

    told = trained.pull(half, batch(EVEN, 9), 24)
    trained.optimizers.forget_gradients()
    whole = trained.pull(trained.kept, batch(EVEN, 9), 24)
    assert float(told.total) == pytest.approx(float(whole.total) / 2)


def test_a_replayed_loss_that_is_no_number_moves_nothing() -> None:
    trained = Trained(captures=True)
    for index in range(4):
        trained.update([batch(EVEN, index)], index)
    with torch.no_grad():
        next(trained.model.parameters())[0] = float("nan")
    before = trained.weights()
    poisoned = MicroBatch(tuple(ScoredSequence.whole([0] * 9) for _ in range(3)))
    with pytest.raises(NumericsError, match="update 4"):
        trained.update([poisoned], 4)
    assert all(
        torch.equal(a.nan_to_num(), b.nan_to_num())
        for a, b in zip(before, trained.weights(), strict=True)
    )
    assert trained.made[0].num_replayed == 3


@pytest.mark.parametrize(
    ("changes", "is_taken"),
    [
        ({}, True),
        ({"num_local_experts": 4, "model_type": "mixtral"}, False),
    ],
)
def test_models_whose_kernels_follow_from_lengths_alone(
    changes: dict[str, Any], is_taken: bool
) -> None:
    values = tiny.config(**changes)
    if not is_taken:
        values |= {"architectures": ["MixtralForCausalLM"], "num_experts_per_tok": 2}
    _, model = tiny.random_model(values)
    assert compute_forms.can_capture(model) == is_taken


WORDS = ["truth", "man", "fortune", "wife", "want", "single", "good", "must"]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Settings of a run whose documents all have as many tokens."""
    folder = tmp_path_factory.mktemp("even")
    texts = [" ".join(WORDS[(i * step + i) % 8] for i in range(12)) for step in range(1, 40)]
    (folder / "all.jsonl").write_text("\n".join(json.dumps({"text": t}) for t in texts))
    learn(VocabularySettings(out=folder / "vocab", data=(folder / "all.jsonl",), size=290))
    tokenizer = load_folder(folder / "vocab")
    by_length: dict[int, list[str]] = {}
    for place, text in enumerate(texts):
        # Each its own, and a few words longer or shorter by tokens: the commonest length stays.
        own = f"{text} {place:02d}"
        by_length.setdefault(len(tokenizer.encode(own)), []).append(own)
    length, even = max(by_length.items(), key=lambda item: len(item[1]))
    assert len(even) >= 6 and length < 62
    (folder / "even.jsonl").write_text("\n".join(json.dumps({"text": t}) for t in even))
    rows = 2 * (length + 2)
    (folder / "pretrain.toml").write_text(
        f'data = "{folder / "even.jsonl"}"\nheld_out = "{folder / "all.jsonl"}"\n'
        f'vocabulary = "{folder / "vocab"}"\nupdates = 8\nrate = 1e-2\ncontext = 64\n'
        f"tokens = {2 * rows}\nstep_tokens = {rows}\nsave_every = 3\nmeasure_every = 4\n"
        f"{model_table()}"
    )
    return folder


def run(folder: Path, out: Path, *overrides: str, until: int = 8) -> Path:
    """A run's folder, stopped after so many updates or not."""

    def stop(progress: Any) -> None:
        if progress.updated.update + 1 == until < 8:
            raise KeyboardInterrupt

    settings = read_settings(
        pretrain.PretrainSettings, folder / "pretrain.toml", (f"out={out}", *overrides)
    )
    try:
        pretrain.prepare(settings).run(stop, lambda words: None)
    except KeyboardInterrupt:
        pass
    return out


def same(one: Path, other: Path) -> bool:
    left, right = (SafetensorsWeights(each / "model") for each in (one, other))
    return all(torch.equal(left.part(name), right.part(name)) for name in left.names())


def untimed(out: Path) -> list[dict[str, Any]]:
    rows = read_record(out / "record.jsonl")
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("form", ["recompute=false", "recompute=true"])
def test_a_stage_captures_and_goes_on_to_the_bit(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, form: str
) -> None:
    """Captured or not, and stopped between two replays: one record and one model."""
    made: list[CapturedPull] = []

    class Watched(CapturedPull):
        def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
            if device == "cuda":
                super().__init__(parameters)
            else:
                super().__init__(parameters, lambda device: Rerun(parameters))
            made.append(self)

    monkeypatch.setattr(captured, "CAPTURES_ON", frozenset({device}))
    monkeypatch.setattr(captured, "CapturedPull", Watched)
    told = (f"device={device}", form)
    plain = run(prepared, tmp_path / "plain", *told, "capture=false")
    assert not made
    whole = run(prepared, tmp_path / "whole", *told)
    assert made[0]._held is not None and len(made[0]._held.losses) == 2
    stopped = run(prepared, tmp_path / "stopped", *told, until=5)
    run(prepared, stopped, *told)
    for other in (whole, stopped):
        assert same(plain, other) and untimed(plain) == untimed(other)


@pytest.mark.parametrize("form", ["device=cpu", "compile=true", "capture=false"])
def test_what_a_stage_launches_kernel_by_kernel(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    if form != "device=cpu":
        monkeypatch.setattr(captured, "CAPTURES_ON", frozenset({"cpu"}))
    settings = read_settings(
        pretrain.PretrainSettings,
        prepared / "pretrain.toml",
        (f"out={tmp_path / 'run'}", "device=cpu", form),
    )
    stage = pretrain.prepare(settings)
    assert (
        stage._capturing(Optimizers(stage.model.transformer, OptimizerSettings(rate=1.0))) is None
    )


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_GPU, reason="no GPU")
def test_a_graph_has_its_memory_in_place_of_that_of_plain_launches() -> None:
    values = tiny.config(hidden_size=512, intermediate_size=2048, head_dim=128, num_hidden_layers=4)
    found: list[int] = []
    for captures in (False, True):
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved()
        torch.cuda.reset_peak_memory_stats()
        _, model = tiny.random_model(values, dtype=torch.float32)
        model.to("cuda")
        compute_forms.multiply_in(model, torch.bfloat16)
        optimizers = Optimizers(model, OptimizerSettings(rate=1e-3))
        pull = CapturedPull(list(optimizers.parameters.values())) if captures else pull_back

        def objective(given: MicroBatch, model: Any = model) -> Loss:
            return cross_entropy(likelihood(model, given))

        for index in range(6):
            batches = [batch((256,) * 64, index)]
            descend(batches, objective, optimizers, update=index, factor=1.0, pull=pull)
        found.append(torch.cuda.max_memory_reserved() - before)
        del model, optimizers, pull, objective
    assert found[1] < 1.25 * found[0]
