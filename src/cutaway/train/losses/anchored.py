"""Learning something new while staying as one was elsewhere: two kinds of micro-batches.

Answers are learned by cross-entropy; on anchors, which are answers that the model gave before, the
distribution is held to what it was by its KL. Both are means of their own, whatever their lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor

from cutaway.blocks.transformer import Transformer
from cutaway.train.data.packing import MicroBatch
from cutaway.train.losses.divergences import forward_kl
from cutaway.train.losses.likelihood import in_chunks, likelihood
from cutaway.train.losses.losses import Figure, Loss, cross_entropy


@dataclass(frozen=True)
class PartBatch(MicroBatch):
    """A micro-batch of one of the two kinds.

    factor: of its sum, so that the update's one count makes a mean of each kind.
    """

    is_anchor: bool = False
    factor: float = 1.0


def join(
    answers: Sequence[MicroBatch], anchors: Sequence[MicroBatch], *, weight: float
) -> list[PartBatch]:
    """The micro-batches of an update whose loss is mean(answers) + weight * mean(anchors)."""
    counts = [sum(batch.count for batch in part) for part in (answers, anchors)]
    total = sum(counts)
    factors = [
        share * total / count if count else 0.0
        for share, count in zip((1.0, weight), counts, strict=True)
    ]
    return [
        PartBatch(batch.sequences, is_anchor, factor)
        for is_anchor, factor, part in zip((False, True), factors, (answers, anchors), strict=True)
        for batch in part
    ]


def loss_of(
    model: Transformer,
    batch: PartBatch,
    reference: Transformer,
    use: Callable[[], AbstractContextManager[None]],
) -> Loss:
    """The loss of one micro-batch.

    reference: the model as it was, within use(): it may be the very model with its adapter off.
    """
    loss = _kept(model, batch, reference, use) if batch.is_anchor else _learned(model, batch)
    return Loss(batch.factor * loss.total, loss.count, loss.figures)


def _learned(model: Transformer, batch: PartBatch) -> Loss:
    loss = cross_entropy(likelihood(model, batch))
    return Loss(loss.total, loss.count, {"answers": loss.figures["nats"]})


def _kept(
    model: Transformer,
    batch: PartBatch,
    reference: Transformer,
    use: Callable[[], AbstractContextManager[None]],
) -> Loss:
    """KL(as it was || as it is) of each scored row, in nats."""
    step = batch.step(next(model.parameters()).device)
    with use(), torch.no_grad():
        before = reference.hidden(step)[step.logit_rows]
    now = model.hidden(step)[step.logit_rows]

    def compare(own: Tensor, told: Tensor) -> tuple[Tensor]:
        with torch.no_grad():
            wanted = reference.unembedding.read(told).float().log_softmax(-1)
        return (forward_kl(wanted, model.unembedding.read(own).float().log_softmax(-1)),)

    (rows,) = in_chunks(compare, now, before)
    total = rows.sum()
    return Loss(total, len(rows), {"kl": Figure(total.detach().double(), len(rows))})
