"""An answer while it is being made: its stream of text, its grammar and its clock."""

from __future__ import annotations

import math
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from time import perf_counter
from typing import NamedTuple

from cutaway.core.errors import CutawayError, GrammarError
from cutaway.core.output import (
    Delta,
    DrawProof,
    FinishReason,
    Timings,
    TokenLogprob,
    ToldChoice,
    Usage,
)
from cutaway.engine.sequence import Sequence
from cutaway.sampling.candidates import SamplerRow
from cutaway.sampling.grammars.grammar_state import GrammarState, Mask, allows_any
from cutaway.sampling.logprobs import Score
from cutaway.sampling.rejection import Proposal
from cutaway.sampling.sampler import Sampled
from cutaway.stream.text import TextStream

REPEATED = "repetition_detected"  # what is told of such an end, as vLLM does


class NewTokens(NamedTuple):
    """What a step adds to an answer, and why it ends there, if it does."""

    token_ids: list[int]
    text: str
    reason: FinishReason | None
    stopped_by: str | int | None


@dataclass(eq=False)
class Running:
    """What the engine keeps of one sequence beside its tokens.

    arrived: when the request came, in seconds.   ends: the moment until which it may take.
    fault: the grammar cannot go on; the answer ends with this step.
    is_spoilt: numbers of its prompt are not finite; the same.
    num_drafted, num_accepted: guesses that were verified, and that stood.
    told: what another engine has told of it, until the row of its last token is computed again.
    tells_draws: whether somebody wants what each token was drawn from.
    scores_drawn: of its rows; see SamplerRow.
    proposals: what its guesses of this step were drawn from; none where a seed decides.
    """

    sequence: Sequence
    stream: TextStream
    end_ids: frozenset[int]
    arrived: float
    ends: float = math.inf
    started: float | None = None
    first_token: float | None = None
    detokenize: float = 0.0
    prompt_logprobs: list[TokenLogprob | None] = field(default_factory=lambda: [None])
    grammar: GrammarState | None = None
    fault: GrammarError | None = None
    is_spoilt: bool = False
    num_drafted: int = 0
    num_accepted: int = 0
    told: ToldChoice | None = None
    tells_draws: bool = False
    scores_drawn: bool = False
    proposals: Items[Proposal] = ()

    def begin_grammar(self, state: GrammarState) -> None:
        """Stand in the grammar where the answer stands, which may have begun elsewhere."""
        for token_id in self.sequence.output_token_ids:
            state.completes(token_id)
        self.grammar = state

    def rejoin(self, told: ToldChoice, drawn: Sampled) -> bool:
        """Take the last token that was told elsewhere. Whether its row came out to the bit.

        Nobody is told its text again. It stands even if another would be drawn here: a reader has
        seen it.
        """
        token_id = told.token_ids[-1]
        self.told = None
        self.stream.advance(token_id)
        if self.grammar is not None:
            self.grammar.completes(token_id)
        is_same_draw = drawn.token_id == token_id and drawn.u == told.draws[-1].u
        return is_same_draw and drawn.checksum == told.draws[-1].checksum

    def rows(self, drafts: Items[int]) -> list[SamplerRow]:
        """The rows that draw the next token and the one after each draft."""
        if self.grammar is None and not drafts:
            return [self._row((), None)]
        masks = self._masks(drafts)
        return [self._row(drafts[:offset], masks[offset]) for offset in range(1 + len(drafts))]

    def row_ahead(self) -> SamplerRow | None:
        """The row after the one that draws now, where that draw plays no part in it."""
        if self.grammar is not None or self.sequence.request.params.has_penalties:
            return None
        return self._row((0,), None)

    def take(self, emitted: Items[int]) -> NewTokens:
        """Push tokens through the stream until one ends the answer."""
        text = ""
        taken: list[int] = []
        began = perf_counter()
        reason: FinishReason | None = None
        stopped_by: str | int | None = None
        stream, num_left = self.stream, self.sequence.max_length - len(self.sequence.token_ids)
        for token_id in emitted[:num_left]:
            taken.append(token_id)
            text += stream.advance(token_id)
            if stream.stopped_by is not None:
                reason, stopped_by = "stop", stream.stopped_by
                break
            if self.grammar is not None and self.grammar.completes(token_id):
                reason = "stop"
                break
            if self.stream.is_repeating:
                reason, stopped_by = "repetition", REPEATED
                break
        if reason is None and len(taken) >= num_left:
            reason = "length"
        if reason is not None:
            text += stream.finish()
        self.detokenize += perf_counter() - began
        return NewTokens(taken, text, reason, stopped_by)

    def delta(
        self,
        token_ids: Items[int] = (),
        text: str = "",
        drawn: Items[Sampled] = (),
        *,
        reason: FinishReason | None = None,
        stopped_by: str | int | None = None,
        error: CutawayError | None = None,
        seam: bool | None = None,
    ) -> Delta:
        """What is new; the last one, which a reason makes, tells the whole answer's use and time.

        The tokens stand in the sequence already. drawn: the draws that they came from.
        """
        sequence, request = self.sequence, self.sequence.request
        logprobs: tuple[TokenLogprob, ...] = ()
        if request.params.logprobs is not None:
            logprobs = self._logprobs(token_ids, drawn)
        prompt_logprobs: tuple[TokenLogprob | None, ...] = ()
        if request.params.prompt_logprobs is not None and (
            sequence.num_output_tokens == len(token_ids)
        ):
            prompt_logprobs = tuple(self.prompt_logprobs)
        # By place: one is made for every token, and names cost four times as much.
        return Delta(
            request.request_id,
            sequence.choice,
            tuple(token_ids),
            text,
            logprobs,
            prompt_logprobs,
            reason,
            stopped_by,
            error,
            None if reason is None else self._usage(),
            None if reason is None else self._timings(perf_counter()),
            _draws_of(token_ids, drawn) if self.tells_draws else (),
            seam,
        )

    def end_with_fault(self, error: CutawayError) -> Delta:
        """The last delta of an answer that a fault ended; it asks nothing that may be at fault."""
        sequence = self.sequence
        return Delta(
            request_id=sequence.request.request_id,
            choice=sequence.choice,
            finish_reason="error",
            error=error,
            usage=self._usage(),
            timings=self._timings(perf_counter()),
        )

    def _masks(self, drafts: Items[int]) -> list[Mask | None]:
        """What the grammar allows in each row; None allows all."""
        num_rows = 1 + len(drafts)
        if self.grammar is None:
            return [None] * num_rows
        try:
            masks = self.grammar.masks(drafts)
        except GrammarError as fault:
            self.fault = fault
            return [None] * num_rows
        # Rows that the grammar cannot reach give no token.
        return [*masks, *[bytes(len(masks[0]))] * (num_rows - len(masks))]

    def _row(self, drafts: Items[int], allowed: Mask | None) -> SamplerRow:
        """The row that draws the token after the known tokens and some drafts.

        What the drafts are plays no part without penalties.
        """
        sequence, params, offset = self.sequence, self.sequence.request.params, len(drafts)
        # A long answer is not copied for penalties that there are none of.
        said: Items[int] = ()
        if params.has_penalties:
            said = [*sequence.output_token_ids, *drafts]
        is_early = sequence.num_output_tokens + offset < params.min_tokens
        banned = self.end_ids if is_early else frozenset[int]()
        if self.grammar is not None and allowed is not None:
            if self.grammar.only_ends(allowed):
                banned = frozenset[int]()  # a grammar that is complete outweighs min_tokens
            if offset == 0 and not allows_any(allowed, banned=banned):
                self.fault = GrammarError(
                    f"no token is left after {sequence.num_output_tokens} tokens of the answer: "
                    "none fits the grammar, or all that fit are ends before min_tokens."
                )
        return SamplerRow(
            params=params,
            seed=sequence.seed,
            choice=sequence.choice,
            position=sequence.num_tokens + offset,
            prompt_token_ids=sequence.request.prompt_token_ids,
            output_token_ids=said,
            banned_token_ids=banned,
            allowed=allowed,
            num_logprobs=params.logprobs,
            scores_drawn=self.scores_drawn,
        )

    def _logprobs(self, token_ids: Items[int], drawn: Items[Sampled]) -> tuple[TokenLogprob, ...]:
        pairs = zip(token_ids, drawn, strict=False)  # more may have been drawn than were taken
        return tuple(token_logprob(token_id, each.score) for token_id, each in pairs)

    def _usage(self) -> Usage:
        sequence = self.sequence
        # What goes on here may have found more than its prompt.
        num_cached = min(sequence.num_cached_tokens, sequence.num_prompt_tokens)
        return Usage(sequence.num_prompt_tokens, sequence.num_output_tokens, num_cached)

    def _timings(self, ended: float) -> Timings:
        started = self.started or ended
        first = self.first_token or ended
        return Timings(
            queue=started - self.arrived,
            prefill=first - started,
            decode=ended - first,
            detokenize=self.detokenize,
            first_token=first - self.arrived,
            drafted=self.num_drafted,
            accepted=self.num_accepted,
        )


def _draws_of(token_ids: Items[int], drawn: Items[Sampled]) -> tuple[DrawProof, ...]:
    """What each token was drawn from; more may have been drawn than were taken."""
    return tuple(
        DrawProof(each.u, each.score.logit, each.score.logsumexp, each.checksum)
        for _, each in zip(token_ids, drawn, strict=False)
    )


def token_logprob(token_id: int, score: Score) -> TokenLogprob:
    """A drawn or given token's own place among all."""
    assert score.rank is not None, "a rank is measured where log-probabilities are asked for"
    return TokenLogprob(token_id, score.logprob, score.rank, score.top)
