"""Why tokens of a prompt were not found in the prefix index, as far as the ledger can tell.

Answers of other owners are not looked at: what they asked is theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from cutaway.trace.ledger import Ledger
from cutaway.trace.records import AnswerRecord

# rest:     what can be found was found: the last token is always computed, and parts of pages.
# off:      the prefix cache is off.
# asked:    log-probabilities of the prompt were asked for, so all of it is computed.
# first:    no recorded answer began like this.
# differs:  the nearest answer differs before the end of the page.
# together: an equal page was still being computed.
# evicted:  an equal page was there and its place was taken, or the index never had it.
Kind = Literal["rest", "off", "asked", "first", "differs", "together", "evicted"]


@dataclass(frozen=True)
class Miss:
    """Why an answer's first admission found no more.

    num_hit, num_computed: tokens of the prompt.
    nearest: number of the answer that agrees the longest; None where none does.
    agrees:  with how many tokens from the start.
    """

    kind: Kind
    num_hit: int
    num_computed: int
    nearest: int | None = None
    agrees: int = 0

    @property
    def words(self) -> str:
        """The reason as a sentence without content."""
        if self.kind == "differs":
            return f"the nearest answer, {self.nearest}, differs from token {self.agrees} on"
        if self.kind == "together":
            return f"answer {self.nearest} was still computing the same page"
        if self.kind == "evicted":
            return f"answer {self.nearest} had the same page; it is not in the index any more"
        return {
            "rest": "all that can be found was found: full pages, and never the last token",
            "off": "the prefix cache is off",
            "asked": "log-probabilities of the prompt were asked for, so all of it is computed",
            "first": "no recorded answer began like this",
        }[self.kind]


def miss_of(
    ledger: Ledger, answer: AnswerRecord, *, page_size: int, has_prefix_cache: bool
) -> Miss:
    """The reason for an answer that was admitted."""
    num_hit, num_prompt = answer.admissions[0].num_hit, answer.num_prompt_tokens
    num_computed = num_prompt - num_hit
    if not has_prefix_cache:
        return Miss("off", num_hit, num_computed)
    if answer.request.params.prompt_logprobs is not None:
        return Miss("asked", num_hit, num_computed)
    if num_hit >= (num_prompt - 1) // page_size * page_size:
        return Miss("rest", num_hit, num_computed)
    began = answer.admissions[0].steps[0]
    agreeing = [
        (_agrees(answer.request.prompt_token_ids, other.token_ids), other)
        for other in _others(ledger, answer, before=began)
    ]
    agrees, nearest = max(agreeing, key=lambda pair: pair[0], default=(0, None))
    if nearest is None or not agrees:
        return Miss("first", num_hit, num_computed)
    end = num_hit + page_size  # of the page that was not found
    if agrees < end:
        return Miss("differs", num_hit, num_computed, nearest.number, agrees)
    holders = [other for length, other in agreeing if length >= end]
    ready = [other for other in holders if _has_written(ledger, other, end, before=began)]
    kind: Kind = "evicted" if ready else "together"
    return Miss(kind, num_hit, num_computed, (ready or holders)[-1].number, agrees)


def _others(ledger: Ledger, answer: AnswerRecord, *, before: int) -> Iterator[AnswerRecord]:
    """Answers that could have left a page for this one."""
    for other in ledger.answers:
        is_alike = (other.cache_root, other.request.owner) == (
            answer.cache_root,
            answer.request.owner,
        )
        if other is not answer and is_alike and other.steps and other.steps[0] <= before:
            yield other


def _agrees(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the common beginning, by halving: slices are compared in C."""
    least, most = 0, min(len(left), len(right))
    while least < most:
        middle = (least + most + 1) // 2
        if left[least:middle] == right[least:middle]:
            least = middle
        else:
            most = middle - 1
    return least


def _has_written(ledger: Ledger, other: AnswerRecord, end: int, *, before: int) -> bool:
    """Whether the tokens up to end were final before a step. A hit counts as written."""
    for admission in other.admissions:
        if admission.num_hit >= end and admission.steps and admission.steps[0] < before:
            return True
    for number in other.steps:
        step = ledger.step(number)
        if number >= before or step is None:
            continue
        if any(part.answer == other.number and part.end >= end for part in step.parts):
            return True
    return False
