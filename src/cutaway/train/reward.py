"""The reward model: a tuned model learns to score a preferred answer above the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from cutaway.engine.build import device_of
from cutaway.engine.loading.template_of import compiled_template, folder_template
from cutaway.tokens.files.tokenizer_files import load_folder
from cutaway.train.data.pairs import PairBatch, Pairs, read_scored_pairs
from cutaway.train.losses.losses import Figure, Loss
from cutaway.train.losses.pair_losses import bradley_terry
from cutaway.train.model.model_folder import TrainedModel, open_model
from cutaway.train.model.value_head import Scorer, scores, with_scores
from cutaway.train.stage import StageSettings, TrainingStage, fit_context
from cutaway.train.stage_config import option


@dataclass(frozen=True, kw_only=True)
class PairStageSettings(StageSettings):
    """What stages that learn from pairs are told."""

    model: str = option(help="the folder of the model that is tuned", names_model=True)
    data: tuple[Path, ...] = option(help=".jsonl files with prompt, chosen and rejected a line")
    held_out: tuple[Path, ...] = option((), help=".jsonl files of pairs to measure on")
    context: int = option(512, help="tokens of prompt and answer; longer ones go", least=2)
    decay: float = option(0.0, help="weight decay of matrices", least=0.0)
    pairs: int = option(32, help="pairs of an update", least=1)
    step_tokens: int = option(16384, help="tokens of one forward", least=2, changes_run=False)


@dataclass(frozen=True, kw_only=True)
class RewardSettings(PairStageSettings):
    """What the reward model's stage is told."""

    centring: float = option(0.01, help="weight of the square of both scores' sum", least=0.0)


def prepare(
    settings: RewardSettings, say: Callable[[str], None] = print
) -> TrainingStage[PairBatch]:
    """The stage that settings describe, ready to run. say: a sentence for a person.

    Raises: ConfigError, ModelError and its kinds, TemplateError.
    """
    opened = open_model(settings.model, device=device_of(settings.device))
    pairs, held_out = read_both(settings, opened, say)
    model = with_scores(opened, seed=settings.seed)
    plan = pairs.plan(seed=settings.seed, at_once=settings.pairs)

    def feed(update: int) -> list[PairBatch]:
        return pairs.batches(plan.members(update), settings.step_tokens)

    def objective(batch: PairBatch) -> Loss:
        chosen, rejected = score_pairs(model.scorer, batch)
        loss = bradley_terry(chosen, rejected, centring=settings.centring)
        num_right = int((chosen > rejected).sum())
        margin = float((chosen - rejected).detach().sum())
        figures = {
            "accuracy": Figure(num_right, loss.count),
            "margin": Figure(margin, loss.count),
        }
        return Loss(loss.total, loss.count, figures)

    def measure() -> Mapping[str, float]:
        batches = held_out.batches(range(len(held_out.pairs)), settings.step_tokens)
        return judge(model.scorer, batches, centring=settings.centring)

    return TrainingStage(
        name="reward",
        settings=settings,
        model=model,
        module=model.scorer,
        data=pairs.data,
        feed=feed,
        objective=objective,
        measure=measure if held_out.pairs else None,
    )


def read_both(
    settings: PairStageSettings, model: TrainedModel, say: Callable[[str], None]
) -> tuple[Pairs, Pairs]:
    """Pairs to learn from and those that are held out, told as the model's template tells them.

    Raises: ConfigError, TemplateError when the model has no template.
    """
    folder = Path(settings.model)
    tokenizer = load_folder(folder)
    template = compiled_template(folder_template(folder), name=settings.model, tokenizer=tokenizer)
    context = fit_context(settings.context, model, say)
    pairs = read_scored_pairs(settings.data, template, tokenizer, context=context)
    held_out = read_scored_pairs(settings.held_out, template, tokenizer, context=context)
    for reason, count in (*pairs.dropped.items(), *held_out.dropped.items()):
        say(f"{count} pairs were left out: {reason}")
    return pairs, held_out


def score_pairs(scorer: Scorer, batch: PairBatch) -> tuple[Tensor, Tensor]:
    """Scores of the chosen and of the rejected answers. Shapes: [B] each."""
    found = scores(scorer, [each.token_ids for each in batch.answers.sequences])
    chosen, rejected = found.chunk(2)
    return chosen, rejected


@torch.no_grad()
def judge(
    scorer: Scorer, batches: Sequence[PairBatch], *, centring: float = 0.0
) -> dict[str, float]:
    """Loss, share of pairs in the right order, mean margin, and how scores go with lengths."""
    parts = [score_pairs(scorer, batch) for batch in batches]
    chosen, rejected = (
        torch.cat([each for each, _ in parts]),
        torch.cat([each for _, each in parts]),
    )
    loss = bradley_terry(chosen, rejected, centring=centring)
    sequences = [each for batch in batches for each in batch.answers.sequences]
    lengths = torch.tensor([float(each.count) for each in sequences])
    both = torch.cat([side for part in parts for side in part]).cpu()
    return {
        "held_out_loss": float(loss.total) / loss.count,
        "accuracy": float((chosen > rejected).double().mean()),
        "margin": float((chosen - rejected).mean()),
        "length_correlation": correlation(both, lengths),
    }


def correlation(left: Tensor, right: Tensor) -> float:
    """Pearson's, from -1 to 1; 0 where one of the two does not vary."""
    left, right = left.double() - left.double().mean(), right.double() - right.double().mean()
    size = float(left.square().sum().sqrt() * right.square().sum().sqrt())
    # Sums are rounded: of one direction it would be more than 1 by a last bit.
    return max(-1.0, min(1.0, float(left @ right) / size)) if size else 0.0
