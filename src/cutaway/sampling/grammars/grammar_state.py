"""Where one answer stands in its grammar: which tokens may come next, and when it is complete.

Knows llguidance's matcher and token ids; no text, no logits, no engine. Free of torch.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cutaway.core.errors import GrammarError
from cutaway.sampling.grammars.grammar_text import refusal

if TYPE_CHECKING:
    from llguidance import LLMatcher

Mask = bytes  # one bit per token id, the lowest bit of the first byte is id 0; 1 may come


def allows_any(mask: Mask, *, banned: Collection[int] = ()) -> bool:
    """Whether a token is left that is not banned."""
    bits = _without(mask, banned) if banned else mask
    return bits.count(0) < len(bits)


def _without(mask: Mask, token_ids: Collection[int]) -> Mask:
    bits = bytearray(mask)
    for token_id in token_ids:
        if token_id >> 3 < len(bits):
            bits[token_id >> 3] &= ~(1 << (token_id & 7))
    return bytes(bits)


@dataclass(frozen=True, eq=False)
class CompiledGrammar:
    """A grammar for one vocabulary; any number of answers start from it.

    matcher: at the start of an answer, and never moved.
    end_ids: ids that end an answer.
    """

    matcher: LLMatcher
    end_ids: frozenset[int]


class GrammarState:
    """One answer under one grammar.

    It depends on the accepted tokens alone: drafts are looked at and taken back, and a sequence
    that is preempted and computed again keeps its state.

    may_end: whether ids that end an answer may come where the grammar may end but need not (not
        ignore_eos).
    """

    def __init__(self, grammar: CompiledGrammar, *, may_end: bool = True) -> None:
        self._grammar = grammar
        self._matcher = grammar.matcher.deep_copy()
        self._may_end = may_end
        self._accepted: list[int] = []

    def longest_allowed(self, drafts: Sequence[int]) -> list[int]:
        """The longest start of the drafts that the grammar allows; it holds no end."""
        ends = (index for index, token_id in enumerate(drafts) if token_id in self._grammar.end_ids)
        known = list(drafts[: next(ends, len(drafts))])
        return known[: self._matcher.validate_tokens(known)] if known else []

    def find_forced(self) -> list[int]:
        """Tokens that are likely next because the grammar leaves one text alone; [] for a choice.

        The same text may be said in other tokens, so they are guesses like any.
        """
        ids = self._matcher.compute_ff_tokens()
        return self.longest_allowed(ids) if ids else []

    def masks(self, drafts: Sequence[int]) -> list[Mask]:
        """What may come next, and after each of the drafts, as if those before it had come.

        drafts: as fitting() left them, or a start of that.
        Raises: GrammarError when the grammar cannot go on from here; the masks end early when it
        cannot go on after a draft.
        """
        masks = [self._mask()]
        try:
            for draft in drafts:
                if not self._matcher.consume_token(draft):
                    raise self._error()
                masks.append(self._mask())
        except GrammarError:
            self._restart()
        else:
            self._matcher.rollback(len(drafts))
        return masks

    def only_ends(self, mask: Mask) -> bool:
        """Whether a mask leaves nothing but ids that end an answer."""
        return not allows_any(mask, banned=self._grammar.end_ids)

    def completes(self, token_id: int) -> bool:
        """Take the token that came; whether nothing but an end may follow it."""
        self._accepted.append(token_id)
        # Where the matcher gives up on a token that it allowed, the next mask tells why.
        return self._matcher.consume_token(token_id) and self._matcher.is_stopped()

    def _mask(self) -> Mask:
        mask = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            raise self._error()
        if self._may_end:
            return mask
        without_ends = _without(mask, self._grammar.end_ids)
        # Where nothing else may come, an end comes.
        return without_ends if allows_any(without_ends) else mask

    def _restart(self) -> None:
        """Back to the accepted tokens: after an error a matcher does nothing any more."""
        self._matcher = self._grammar.matcher.deep_copy()
        self._matcher.consume_tokens(self._accepted)

    def _error(self) -> GrammarError:
        return GrammarError(
            f"the grammar cannot go on after {len(self._accepted)} tokens of the answer: "
            f"{refusal(self._matcher.get_error()) or 'no token fits'}. Simplify the grammar."
        )
