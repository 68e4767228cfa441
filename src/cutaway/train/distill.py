"""Distillation: a student learns a teacher's whole distribution at every scored token.

Both read the same ids, so they share a vocabulary. Rows are compared in chunks, as everywhere: no
table of all logits exists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from cutaway.core.errors import ConfigError
from cutaway.core.limits import quote
from cutaway.engine.build import device_of
from cutaway.engine.loading.template_of import compiled_template, folder_template
from cutaway.tokens.files.tokenizer_files import load_folder
from cutaway.train.data.packing import MicroBatch, UpdatePlan, micro_batches
from cutaway.train.losses.divergences import DIVERGENCES, acceptance, distances
from cutaway.train.losses.likelihood import in_chunks
from cutaway.train.losses.losses import Figure, Loss
from cutaway.train.model.model_folder import open_model
from cutaway.train.sft import check_talks, read_talks
from cutaway.train.stage import StageSettings, TrainingStage, check_context, fit_context
from cutaway.train.stage_config import option


@dataclass(frozen=True, kw_only=True)
class DistillSettings(StageSettings):
    """What distillation is told."""

    model: str = option(help="the folder of the student", names_model=True)
    teacher: str = option(help="the folder of the teacher", names_model=True)
    data: tuple[Path, ...] = option(help=".jsonl files with messages a line")
    held_out: tuple[Path, ...] = option((), help=".jsonl files to measure on")
    divergence: str = option("forward_kl", help="which distance", choices=tuple(DIVERGENCES))
    temperature: float = option(1.0, help="of both distributions", least=0.05)
    top_k: int | None = option(None, help="compare the teacher's likeliest alone", least=1)
    context: int = option(512, help="tokens of a conversation; longer ones are cut", least=2)
    tokens: int = option(4096, help="tokens of an update", least=2)
    step_tokens: int = option(16384, help="tokens of one forward", least=2, changes_run=False)


def prepare(
    settings: DistillSettings, say: Callable[[str], None] = print
) -> TrainingStage[MicroBatch]:
    """The stage that settings describe, ready to run. say: a sentence for a person.

    Raises: ConfigError, ModelError and its kinds, TemplateError.
    """
    device = device_of(settings.device)
    student = open_model(settings.model, device=device)
    teacher = open_model(settings.teacher, device=device).transformer.requires_grad_(False)
    folder = Path(settings.model)
    tokenizer = load_folder(folder)
    if load_folder(Path(settings.teacher)).fingerprint != tokenizer.fingerprint:
        raise ConfigError(
            f"teacher {quote(settings.teacher)} has another vocabulary than model "
            f"{quote(settings.model)}; "
            "ids of one mean nothing to the other."
        )
    template = compiled_template(folder_template(folder), name=settings.model, tokenizer=tokenizer)
    context = fit_context(settings.context, student, say)
    check_context(context, settings.tokens, student)
    talks = read_talks(settings.data, template, tokenizer, context=context)
    held_out = read_talks(settings.held_out, template, tokenizer, context=context)
    check_talks(settings.data, talks, say, name="data")
    check_talks(settings.held_out, held_out, say, name="held_out")
    lengths = [len(each.token_ids) for each in talks.sequences]
    plan = UpdatePlan(lengths, seed=settings.seed, budget=settings.tokens)

    def feed(update: int) -> list[MicroBatch]:
        members = [talks.sequences[index] for index in plan.members(update)]
        return micro_batches(members, settings.step_tokens)

    def objective(batch: MicroBatch) -> Loss:
        step = batch.step(device)
        with torch.no_grad():
            theirs = teacher.hidden(step)[step.logit_rows]
        ours = student.transformer.hidden(step)[step.logit_rows]

        def compare(own: Tensor, told: Tensor) -> tuple[Tensor, Tensor]:
            with torch.no_grad():
                wanted = teacher.unembedding.read(told)
            logits = student.transformer.unembedding.read(own)
            rows = distances(
                wanted,
                logits,
                divergence=DIVERGENCES[settings.divergence],
                temperature=settings.temperature,
                top_k=settings.top_k,
            )
            with torch.no_grad():
                accepted = acceptance(wanted.log_softmax(-1), logits.log_softmax(-1))
            return rows, accepted

        rows, accepted = in_chunks(compare, ours, theirs)
        figures = {"acceptance": Figure(float(accepted.detach().sum()), len(rows))}
        return Loss(rows.sum(), len(rows), figures)

    @torch.no_grad()
    def measure() -> Mapping[str, float]:
        batches = micro_batches(held_out.sequences, settings.step_tokens)
        losses = [objective(batch) for batch in batches if batch.count]
        accepted = sum((loss.figures["acceptance"] for loss in losses), Figure(0.0, 0))
        count = sum(loss.count for loss in losses)
        total = sum(float(loss.total) for loss in losses)
        return {"held_out_divergence": total / count, "acceptance": accepted.mean}

    return TrainingStage(
        name="distill",
        settings=settings,
        model=student,
        data=talks.data,
        feed=feed,
        objective=objective,
        measure=measure if held_out.sequences else None,
    )
