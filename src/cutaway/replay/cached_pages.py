"""Kept pages of an answer beside those that a replay built: which numbers differ, and how far."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cutaway.cache.paged import PagedCache
from cutaway.cache.pool import Pool
from cutaway.engine.loading.fingerprints import as_bytes
from cutaway.replay.replay import Replay
from cutaway.trace.records import AnswerRecord

# Of a field's largest number: what another order of sums changes, through all layers of a model in
# bfloat16. A changed exponent or sign is more.
_ROUNDING = 0.03


@dataclass
class PageDifference:
    """How kept pages of an answer differ from the rebuilt ones.

    first:     the first number that differs in any bit, in words.   spoilt: by more than rounding.
    num_other: tokens, of all layers and fields, of which any number differs.
    """

    first: str | None = None
    spoilt: str | None = None
    num_other: int = 0

    def compare(self, here: Tensor, there: Tensor, name: str, *, start: int, layer: int) -> None:
        """One page of one field, from the token start on."""
        if torch.equal(as_bytes(here), as_bytes(there)):
            return
        ours, theirs = _numbers(here), _numbers(there)
        far = _ROUNDING * max(float(theirs.abs().max()), 1e-30)
        is_spoilt = ((ours - theirs).abs() > far) | ours.isnan()
        differs = (ours != theirs) | is_spoilt
        if not differs.any():
            return  # zeros of two signs
        self.num_other += len(differs.any(dim=1).nonzero())
        words = f"{name} of token {{}} in layer {layer}"
        if self.first is None:
            self.first = words.format(start + _first_row(differs))
        if self.spoilt is None and is_spoilt.any():
            self.spoilt = words.format(start + _first_row(is_spoilt))


def kept_numbers(
    answer: AnswerRecord, replay: Replay, *, cache: PagedCache, pool: Pool
) -> PageDifference:
    """Kept pages beside rebuilt ones; only those still in the prefix index can be looked at."""
    found, size = PageDifference(), cache.page_size
    rebuilt = replay.plan.tables[replay.plan.final]
    token_ids = answer.token_ids[:-1]
    keys = cache.keys(answer.cache_root).between(0, len(token_ids) // size, token_ids)
    for layer, (kept, ours) in enumerate(zip(pool.layers, replay.pool.layers, strict=True)):
        index = cache.allocators[kept.group].index
        for place, key in enumerate(keys):
            page = index.find(key)
            if page is None or place >= len(rebuilt):
                continue
            for name, field in kept.fields.items():
                here, there = field[page], ours.fields[name][rebuilt[place]]
                found.compare(here, there, name, start=place * size, layer=layer)
    return found


def _numbers(stored: Tensor) -> Tensor:
    """float64, a row for each token; a state has rows of its own."""
    return stored.to(torch.float64).reshape(stored.shape[0], -1)


def _first_row(differs: Tensor) -> int:
    return int(differs.any(dim=1).nonzero()[0, 0])
