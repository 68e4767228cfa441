"""An answer's steps and tokens as plain objects, in words that trace files and event streams share.

Free of torch, of texts and of engines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from cutaway.trace.cost import StepCost
from cutaway.trace.ledger import part_of
from cutaway.trace.records import Admission, Seam, StepRecord, TokenRecord

SCHEMA = 1  # of every event on the wire; fields and types may be added to it

Event = dict[str, object]


def step_event(step: StepRecord, answer: int, *, zero: float, page_size: int) -> Event:
    """One forward that had a part in an answer. Units: seconds since zero.

    pages: [first, past) of the answer's pages that were begun in it.
    """
    part = part_of(step, answer)
    return {
        "type": "step",
        "number": step.number,
        "kernel": step.kernel,
        "began": round(step.began - zero, 7),
        "computed": round(step.computed - zero, 7),
        "ended": round(step.ended - zero, 7),
        "start": part.start,
        "count": part.count,
        "rows": part.num_rows,
        "drafts": len(part.draft_token_ids),
        "others": len(step.parts) - 1,
        "other_tokens": sum(p.count for p in step.parts) - part.count,
        "pages": [-(-part.start // page_size), -(-part.end // page_size)],
    }


def cost_fields(cost: StepCost) -> Event:
    """What a step adds where an answer's share of it is known. Units: seconds, bytes, FLOPs."""
    return {
        "seconds": round(cost.seconds, 8),
        "bytes": round(cost.num_bytes),
        "flops": round(cost.flops),
    }


def token_event(token: TokenRecord, index: int, *, at: float, text: Callable[[int], str]) -> Event:
    """One token of an answer and what it was drawn from.

    at:   seconds from when the request came.   text: a token id in words.
    """
    return {
        "type": "token",
        "index": index,
        "step": token.step,
        "at": round(at, 7),
        "id": token.token_id,
        "text": text(token.token_id),
        "u": token.u,
        "logit": round(token.logit, 5),
        "logsumexp": round(token.logsumexp, 5),
        "logprob": round(token.logit - token.logsumexp, 5),
        "checksum": f"{token.checksum % 2**64:016x}",
        "rank": token.rank,
        "top": [[each, text(each), _finite(logprob)] for each, logprob in token.top],
    }


def seam_event(seam: Seam, *, step: int, at: float) -> Event:
    """Where an answer goes on that another engine began: its tokens so far follow.

    at: seconds from when the request came here.
    """
    return {
        "type": "seam",
        "step": step,
        "at": round(at, 7),
        "num_tokens": seam.num_tokens,
        "is_exact": seam.is_exact,
    }


def pages_event(admissions: Sequence[Admission], index: int) -> Event:
    """The pages that an answer was given when it was admitted: found ones as runs by writer."""
    writers = [None if origin is None else origin.answer for origin in admissions[index].origins]
    runs: list[tuple[int, int, int | None]] = []
    first = 0
    for writer, alike in groupby(writers):
        count = len(list(alike))
        runs.append((first, count, writer))
        first += count
    return {
        "type": "pages",
        "admission": index,
        "num_hit": admissions[index].num_hit,
        "found": runs,
    }


def _finite(logprob: float) -> float | None:
    """JSON knows no infinity: a token that could not come has no logarithm."""
    return round(logprob, 5) if logprob > float("-inf") else None
