"""What stages make of the losses: their objectives beside sums by hand, in float64.

Settings are none of the defaults, and the model has moved from its reference and from what the
round was sampled by, so that a setting which is not handed on, a sign or a second KL shows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from preference_stages import pairs, talks, tasks, tuned, write_lines
from torch import Tensor, nn

from cutaway.train import distill, dpo, grpo, ppo, reward
from cutaway.train.data.packing import MicroBatch
from cutaway.train.losses.likelihood import likelihood
from cutaway.train.losses.pair_losses import PairLogprobs
from cutaway.train.model.model_folder import open_model
from cutaway.train.model.value_head import scores, values
from cutaway.train.rollouts.rounds import RoundPart
from cutaway.train.stage import TrainingStage

NEAR = {"rel": 2e-5, "abs": 2e-5}
LOSSES = ("sigmoid", "hinge", "ipo", "robust", "length_normalised", "rpo")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("objectives")
    tuned(path)
    write_lines(path / "pairs.jsonl", pairs(8))
    write_lines(path / "tasks.jsonl", tasks(12))
    write_lines(path / "talks.jsonl", talks(8))
    other = open_model(str(path / "tuned"))
    move(other.transformer, seed=9)
    (path / "student").mkdir()
    other.write(path / "student")
    return path


def move(module: nn.Module, *, seed: int, by: float = 0.03) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for each in module.parameters():
            each += by * each.abs().mean() * torch.randn(each.shape, generator=generator)


def told(folder: Path, **changes: Any) -> dict[str, Any]:
    common = {"out": folder / "none", "model": str(folder / "tuned"), "device": "cpu"}
    common |= {"updates": 4, "rate": 1e-3, "save_every": 4, "measure_every": 4, "context": 96}
    return {**common, **changes}


def rounds(folder: Path, **changes: Any) -> dict[str, Any]:
    own = {"data": (folder / "tasks.jsonl",), "rewards": "length", "prompts": 12, "max_tokens": 6}
    made = {**told(folder), **own, "temperature": 0.9, "beta": 0.3, "clip": 0.02, **changes}
    del made["context"]
    return made


def gradients(total: Tensor, module: nn.Module) -> list[Tensor]:
    found = torch.autograd.grad(total, list(module.parameters()), allow_unused=True)
    return [each for each in found if each is not None]


def by_answer(values: Tensor, part: RoundPart) -> list[list[float]]:
    assert sum(part.lengths) == len(values)
    return [each.double().tolist() for each in torch.split(values.detach(), part.lengths)]


def worth(part: RoundPart) -> list[float]:
    """A hundredth a token where an answer has ended, and -1 where it was cut (T43)."""
    answers = [each.rollout for each in part.answers]
    assert {each.is_ended for each in answers} == {True, False}, "both kinds are there"
    return [len(each.answer) / 100 if each.is_ended else -1.0 for each in answers]


# T31, T37 to T39, T43: what of an answer's worth, of the KL, of discounts and clips PPO learns.
def test_ppo_learns_from_what_answers_were_worth_beyond_what_was_expected(folder: Path) -> None:
    own = {"discount": 0.9, "gae_decay": 0.7, "value_weight": 0.6, "value_clip": 0.01}
    stage: TrainingStage[Any] = ppo.prepare(ppo.PpoSettings(**rounds(folder, **own)))
    policy, critic = stage.model.policy.transformer, stage.model.critic.scorer
    move(policy, seed=1)  # away from the reference
    (batch,) = stage.feed(0)
    part: RoundPart = batch.part
    worths = worth(part)
    assert part.scores == pytest.approx(worths)

    reference = likelihood(
        open_model(str(folder / "tuned")).transformer, part.batch, temperature=0.9
    ).log_probs
    expected = by_answer(values(critic, part.batch), part)
    advantages: list[float] = []
    for worth_, old, was, value in zip(
        worths, by_answer(part.old, part), by_answer(reference, part), expected, strict=True
    ):
        rewards = [-0.3 * (a - b) for a, b in zip(old, was, strict=True)]
        rewards[-1] += worth_
        deltas = [
            gained + 0.9 * after - now
            for gained, now, after in zip(rewards, value, [*value[1:], 0.0], strict=True)
        ]
        advantages += [
            sum((0.9 * 0.7) ** (later - at) * deltas[later] for later in range(at, len(deltas)))
            for at in range(len(deltas))
        ]
    raw = torch.tensor(advantages, dtype=torch.float64)
    flat = torch.tensor([each for value in expected for each in value], dtype=torch.float64)
    assert batch.returns.tolist() == pytest.approx((raw + flat).tolist(), **NEAR)
    whitened = (raw - raw.mean()) / raw.std()
    assert batch.advantages.tolist() == pytest.approx(whitened.tolist(), rel=1e-4, abs=1e-4)

    move(policy, seed=2)
    move(critic, seed=3)
    new = likelihood(policy, part.batch, temperature=0.9).log_probs.detach().double()
    ratios = torch.exp(new - part.old.double())
    gained = torch.minimum(ratios * whitened, ratios.clamp(0.98, 1.02) * whitened)
    assert float((gained - ratios * whitened).detach().abs().max()) > 1e-3, "the clip is felt"
    now = values(critic, part.batch).detach().double()
    near = flat + (now - flat).clamp(-0.01, 0.01)
    errors = torch.maximum((now - raw - flat).square(), (near - raw - flat).square())
    assert float((near - now).abs().max()) > 1e-3
    loss = stage.objective(batch)
    assert loss.count == len(new)
    total = -gained.sum() + 0.6 * errors.sum() / 2
    assert float(loss.total.detach()) == pytest.approx(float(total.detach()), rel=1e-4)


def of_group(worths: Sequence[float], size: int, *, is_scaled: bool) -> Tensor:
    groups = torch.tensor(worths, dtype=torch.float64).view(-1, size)
    centred = groups - groups.mean(1, keepdim=True)
    return (centred / (groups.std(1, keepdim=True) + 1e-4) if is_scaled else centred).flatten()


# T36, T37, T40, T43: which KL GRPO descends, how often, how tokens count, and in which direction.
@pytest.mark.parametrize("form", ["tokens", "answers", "dr_grpo", "gspo"])
def test_grpo_learns_from_what_answers_were_worth_beside_their_group(
    folder: Path, form: str
) -> None:
    own = {"answers": 4, "form": form, "clip_high": 0.03}
    stage: TrainingStage[Any] = grpo.prepare(grpo.GrpoSettings(**rounds(folder, **own)))
    model = stage.model.transformer
    move(model, seed=1)
    (batch,) = stage.feed(0)
    part: RoundPart = batch.part
    worths = worth(part)
    assert part.scores == pytest.approx(worths), "the KL is paid in the loss alone"
    advantages = of_group(worths, 4, is_scaled=form != "dr_grpo")
    assert batch.advantages.tolist() == pytest.approx(advantages.tolist(), **NEAR)

    before = open_model(str(folder / "tuned")).transformer
    reference = likelihood(before, part.batch, temperature=0.9).log_probs.detach()
    move(model, seed=2)
    new = likelihood(model, part.batch, temperature=0.9).log_probs
    log_ratios = new - part.old
    sizes = torch.tensor(part.lengths)
    if form == "gspo":
        means = [each.mean() for each in torch.split(log_ratios, part.lengths)]
        log_ratios = torch.stack(means).repeat_interleave(sizes)
    each = advantages.repeat_interleave(sizes)
    ratios = log_ratios.exp()
    gained = torch.minimum(ratios * each, ratios.clamp(0.98, 1.03) * each)
    assert float((gained - ratios * each).detach().abs().max()) > 1e-3, "the clip is felt"
    # KL to the reference at tokens of the old model: its gradient is ratio * log(new / reference).
    log = (reference - new).detach()
    value = torch.exp(new.detach() - part.old) * (log.exp() - 1 - log)
    slope = torch.exp(new.detach() - part.old) * -log
    losses = -gained + 0.3 * (value + slope * (new - new.detach()))
    if form in ("answers", "gspo"):
        losses = losses / sizes.repeat_interleave(sizes)
    count = {"tokens": len(new), "dr_grpo": len(sizes) * 6}.get(form, len(sizes))

    loss = stage.objective(batch)
    assert loss.count == batch.count == count
    assert float(loss.total.detach()) == pytest.approx(float(losses.detach().sum()), rel=1e-4)
    for ours, theirs in zip(
        gradients(loss.total, model), gradients(losses.sum(), model), strict=True
    ):
        torch.testing.assert_close(ours, theirs.to(ours), rtol=2e-4, atol=2e-4)


def sums(model: Any, batch: MicroBatch) -> Tensor:
    counts = [each.count for each in batch.sequences]
    found = likelihood(model, batch).log_probs.detach().double()
    return torch.stack([each.sum() for each in torch.split(found, counts)])


# T26, T27: the loss that was chosen, with its numbers.
@pytest.mark.parametrize("loss", LOSSES)
def test_dpo_learns_by_the_loss_that_it_is_told(folder: Path, loss: str) -> None:
    own = {"beta": 0.3, "smoothing": 0.2, "likelihood": 0.7, "data": (folder / "pairs.jsonl",)}
    settings = dpo.DpoSettings(**told(folder, loss=loss, pairs=8, **own))
    stage = dpo.prepare(settings, lambda words: None)
    move(stage.model.transformer, seed=1)
    (batch,) = stage.feed(0)
    before = open_model(str(folder / "tuned")).transformer
    shifts = sums(stage.model.transformer, batch.answers) - sums(before, batch.answers)
    chosen, rejected = shifts.chunk(2)
    counts = torch.tensor([each.count for each in batch.answers.sequences], dtype=torch.float64)
    long, short = counts.chunk(2)
    margin, mean = chosen - rejected, chosen / long - rejected / short
    surprise = -sums(stage.model.transformer, batch.answers)[: len(long)] / long

    def smoothed(margins: Tensor) -> Tensor:
        up, down = torch.log1p(torch.exp(-0.3 * margins)), torch.log1p(torch.exp(0.3 * margins))
        return 0.8 * up + 0.2 * down

    right = torch.log1p(torch.exp(-0.3 * margin))
    wrong = torch.log1p(torch.exp(0.3 * margin))
    wanted = {
        "sigmoid": smoothed(margin),
        "hinge": (1 - 0.3 * margin).clamp_min(0),
        "ipo": (mean - 1 / 0.6) ** 2,
        "robust": (0.8 * right - 0.2 * wrong) / 0.6,
        "length_normalised": smoothed(mean),
        "rpo": smoothed(margin) + 0.7 * surprise,
    }[loss]
    found = stage.objective(batch)
    assert found.count == 8
    assert float(found.total.detach()) == pytest.approx(float(wanted.sum()), rel=1e-4)


# T29: how much may be lost before somebody is told.
@pytest.mark.parametrize(("shift", "says"), [(-4.9, 0), (-5.1, 1)])
def test_t29_five_nats_are_told(folder: Path, monkeypatch: Any, shift: float, says: int) -> None:
    said: list[str] = []
    settings = dpo.DpoSettings(**told(folder, data=(folder / "pairs.jsonl",)))
    stage = dpo.prepare(settings, said.append)
    none, one = torch.zeros(8), torch.ones(8)
    moved = PairLogprobs(none + shift, none, none, none, one, one)
    monkeypatch.setattr(dpo, "compare", lambda *given: moved)
    for _ in range(2):
        stage.objective(stage.feed(0)[0])
    assert len(said) == says


def test_the_reward_stage_keeps_scores_around_nothing_as_far_as_it_is_told(folder: Path) -> None:
    own = {"data": (folder / "pairs.jsonl",), "pairs": 8, "centring": 0.4}
    stage = reward.prepare(reward.RewardSettings(**told(folder, **own)), lambda words: None)
    (batch,) = stage.feed(0)
    ids = [each.token_ids for each in batch.answers.sequences]
    chosen, rejected = scores(stage.model.scorer, ids).detach().double().chunk(2)  # type: ignore[attr-defined]
    wanted = torch.log1p(torch.exp(rejected - chosen)) + 0.4 * (chosen + rejected) ** 2
    found = stage.objective(batch)
    assert found.count == 8
    assert float(found.total.detach()) == pytest.approx(float(wanted.sum()), rel=1e-4)


# T48: a loss that is divided twice, or that goes the wrong way round.
@pytest.mark.parametrize("top_k", [None, 5])
@pytest.mark.parametrize("divergence", ["forward_kl", "reverse_kl", "jensen_shannon"])
def test_t48_distillation_sums_the_divergence_of_each_scored_row(
    folder: Path, divergence: str, top_k: int | None
) -> None:
    own = {"model": str(folder / "student"), "teacher": str(folder / "tuned"), "tokens": 768}
    own |= {"data": (folder / "talks.jsonl",), "temperature": 1.5, "divergence": divergence}
    stage = distill.prepare(
        distill.DistillSettings(**told(folder, **own, top_k=top_k, step_tokens=128)),
        lambda words: None,
    )
    batches = stage.feed(0)
    assert len(batches) > 1
    for batch in batches:
        step = batch.step("cpu")
        logits = [
            model.unembedding.read(model.hidden(step)[step.logit_rows]).detach().double()
            for model in (open_model(own["teacher"]).transformer, stage.model.transformer)
        ]
        p, q = ((each / 1.5).softmax(-1) for each in logits)
        if top_k is not None:
            kept = p.topk(top_k).indices
            p, q = (
                torch.cat([each.gather(-1, kept), 1 - each.gather(-1, kept).sum(-1)[:, None]], -1)
                for each in (p, q)
            )
        half = (p + q) / 2
        forward, back = (p * (p / q).log()).sum(-1), (q * (q / p).log()).sum(-1)
        both = ((p * (p / half).log()).sum(-1) + (q * (q / half).log()).sum(-1)) / 2
        wanted = {"forward_kl": forward, "reverse_kl": back, "jensen_shannon": both}[divergence]
        found = stage.objective(batch)
        assert found.count == batch.count == len(wanted)
        assert float(found.total.detach()) == pytest.approx(1.5**2 * float(wanted.sum()), rel=1e-3)


# T13: a round that repeats the noise of another.
def test_t13_each_round_has_noise_of_its_own(folder: Path, tmp_path: Path) -> None:
    """One task alone, since a draw is also its place's in the round."""
    path = write_lines(tmp_path / "one.jsonl", tasks(1))

    def answers(number: int) -> list[tuple[int, ...]]:
        own = {"data": (path,), "prompts": 1, "answers": 16}
        (batch,) = grpo.prepare(grpo.GrpoSettings(**rounds(folder, **own))).feed(number)
        return [tuple(each.rollout.answer) for each in batch.part.answers]

    first, second = answers(0), answers(1)
    assert first == answers(0)
    assert sum(one != other for one, other in zip(first, second, strict=True)) > 8


