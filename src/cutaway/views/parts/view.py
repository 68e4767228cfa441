"""What a view is: a question, the places it takes, the inner values it wants, and its probe."""

from __future__ import annotations

import html
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Final, cast

import torch

from cutaway.sampling.threads import one_thread
from cutaway.views.parts.payload import Payload, as_json
from cutaway.views.parts.query import Query
from cutaway.views.parts.replay_values import Proof, ReplayValues, Wanted
from cutaway.views.parts.subject import Subject

# Operations of a long step in whose time a view writes one number: 2 ns on a core that computes
# 190 GFLOP/s with SmolLM2.
WALKED: Final = 380
SHARED_FROM: Final = WALKED * 2**27  # work that torch's threads share: a third of a second of one


def _nothing(subject: Subject, query: Query) -> Wanted:
    del subject, query
    return Wanted()


def _next_to_none(subject: Subject, query: Query) -> int:
    del subject, query
    return 0


@dataclass(frozen=True)
class View:
    """One view.

    name, stage: how it is asked for, and where in the pipeline it stands (core/stages).
    question:    that it answers; the title of every picture of it.
    takes:       the fields of a query that mean something to it.
    probe:       reduces what was taken to a payload, near the model.
    wants:       the inner values that probe reads; what it costs is told from them.
    is_by_step:  whether it is cheap, and worth having at each of many tokens.
    flops:       operations of the probe, where they count beside those of running again.
    walks:       numbers of 4 bytes that the probe's operations write besides products: unpacked
                 weights, shares, squares. New memory takes as long as what is computed into it.
    is_content:  whether its numbers could tell something of the text; if not, a redacted trace
                 may keep them.
    """

    name: str
    stage: str
    question: str
    probe: Callable[[Subject, Query, ReplayValues], Payload]
    takes: tuple[str, ...] = ()
    wants: Callable[[Subject, Query], Wanted] = _nothing
    is_by_step: bool = False
    flops: Callable[[Subject, Query], int] = _next_to_none
    walks: Callable[[Subject, Query], int] = _next_to_none
    is_content: bool = True

    def check(self, subject: Subject, query: Query) -> None:
        """Raises: RequestError for a place that the view does not take or that there is not."""
        bounds = {
            "position": subject.num_positions,
            "start": len(subject.answer.token_ids),
            "token": subject.num_rows,
            "layer": subject.facts.num_layers,
            "head": subject.facts.num_heads,
            "top": subject.facts.vocab_size,
        }
        query.check(self.takes, bounds, view=self.name)

    def show(self, subject: Subject, query: Query) -> Shown:
        """Look. Raises: RequestError as check does; ReplayError where it cannot be run again."""
        self.check(subject, query)
        taken = subject.take(self.wants(subject, query))
        payload = self.payload(subject, query, taken)
        is_run = not self.wants(subject, query).is_empty
        return Shown(self, payload, taken.proof if is_run else None)

    def work(self, subject: Subject, query: Query) -> int:
        """Operations of the probe, with the numbers that it goes through counted as some."""
        return self.flops(subject, query) + WALKED * self.walks(subject, query)

    def payload(self, subject: Subject, query: Query, taken: ReplayValues) -> Payload:
        """What probe makes of what was taken.

        Unless there is much to do it is done on one thread: a look is a thread of its own, which
        starts torch's others anew, and where somebody else computes all wait for one another. Of
        two idle cores one alone shows SmolLM2's table in half the time that both take.
        """
        is_short = self.work(subject, query) < SHARED_FROM
        threads = one_thread() if is_short else nullcontext()
        with torch.inference_mode(), threads:
            return self.probe(subject, query, taken)


@dataclass(frozen=True, repr=False)
class Shown:
    """What a view gave; printing it draws it.

    proof: of the replay that it needed; None where the record was enough.
    """

    view: View
    payload: Payload
    proof: Proof | None

    def as_json(self) -> dict[str, object]:
        """Its numbers as JSON writes them, beside its name and proof."""
        values = as_json(self.payload)
        assert isinstance(values, dict), "a payload is a dataclass"
        return {
            "view": self.view.name,
            "proof": None if self.proof is None else str(self.proof),
            "is_exact": None if self.proof is None else self.proof.is_exact,
            **cast("dict[str, object]", values),
        }

    @property
    def title(self) -> str:
        """Name, question and how far it is proven."""
        proof = "from the record" if self.proof is None else str(self.proof)
        return f"{self.view.name}: {self.view.question}  [{proof}]"

    def __str__(self) -> str:
        return f"{self.title}\n{self.payload.draw().text()}"

    def __repr__(self) -> str:
        return f"Shown({self.title})"

    def _repr_html_(self) -> str:
        """Title and picture, for notebooks."""
        picture = html.escape(self.payload.draw().text())
        return f"<div><b>{html.escape(self.title)}</b><pre>{picture}</pre></div>"
