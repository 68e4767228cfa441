"""Guesses of a smaller model: it answers ahead of the large one, with the same random numbers.

For a request with a seed each guess is drawn from the small model's own row as plain decoding would
draw it: same settings, same seed, same position. So where both models agree the large one draws the
same token, greedy or not. For one without a seed it is drawn by a number of its own, and comes with
the row that it was drawn from: more stand then by rejection (sampling/rejection.py).

GuessSource: the coupling of two draws by one random number, Daliri et al. 2024, arXiv 2408.07978.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn.functional import pad

from cutaway.cache.paged import CacheStats, PageTables
from cutaway.cache.prefix import root_key
from cutaway.core.errors import ConfigError
from cutaway.core.step import Numbers, ShapePlan
from cutaway.engine.config import EngineConfig
from cutaway.engine.drafters.drafter import Draft, Wish
from cutaway.engine.drafters.drawn_guesses import guess_from
from cutaway.engine.loading.loaded_model import LoadedModel
from cutaway.engine.loading.paged_model import page_model
from cutaway.sampling import upload
from cutaway.sampling.sampler import Sampler

_CATCH_UP = 128  # tokens of text, over all answers, that one step's guesses may wait for
_NEAR = 16  # an answer that lacks no more is computed at once


@dataclass(eq=False)
class _HeldPages:
    """What is computed of one answer.

    num_known: its first tokens whose keys and values are stored and final.
    ahead:     guesses stored behind them.
    """

    tables: PageTables
    num_known: int
    ahead: list[int] = field(default_factory=list[int])


@dataclass(frozen=True)
class _DraftRow:
    """Tokens of one answer that a step computes, from a position on."""

    wish: Wish
    held: _HeldPages
    start: int
    token_ids: Sequence[int]


class ModelDrafter:
    """Drafts of a model that has the target's vocabulary, with pages and steps of its own.

    kind:      what its drafts are called.
    num_pages: of its cache, the scratch page included.
    vocab_size: of the target; no id beyond is guessed.
    Raises: ConfigError for a model that cannot take tokens back.
    """

    def __init__(
        self,
        model: LoadedModel,
        config: EngineConfig,
        *,
        kind: str,
        num_pages: int,
        vocab_size: int,
    ) -> None:
        config = config.on(model.device.type)
        if not all(spec.can_roll_back for spec in model.transformer.cache_specs):
            raise ConfigError(
                f"{model.name} keeps a state that tokens rewrite: guesses that were wrong could "
                "not be taken back. Take another draft model."
            )
        self.model = model
        self.only_kind = kind
        self.heeds_bounds = self.is_behind = False
        paged = page_model(model, config, num_pages=num_pages)
        self.cache, self._runner, self._max_length = paged.cache, paged.runner, paged.max_length
        self._max_tokens = config.max_tokens_per_step
        self._vocab_size = vocab_size
        self._sampler = Sampler(vocab_size)
        self._held: dict[Hashable, _HeldPages] = {}  # the one used last at the end
        self._busy: set[Hashable] = set()  # answers that are asked for now

    @property
    def cache_stats(self) -> CacheStats:
        """Pages of its own cache by state."""
        return self.cache.stats

    def propose(self, wishes: Sequence[Wish]) -> list[Draft]:
        """What the small model says next, one token after the other, for all answers at once."""
        self.is_behind = False
        self._busy = {wish.key for wish in wishes}
        drafts = [Draft([], self.only_kind, []) for _ in wishes]
        places = {wish.key: place for place, wish in enumerate(wishes)}
        rows = self._caught_up([wish for wish in wishes if wish.most > 0])
        while rows:
            following: list[_DraftRow] = []
            for row in self._draw(rows, [drafts[places[row.wish.key]] for row in rows]):
                draft = drafts[places[row.wish.key]]
                if len(draft.token_ids) < row.wish.most and not self._ends(draft):
                    following.append(self._next(row, draft.token_ids[-1]))
            rows = [row for row in following if self._reserve(row)]
            for row in rows:
                row.held.ahead.append(row.token_ids[0])
        return drafts

    def may_guess(self, key: Hashable, token_ids: Sequence[int]) -> bool:
        """It has a guess for everything."""
        return True

    def finish(self, key: Hashable) -> None:
        """Give the pages of an answer back."""
        held = self._held.pop(key, None)
        if held is not None:
            self.cache.release(held.tables)

    def _caught_up(self, wishes: Sequence[Wish]) -> list[_DraftRow]:
        """Rows over what is new of each answer; those that lack much get a piece computed first."""
        left = min(_CATCH_UP, self._max_tokens)
        rows: list[_DraftRow] = []
        pieces: list[_DraftRow] = []
        for wish in wishes:
            if len(wish.token_ids) + wish.most > self._max_length:
                continue
            held = self._take(wish)
            if held is None:
                continue
            missing = wish.token_ids[held.num_known :]
            is_near = len(missing) <= min(_NEAR, self._max_tokens)
            if not is_near:
                self.is_behind = True
                missing = missing[:left]
                left -= len(missing)
            row = _DraftRow(wish, held, held.num_known, missing)
            if missing and self._reserve(row):
                is_whole = held.num_known + len(missing) == len(wish.token_ids)
                (rows if is_whole else pieces).append(row)
        for some in self._in_steps(pieces):
            self._compute(some)
        return rows

    def _take(self, wish: Wish) -> _HeldPages | None:
        """What is stored of an answer, without guesses that did not stand; None for want of pages.

        Everything known is final, so that it is found again where another answer begins alike.
        """
        held = self._held.pop(wish.key, None)
        if held is not None and held.num_known >= len(wish.token_ids):
            self.cache.release(held.tables)  # the answer begins anew
            held = None
        if held is None:
            held = self._admit(wish)
            if held is None:
                return None
        self._held[wish.key] = held
        stood = 0
        for guess, came in zip(held.ahead, wish.token_ids[held.num_known :], strict=False):
            if guess != came:
                break
            stood += 1
        # One token is left to compute: its row is what the next guess is drawn from.
        num_known = min(held.num_known + stood, len(wish.token_ids) - 1)
        self.cache.truncate(held.tables, num_known)
        held.ahead.clear()
        self._commit(held, wish, num_known)
        return held

    def _admit(self, wish: Wish) -> _HeldPages | None:
        keys = self.cache.keys(
            root_key(wish.root, self.model.transformer.position_key(wish.max_length))
        )
        while True:
            admitted = self.cache.admit(wish.token_ids, keys, takes_all=True)
            if admitted is not None:
                return _HeldPages(*admitted)
            if not self._release_oldest():
                return None

    def _release_oldest(self) -> bool:
        """Give back the pages of the answer that was not asked for longest; False without one."""
        key = next((key for key in self._held if key not in self._busy), None)
        if key is None:
            return False
        self.finish(key)
        return True

    def _reserve(self, row: _DraftRow) -> bool:
        wanted = row.start + len(row.token_ids)
        while not self.cache.reserve(row.held.tables, wanted, takes_all=True):
            if not self._release_oldest():
                return False
        return True

    def _commit(self, held: _HeldPages, wish: Wish, num_known: int) -> None:
        held.num_known = num_known
        self.cache.commit(held.tables, wish.token_ids, num_known)

    def _in_steps(self, rows: Sequence[_DraftRow]) -> list[list[_DraftRow]]:
        """Rows in parts, each no larger than a step may be."""
        steps: list[list[_DraftRow]] = []
        room = 0
        for row in rows:
            if len(row.token_ids) > room:
                steps.append([])
                room = self._max_tokens
            steps[-1].append(row)
            room -= len(row.token_ids)
        return steps

    def _draw(self, rows: Sequence[_DraftRow], drafts: Sequence[Draft]) -> list[_DraftRow]:
        """Add the next token to each answer's draft; the rows that gave one."""
        gave: list[_DraftRow] = []
        pairs = iter(zip(rows, drafts, strict=True))
        for some in self._in_steps(rows):
            logits = self._fitted(self._compute(some))
            own = [next(pairs) for _ in some]
            drawn = guess_from(self._sampler, logits, [(row.wish, draft) for row, draft in own])
            gave += [row for (row, _), is_given in zip(own, drawn, strict=True) if is_given]
        return gave

    def _fitted(self, logits: Tensor) -> Tensor:
        """One entry for each of the target's ids: what only one of the two has never comes."""
        spare = self._vocab_size - logits.shape[1]
        if spare < 0:
            return logits[:, : self._vocab_size].contiguous()
        return logits if spare == 0 else pad(logits, (0, spare), value=-math.inf)

    @torch.inference_mode()
    def _compute(self, rows: Sequence[_DraftRow]) -> Tensor:
        """Logits behind the last token of each row; what is known of each answer is final then."""
        counts = [len(row.token_ids) for row in rows]
        tables = [row.held.tables for row in rows]
        groups = range(len(tables[0].groups))
        longest = self._max_length
        ends = [end - 1 for end in accumulate(counts)]
        reads_all = self._runner.captures(counts)  # a captured step leaves all tokens' logits
        spans = [(row.start, count) for row, count in zip(rows, counts, strict=True)]
        logits = self._runner.forward(
            Numbers(
                token_ids=[token for row in rows for token in row.token_ids],
                positions=[p for start, count in spans for p in range(start, start + count)],
                declared_lengths=[
                    min(row.wish.max_length, longest) for row in rows for _ in row.token_ids
                ],
                logit_rows=range(sum(counts)) if reads_all else ends,
                plan=ShapePlan(tuple(counts), tuple(start + count for start, count in spans)),
                pages=[[each.groups[group].pages for each in tables] for group in groups],
                slots=[
                    [
                        slot
                        for each, span in zip(tables, spans, strict=True)
                        for slot in each.groups[group].slots(*span)
                    ]
                    for group in groups
                ],
            )
        )
        for row, (start, count) in zip(rows, spans, strict=True):
            if start + count <= len(row.wish.token_ids):
                self._commit(row.held, row.wish, start + count)
        return logits[upload.integers(ends, logits)] if len(logits) > len(rows) else logits

    def _next(self, row: _DraftRow, guess: int) -> _DraftRow:
        return _DraftRow(row.wish, row.held, row.start + len(row.token_ids), [guess])

    def _ends(self, draft: Draft) -> bool:
        """Whether nothing is guessed behind an end.

        How long a draft is that is verified by rejection never depends on what is in it.
        """
        return not draft.proposals and draft.token_ids[-1] in self.model.end_token_ids
