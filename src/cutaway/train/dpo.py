"""Direct preference optimisation: likelier the preferred answer, without a reward model.

The reference is the model as it begins; its log-probabilities are computed once, before anything
moves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from cutaway.blocks.transformer import Transformer
from cutaway.engine.build import device_of
from cutaway.train.data.pairs import PairBatch, Pairs
from cutaway.train.losses.likelihood import likelihood, sums_by_sequence
from cutaway.train.losses.losses import Figure, Loss
from cutaway.train.losses.pair_losses import PAIR_LOSSES, PairLogprobs, PairSettings
from cutaway.train.model.adapted_model import AdapterSettings, with_adapter
from cutaway.train.model.model_folder import open_model
from cutaway.train.reward import PairStageSettings, read_both
from cutaway.train.stage import TrainingStage, set_precision
from cutaway.train.stage_config import option

# Nats that the chosen answers may lose before somebody is told: both sides are being pushed away.
MOST_LOST = 5.0


@dataclass(frozen=True, kw_only=True)
class DpoSettings(AdapterSettings, PairStageSettings):
    """What DPO is told. The defaults of beta and smoothing are the paper's."""

    loss: str = option("sigmoid", help="which loss of pairs", choices=tuple(PAIR_LOSSES))
    beta: float = option(0.1, help="how far a margin counts", least=1e-4)
    smoothing: float = option(0.0, help="share of pairs labelled wrong", least=0.0, most=0.49)
    likelihood: float = option(1.0, help="weight of the chosen answers' surprise in rpo", least=0.0)


def prepare(settings: DpoSettings, say: Callable[[str], None] = print) -> TrainingStage[PairBatch]:
    """The stage that settings describe, ready to run. say: a sentence for a person.

    Raises: ConfigError, ModelError and its kinds, TemplateError.
    """
    opened = open_model(settings.model, device=device_of(settings.device))
    pairs, held_out = read_both(settings, opened, say)
    model = with_adapter(
        opened,
        settings,
        base=settings.model,
        seed=settings.seed,
    )
    set_precision(model.transformer, settings)
    reference = reference_sums(model.transformer, pairs, settings.step_tokens)
    told = reference_sums(model.transformer, held_out, settings.step_tokens)
    plan = pairs.plan(seed=settings.seed, at_once=settings.pairs)
    choice = PairSettings(settings.beta, settings.smoothing, settings.likelihood)
    has_warned = False

    def feed(update: int) -> list[PairBatch]:
        return pairs.batches(plan.members(update), settings.step_tokens)

    def objective(batch: PairBatch) -> Loss:
        nonlocal has_warned
        compared = compare(model.transformer, batch, reference)
        if not has_warned and float(compared.chosen_shift.detach().mean()) < -MOST_LOST:
            has_warned = True
            say(
                f"the chosen answers have lost more than {MOST_LOST:g} nats: both sides fall. "
                "Take a smaller rate, or loss = rpo, which keeps them likely."
            )
        loss = PAIR_LOSSES[settings.loss](compared, choice)
        return Loss(loss.total, loss.count, figures_of(compared))

    @torch.no_grad()
    def measure() -> Mapping[str, float]:
        batches = held_out.batches(range(len(held_out.pairs)), settings.step_tokens)
        losses: list[Loss] = []
        for batch in batches:
            compared = compare(model.transformer, batch, told)
            loss = PAIR_LOSSES[settings.loss](compared, choice)
            losses.append(Loss(loss.total, loss.count, figures_of(compared)))
        total = sum(float(loss.total) for loss in losses)
        count = sum(loss.count for loss in losses)
        means = {
            name: sum((loss.figures[name] for loss in losses), Figure(0.0, 0)).mean
            for name in losses[0].figures
        }
        return {"held_out_loss": total / count, **means}

    return TrainingStage(
        name="dpo",
        settings=settings,
        model=model,
        data=pairs.data,
        feed=feed,
        objective=objective,
        measure=measure if held_out.pairs else None,
    )


def compare(transformer: Transformer, batch: PairBatch, reference: Tensor) -> PairLogprobs:
    """Log-probabilities of a batch's pairs beside the reference's.

    reference: of all pairs, chosen and rejected [P, 2].
    """
    answers = batch.answers
    sums = sums_by_sequence(likelihood(transformer, answers).log_probs, answers)
    lengths = torch.tensor([each.count for each in answers.sequences]).to(sums)
    own = reference[[pair.place for pair in batch.pairs]].to(sums)
    chosen, rejected = sums.chunk(2)
    return PairLogprobs(chosen, rejected, own[:, 0], own[:, 1], *lengths.chunk(2))


@torch.no_grad()
def reference_sums(transformer: Transformer, pairs: Pairs, step_tokens: int) -> Tensor:
    """Log-probabilities of all pairs' answers as the model is now, chosen and rejected.

    Shapes: [P, 2].
    """
    parts: list[Tensor] = [torch.zeros(0, 2)]
    for batch in pairs.batches(range(len(pairs.pairs)), step_tokens):
        found = likelihood(transformer, batch.answers).log_probs
        parts.append(sums_by_sequence(found, batch.answers).view(2, -1).T.cpu())
    return torch.cat(parts)


def figures_of(pairs: PairLogprobs) -> dict[str, Figure]:
    """What is logged of pairs: both shifts apart, their difference, and how many are in order."""
    count = len(pairs.chosen)

    def figure(values: Tensor) -> Figure:
        return Figure(float(values.detach().sum()), count)

    return {
        "chosen_shift": figure(pairs.chosen_shift),
        "rejected_shift": figure(pairs.rejected_shift),
        "margin": figure(pairs.margin),
        "accuracy": figure((pairs.margin > 0).double()),
        "chosen": figure(pairs.chosen),
        "rejected": figure(pairs.rejected),
    }
