"""Losses and advantages beside TRL's and torchtune's own functions, on the same tensors.

Neither is installed for CI: both bring large packages along. docs/train.md says how to run this.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from cutaway.train.losses.divergences import DIVERGENCES, distances, k1, kl_penalties
from cutaway.train.losses.pair_losses import (
    PAIR_LOSSES,
    PairLogprobs,
    PairSettings,
    bradley_terry,
)
from cutaway.train.losses.policy_losses import (
    Clip,
    GroupForm,
    clipped_surrogate,
    clipped_value,
    count_of,
    group_surrogate,
    num_clipped,
)
from cutaway.train.rollouts.advantages import compare_in_groups, estimate, token_rewards, whiten

pytest.importorskip("torchtune.rlhf.loss")
pytest.importorskip("trl.trainer.grpo_trainer")

LENGTHS = (3, 7, 1, 5, 4, 6)  # of answers
BEHIND = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]  # [B, T] is a token


def random_pairs() -> PairLogprobs:
    generator = torch.Generator().manual_seed(3)
    sums = [-20 * torch.rand(7, generator=generator) for _ in range(4)]
    lengths = [torch.randint(1, 12, (7,), generator=generator) for _ in range(2)]
    return PairLogprobs(*sums, *lengths)


def random_tokens(seed: int, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(sum(LENGTHS), generator=generator)


def padded(tokens: Tensor) -> Tensor:
    """Tokens of all answers as their libraries want them: a row each, filled with zeros."""
    return torch.zeros(BEHIND.shape, dtype=tokens.dtype).masked_scatter(BEHIND, tokens)


def mean(name: str, pairs: PairLogprobs, smoothing: float) -> float:
    loss = PAIR_LOSSES[name](pairs, PairSettings(smoothing=smoothing))
    return float(loss.total / loss.count)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_dpo_equals_torchtunes(smoothing: float) -> None:
    from torchtune.rlhf.loss import DPOLoss

    pairs = random_pairs()
    losses, chosen, rejected = DPOLoss(beta=0.1, label_smoothing=smoothing)(
        pairs.chosen, pairs.rejected, pairs.reference_chosen, pairs.reference_rejected
    )
    assert mean("sigmoid", pairs, smoothing) == pytest.approx(float(losses.mean()), abs=1e-6)
    torch.testing.assert_close(0.1 * pairs.chosen_shift, chosen, atol=1e-6, rtol=0)
    torch.testing.assert_close(0.1 * pairs.rejected_shift, rejected, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("name", "theirs", "smoothing"),
    [
        ("sigmoid", "sigmoid", 0.0),
        ("hinge", "hinge", 0.0),
        ("ipo", "ipo", 0.0),
        ("robust", "robust", 0.1),
        ("length_normalised", "sigmoid_norm", 0.0),
    ],
)
def test_losses_of_pairs_equal_trls(name: str, theirs: str, smoothing: float) -> None:
    pairs = random_pairs()
    ours = mean(name, pairs, smoothing)
    assert ours == pytest.approx(trl_dpo(pairs, theirs, smoothing), rel=1e-6, abs=1e-6)


def trl_dpo(pairs: PairLogprobs, loss_type: str, smoothing: float) -> float:
    """What TRL's trainer gives for answers whose tokens all have the same log-probability."""
    from trl.trainer.dpo_trainer import DPOTrainer

    lengths = torch.cat([pairs.chosen_lengths, pairs.rejected_lengths])
    mask = (torch.arange(int(lengths.max())) < lengths[:, None]).float()
    log_probs = mask * (torch.cat([pairs.chosen, pairs.rejected]) / lengths)[:, None]
    nothing = torch.zeros_like(mask)
    outputs = SimpleNamespace(
        log_probs=log_probs, entropy=nothing, mean_logits=nothing, is_top1=nothing.bool()
    )
    inputs = {
        "input_ids": torch.zeros(len(mask), 1 + mask.shape[1], dtype=torch.long),
        "attention_mask": mask,
        "completion_mask": torch.cat([torch.zeros(len(mask), 1), mask], dim=1),
        "ref_chosen_logps": pairs.reference_chosen,
        "ref_rejected_logps": pairs.reference_rejected,
    }
    trainer: Any = SimpleNamespace(
        **of_both(),
        loss_types=[loss_type],
        loss_weights=[1.0],
        beta=0.1,
        label_smoothing=smoothing,
        ld_alpha=None,
        precompute_ref_logps=True,
        f_divergence_type="reverse_kl",
        use_weighting=False,
        _total_train_tokens=0,
        _tp_size=1,
    )
    return float(DPOTrainer._compute_loss(trainer, lambda **_: outputs, inputs, False))


