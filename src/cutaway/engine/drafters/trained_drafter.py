"""Guesses of a trained speculator: one layer over the streams that the target's steps leave.

What the target has computed of an answer it is told by observe(); it makes states of that, and goes
on with its own where the target has not come so far. Tokens whose pages were found, and which no
step computed, have no streams here: it then sees the answer from behind them on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence, Set
from dataclasses import dataclass
from itertools import accumulate
from typing import cast

import torch
from torch import Tensor

from cutaway.cache.paged import CacheStats, PagedCache, PageTables
from cutaway.cache.pool import Pool
from cutaway.core.layout import group_layers
from cutaway.core.step import Numbers, ShapePlan, Step
from cutaway.engine.config import EngineConfig
from cutaway.engine.drafters.controller import MOST_DRAFTS
from cutaway.engine.drafters.drafter import Draft, Wish
from cutaway.engine.drafters.drawn_guesses import guess_from
from cutaway.engine.drafters.recorded_layer import RecordedLayer, can_be_recorded
from cutaway.engine.drafters.streams import Streams
from cutaway.engine.loading.speculator_folder import LoadedSpeculator
from cutaway.kernels.native import RowRoom
from cutaway.sampling.sampler import Sampler

_FEW_WAITING = 8  # streams of an answer for which there is always room
_NEAR = 16  # an answer that lacks no more is nothing that others wait for


@dataclass(eq=False)
class _Seen:
    """What the target's steps left of an answer, and what was computed of it here.

    start:     the first token of which there are streams.
    states:    of the tokens from there on [room, D], as far as num_states says.
    waiting:   streams of those behind them [room, 3 D], as far as num_waiting says.
    tables:    pages of keys and values; their first token is that at start.
    num_pairs: states, each with the token behind it, whose keys and values are there and final.
    """

    start: int
    states: RowRoom
    waiting: RowRoom
    num_states: int = 0
    num_waiting: int = 0
    tables: PageTables | None = None
    num_pairs: int = 0

    @property
    def end(self) -> int:
        """The token behind those of which there are streams."""
        return self.start + self.num_states + self.num_waiting


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
    heeds_bounds = True

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
            recorded = RecordedLayer(
                speculator,
                self._pool.layers,
                num_rows=config.on(self._device.type).max_sequences,
                max_length=max_length,
                end_token_ids=end_token_ids,
            )
            self._recorded = recorded if recorded.is_whole else None
        width = speculator.embedding.width
        self._no_states = RowRoom(torch.empty(0, width, dtype=self._dtype, device=self._device))
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
        """Take in what the target's layers left of an answer's tokens from start on.

        Streams of guesses that fell are told again by the tokens that came in their place.
        Shapes: streams [n, 3 D], the layers' side by side.
        """
        count = streams.shape[0]
        room, place = self._room_for(key, start, count, lambda n: RowRoom(_widened(streams, n)))
        with torch.inference_mode():
            room.tensor[place : place + count] = streams

    def observe_step(
        self, key: Hashable, start: int, left: Streams, first: int, count: int
    ) -> None:
        """The same of what a step left, where an answer's tokens begin at the step's first."""
        left.put(first, count, *self._room_for(key, start, count, left.room))

    def _room_for(
        self, key: Hashable, start: int, count: int, room: Callable[[int], RowRoom]
    ) -> tuple[RowRoom, int]:
        """Where streams of an answer's tokens from start on are to be put."""
        seen = self._seen.pop(key, None)
        if seen is not None and not seen.start <= start <= seen.end:
            self._release(seen)  # some were not told
            seen = None
        if seen is None:
            seen = _Seen(start, self._no_states, room(_FEW_WAITING))
        self._cut(seen, start)
        self._seen[key] = seen
        place = seen.num_waiting
        seen.num_waiting += count
        seen.waiting = _grown(seen.waiting, place, seen.num_waiting)
        return seen.waiting, place

    def propose(self, wishes: Sequence[Wish]) -> list[Draft]:
        """What the speculator says next, one token after the other, for all answers at once."""
        self.is_behind = False
        self._busy = {wish.key for wish in wishes}
        if len(wishes) == 1 and self._recorded is not None and _takes_likeliest(wishes[0]):
            return [self._propose_alone(wishes[0], self._recorded)]
        return self._propose_together(wishes)

    def _propose_alone(self, wish: Wish, recorded: RecordedLayer) -> Draft:
        """The same for one answer that takes the likeliest tokens: what most are.

        Most of what it took was Python and torch, behind a step that left no cache any of it.
        """
        seen = self._prepared(wish)
        if seen is None:
            return Draft([], self.only_kind, [])
        first, end, most = seen.num_pairs, seen.num_states, min(wish.most, MOST_DRAFTS)
        if end - first > recorded.most_tokens:
            return self._propose_together([wish])[0]
        assert seen.tables is not None, "its pages were reserved"
        if most > 1 and not self._reserve(seen, end + most - 1):
            most = 1
        token_ids, chances = recorded.follow_one(
            seen.states,
            first,
            wish.token_ids[seen.start + first + 1 : seen.start + end + 1],
            seen.tables.groups[0],
            position=seen.start + first,
            most=most,
            least_kept=wish.least_kept,
            least_followed=wish.least_followed,
        )
        seen.num_pairs = end
        if most > 1:
            self.cache.truncate(seen.tables, end)
        return Draft(token_ids, self.only_kind, chances)

    @torch.inference_mode()
    def _propose_together(self, wishes: Sequence[Wish]) -> list[Draft]:
        drafts = [Draft([], self.only_kind, []) for _ in wishes]
        pairs = [
            made
            for wish, draft in zip(wishes, drafts, strict=True)
            if (made := self._new_pairs(wish, draft)) is not None
        ]
        while pairs:
            pairs = self._step(pairs)
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
        seen.num_waiting = max(0, min(seen.num_waiting, end - seen.start - seen.num_states))
        known = max(0, end - seen.start)
        seen.num_states = min(seen.num_states, known)
        if seen.num_pairs > known:
            seen.num_pairs = known
            if seen.tables is not None:
                self.cache.truncate(seen.tables, known)

    def _new_pairs(self, wish: Wish, draft: Draft) -> _Pairs | None:
        """What is new of an answer, with its pages reserved; None where nothing can be guessed."""
        seen = self._prepared(wish)
        if seen is None:
            return None
        first, end = seen.num_pairs, seen.num_states
        token_ids = wish.token_ids[seen.start + first + 1 : seen.start + end + 1]
        return _Pairs(wish, draft, seen, first, seen.states.tensor[first:end], token_ids)

    def _prepared(self, wish: Wish) -> _Seen | None:
        """States of all that is known of an answer, and pages for the pairs that are not there."""
        seen, known = self._seen.get(wish.key), len(wish.token_ids)
        # The last token was not computed: the state before it is the last that the target knows.
        if seen is None or wish.most < 1 or seen.end < known - 1 or seen.start >= known - 1:
            return None
        if known + wish.most > self._max_length:
            return None
        self._cut(seen, known - 1)
        self._fuse(seen)
        if seen.tables is None:
            seen.tables = self._admit(known - 1 - seen.start)
        seen.num_pairs = min(seen.num_pairs, seen.num_states - 1)  # its result is drawn from
        self.is_behind |= seen.num_states - seen.num_pairs > _NEAR
        if seen.tables is None or not self._reserve(seen, known - 1 - seen.start):
            return None
        return seen

    def _fuse(self, seen: _Seen) -> None:
        """Make states of the streams that wait."""
        recorded, count, first = self._recorded, seen.num_waiting, seen.num_states
        if not count:
            return
        last = first + count
        seen.states = _grown(seen.states, first, last)
        if recorded is not None and count <= recorded.most_tokens:
            recorded.put_states(seen.waiting, count, seen.states, first)
        else:
            with torch.inference_mode():
                streams = seen.waiting.tensor[:count].to(self._dtype)
                seen.states.tensor[first:last] = self._module.states_of(streams)
        seen.num_states, seen.num_waiting = last, 0
        if count > _FEW_WAITING:  # of a prompt: what follows needs no such room
            seen.waiting = RowRoom(seen.waiting.tensor[:_FEW_WAITING].clone())

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

    def _step(self, pairs: Sequence[_Pairs]) -> list[_Pairs]:
        """Add guesses to each draft: one, or all; the pairs of those that go on."""
        recorded = self._recorded
        if (
            recorded is not None
            and sum(len(each.token_ids) for each in pairs) > recorded.most_tokens
        ):
            recorded = None
        follows = recorded is not None and all(_takes_likeliest(each.wish) for each in pairs)
        most = [self._reserve_all(each) if follows else 1 for each in pairs]
        numbers = self._numbers(pairs)
        for each in pairs:
            if not each.draft.token_ids:  # made of the target's streams alone
                each.seen.num_pairs = each.first + len(each.token_ids)
        states = [each.states for each in pairs]
        if recorded is None:
            step = Step.of(numbers, self._pool.layers, device=self._device)
            tokens = self._speculator.embedding.table.rows(step.token_ids).to(self._dtype)
            last = self._module(torch.cat(states), tokens, step)[step.logit_rows]
            return self._guess(pairs, last, self._module.read(last))
        if not follows:
            result, logits = recorded.run(states, numbers)
            return self._guess(pairs, result[numbers.logit_rows], logits)
        made = recorded.follow(
            states,
            numbers,
            most,
            least_kept=min(each.wish.least_kept for each in pairs),
            least_followed=min(each.wish.least_followed for each in pairs),
        )
        for each, (token_ids, chances) in zip(pairs, made, strict=True):
            each.draft.token_ids.extend(token_ids)
            each.draft.chances.extend(chances)
        return []

    def _reserve_all(self, pairs: _Pairs) -> int:
        """Guesses for which an answer's pages have room, one at least."""
        most = min(pairs.wish.most, MOST_DRAFTS)
        behind = pairs.first + len(pairs.token_ids)
        return most if most == 1 or self._reserve(pairs.seen, behind + most - 1) else 1

    def _numbers(self, pairs: Sequence[_Pairs]) -> Numbers:
        """The step that computes them, of which the last rows are wanted."""
        counts = [len(each.token_ids) for each in pairs]
        tables = [each.seen.tables.groups[0] for each in pairs if each.seen.tables is not None]
        firsts = [each.first for each in pairs]
        return Numbers(
            token_ids=[token for each in pairs for token in each.token_ids],
            positions=[
                place
                for each, count in zip(pairs, counts, strict=True)
                for place in range(
                    each.seen.start + each.first, each.seen.start + each.first + count
                )
            ],
            declared_lengths=[
                min(each.wish.max_length, self._max_length)
                for each in pairs
                for _ in each.token_ids
            ],
            logit_rows=[end - 1 for end in accumulate(counts)],
            plan=ShapePlan(
                tuple(counts),
                tuple([first + count for first, count in zip(firsts, counts, strict=True)]),
            ),
            pages=[[table.pages for table in tables]],
            slots=[
                [
                    slot
                    for table, first, count in zip(tables, firsts, counts, strict=True)
                    for slot in table.slots(first, count)
                ]
            ],
        )

    def _guess(self, pairs: Sequence[_Pairs], last: Tensor, logits: Tensor) -> list[_Pairs]:
        """Add a guess to each draft, and the pairs of those that go on."""
        following: list[_Pairs] = []
        if all(_takes_likeliest(each.wish) for each in pairs):
            gave = self._likeliest(pairs, logits)
        else:
            whole = self._whole(logits)
            gave = guess_from(self._sampler, whole, [(each.wish, each.draft) for each in pairs])
        for place, each in enumerate(pairs):
            if not gave[place]:
                continue
            draft, first = each.draft, each.first + len(each.token_ids)
            odds = math.prod(draft.chances)
            if not draft.proposals and odds < each.wish.least_kept:
                del draft.token_ids[-1:], draft.chances[-1:]
                continue
            is_end = draft.token_ids[-1] in self._end_token_ids and not draft.proposals
            if is_end or len(draft.token_ids) >= each.wish.most or odds < each.wish.least_followed:
                continue
            if self._reserve(each.seen, first + 1):
                guess = draft.token_ids[-1:]
                state = last[place : place + 1]
                following.append(_Pairs(each.wish, draft, each.seen, first, state, guess))
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


def _widened(rows: Tensor, count: int) -> Tensor:
    """Room for so many rows like some. Shapes: [n, D] -> [count, D]."""
    return rows.new_empty(count, rows.shape[1])


def _grown(rows: RowRoom, used: int, wanted: int) -> RowRoom:
    """The same room where so many rows fit, else one of twice as many that holds those in use."""
    if wanted <= rows.room:
        return rows
    with torch.inference_mode():
        tensor = _widened(rows.tensor, 2 * wanted)
        tensor[:used] = rows.tensor[:used]
    return RowRoom(tensor)


def _takes_likeliest(wish: Wish) -> bool:
    """Whether an answer takes the likeliest token, and nothing stands in its way."""
    return wish.params.is_greedy and not wish.params.has_penalties and wish.allowed is None
