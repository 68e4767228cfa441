"""An answer on its way into a trace file: what ran, what happened, and what views show of it.

Redacted, a trace keeps counts and times alone. Ids and texts go, and with them all that would
tell a guesser with the same model that he guessed right: checksums, logits, random numbers, the
length of each token, settings made of words.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import cast

from cutaway.blocks.weighed import model_work
from cutaway.core.errors import CutawayError, ReplayError, RequestError
from cutaway.core.limits import quote
from cutaway.core.looks import FileRequest
from cutaway.core.version import __version__
from cutaway.replay.gathering import Ask
from cutaway.replay.look import Look
from cutaway.replay.places import (
    MOST_PLACES,
    Places,
    merge_views,
    place_of,
    places_of,
    queries,
)
from cutaway.text.chat_messages import to_dicts
from cutaway.trace.cost import StepCost, charge, fit_rates
from cutaway.trace.events import cost_fields, step_event, token_event
from cutaway.trace.file import SavedView, TraceFile, Values, write
from cutaway.views import VIEWS, view_of
from cutaway.views.parts.payload import split
from cutaway.views.parts.query import Query
from cutaway.views.parts.subject import Subject
from cutaway.views.parts.view import Shown, View

# Settings that are made of words or ids, or that with the model would tell what was drawn.
_TELLING = ("seed", "stop", "stop_token_ids", "logit_bias", "grammar")


def saving_of(look: Look, kept: FileRequest, *, chunk: int | None = None) -> Saving:
    """What somebody wants of an answer, on its way into a file.

    Raises: RequestError for a view or place that there is not; ReplayError as Saving does.
    """
    subject = look.subject
    facts = subject.facts
    steps = places_of(kept.steps, count=subject.num_rows, param="steps")
    each = (steps or ()) if kept.views else ()
    if kept.token is not None:
        each = places_of(str(kept.token), count=subject.num_rows, param="token") or ()
    places = Places(
        steps=steps,
        each=each,
        layers=places_of(kept.layers, count=facts.num_layers, param="layers") or (),
        heads=places_of(kept.heads, count=facts.num_heads, param="heads") or (),
    )
    try:
        views = tuple(map(view_of, kept.views)) or VIEWS
    except RequestError as error:
        error.param = "views"
        raise
    return Saving(look, views, places=places, redact=kept.redact, chunk=chunk)


def save_trace(
    look: Look,
    path: Path,
    views: Sequence[View],
    *,
    places: Places | None = None,
    redact: bool = False,
) -> TraceFile:
    """Write an answer with what some views show of it; returns what was written.

    places: at which these are there besides that of their own choice.
    redact: views whose numbers could tell something of the text are left out.
    Raises: ReplayError when the record of the answer is not whole; OSError.
    """
    return Saving(look, views, places=places, redact=redact).write(path)


class Saving:
    """An answer on its way into a file, step by step.

    chunk: tokens of a step that runs the answer again; None takes the engine's own.
    Raises: ReplayError when the answer has not ended; RequestError for too many places.
    """

    def __init__(
        self,
        look: Look,
        views: Sequence[View],
        *,
        places: Places | None = None,
        redact: bool = False,
        chunk: int | None = None,
    ) -> None:
        subject = self._subject = look.subject
        if not subject.answer.tokens or subject.answer.timings is None:
            raise ReplayError(
                f"request {quote(subject.answer.request.request_id)} has not ended; save it then."
            )
        self._redact = redact
        chosen = [view for view in views if not (redact and view.is_content)]
        self._left_out = [
            {"view": view.name, "reason": "redacted"} for view in views if view not in chosen
        ]
        self._asks = [
            Ask(view, query)
            for view in chosen
            for query in queries(view, subject, places or Places())
        ]
        if len(self._asks) > MOST_PLACES:
            raise RequestError(
                f"{len(self._asks):,} places of views; a file has at most {MOST_PLACES:,}. "
                "Name fewer steps, layers, heads or views."
            )
        self._gathering = look.gather(self._asks, chunk=chunk)
        self._saved: dict[int, SavedView] = {}

    def steps(self) -> Iterator[None]:
        """Save every view, in steps.

        Raises: ReplayError when the record of the answer is not whole.
        """
        yield from self._gathering.run(self._keep)

    def trace(self) -> TraceFile:
        """All that was seen, after the last step."""
        manifest = {**_manifest(self._subject, redact=self._redact), "left_out": self._left_out}
        events = _events(self._subject)
        told = tuple(_redacted(each) if self._redact else each for each in events)
        views: dict[str, list[SavedView]] = {}
        for index in sorted(self._saved):
            views.setdefault(self._saved[index].name, []).append(self._saved[index])
        return TraceFile(manifest, told, tuple(merge_views(each) for each in views.values()))

    def write(self, path: Path) -> TraceFile:
        """Run all steps and write what was seen; returns it. Raises: ReplayError; OSError."""
        for _ in self.steps():
            pass
        trace = self.trace()
        write(path, trace)
        return trace

    def _keep(self, index: int, shown: Shown | CutawayError) -> None:
        ask = self._asks[index]
        if isinstance(shown, Shown):
            is_first = index == 0 or self._asks[index - 1].view is not ask.view
            self._saved[index] = _saved(shown, ask.query, has_lines=is_first)
        elif all(each["view"] != ask.view.name for each in self._left_out):
            self._left_out.append({"view": ask.view.name, "reason": str(shown)})


def _saved(shown: Shown, query: Query, *, has_lines: bool) -> SavedView:
    values, arrays = split(shown.payload)
    drawn = shown.payload.draw().lines if has_lines else ()
    lines = tuple(tuple((span.text, span.style) for span in line) for line in drawn)
    proof = None if shown.proof is None else str(shown.proof)
    place = place_of(query, values)
    return SavedView(shown.view.name, shown.view.question, proof, lines, values, arrays, place)


def _manifest(subject: Subject, *, redact: bool) -> dict[str, object]:
    answer, build = subject.answer, subject.build
    facts = {n: v for n, v in asdict(subject.facts).items() if n != "cache_specs"}
    params = {name: _plain(value) for name, value in vars(answer.request.params).items()}
    for name in _TELLING if redact else ():
        params.pop(name)
    assert answer.timings is not None, "an answer that has ended has timings"
    return {
        "cutaway": __version__,
        "model": {
            "name": Path(build.model).name if redact else build.model,
            **facts,
            "facts_sha256": hashlib.sha256(repr(subject.facts).encode()).hexdigest(),
            "tokenizer_sha256": _tokenizer_hash(subject),
        },
        "engine": {n: v for n, v in asdict(build).items() if n != "model"},
        "machine": {"system": platform.system(), "processor": platform.machine()},
        "sampling": params,
        "answer": {
            "lora": answer.request.lora or None,
            "num_prompt_tokens": answer.num_prompt_tokens,
            "num_tokens": len(answer.tokens),
            "num_cached": answer.admissions[0].num_hit,
            "num_preemptions": len(answer.admissions) - 1,
            "finish_reason": answer.finish_reason,
        },
        "timings": {
            "encode": subject.encode_seconds,
            **{name: round(value, 7) for name, value in asdict(answer.timings).items()},
        },
        "privacy": {"redacted": redact},
    }


def _plain(value: object) -> object:
    """A setting as JSON; bias by token id, a grammar by its class and text."""
    if isinstance(value, tuple):
        return list(cast("tuple[object, ...]", value))
    if isinstance(value, str | int | float | None):
        return value
    return str(value)


def _tokenizer_hash(subject: Subject) -> str:
    digest = hashlib.sha256()
    for token_id in range(subject.tokenizer.vocab_size):
        data = subject.tokenizer.token_bytes(token_id)
        digest.update(len(data).to_bytes(4, "little") + data)
    return digest.hexdigest()


def _events(subject: Subject) -> Iterator[Values]:
    """What happened, in order. Units: seconds since the request came."""
    answer = subject.answer
    steps = [step for n in answer.steps if (step := subject.ledger.step(n)) is not None]
    assert answer.timings is not None and steps, "asked before"
    zero = steps[0].began - answer.timings.queue
    for message in to_dicts(subject.messages or ()):
        yield {**message, "type": "message"}
    texts = subject.texts()
    yield {
        "type": "prompt",
        "count": answer.num_prompt_tokens,
        "ids": answer.request.prompt_token_ids,
        "texts": texts[: answer.num_prompt_tokens],
    }
    costs = _costs(subject)
    given: dict[int, list[int]] = {}
    for index, token in enumerate(answer.tokens):
        given.setdefault(token.step, []).append(index)
    for step in steps:
        event = step_event(step, answer.number, zero=zero, page_size=subject.build.page_size)
        cost = costs.get(step.number)
        yield event if cost is None else event | cost_fields(cost)
        for index in given.get(step.number, ()):
            token = answer.tokens[index]
            yield token_event(token, index, at=step.ended - zero, text=subject.text)
    yield {
        "type": "end",
        "at": round(steps[-1].ended - zero, 7),
        "reason": answer.finish_reason,
        "text": _text(subject),
    }


def _costs(subject: Subject) -> dict[int, StepCost]:
    is_device = subject.build.device != "cpu"
    model = model_work(subject.transformer, subject.facts, subject.build.cache_dtype)
    rates = fit_rates(subject.ledger.steps, model, is_device=is_device)
    costs = charge(subject.ledger, subject.answer, model, rates, is_device=is_device)
    return {cost.number: cost for cost in costs}


def _text(subject: Subject) -> str:
    stream = subject.stream()
    pieces = [stream.push(token.token_id) for token in subject.answer.tokens]
    return "".join(piece.text for piece in pieces) + stream.finish()


_KEPT = {
    "prompt": ("type", "count"),
    "token": ("type", "index", "step", "at"),
    "end": ("type", "at", "reason"),
    "message": ("type", "role"),
}


def _redacted(event: Values) -> Values:
    """An event without content. Only what is named stays; a step holds none."""
    kept = _KEPT.get(str(event["type"]))
    return event if kept is None else {name: event[name] for name in kept}