def of_both() -> dict[str, Any]:
    """What the losses of TRL's trainers read of them."""

    def same(value: Tensor) -> Tensor:
        return value

    return {
        "aux_loss_enabled": False,
        "model": SimpleNamespace(training=True),
        "accelerator": SimpleNamespace(
            device="cpu",
            num_processes=1,
            gather=same,
            gather_for_metrics=same,
            reduce=lambda value, reduction: value,
        ),
        "args": SimpleNamespace(delta=None, use_bias_correction_kl=True, steps_per_generation=1),
        "_metrics": {"train": _Lists()},
    }


class _Lists(dict[str, list[float]]):
    def __missing__(self, key: str) -> list[float]:
        return self.setdefault(key, [])


def test_the_reward_models_loss_equals_trls() -> None:
    """Its formula stands inside a trainer that wants a whole model: written out from there."""
    scores = torch.randn(2, 9, generator=torch.Generator().manual_seed(5))
    margins = torch.rand(9, generator=torch.Generator().manual_seed(6))
    chosen, rejected = scores
    theirs = -torch.nn.functional.logsigmoid(chosen - rejected - margins).mean()
    theirs = theirs + 0.01 * torch.mean((chosen + rejected) ** 2)
    ours = bradley_terry(chosen, rejected, margins=margins)
    assert float(ours.total / ours.count) == pytest.approx(float(theirs), abs=1e-6)


