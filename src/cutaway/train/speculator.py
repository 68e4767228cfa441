"""A speculator learns to guess what a model says next, from the model's own streams and rows.

The model stays as it is. Data are conversations, best the model's own answers. The loss is the
cross-entropy to the model's distribution over the drafted vocabulary, of several passes over the
speculator's own states, later ones less (`draft_loss`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from cutaway.core.errors import ConfigError
from cutaway.engine.build import device_of
from cutaway.engine.drafters.streams import Streams
from cutaway.engine.loading.template_of import compiled_template
from cutaway.train.data.packing import MicroBatch, ScoredSequence, UpdatePlan, micro_batches
from cutaway.train.losses.divergences import draft_loss
from cutaway.train.losses.losses import Figure, Loss
from cutaway.train.losses.speculator_passes import groups_of, passes_over
from cutaway.train.model.model_folder import open_model, text_side
from cutaway.train.model.speculator_model import KINDS_KEPT, SpeculatorModel, with_speculator
from cutaway.train.sft import CHAT_TEMPLATE, check_talks, read_talks
from cutaway.train.stage import StageSettings, TrainingStage, check_context, fit_context
from cutaway.train.stage_config import option

ACCEPTED = "accepted_length"  # tokens of a step, with as many guesses as there are passes


@dataclass(frozen=True, kw_only=True)
class SpeculatorSettings(StageSettings):
    """What the training of a speculator is told."""

    model: str = option(help="the folder of the model that it guesses for", names_model=True)
    data: tuple[Path, ...] = option(help=".jsonl files with messages a line", changes_run=False)
    held_out: tuple[Path, ...] = option((), help=".jsonl files to measure on", changes_run=False)
    drafted: int = option(8192, help="commonest ids of the answers, which it can guess", least=1)
    inner: int = option(384, help="width of its feed-forward", least=1)
    learns_head: bool = option(
        True, help="learn rows of the vocabulary of its own; else the model's serve it"
    )
    kept: str = option(
        "float32", help="how the numbers that come out are stored", choices=KINDS_KEPT
    )
    passes: int = option(5, help="over its own states", least=1, most=12)
    falling: float = option(0.8, help="weight of a pass, by that of the one before", least=0.0)
    reach: int = option(
        0,
        help="a pass learns where those before had the model's id among their so many likeliest; "
        "0 is everywhere",
        least=0,
    )
    context: int = option(512, help="tokens of a conversation; longer ones are cut", least=3)
    tokens: int = option(4096, help="tokens of an update", least=3)
    step_tokens: int = option(4096, help="tokens of one forward", least=3, changes_run=False)


def prepare(
    settings: SpeculatorSettings, say: Callable[[str], None] = print
) -> TrainingStage[MicroBatch]:
    """The stage that settings describe, ready to run. say: a sentence for a person.

    Raises: ConfigError, ModelError and its kinds, TemplateError.
    """
    device = device_of(settings.device)
    model = open_model(settings.model, device=device, is_base=True)
    tokenizer, own = text_side(settings.model)
    source = own or CHAT_TEMPLATE
    template = compiled_template(source, name=settings.model, tokenizer=tokenizer)
    context = fit_context(settings.context, model, say)
    check_context(context, settings.tokens, model)
    talks = read_talks(settings.data, template, tokenizer, context=context)
    held_out = read_talks(settings.held_out, template, tokenizer, context=context)
    check_talks(settings.data, talks, say, name="data")
    check_talks(settings.held_out, held_out, say, name="held_out")
    sequences = [from_third(each) for each in talks.sequences]
    sequences = [each for each in sequences if each.count]
    if not sequences:
        raise ConfigError("data has no conversation with a scored token behind its second.")
    drafted = _commonest(sequences, settings.drafted)
    made = with_speculator(
        *(model, drafted),
        name=Path(settings.model).name,
        inner=settings.inner,
        seed=settings.seed,
        learns_head=settings.learns_head,
        kept=settings.kept,
    )
    plan = UpdatePlan(
        [len(each.token_ids) for each in sequences], seed=settings.seed, budget=settings.tokens
    )

    def feed(update: int) -> list[MicroBatch]:
        members = [sequences[index] for index in plan.members(update)]
        return micro_batches(members, settings.step_tokens)

    def objective(batch: MicroBatch, *, walks: bool = False) -> Loss:
        return loss_of(
            *(made, batch),
            num_passes=settings.passes,
            falling=settings.falling,
            walks=walks,
            reach=0 if walks else settings.reach,  # what is measured has the same rows ever
        )

    kept = [each for each in map(from_third, held_out.sequences) if each.count]

    @torch.no_grad()
    def measure() -> Mapping[str, float]:
        batches = micro_batches(kept, settings.step_tokens)
        losses = [objective(batch, walks=True) for batch in batches]
        total = sum(float(loss.total) for loss in losses)
        told = {"held_out_loss": total / sum(loss.count for loss in losses)}
        walked = sum((loss.figures[ACCEPTED] for loss in losses), Figure(0.0, 0))
        return {**told, ACCEPTED: walked.mean if walked.count else 1.0}

    return TrainingStage(
        name="speculator",
        settings=settings,
        model=made,
        data=talks.data,
        feed=feed,
        objective=objective,
        measure=measure if kept else None,
        module=made.speculator,
    )


def loss_of(
    model: SpeculatorModel,
    batch: MicroBatch,
    *,
    num_passes: int,
    falling: float = 0.8,
    walks: bool = False,
    reach: int = 0,
) -> Loss:
    """The loss of one micro-batch. Figures: how often so many guesses would have stood, greedy.

    walks: whether another is tokens a step of a decode loop over the answers.
    reach: a pass learns where each of those before, on the way to its row, had the model's id among
        its so many likeliest: elsewhere decoding hardly comes. 0 is everywhere.
    Every scored token is at least the third of its sequence: it is guessed at the one two before.
    """
    device = next(model.speculator.parameters()).device
    transformer, module = model.transformer, model.speculator
    with torch.no_grad():
        streams, rows = streams_of(model, batch)
        logits = transformer.unembedding.read(rows)
    targets = batch.targets(device)
    assert len(targets) == len(rows), "a row for each scored token"
    lengths = [len(each.token_ids) for each in batch.sequences]
    starts = list(accumulate(lengths, initial=0))
    token_ids = torch.cat([each.ids for each in batch.sequences]).to(device)
    # A state and the token behind it are a pair: the last token of a sequence begins none.
    by_pass: list[list[Tensor]] = [[] for _ in range(num_passes)]
    where = torch.empty(starts[-1], dtype=torch.int64)  # of each pair among all rows of a pass
    count = 0
    for group in groups_of(starts, [length - 1 for length in lengths]):
        own = group.rows.to(device)
        tokens = transformer.embedding.table.rows(token_ids[own.flatten() + 1]).float()
        given = passes_over(
            module, streams[own], tokens.view(*own.shape, -1), num_passes=num_passes
        )
        for states, made in zip(given, by_pass, strict=True):
            made.append(states.flatten(0, 1))
        among = count + torch.arange(own.numel()).view(own.shape)
        where[group.rows[group.is_own]] = among[group.is_own]
        count += own.numel()
    places = torch.cat(
        [
            start + each.marks.nonzero()[:, 0] - 2
            for start, each in zip(starts, batch.sequences, strict=False)
        ]
    )
    chosen, wanted, told = where[places].to(device), logits.argmax(-1), places.to(device)
    rows = [torch.arange(len(places), device=device)]
    passes: list[Tensor] = []
    right: list[Tensor] = []
    for each in by_pass:
        own = rows[-1]
        read = module.read(torch.cat(each)[chosen[own]])
        passes.append(read)
        is_right = torch.zeros_like(wanted, dtype=torch.bool)
        is_right[own] = model.drafted[read.detach().argmax(-1)] == wanted[own]
        right.append(is_right)
        rows.append(own if not reach else _reached(model, read.detach(), wanted, own, told, reach))
    loss = draft_loss(logits[:, model.drafted], passes, decay=falling, rows=rows if reach else None)
    figures = _stood(right, told)
    if walks:
        figures[ACCEPTED] = _walked(right, places)
    return Loss(loss.total, loss.count, figures)


def _reached(
    model: SpeculatorModel, read: Tensor, wanted: Tensor, rows: Tensor, places: Tensor, reach: int
) -> Tensor:
    """The rows behind those where a pass had the model's id among its so many likeliest.

    Shapes: read [r, drafted] of rows [r]; wanted ids and places of all rows [R] -> at most [r].
    Source: Hu et al. 2025, arXiv 2502.11018, section 4.1 (which tokens are trained).
    """
    ids = wanted[rows]
    entry = torch.searchsorted(model.drafted, ids).clamp_max(len(model.drafted) - 1)
    above = (read > read.gather(1, entry[:, None])).sum(-1)
    near = (above < reach) & (model.drafted[entry] == ids)
    behind = rows[near] + 1
    behind = behind[behind < len(places)]
    return behind[places[behind] == places[behind - 1] + 1]


def _stood(right: Sequence[Tensor], places: Tensor) -> dict[str, Figure]:
    """How often the likeliest of the first so many passes were all the model's, one behind another.

    Shapes: for each pass whether its row was right [R], and where rows stand [R].
    """
    figures: dict[str, Figure] = {}
    stood = torch.ones_like(right[0])
    for back, each in enumerate(right):
        count = len(places) - back
        if count < 1:
            figures[f"stood_{back + 1}"] = Figure(0.0, 0)
            continue
        stood = stood[:count] & each[back:]
        follows = places[back:] == places[:count] + back  # else the answer ended before
        figures[f"stood_{back + 1}"] = Figure((stood & follows).double().sum(), int(follows.sum()))
    return figures


def _walked(right: Sequence[Tensor], places: Tensor) -> Figure:
    """Tokens and steps of a decode loop that says these answers, with a guess a pass.

    It stands at fewer tokens than training asks at: behind guesses that stood it goes on, and where
    they fall it stops at each. An answer's first token comes of its prompt, without a guess.
    Shapes: for each pass whether its row was right [R], and where rows stand [R].
    """
    passes = cast("list[list[bool]]", torch.stack(list(right)).tolist())
    where = cast("list[int]", places.tolist())
    ends = [r + 1 for r, place in enumerate(where) if where[r + 1 : r + 2] != [place + 1]]
    tokens = steps = 0
    for first, end in pairwise([0, *ends]):
        tokens += end - first - 1
        row = first + 1
        while row < end:
            steps += 1
            for guesses in passes:
                row += 1
                if row >= end or not guesses[row - 1]:
                    break
            else:
                row += 1
    return Figure(tokens, steps)


def streams_of(model: SpeculatorModel, batch: MicroBatch) -> tuple[Tensor, Tensor]:
    """The model's streams of all tokens [T, 3 D], and its last one where rows are wanted [R, D]."""
    reader = Streams(model.shape.layers)
    device = next(model.transformer.parameters()).device
    step = batch.step(device, is_whole=True)
    rows = model.transformer.hidden(replace(step, streams=reader))[step.logit_rows]
    streams = reader.take()
    assert streams is not None, "all layers were passed"
    return streams, rows


def from_third(sequence: ScoredSequence) -> ScoredSequence:
    """The same with nothing scored before the third token: two are known before a guess."""
    marks = tuple(mark and place > 1 for place, mark in enumerate(sequence.is_scored))
    return ScoredSequence(sequence.token_ids, marks)


def _commonest(sequences: Sequence[ScoredSequence], count: int) -> Tensor:
    """The ids that are scored most often, in ascending order. Shapes: [at most count] int64."""
    seen = Counter[int]()
    for each in sequences:
        seen.update(i for i, mark in zip(each.token_ids, each.is_scored, strict=True) if mark)
    return torch.tensor(sorted(token_id for token_id, _ in seen.most_common(count)))