# T32, T38: what a model gains by a round is what the round said.
@pytest.mark.parametrize("kind", ["ppo", "grpo"])
def test_answers_that_were_worth_more_become_likelier(folder: Path, kind: str) -> None:
    own = {"beta": 0.0, "clip": 0.2, "rewards": "ended"}
    stage: TrainingStage[Any] = (
        ppo.prepare(ppo.PpoSettings(**rounds(folder, **own)))
        if kind == "ppo"
        else grpo.prepare(grpo.GrpoSettings(**rounds(folder, **own, answers=4)))
    )
    (batch,) = stage.feed(0)
    model = stage.model.transformer
    stage.objective(batch).total.backward()
    part: RoundPart = batch.part
    with torch.no_grad():
        before = [sum(each) for each in by_answer(part.old, part)]
        for each in model.parameters():
            if each.grad is not None:
                each -= 1e-3 * each.grad / each.grad.norm().clamp_min(1e-12)
        after = likelihood(model, part.batch, temperature=0.9).log_probs
    gains = [b - a for a, b in zip(before, [sum(e) for e in by_answer(after, part)], strict=True)]
    ended = [each.rollout.is_ended for each in part.answers]
    means = [
        math.fsum(g for g, is_ended in zip(gains, ended, strict=True) if is_ended is which)
        / ended.count(which)
        for which in (True, False)
    ]
    assert means[0] > means[1]
