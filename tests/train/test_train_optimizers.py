"""Groups by shape and role, schedules, and an optimizer's state that is taken up bit for bit."""

from __future__ import annotations

import pytest
import torch

import tiny
from cutaway.core.errors import ConfigError
from cutaway.train.optimizers import Optimizers, OptimizerSettings, groups
from cutaway.train.schedules import Schedule


def test_t10_decay_reaches_matrices_alone_and_a_tied_table_once() -> None:
    _, model = tiny.random_model(tiny.config(tie_word_embeddings=True, attention_bias=True))
    found = {group.is_decayed: group.names for group in groups(model)}
    assert all("segments" in name and name.endswith("weight") for name in found[True])
    assert "embedding.table.weight" in found[False]
    assert sum("table" in name for name in (*found[True], *found[False])) == 1
    assert any("norm" in name for name in found[False])
    assert any("biases" in name for name in found[False])
    assert len(found[True]) + len(found[False]) == len(list(model.parameters()))


def test_an_untied_head_decays_and_muon_takes_inner_matrices() -> None:
    _, model = tiny.random_model()
    found = {(group.optimizer, group.is_decayed): group.names for group in groups(model, "muon")}
    assert found["adamw", True] == ("unembedding.table.weight",)
    assert all(name.startswith("blocks.") for name in found["muon", True])
    assert ("muon", False) not in found


def test_a_model_within_another_module_is_grouped_as_it_is_alone() -> None:
    """A policy's embedding decayed and Muon took none of its matrices, by their names' prefix."""
    _, model = tiny.random_model()
    alone = groups(model, "muon")
    within = groups(torch.nn.ModuleDict({"policy": model}), "muon")
    names = [tuple(f"policy.{name}" for name in group.names) for group in alone]
    assert [group.names for group in within] == names
    kinds = [[(group.optimizer, group.is_decayed) for group in each] for each in (within, alone)]
    assert kinds[0] == kinds[1]


def test_muon_takes_the_matrices_of_a_speculator() -> None:
    """It took none: what is not called a block was left to AdamW in silence."""
    _, model = tiny.random_model()
    layer = model.blocks[0]
    rows = torch.nn.Linear(8, 16, bias=False)
    found = groups(torch.nn.ModuleDict({"attention": layer.attention, "head": rows}), "muon")
    taken = {name.split(".")[0]: group.optimizer for group in found for name in group.names}
    assert taken == {"attention": "muon", "head": "adamw"}


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_state_taken_up_goes_on_to_the_bit(name: str) -> None:
    """T11: with moments as without a stop, and unlike a cold start."""

    def steps(model: torch.nn.Module, optimizers: Optimizers, first: int, last: int) -> None:
        for update in range(first, last):
            generator = torch.Generator().manual_seed(update)
            for parameter in model.parameters():
                parameter.grad = torch.randn(parameter.shape, generator=generator)
            optimizers.step(1.0)

    def made() -> tuple[torch.nn.Module, Optimizers]:
        _, model = tiny.random_model(dtype=torch.float32)
        return model, Optimizers(model, OptimizerSettings(name=name, rate=1e-2))

    whole, optimizers = made()
    steps(whole, optimizers, 0, 3)
    kept = {key: value.clone() for key, value in optimizers.state().items()}
    middle = {key: value.clone() for key, value in whole.state_dict().items()}
    steps(whole, optimizers, 3, 5)
    ends: list[bool] = []
    for state in (kept, None):
        model, again = made()
        model.load_state_dict(middle)
        if state is not None:
            again.load_state(state)
        steps(model, again, 3, 5)
        pairs = zip(model.parameters(), whole.parameters(), strict=True)
        ends.append(all(torch.equal(a, b) for a, b in pairs))
    assert ends == [True, False]


def test_t16_a_state_that_lacks_a_parameter_is_refused_by_name() -> None:
    _, model = tiny.random_model(dtype=torch.float32)
    optimizers = Optimizers(model, OptimizerSettings(rate=1e-2))
    with pytest.raises(ConfigError, match=r"output.segments.0.weight.*21 in all"):
        optimizers.load_state({})


def test_adamw_moves_every_weight_by_the_rate_at_first() -> None:
    _, model = tiny.random_model(dtype=torch.float32)
    optimizers = Optimizers(model, OptimizerSettings(rate=1e-3, decay=0.0))
    before = [p.detach().clone() for p in model.parameters()]
    for parameter in model.parameters():
        # Far from 0: epsilon weighs there.
        parameter.grad = (0.5 + torch.rand_like(parameter)).copysign(torch.randn_like(parameter))
    optimizers.step(0.5)
    for old, new in zip(before, model.parameters(), strict=True):
        torch.testing.assert_close((new - old).abs(), torch.full_like(old, 5e-4), rtol=1e-2, atol=0)


def test_kept_lists_move_weights_as_torchs_adamw_does() -> None:
    """To the bit: at first, later, without a gradient of one, and behind a state taken up."""
    (_, ours), (_, plain) = (tiny.random_model(dtype=torch.float32) for _ in range(2))
    own, torchs = (Optimizers(each, OptimizerSettings(rate=1e-2)) for each in (ours, plain))
    for update in range(8):
        generator = torch.Generator().manual_seed(update)
        for place, pair in enumerate(zip(ours.parameters(), plain.parameters(), strict=True)):
            grad = torch.randn(pair[0].shape, generator=generator)
            for parameter in pair:
                parameter.grad = None if (update, place) == (4, 3) else grad.clone()
        if update == 6:
            own.load_state(own.state())
        for each in torchs._torchs:
            each.forget_lists()  # type: ignore[attr-defined]
        assert own.step(0.5) == torchs.step(0.5)
        for one, other in zip(ours.parameters(), plain.parameters(), strict=True):
            assert torch.equal(one, other), update


def test_schedules_are_functions_of_the_update() -> None:
    constant = Schedule("constant", 1000)
    assert constant.factor(0) == pytest.approx(1 / 20)
    assert constant.factor(19) == constant.factor(999) == 1.0
    cosine = Schedule("cosine", 1000, warmup=0)
    assert cosine.factor(0) == 1.0 and cosine.factor(1000) == pytest.approx(0.1)
    assert cosine.factor(500) == pytest.approx(0.55)
    wsd = Schedule("wsd", 1000, warmup=100)
    assert wsd.factor(49) == pytest.approx(0.5)
    assert wsd.factor(700) == pytest.approx(1.0)
    assert wsd.factor(850) == pytest.approx(0.525)
    assert wsd.factor(1000) == pytest.approx(0.05)


def test_names_that_are_not_known_are_refused() -> None:
    with pytest.raises(ConfigError, match=r'schedule is "linear"; it must be one of constant'):
        Schedule("linear", 10)
    with pytest.raises(ConfigError, match=r'optimizer is "sgd"; it must be adamw or muon'):
        OptimizerSettings(name="sgd", rate=1.0)
