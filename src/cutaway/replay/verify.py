"""Whether a replay gives the answer that was served, row for row; and if not, why.

A row is equal when the checksums of its logits are; a token when the same settings draw it again,
or, where a guess was verified by rejection, when its row lets the recorded verdict stand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import overload

import torch
from torch import Tensor

from cutaway.cache.paged import PagedCache
from cutaway.cache.pool import Pool
from cutaway.engine.loading.fingerprints import fingerprints
from cutaway.host.turns import breathe
from cutaway.replay.cached_pages import kept_numbers
from cutaway.replay.plan import DrawnToken, Level, Run
from cutaway.replay.replay import Replay
from cutaway.sampling.candidates import SamplerRow
from cutaway.sampling.grammars.grammar_state import GrammarState
from cutaway.sampling.rejection import judge_again, purpose_of
from cutaway.sampling.sampler import Sampled, Sampler
from cutaway.sampling.uniform import Purpose
from cutaway.trace.records import AnswerRecord

_ROW_BYTES = 700  # of a SamplerRow with its prefix, as measured


@dataclass(frozen=True)
class Verdict:
    """What a replay says of an answer.

    is_exact:   every row and every token came again.
    num_equal:  rows with equal checksums, of num_tokens.
    difference: largest absolute difference of the chosen tokens' log-probabilities.
    first:      index of the first token whose row or draw differs; None when none does.
    cause:      what was found to differ, in words; None when all is equal.
    borders:    where the prompt was cut otherwise than in serving, in words; None where alike.
    """

    level: Level
    is_exact: bool
    num_tokens: int
    num_equal: int
    difference: float
    first: int | None
    cause: str | None
    borders: str | None = None

    def __str__(self) -> str:
        if self.is_exact:
            other = "" if self.borders is None else f"; {self.borders}"
            return f"exact ({self.level}, {self.num_tokens} tokens{other})"
        return (
            f"not exact ({self.level}): {self.cause}; {self.num_equal} of {self.num_tokens} rows "
            f"equal, log-probabilities differ by at most {self.difference:.2g}"
        )


@dataclass(frozen=True)
class Present:
    """What an answer's numbers depended on, as it is now: to find out what has changed.

    weights: fingerprints from when recording began, beside the model as it is.
    """

    weights: Mapping[str, int]
    model: torch.nn.Module
    cache: PagedCache
    pool: Pool


class Prefix(Sequence[int]):
    """The first so many of some token ids. Takes no copy: of n rows, copies were n^2 ids."""

    def __init__(self, token_ids: Sequence[int], length: int) -> None:
        self._token_ids, self._length = token_ids, length

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...

    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        if isinstance(index, slice):
            return self._token_ids[: self._length][index]
        return self._token_ids[range(self._length)[index]]

    def __iter__(self) -> Iterator[int]:
        return islice(self._token_ids, self._length)


def verify(
    replay: Replay,
    *,
    vocab_size: int,
    end_ids: frozenset[int],
    state: GrammarState | None,
    present: Present,
) -> Verdict:
    """Run a replay to its end and compare.

    end_ids: ids that end this answer.   state: its grammar from the start, if it had one.
    """
    answer = replay.plan.answer
    rows = rows_of(answer, end_ids=end_ids, state=state)
    sampler = Sampler(vocab_size)
    drawn: dict[int, Sampled] = {}
    for run, logits in replay.steps():
        if not run.drawn:
            continue
        wanted = torch.tensor([each.row for each in run.drawn], device=logits.device)
        own = logits[wanted]
        again = sampler.sample(own, [rows[each.index] for each in run.drawn])
        for place, (each, plain) in enumerate(zip(run.drawn, again, strict=True)):
            drawn[each.index] = _judged(run, each, own[place], rows[each.index], plain)
    return _compare(answer, drawn, replay, present)


def bytes_of_rows(num_tokens: int, *, vocab_size: int, has_grammar: bool) -> int:
    """Bytes that rows_of takes at most.

    A row for each token, and a bit for each id where a grammar says which may come.
    """
    return num_tokens * (_ROW_BYTES + (vocab_size // 8 if has_grammar else 0))


def rows_of(
    answer: AnswerRecord, *, end_ids: frozenset[int], state: GrammarState | None
) -> list[SamplerRow]:
    """What decided each token besides its logits."""
    rows: list[SamplerRow] = []
    if state is not None:
        for token_id in answer.continued:
            state.completes(token_id)
    output = [token.token_id for token in answer.tokens]
    for index, token_id in enumerate(output):
        breathe()
        allowed = None if state is None else state.masks([])[0]
        is_over = state is not None and allowed is not None and state.only_ends(allowed)
        rows.append(
            row_of(
                answer, Prefix(output, index), end_ids=end_ids, allowed=allowed, must_end=is_over
            )
        )
        if state is not None:
            state.completes(token_id)
    return rows


def row_of(
    answer: AnswerRecord,
    output: Sequence[int],
    *,
    end_ids: frozenset[int],
    allowed: bytes | None = None,
    must_end: bool = False,
) -> SamplerRow:
    """What decided the token behind so many of the answer, besides its logits.

    allowed:  ids that the answer's grammar let through there, if it had one.
    must_end: whether those are ends alone.
    """
    params, continued = answer.request.params, answer.continued
    position = answer.num_prompt_tokens + len(output)
    if continued:
        output = [*continued, *output]
    may_end = len(output) >= params.min_tokens or must_end
    return SamplerRow(
        params=params,
        seed=answer.seed,
        choice=answer.choice,
        position=position,
        prompt_token_ids=answer.request.prompt_token_ids[: position - len(output)],
        output_token_ids=output,
        banned_token_ids=frozenset[int]() if may_end else end_ids,
        allowed=allowed,
        num_logprobs=None,
    )


def _judged(run: Run, each: DrawnToken, logits: Tensor, row: SamplerRow, plain: Sampled) -> Sampled:
    """What a row gives again: what is drawn from it, or what rejection had decided of a guess."""
    token = run.answer.tokens[each.index]
    if token.u is None or purpose_of(token.u, row) is Purpose.DRAW:
        return plain
    chances = run.part.draft_chances
    chance = chances[token.row] if token.row < len(chances) else None
    return judge_again(logits, row, plain, token_id=token.token_id, u=token.u, chance=chance)


def _compare(
    answer: AnswerRecord, drawn: Mapping[int, Sampled], replay: Replay, present: Present
) -> Verdict:
    pairs = [(token, drawn[index]) for index, token in enumerate(answer.tokens)]
    rows = [token.checksum == again.checksum for token, again in pairs]
    draws = [token.token_id == again.token_id and token.u == again.u for token, again in pairs]
    bad = [i for i, (row, draw) in enumerate(zip(rows, draws, strict=True)) if not (row and draw)]
    differences = [
        abs((token.logit - token.logsumexp) - (again.score.logit - again.score.logsumexp))
        for (token, again) in pairs
        if token.token_id == again.token_id
    ]
    cause = None
    if bad:
        token, again = pairs[bad[0]]
        cause = _cause(answer, replay, present, is_row=not rows[bad[0]], is_u=token.u != again.u)
    return Verdict(
        level=replay.plan.level,
        is_exact=not bad,
        num_tokens=len(pairs),
        num_equal=sum(rows),
        difference=max(differences, default=0.0),
        first=bad[0] if bad else None,
        cause=cause,
        borders=replay.plan.borders,
    )


def _cause(
    answer: AnswerRecord, replay: Replay, present: Present, *, is_row: bool, is_u: bool
) -> str:
    """The first of the things that can differ which does.

    Another plan changes the last bits of many kept numbers, a fault more of one: a number that is
    off by more than rounding is named before the plan, and one that is off by less after it.
    """
    if not is_row:
        return (
            "the seed: another random number was drawn"
            if is_u
            else "the sampling settings: equal logits gave another token"
        )
    now = fingerprints(present.model)
    changed = [name for name, value in present.weights.items() if now.get(name) != value]
    if changed:
        return f"the weights: {', '.join(changed[:3])} changed since the answer was served"
    kept = kept_numbers(answer, replay, cache=present.cache, pool=present.pool)
    if kept.spoilt is not None:
        return f"the cache: {kept.spoilt} is not what was computed"
    if replay.plan.cause is not None:
        return replay.plan.cause
    if replay.plan.level == "invariant":
        where = "" if replay.plan.borders is None else f"{replay.plan.borders}, and "
        return f"the plan: {where}these kernels sum in an order that depends on that"
    if kept.first is None:
        return "unknown"
    if kept.num_other > 1:
        return (
            f"the plan: {kept.num_other} kept tokens differ from the rebuilt ones by rounding "
            "alone, as other chunk borders or other company make them"
        )
    return f"the cache: {kept.first} is not what was computed"
