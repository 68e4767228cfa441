"""Guesses of a trained speculator: one layer over the streams that the target's steps leave.

What the target has computed of an answer it is told by observe(); it makes states of that, and goes
on with its own where the target has not come so far. Tokens whose pages were found, and which no
step computed, have no streams here: it then sees the answer from behind them on.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence, Set
from dataclasses import dataclass, field
from itertools import accumulate
from typing import cast

import torch
from torch import Tensor

from cutaway.cache.paged import CacheStats, PagedCache, PageTables
from cutaway.cache.pool import Pool
from cutaway.core.layout import group_layers
from cutaway.core.step import Numbers, ShapePlan, Step
from cutaway.engine.config import EngineConfig
from cutaway.engine.drafters.drafter import Draft, Wish
from cutaway.engine.drafters.drawn_guesses import guess_from
from cutaway.engine.drafters.recorded_layer import RecordedLayer, can_be_recorded
from cutaway.engine.loading.speculator_folder import LoadedSpeculator
from cutaway.sampling.sampler import Sampler

_NEAR = 16  # an answer that lacks no more is nothing that others wait for


@dataclass(eq=False)
class _Seen:
    """What the target's steps left of an answer, and what was computed of it here.

    start:     the first token of which there are streams.
    streams:   of the tokens from there on, in pieces [n, 3 D], not yet states.
    states:    of the first of them [n, D].
    tables:    pages of keys and values; their first token is that at start.
    num_pairs: states, each with the token behind it, whose keys and values are there and final.
    """

    start: int
    streams: list[Tensor] = field(default_factory=list[Tensor])
    states: list[Tensor] = field(default_factory=list[Tensor])
    tables: PageTables | None = None
    num_pairs: int = 0

    @property
    def end(self) -> int:
        """The token behind those of which there are streams."""
        return self.start + sum(map(len, self.states)) + sum(map(len, self.streams))


@dataclass(frozen=True)
class _Pairs:
    """States of one answer, each with the token behind it, that a step computes.

    first: place of the first among the answer's states.   states [n, D].
    """

    wish: Wish
    draft: Draft
    seen: _Seen
    first: int
    states: Tensor
    token_ids: Sequence[int]


class TrainedDrafter:
    """Drafts of a speculator for one target.

    num_pages:  of its cache, the scratch page included.   vocab_size: of the target.
    max_length: of the target's answers.   end_token_ids: behind which nothing is guessed.
    """

    only_kind = "trained"

    def __init__(
        self,
        speculator: LoadedSpeculator,
        config: EngineConfig,
        *,
        num_pages: int,
        vocab_size: int,
        max_length: int,
        end_token_ids: Set[int] = frozenset(),
    ) -> None:
        self.is_behind = False
        self._speculator, self._module = speculator, speculator.module
        parameter = next(self._module.parameters())
        self._device, self._dtype = parameter.device, parameter.dtype
        groups = group_layers([self._module.cache_spec])
        self.cache = PagedCache(
            groups, num_pages=[num_pages], page_size=config.page_size, prefix_cache=False
        )
        self._pool = Pool(
            groups,
            num_pages=[num_pages],
            page_size=config.page_size,
            dtype=self._dtype,
            device=self._device,
            is_native=can_be_recorded(speculator),
        )
        self._recorded: RecordedLayer | None = None
        if can_be_recorded(speculator):
            self._recorded = RecordedLayer(
                speculator,
                self._pool.layers,
                num_rows=config.on(self._device.type).max_sequences,
                max_length=max_length,
            )
        self._vocab_size, self._max_length = vocab_size, max_length
        self._sampler, self._end_token_ids = Sampler(vocab_size), end_token_ids
        self._seen: dict[Hashable, _Seen] = {}  # the one told of last at the end
        self._busy: set[Hashable] = set()

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers of the target behind which it reads streams."""
        return self._speculator.layers

    @property
    def cache_stats(self) -> CacheStats:
        """Pages of its own cache by state."""
        return self.cache.stats

    def observe(self, key: Hashable, start: int, streams: Tensor) -> None:
        """Take in what a step left of an answer's tokens from start on.

        Streams of guesses that fell are told again by the tokens that came in their place.
        Shapes: streams [n, 3 D], the layers' side by side; they may change afterwards.
        """
        seen = self._seen.pop(key, None)
        if seen is not None and not seen.start <= start <= seen.end:
            self._release(seen)  # some were not told
            seen = None
        if seen is None:
            seen = _Seen(start)
        self._cut(seen, start)
        seen.streams.append(streams.to(self._dtype, copy=True))
        self._seen[key] = seen

    @torch.inference_mode()
    def propose(self, wishes: Sequence[Wish]) -> list[Draft]:
        """What the speculator says next, one token after the other, for all answers at once."""
        self.is_behind = False
        self._busy = {wish.key for wish in wishes}
        drafts = [Draft([], self.only_kind, []) for _ in wishes]
        pairs = [
            made
            for wish, draft in zip(wishes, drafts, strict=True)
            if (made := self._new_pairs(wish, draft)) is not None
        ]
        while pairs:
            pairs = self._guess(pairs, *self._compute(pairs))
        for wish in wishes:
            seen = self._seen.get(wish.key)
            if seen is not None and seen.tables is not None:
                self.cache.truncate(seen.tables, seen.num_pairs)
        return drafts

    def may_guess(self, key: Hashable, token_ids: Sequence[int]) -> bool:
        """It has a guess for everything."""
        return True

    def finish(self, key: Hashable) -> None:
        """Forget an answer and give its pages back."""
        seen = self._seen.pop(key, None)
        if seen is not None:
            self._release(seen)

    def _release(self, seen: _Seen) -> None:
        if seen.tables is not None:
            self.cache.release(seen.tables)
            seen.tables, seen.num_pairs = None, 0

    def _cut(self, seen: _Seen, end: int) -> None:
        """Forget what was told of the tokens from end on."""
        spare = seen.end - end
        for pieces in (seen.streams, seen.states):
            while spare > 0 and pieces:
                last = pieces.pop()
                if len(last) > spare:
                    pieces.append(last[: len(last) - spare])
                spare -= len(last)
        known = max(0, end - seen.start)
        if seen.num_pairs > known:
            seen.num_pairs = known
            if seen.tables is not None:
                self.cache.truncate(seen.tables, known)

    def _new_pairs(self, wish: Wish, draft: Draft) -> _Pairs | None:
        """What is new of an answer, with its pages reserved; None where nothing can be guessed."""
        seen, known = self._seen.get(wish.key), len(wish.token_ids)
        # The last token was not computed: the state before it is the last that the target knows.
        if seen is None or wish.most < 1 or seen.end < known - 1 or seen.start >= known - 1:
            return None
        if known + wish.most > self._max_length:
            return None
        self._cut(seen, known - 1)
        states = self._states(seen)
        if seen.tables is None:
            seen.tables = self._admit(known - 1 - seen.start)
        seen.num_pairs = min(seen.num_pairs, len(states) - 1)  # its result is what is drawn from
        new = states[seen.num_pairs :]
        self.is_behind |= len(new) > _NEAR
        if seen.tables is None or not self._reserve(seen, known - 1 - seen.start):
            return None
        first = seen.num_pairs
        token_ids = wish.token_ids[seen.start + first + 1 : known]
        return _Pairs(wish, draft, seen, first, new, token_ids)

    def _states(self, seen: _Seen) -> Tensor:
        if seen.streams:
            fused = self._module.states_of(torch.cat(seen.streams))
            seen.states = [torch.cat([*seen.states, fused])]
            seen.streams = []
        elif len(seen.states) > 1:
            seen.states = [torch.cat(seen.states)]
        return seen.states[0]

    def _admit(self, count: int) -> PageTables | None:
        keys = self.cache.keys(b"")
        while True:
            admitted = self.cache.admit([0] * count, keys, max_hit=0, takes_all=True)
            if admitted is not None:
                return admitted[0]
            if not self._release_oldest():
                return None

    def _reserve(self, seen: _Seen, count: int) -> bool:
        assert seen.tables is not None, "it was admitted"
        while not self.cache.reserve(seen.tables, count, takes_all=True):
            if not self._release_oldest():
                return False
        return True

    def _release_oldest(self) -> bool:
        """Give back the pages of the answer that was told of longest ago; False without one."""
        for key, seen in self._seen.items():
            if key not in self._busy and seen.tables is not None:
                self._release(seen)
                return True
        return False

    def _compute(self, pairs: Sequence[_Pairs]) -> tuple[Tensor, Tensor]:
        """The layer's results at each answer's last pair, and what they say.

        Shapes: [R, D] and [R, drafted].
        """
        counts = [len(each.token_ids) for each in pairs]
        tables = [each.seen.tables.groups[0] for each in pairs if each.seen.tables is not None]
        spans = [(each.first, count) for each, count in zip(pairs, counts, strict=True)]
        step = Step.of(
            Numbers(
                token_ids=[token for each in pairs for token in each.token_ids],
                positions=[
                    each.seen.start + place
                    for each, (first, count) in zip(pairs, spans, strict=True)
                    for place in range(first, first + count)
                ],
                declared_lengths=[
                    min(each.wish.max_length, self._max_length)
                    for each in pairs
                    for _ in each.token_ids
                ],
                logit_rows=[end - 1 for end in accumulate(counts)],
                plan=ShapePlan(tuple(counts), tuple(first + count for first, count in spans)),
                pages=[[table.pages for table in tables]],
                slots=[
                    [
                        slot
                        for table, span in zip(tables, spans, strict=True)
                        for slot in table.slots(*span)
                    ]
                ],
            ),
            self._pool.layers,
            device=self._device,
        )
        states = torch.cat([each.states for each in pairs])
        recorded = self._recorded
        if recorded is not None and len(states) <= recorded.most_tokens:
            result, logits = recorded.run(states, step)
            last = result[step.logit_rows]
        else:
            tokens = self._speculator.embedding.table.rows(step.token_ids).to(self._dtype)
            last = self._module(states, tokens, step)[step.logit_rows]
            logits = self._module.read(last)
        for each, (first, count) in zip(pairs, spans, strict=True):
            if not each.draft.token_ids:  # made of the target's streams alone
                each.seen.num_pairs = first + count
        return last, logits

    def _guess(self, pairs: Sequence[_Pairs], last: Tensor, logits: Tensor) -> list[_Pairs]:
        """Add a guess to each draft, and the pairs of those that go on."""
        following: list[_Pairs] = []
        if all(map(_takes_likeliest, pairs)):
            gave = self._likeliest(pairs, logits)
        else:
            whole = self._whole(logits)
            gave = guess_from(self._sampler, whole, [(each.wish, each.draft) for each in pairs])
        for place, each in enumerate(pairs):
            if not gave[place]:
                continue
            first = each.first + len(each.token_ids)
            is_end = each.draft.token_ids[-1] in self._end_token_ids and not each.draft.proposals
            if is_end or len(each.draft.token_ids) >= each.wish.most:
                continue
            if self._reserve(each.seen, first + 1):
                guess = each.draft.token_ids[-1:]
                state = last[place : place + 1]
                following.append(_Pairs(each.wish, each.draft, each.seen, first, state, guess))
        return following

    def _likeliest(self, pairs: Sequence[_Pairs], logits: Tensor) -> list[bool]:
        """Add the likeliest that can be guessed, without a row of the whole vocabulary."""
        logits = logits.float()
        largest, places = logits.max(dim=-1)
        chances = cast("list[float]", torch.exp(largest - logits.logsumexp(dim=-1)).tolist())
        token_ids = cast("list[int]", self._speculator.drafted[places].tolist())
        gave: list[bool] = []
        for each, token_id, chance in zip(pairs, token_ids, chances, strict=True):
            is_sound = math.isfinite(chance)  # a bad row guesses nothing
            if is_sound:
                each.draft.token_ids.append(token_id)
                each.draft.chances.append(chance)
            gave.append(is_sound)
        return gave

    def _whole(self, logits: Tensor) -> Tensor:
        """Rows over the target's vocabulary: what cannot be guessed never comes. Shapes: [R, V]."""
        whole = logits.new_full((len(logits), self._vocab_size), -math.inf, dtype=torch.float32)
        return whole.index_copy_(1, self._speculator.drafted, logits.float())


def _takes_likeliest(pairs: _Pairs) -> bool:
    """Whether an answer takes the likeliest token, and nothing stands in its way."""
    wish = pairs.wish
    return wish.params.is_greedy and not wish.params.has_penalties and wish.allowed is None
