"""A speculator over known text as it will be over its own guesses: passes over its own states.

Pass 1 has the model's streams everywhere. Pass i has at each token what pass i - 1 gave for the one
before, as decoding has it i - 1 guesses behind the last token that the model computed: it sees keys
of pass 1 up to there, and of each pass since the one that stands for it.

Source: Li et al. 2025, arXiv 2503.01840, section 3.2 (training-time test).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from cutaway.blocks.guessing_layer import Speculator, TurnedHeads
from cutaway.core.step import Step

_LEAST_FILL = 0.75  # of a group's rows that are no padding


class PaddedSequences(NamedTuple):
    """Sequences of like length as one batch.

    rows: their tokens' places among all, the last one repeated where a sequence is shorter than the
    longest [B, N].   is_own: where a place is not such a repetition [B, N] bool.
    """

    rows: Tensor
    is_own: Tensor


def groups_of(starts: Sequence[int], lengths: Sequence[int]) -> list[PaddedSequences]:
    """Sequences side by side in groups that pad little. starts: each one's first place."""
    groups: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda each: -lengths[each]):
        if groups:
            longest, total = lengths[groups[-1][0]], sum(lengths[each] for each in groups[-1])
            if total + lengths[index] >= _LEAST_FILL * longest * (len(groups[-1]) + 1):
                groups[-1].append(index)
                continue
        groups.append([index])
    made: list[PaddedSequences] = []
    for members in groups:
        first = torch.tensor([starts[each] for each in members])[:, None]
        counts = torch.tensor([lengths[each] for each in members])[:, None]
        places = torch.arange(lengths[members[0]])
        made.append(PaddedSequences(first + places.minimum(counts - 1), places < counts))
    return made


def passes_over(
    module: Speculator, streams: Tensor, tokens: Tensor, *, num_passes: int
) -> list[Tensor]:
    """What each pass gives at each token of one sequence, or of several as long, as states.

    The first i - 1 rows of pass i stand for nothing that decoding has. What stands behind a token
    changes nothing of it.

    streams: of the model, side by side [..., N, 3 D].
    tokens: vectors of the token behind each [..., N, D].
    Returns: [..., N, D] each.
    """
    shape, count = tokens.shape, tokens.shape[-2]
    flat = tokens.reshape(-1, shape[-1])
    ids = torch.zeros(count, dtype=torch.int64)
    step = Step.without_cache([ids] * (len(flat) // count), device=streams.device)
    first = states = module.states_of(streams)
    made: list[TurnedHeads] = []
    given: list[Tensor] = []
    for number in range(num_passes):
        if number:
            states = torch.cat((first[..., :number, :], given[-1][..., number - 1 : -1, :]), dim=-2)
        both, residual = module.inputs(states.reshape(flat.shape), flat)
        turned = module.heads(both, step)
        made.append(TurnedHeads(*(each.view(*shape[:-1], *each.shape[1:]) for each in turned)))
        mixed = _attend(made, module.attention.softmax_scale)
        update = module.attention.output(mixed.reshape(len(flat), -1))
        given.append(module.finish(residual, update, step).view(shape))
    return given


def _attend(made: list[TurnedHeads], scale: float) -> Tensor:
    """The latest pass's queries over the keys that they see. Shapes: -> [..., N, H, C]."""
    query, first, behind = made[-1].query, made[0], made[1:]
    count, back = query.shape[-3], len(made) - 1
    places = torch.arange(count, device=query.device)
    hidden = places[None, :] > places[:, None] - back  # keys of pass 1 that are not seen
    scores = torch.einsum("...qhc,...khc->...hqk", query, first.key) * scale
    scores = scores.masked_fill(hidden, -torch.inf)
    own: list[Tensor] = []
    for number, each in enumerate(behind, start=1):
        key = _later(each.key, back - number)  # that of the token so far before
        score = (query * key).sum(-1).transpose(-1, -2)[..., None] * scale  # [..., H, N, 1]
        is_none = (places < back - number)[:, None]
        own.append(score.masked_fill(is_none, -torch.inf))
    weights = torch.cat((scores, *own), dim=-1).softmax(-1)
    mixed = torch.einsum("...hqk,...khc->...qhc", weights[..., :count], first.value)
    for number, each in enumerate(behind, start=1):
        value = _later(each.value, back - number)
        share = weights[..., count + number - 1].transpose(-1, -2)[..., None]
        mixed = mixed + share * value
    return mixed


def _later(rows: Tensor, count: int) -> Tensor:
    """Each token's heads where it stands so many places later; the first ones are zeros.

    Shapes: [..., N, H, C] -> the same.
    """
    if not count:
        return rows
    length = rows.shape[-3]
    empty = rows.new_zeros((*rows.shape[:-3], min(count, length), *rows.shape[-2:]))
    return torch.cat((empty, rows[..., : max(0, length - count), :, :]), dim=-3)
