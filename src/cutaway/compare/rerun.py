"""An answer asked again with one thing changed, on the engine that gave it, and timed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from itertools import chain, count

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
        is_cold: bool = False,
        **params: int | float | None,
    ) -> list[AnswerRecord]:
        """Answers to token_ids with some sampling settings changed, all at once.

        is_cold: under a salt of their own, so that no page of an earlier answer is found.
        """
        changed = replace(
            self._request.params,
            **{"max_tokens": max_tokens, "min_tokens": 0, "n": 1, "grammar": None, **params},
            prompt_logprobs=None,
            ignore_eos=ignore_eos,
        )
        number = next(_NUMBERS)
        salt = f"rerun-{number}".encode() if is_cold else self._request.cache_salt
        requests = [
            replace(
                self._request,
                request_id=f"rerun-{number}-{copy}",
                cache_salt=salt,
                prompt_token_ids=tuple(token_ids),
                params=changed,
                deadline=None,
            )
            for copy in range(copies)
        ]
        with closing(self._engine.follower.follow(requests)) as steps:
            for delta in chain.from_iterable(steps):
                if delta.error is not None:
                    raise delta.error
        owner = self._request.owner
        found = [self.ledger.find(request.request_id, owner=owner) for request in requests]
        return [answer for answer in found if answer is not None]

    def seconds(self, answer: AnswerRecord) -> float:
        """Of all steps that it was in."""
        steps = (self.ledger.step(number) for number in answer.steps)
        return sum(step.ended - step.began for step in steps if step is not None)

    def gap(self, answer: AnswerRecord, company: int = 1) -> float:
        """Median seconds of its steps of one token beside company - 1 others; inf without any."""
        steps = [self.ledger.step(token.step) for token in answer.tokens[1:]]
        meant = [
            step.ended - step.began
            for step in steps
            if step is not None
            and len(step.parts) == company
            and all(part.count == 1 for part in step.parts)
        ]
        return statistics.median(meant) if meant else math.inf
