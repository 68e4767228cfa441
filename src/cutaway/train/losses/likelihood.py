"""Log-probabilities of given tokens under a model: what every stage's loss is made of.

The table of logits [R, V] never exists: rows are read in chunks, and a chunk is computed again
where its gradient is wanted. Dense heads without a cap are one operation, others go through
in_chunks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.utils import checkpoint

from cutaway.blocks.transformer import Transformer
from cutaway.train.data.packing import MicroBatch

ROWS = 4096  # rows whose logits exist at once


class Likelihood(NamedTuple):
    """Of each scored token, in the order of MicroBatch.targets. Shapes: [R] float32 each.

    log_probs: of the token.   log_sums: the log of the sum of its row's exponentials, for z-loss.
    """

    log_probs: Tensor
    log_sums: Tensor


def likelihood(
    model: Transformer,
    batch: MicroBatch,
    *,
    temperature: float = 1.0,
    rows_at_once: int = ROWS,
) -> Likelihood:
    """How likely the model finds the scored tokens; differentiable.

    temperature: what logits are divided by, as the sampler does.
    """
    device = next(model.parameters()).device
    step = batch.step(device)
    # By index_select: what an index pulls back is sorted first.
    rows = model.hidden(step).index_select(0, step.logit_rows)
    targets = batch.targets(device)
    found = model.unembedding.log_probs(
        rows, targets, temperature=temperature, rows_at_once=rows_at_once
    )
    if found is not None:
        return Likelihood(*found)

    def read(part: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
        return of_logits(model.unembedding.read(part), targets, temperature=temperature)

    return Likelihood(*in_chunks(read, rows, targets, rows_at_once=rows_at_once))


def of_logits(logits: Tensor, targets: Tensor, *, temperature: float = 1.0) -> Likelihood:
    """The same of rows of logits. Shapes: logits [R, V], targets [R] -> [R] each."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    scaled = wide if temperature == 1.0 else wide / temperature
    log_sums = scaled.logsumexp(dim=-1)
    chosen = scaled.gather(-1, targets[:, None])[:, 0]
    return Likelihood(chosen - log_sums, log_sums)


def in_chunks(
    function: Callable[..., tuple[Tensor, ...]], *rows: Tensor, rows_at_once: int = ROWS
) -> tuple[Tensor, ...]:
    """What a function gives for rows, a chunk at a time; each is computed again for its gradient.

    function: of chunks of all the rows' tensors; gives tensors with the same rows.
    Parameters that it reads must still be there at the backward pass.
    """
    parts = [
        cast(
            "tuple[Tensor, ...]",
            checkpoint.checkpoint(function, *chunk, use_reentrant=False, preserve_rng_state=False),
        )
        for chunk in zip(*(torch.split(each, rows_at_once) for each in rows), strict=True)
    ]
    return tuple(torch.cat(each) for each in zip(*parts, strict=True))


def sums_by_sequence(values: Tensor, batch: MicroBatch) -> Tensor:
    """Values of scored tokens added up for each sequence. Shapes: [R] -> [B]."""
    sums = values.new_zeros(len(batch.sequences))
    return sums.index_add(0, batch.owners(values.device), values)
