"""An answer asked again with one thing changed, on the engine that gave it, and timed."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from itertools import count, pairwise

from cutaway.core.request import Request
from cutaway.engine.engine import Engine
from cutaway.trace.ledger import Ledger
from cutaway.trace.records import AnswerRecord

_NUMBERS = count()


class Rerun:
    """Runs variants of one answer's request. Nobody else may use the engine meanwhile."""

    def __init__(self, engine: Engine, answer: AnswerRecord) -> None:
        assert engine.ledger is not None, "an answer comes from a ledger"
        self._engine, self._request = engine, answer.request
        self.ledger: Ledger = engine.ledger

    def run(
        self,
        token_ids: Sequence[int],
        max_tokens: int,
        *,
        copies: int = 1,
        ignore_eos: bool = False,
        **params: int | float | None,
    ) -> list[AnswerRecord]:
        """Answers to token_ids with some sampling settings changed, all at once."""
        changed = replace(
            self._request.params,
            **{"max_tokens": max_tokens, "min_tokens": 0, "n": 1, "grammar": None, **params},
            prompt_logprobs=None,
            ignore_eos=ignore_eos,
        )
        requests = [
            replace(
                self._request,
                request_id=f"rerun-{next(_NUMBERS)}",
                prompt_token_ids=tuple(token_ids),
                params=changed,
                deadline=None,
            )
            for _ in range(copies)
        ]
        for request in requests:
            self._engine.add(request)
        self._until_done(requests)
        owner = self._request.owner
        found = [self.ledger.find(request.request_id, owner=owner) for request in requests]
        return [answer for answer in found if answer is not None]

    def _until_done(self, requests: Sequence[Request]) -> None:
        left = {request.request_id for request in requests}
        try:
            while left:
                for delta in self._engine.step():
                    if delta.error is not None and delta.request_id in left:
                        raise delta.error
                    if delta.finish_reason is not None:
                        left.discard(delta.request_id)
        finally:
            for request_id in left:
                self._engine.abort(request_id)

    def first_token(self, answer: AnswerRecord) -> float:
        """Seconds from arrival to the first token."""
        assert answer.timings is not None, "it was run to its end"
        return answer.timings.first_token

    def gap(self, answer: AnswerRecord) -> float:
        """Median seconds between tokens; 0 where there are fewer than two."""
        steps = [self.ledger.step(token.step) for token in answer.tokens]
        ends = [step.ended for step in steps if step is not None]
        gaps = [after - before for before, after in pairwise(ends)]
        return statistics.median(gaps) if gaps else 0.0
