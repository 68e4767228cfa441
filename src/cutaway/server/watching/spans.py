"""Requests as spans of OpenTelemetry: one each, and in it where its time went. Never their content.

Names follow the conventions for generative AI, which are still in development, so all of them stand
here. Imported only when spans are asked for: it needs `pip install cutaway[otel]`. Spans are made
when an answer has ended, from the times that the engine told; nothing is done per token.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from time import perf_counter

from opentelemetry.context import Context as TraceContext
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from cutaway import __version__
from cutaway.core.output import Delta
from cutaway.core.request import Request, SamplingParams
from cutaway.host.ports import split_url
from cutaway.server.entry.door import HttpCall

_PATH = "/v1/traces"  # where a receiver of OTLP takes spans, unless it says otherwise
_BILLION = 1_000_000_000

# Parameters that the conventions have a name for, and that hold nothing of what was said.
_PARAMS = {
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "max_tokens": "gen_ai.request.max_tokens",
    "seed": "gen_ai.request.seed",
}

Attributes = Mapping[str, str | bool | int | float | list[str]]


# The end of each choice, and when it was heard, by perf_counter.
Endings = Sequence[tuple[float, Delta]]


class Spans:
    """Makes spans and sends them to a receiver.

    endpoint: its address, as http://127.0.0.1:4318. OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES,
    OTEL_TRACES_SAMPLER and OTEL_EXPORTER_OTLP_HEADERS are obeyed by OpenTelemetry itself.

    Raises: ConfigError for what is no address.
    """

    def __init__(self, endpoint: str, *, model: str) -> None:
        self._provider = TracerProvider(resource=_resource())
        exporter = OTLPSpanExporter(endpoint=_url(endpoint))
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("cutaway", __version__)
        self._model = model

    def tell(
        self, call: HttpCall, request: Request, endings: Endings, *, fault: str | None
    ) -> None:
        """A request has ended. fault: why, where it did not come to its end."""
        # One look at the wall clock for all: it may be set back or forth between two of them.
        now, clock = time.time_ns(), perf_counter()
        came = now - round((clock - call.began) * _BILLION)
        span = self._tracer.start_span(
            f"{call.operation} {self._model}",
            context=_parent(call),
            kind=SpanKind.SERVER,
            start_time=came,
            attributes={
                "gen_ai.operation.name": call.operation,
                "gen_ai.provider.name": "cutaway",
                "gen_ai.request.model": self._model,
                "gen_ai.response.model": self._model,
                "gen_ai.response.id": request.request_id,
                "cutaway.request_id": call.request_id,
                **_asked(request.params),
                **_counts(endings),
            },
        )
        if fault is not None:
            span.set_attribute("error.type", fault)
            span.set_status(Status(StatusCode.ERROR))
        for heard, delta in endings:
            ended = now - round((clock - heard) * _BILLION)
            self._stages(span, delta, came=came, ended=ended)
        span.end(now)

    def _stages(self, span: Span, delta: Delta, *, came: int, ended: int) -> None:
        """Where the time of one choice went, counted back from its end."""
        times = delta.timings
        if times is None:
            return
        decode = ended - round(times.decode * _BILLION)
        prefill = decode - round(times.prefill * _BILLION)
        queue = prefill - round(times.queue * _BILLION)
        parts = [("queue", queue, prefill), ("prefill", prefill, decode), ("decode", decode, ended)]
        if delta.choice == 0:
            parts.insert(0, ("prepare", came, max(came, queue)))  # JSON, template, tokens
        own = {"cutaway.choice": delta.choice}
        for name, start, end in parts:
            part = self._tracer.start_span(
                name, context=set_span_in_context(span), start_time=start, attributes=own
            )
            if name == "decode":
                part.set_attribute("cutaway.detokenize_seconds", times.detokenize)
            part.end(end)

    def close(self) -> None:
        """Send what is left, and end."""
        self._provider.shutdown()


def _resource() -> Resource:
    """Who tells: the name of the environment, else our own."""
    found = Resource.create({"service.version": __version__})
    is_named = not str(found.attributes.get("service.name", "unknown_")).startswith("unknown_")
    return found if is_named else found.merge(Resource({"service.name": "cutaway"}))


def _url(endpoint: str) -> str:
    parts = split_url(
        endpoint, "otlp_endpoint", schemes=("http", "https"), example="http://127.0.0.1:4318"
    )
    return endpoint if parts.path.strip("/") else f"{endpoint.rstrip('/')}{_PATH}"


def _parent(call: HttpCall) -> TraceContext:
    """The span of whoever asked, if it sent one."""
    carrier = {} if call.trace_parent is None else {"traceparent": call.trace_parent}
    return TraceContextTextMapPropagator().extract(carrier, context=TraceContext())


def _asked(params: SamplingParams) -> Attributes:
    given = {name: getattr(params, own) for own, name in _PARAMS.items()}
    asked: dict[str, int | float] = {n: value for n, value in given.items() if value is not None}
    return asked if params.n == 1 else {**asked, "gen_ai.request.choice.count": params.n}


def _counts(endings: Endings) -> Attributes:
    """Token counts over all choices; the prompt counts once."""
    usages = [delta.usage for _, delta in endings if delta.usage is not None]
    reasons = [delta.finish_reason for _, delta in endings if delta.finish_reason is not None]
    counts: Attributes = {"gen_ai.response.finish_reasons": [str(reason) for reason in reasons]}
    if not usages:
        return counts
    return {
        **counts,
        "gen_ai.usage.input_tokens": usages[0].prompt_tokens,
        "gen_ai.usage.cache_read.input_tokens": usages[0].cached_tokens,
        "gen_ai.usage.output_tokens": sum(usage.completion_tokens for usage in usages),
    }