def test_ppo_equals_torchtunes() -> None:
    from torchtune.rlhf.loss import PPOLoss

    old, new, advantages = (
        random_tokens(1),
        random_tokens(1) + random_tokens(2, 0.3),
        random_tokens(3),
    )
    before, values, returns = random_tokens(4), random_tokens(5), random_tokens(6)
    loss, policy, value, _, clipped = PPOLoss(epsilon=0.2, value_clip_range=0.2, value_coeff=0.1)(
        *map(padded, (old, new, advantages, before, values, returns)),
        padding_masks=BEHIND,
        value_padding_masks=BEHIND,
    )
    ours = clipped_surrogate(new, old, advantages, Clip())
    of_values = clipped_value(values, before, returns)
    mean_policy, mean_value = ours.total / ours.count, of_values.total / of_values.count
    torch.testing.assert_close(mean_policy, policy, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(mean_value, value, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(mean_policy + 0.1 * mean_value, loss, atol=1e-6, rtol=1e-6)
    assert num_clipped(new, old, advantages, Clip()) == round(float(clipped) * sum(LENGTHS))


def test_rewards_advantages_and_returns_equal_torchtunes() -> None:
    from torchtune.rlhf import estimate_advantages, get_rewards_ppo
    from torchtune.rlhf import whiten as theirs_whiten

    old, reference, values = random_tokens(1), random_tokens(2), random_tokens(3)
    scores = torch.randn(len(LENGTHS), generator=torch.Generator().manual_seed(4))
    ends = torch.tensor(LENGTHS) - 1
    their_rewards, _, _ = get_rewards_ppo(scores, padded(old), padded(reference), 0.05, ends)
    ours = token_rewards(scores.tolist(), k1(old, reference), lengths=LENGTHS, beta=0.05)
    torch.testing.assert_close(ours, their_rewards[BEHIND], atol=1e-6, rtol=0)
    _, their_returns = estimate_advantages(padded(values), padded(ours), 1.0, 0.95, masks=BEHIND)
    found = estimate(ours, values, lengths=LENGTHS)
    torch.testing.assert_close(found.returns, their_returns[BEHIND], atol=2e-6, rtol=0)
    # Its whiten adds the mean back by default, so it is taken off here.
    whitened = theirs_whiten(found.advantages)
    whitened = whitened - found.advantages.mean()
    torch.testing.assert_close(whiten(found.advantages), whitened, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("form", "theirs", "level"),
    [
        ("tokens", "dapo", "token"),
        ("answers", "grpo", "token"),
        ("dr_grpo", "dr_grpo", "token"),
        ("gspo", "grpo", "sequence"),
    ],
)
@pytest.mark.parametrize("beta", [0.0, 0.04])
def test_losses_of_groups_equal_trls(form: GroupForm, theirs: str, level: str, beta: float) -> None:
    """Of gspo the KL is left out: TRL weighs it by the answer's ratio there, we by the token's."""
    from trl.trainer.grpo_trainer import GRPOTrainer

    beta = 0.0 if form == "gspo" else beta
    old, reference = random_tokens(1), random_tokens(7)
    new = (old + random_tokens(2, 0.3)).requires_grad_()
    advantages = torch.randn(len(LENGTHS), generator=torch.Generator().manual_seed(4))
    their_new = new.detach().clone().requires_grad_()
    logprobs = padded(their_new)
    trainer: Any = SimpleNamespace(
        **of_both(),
        loss_type=theirs,
        importance_sampling_level=level,
        beta=beta,
        epsilon_low=0.2,
        epsilon_high=0.28,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        use_vllm=False,
        current_gradient_accumulation_steps=1,
        max_completion_length=9,
        _entropy_bonus_enabled=False,
        _get_per_token_logps_and_entropies=lambda *_, **__: (logprobs, logprobs.detach(), None),
    )
    nothing = torch.zeros(BEHIND.shape, dtype=torch.long)
    inputs = {
        "prompt_ids": nothing[:, :1],
        "prompt_mask": nothing[:, :1],
        "completion_ids": nothing,
        "completion_mask": BEHIND.float(),
        "advantages": advantages,
        "old_per_token_logps": padded(old),
        "ref_per_token_logps": padded(reference),
        "num_items_in_batch": torch.tensor(float(sum(LENGTHS))),
    }
    expected = GRPOTrainer._compute_loss(trainer, None, inputs)
    ours = group_surrogate(
        new,
        old,
        advantages,
        lengths=LENGTHS,
        clip=Clip(0.2, 0.28),
        form=form,
        most_tokens=9,
        penalties=beta * kl_penalties(new, old, reference),
    )
    assert ours.count == count_of(LENGTHS, form, most_tokens=9)
    torch.testing.assert_close(ours.total / ours.count, expected, atol=1e-6, rtol=1e-6)
    (ours.total / ours.count).backward()
    expected.backward()
    torch.testing.assert_close(new.grad, their_new.grad, atol=1e-6, rtol=1e-6)


def test_group_advantages_equal_trls_formula() -> None:
    """It stands inside a method that samples: (r - mean) / (std + 1e-4) of its groups."""
    scores = torch.rand(12, generator=torch.Generator().manual_seed(4))
    groups = scores.view(3, 4)
    expected = (groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)
    found = compare_in_groups(scores, size=4)
    torch.testing.assert_close(found.advantages, expected.flatten(), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("name", "beta"), [("forward_kl", 0), ("jensen_shannon", 0.5), ("reverse_kl", 1)]
)
def test_divergences_equal_trls_generalised_one(name: str, beta: float) -> None:
    gkd = pytest.importorskip("trl.experimental.gkd")
    teacher, student = torch.randn(2, 5, 11, generator=torch.Generator().manual_seed(8))
    theirs = gkd.GKDTrainer.generalized_jsd_loss(
        student[None], teacher[None], beta=beta, temperature=2.0
    )  # a sum over rows, as its batch has one sequence
    ours = distances(teacher, student, divergence=DIVERGENCES[name], temperature=2.0).sum()
    assert float(ours) / 2**2 == pytest.approx(float(theirs), abs=1e-6)
