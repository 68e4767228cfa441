"""What every route needs: the engine's service, the text side of the model, settings, numbers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cutaway.core.errors import RequestError
from cutaway.core.limits import quote
from cutaway.core.request import Request, SamplingParams
from cutaway.engine.loading.template_of import compiled_template, template_source_of
from cutaway.engine.loading.tokenizer_of import tokenizer_of
from cutaway.server.error_replies import HttpError, ModelUnknownError, fault_of
from cutaway.server.lesson_process import LessonProcess
from cutaway.server.server_config import ServerConfig
from cutaway.server.watching.metrics import Metrics
from cutaway.server.worker import Worker
from cutaway.service.bounds import ProcessConfig
from cutaway.service.service import AdapterCard, Service
from cutaway.text.long_renderings import LongRenderings
from cutaway.text.template import ChatTemplate
from cutaway.tokens.fewest_tokens import FewestTokens
from cutaway.tokens.tokenizer import Tokenizer
from cutaway.weights.find.find import Found

if TYPE_CHECKING:
    from cutaway.server.openai.kept import Kept
    from cutaway.server.watching.spans import Spans


# What makes answers, each of which takes one of the places that owners share.
ANSWERING = frozenset(("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"))


@dataclass(kw_only=True)
class Context:
    """One served model.

    name:     what requests call it.
    sampling: what the model's makers recommend; it stands where a request says nothing.
    store:    where answers of the Responses API are kept, if anybody asked for that.
    runs:     the folder whose runs of training can be followed.
    lesson:   the run of training that this server itself makes there, where one asks for it.
    spans:    where requests are told as spans, if anybody asked for that.
    max_silent_seconds: without a sign of work of the engine; then nothing is taken in.
    """

    service: Service
    config: ServerConfig
    name: str
    tokenizer: Tokenizer
    template_source: str | None
    sampling: Mapping[str, float] = field(default_factory=dict[str, float])
    store: Kept | None = None
    runs: Path = Path("runs")
    lesson: LessonProcess = field(default_factory=LessonProcess)
    spans: Spans | None = None
    max_silent_seconds: float = ProcessConfig.hang_seconds
    worker: Worker = field(default_factory=Worker)
    renderings: LongRenderings = field(default_factory=LongRenderings)
    created: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def of(cls, found: Found, service: Service, config: ServerConfig, *, name: str = "") -> Context:
        """The context of a found model; its name is its own unless another is given."""
        return cls(
            service=service,
            config=config,
            name=name or found.name,
            tokenizer=tokenizer_of(found),
            template_source=template_source_of(found),
            sampling=found.sampling,
        )

    @cached_property
    def metrics(self) -> Metrics:
        """The numbers of this model."""
        return Metrics(self.name)

    @cached_property
    def fewest_tokens(self) -> FewestTokens:
        """How many tokens texts have in any case."""
        return FewestTokens(self.tokenizer)

    @cached_property
    def template(self) -> ChatTemplate:
        """The chat template, compiled at first use: it may be at fault, and plain prompts work.

        Raises: TemplateError when there is none, or it is at fault.
        """
        return compiled_template(
            self.template_source,
            name=self.name,
            tokenizer=self.tokenizer,
            elsewhere=self.renderings,
        )

    def sampling_params(self, asked: Mapping[str, object]) -> SamplingParams:
        """What is asked for, else what the model's makers recommend, else the defaults.

        None counts as not asked. Raises: RequestError naming the field.
        """
        chosen: dict[str, Any] = {**self.sampling}
        chosen.update((name, value) for name, value in asked.items() if value is not None)
        return SamplingParams(**chosen)

    def deadline(self, timeout: float | None) -> float:
        """Seconds that an answer may take: what its request asks for, else the server's own most.

        Raises: RequestError for more than that.
        """
        most = self.config.request_seconds
        if timeout is not None and timeout > most:
            raise RequestError(
                f"timeout is {timeout:g}; this server gives an answer at most {most:g} seconds. "
                "Ask for less, or leave it out.",
                param="timeout",
            )
        return most if timeout is None else timeout

    @property
    def adapters(self) -> tuple[AdapterCard, ...]:
        """Those that requests can name; none are known while the model is being loaded."""
        return self.service.model.adapters if self.service.state == "ready" else ()

    def check_model(self, name: str) -> None:
        """Raise ModelUnknownError for any name but the served one and its adapters'."""
        names = (self.name, *(each.name for each in self.adapters))
        if name not in names:
            raise ModelUnknownError(name, served=", ".join(names))

    def lora_of(self, model: str, lora: str | None) -> str:
        """The adapter that a request wants, by its model's name or a field of its own.

        Raises: ModelUnknownError, RequestError naming the field.
        """
        self.check_model(model)
        if model != self.name:
            if lora not in (None, "", model):
                raise RequestError(
                    f"lora is {quote(lora)} and model names the adapter {quote(model)}; leave out "
                    "one of the two.",
                    param="lora",
                )
            return model
        if lora and lora != "off" and lora not in {each.name for each in self.adapters}:
            known = ", ".join(each.name for each in self.adapters) or "none"
            raise RequestError(f"lora is {quote(lora)}; loaded are: {known}.", param="lora")
        return lora or ""

    def name_of(self, request: Request) -> str:
        """What answers to a request call their model: the adapter, where it has one."""
        return self.name if request.lora in ("", "off") else request.lora

    def refusal(self, path: str, owner: str, num_coming: int) -> HttpError | None:
        """Why a request of an owner is not taken in now, before its body is parsed.

        Who has all the answers that it may have hears it here: to parse and tokenize what is then
        refused took 1.7 ms of this process each.

        num_coming: requests of the owner that are read and not with the engine yet.
        """
        fault = self.why_closed()
        if fault is not None or path not in ANSWERING:
            return fault
        refused = self.service.refusal(owner, num_coming)
        return None if refused is None else fault_of(refused)

    def why_closed(self) -> HttpError | None:
        """Why no work is taken in now, if it is not."""
        state = self.service.state
        if state == "ready":
            return None if self.service.silent_seconds < self.max_silent_seconds else _stuck()
        words = {
            "starting": "the model is being loaded. Try again in a few seconds.",
            "draining": "this server is about to end. Ask another, or try again later.",
        }
        return HttpError(
            status=503,
            message=words.get(state, "the engine is down and comes back by itself. Try again."),
            code={"starting": "starting", "draining": "draining"}.get(state, "engine_unavailable"),
            retry_after=30 if state == "draining" else 5,
        )


def _stuck() -> HttpError:
    return HttpError(
        status=503,
        message="the engine does not move. Try again in a minute.",
        code="engine_stuck",
        retry_after=60,
    )
