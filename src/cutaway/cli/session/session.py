"""A loaded model for one command: settings to engine, with the load timed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, cast

from cutaway.cli.session.answer_json import FinishedAnswer, answer_object
from cutaway.cli.session.at_hand import at_hand, note_left_out
from cutaway.cli.settings.settings import Resolved, resolve
from cutaway.cli.terminal.progress import download_bar
from cutaway.core.output import Delta
from cutaway.core.request import Request, SamplingParams
from cutaway.engine.engine_settings import EngineSettings
from cutaway.host import garbage
from cutaway.weights.find.find import find
from cutaway.weights.find.named_models import NAMED

if TYPE_CHECKING:
    from cutaway.service.llm import LLM


@dataclass(frozen=True)
class Session:
    """What commands that answer share."""

    llm: LLM
    settings: Resolved  # with what the model itself recommends
    load_seconds: float

    def messages(self, text: str) -> list[dict[str, object]]:
        """One question as a conversation, after the system message if there is one."""
        system = self.settings.values["system"]
        first = [] if system is None else [{"role": "system", "content": system}]
        return [*first, {"role": "user", "content": text}]

    def as_object(self, answer: FinishedAnswer, *, tokenize_seconds: float) -> dict[str, object]:
        """What --json prints of an answer."""
        model = self.llm.engine.model
        return answer_object(
            answer,
            model.tokenizer,
            model=model.name,
            load=self.load_seconds,
            tokenize=tokenize_seconds,
        )

    def stream(
        self, request: Request, *, is_stopped: Callable[[], bool] = lambda: False
    ) -> Iterator[Delta]:
        """News of one request until it is done or stopped, which is asked before each step.

        LLM.stream gives no such chance between the steps of a long prompt.
        """
        steps = self.llm.engine.follower.follow([request], is_stopped=is_stopped)
        with closing(steps):
            for news in steps:
                yield from news


def open_session(given: Mapping[str, object], *, config: Path | None) -> Session:
    """Resolve the settings and load the model that they name."""
    began = perf_counter()
    llm = open_llm(resolve(given, config=config))
    # Settings again, now that the model can tell what it recommends.
    settings = resolve(given, config=config, recommended=llm.engine.model.sampling)
    return Session(llm, settings, perf_counter() - began)


def open_llm(settings: Resolved) -> LLM:
    """Load the model, fetching it first where it has a name and is not here.

    Importing torch takes a second or more, so it happens here.
    """
    if settings.model in NAMED:
        with download_bar(settings.model) as progress:
            find(settings.model, progress=progress, accept_license=settings.accepts_license)
    with garbage.hold_off():
        from cutaway.engine.loading.text_side import Opening
        from cutaway.kernels import torch_library

        opening = Opening(find(settings.model))
        torch_library.load()  # the tokenizer is made meanwhile
        from cutaway.service.llm import LLM

        llm = LLM(opening, **cast("EngineSettings", settings.engine))
    note_left_out(at_hand(settings.model))
    return llm


def bound_params(params: SamplingParams, *, default: int, num_left: int) -> SamplingParams:
    """The parameters with a bound of the answer: what was set, else the default where it fits.

    num_left: tokens of the context after the prompt.
    """
    if params.max_tokens is not None:
        return params
    return replace(params, max_tokens=max(1, min(max(default, params.min_tokens), num_left)))
