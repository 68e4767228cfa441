"""A trace in the formats of other tools: Chrome's trace viewer, OTLP, CSV, one page of HTML."""

from __future__ import annotations

import csv
import hashlib
import html
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import cast

from cutaway.trace.file import SavedView, TraceFile, Values

_TOKEN_COLUMNS = ("index", "step", "at", "id", "text", "logprob", "u", "logit", "logsumexp")
_STEP_COLUMNS = ("kernel", "began", "computed", "ended", "count", "others", "seconds", "bytes")
_NANOSECONDS = 1_000_000_000


def as_chrome(trace: TraceFile) -> str:
    """Trace Event JSON, for chrome://tracing and Perfetto. Units there: microseconds.

    Source: the Trace Event Format: slices (X), instants (i), counters (C) and metadata (M).
    """
    names = {**_THREADS, 0: f"cutaway {trace.section('model').get('name', '')}".rstrip()}
    labels = [
        {
            **{"name": "thread_name" if tid else "process_name", "ph": "M", "ts": 0},
            **{"pid": 1, "tid": tid, "args": {"name": name}},
        }
        for tid, name in sorted(names.items())
    ]
    queue = _slice("queue", "wait", 0.0, _number(trace.section("timings"), "queue"), thread=1)
    events = [*labels, queue, *_step_events(trace), *_token_events(trace)]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


_THREADS = {1: "request", 2: "forward", 3: "sampling", 4: "tokens"}


def _step_events(trace: TraceFile) -> Iterator[Values]:
    for step in trace.of_kind("step"):
        began, computed, ended = (_number(step, name) for name in ("began", "computed", "ended"))
        name = "prefill" if _number(step, "count") > 1 else "decode"
        title = f"{name} step {_cell(step.get('number'))}"
        yield _slice(title, name, began, ended, thread=1, args=_args(step))
        yield _slice("forward", name, began, computed, thread=2)
        yield _slice("sampling", name, computed, ended, thread=3)
        counts = {"its own": _number(step, "count"), "others": _number(step, "other_tokens")}
        yield _event("tokens in the step", "C", began, 1, {"args": counts})


def _token_events(trace: TraceFile) -> Iterator[Values]:
    for token in trace.of_kind("token"):
        name = token.get("text", f"token {_cell(token.get('index'))}")
        more = {"cat": "token", "s": "t", "args": _args(token)}
        yield _event(str(name), "i", _number(token, "at"), 4, more)


def _slice(
    name: str, category: str, began: float, ended: float, *, thread: int, args: Values | None = None
) -> Values:
    """Both ends are rounded, so that slices of a thread that touch never overlap."""
    length = max(0.0, round(_micro(ended) - _micro(began), 3))
    return _event(name, "X", began, thread, {"cat": category, "dur": length, "args": args or {}})


def _event(name: str, phase: str, at: float, thread: int, more: Values) -> Values:
    return {"name": name, "ph": phase, "ts": _micro(at), "pid": 1, "tid": thread, **more}


def _micro(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def _args(event: Values) -> Values:
    """What an event says, without numbers that JSON has no word for."""
    kept = {name: value for name, value in event.items() if name != "type"}
    return {n: v for n, v in kept.items() if not isinstance(v, float) or math.isfinite(v)}


def as_csv(trace: TraceFile) -> str:
    """A line per token of the answer, with the step that gave it."""
    steps = {str(step.get("number")): step for step in trace.of_kind("step")}
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow((*_TOKEN_COLUMNS, *(f"step_{name}" for name in _STEP_COLUMNS)))
    for token in trace.of_kind("token"):
        step = steps.get(str(token.get("step")), {})
        writer.writerow(
            [_cell(token.get(name)) for name in _TOKEN_COLUMNS]
            + [_cell(step.get(name)) for name in _STEP_COLUMNS]
        )
    return out.getvalue()


def _cell(value: object) -> object:
    """A value that no spreadsheet takes for a formula."""
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return "'" + value
    return "" if value is None else value


def as_otlp(trace: TraceFile) -> str:
    """OTLP in JSON: a span for the request, in it queue, prefill and each step.

    A trace knows no time of day: it begins at the epoch. Ids follow from its content.
    """
    seed = json.dumps([trace.section("timings"), len(trace.events)], sort_keys=True)
    trace_id = hashlib.sha256(seed.encode()).hexdigest()[:32]
    made = [
        {
            "traceId": trace_id,
            "spanId": f"{index + 1:016x}",
            **({"parentSpanId": f"{1:016x}"} if index else {}),
            "name": name,
            "kind": 1 if index else 2,  # internal; of a server
            "startTimeUnixNano": str(round(began * _NANOSECONDS)),
            "endTimeUnixNano": str(round(max(began, ended) * _NANOSECONDS)),
            "attributes": _attributes(attributes),
        }
        for index, (name, began, ended, attributes) in enumerate(_spans(trace))
    ]
    version = trace.manifest.get("cutaway")
    told = _attributes({"service.name": "cutaway", "service.version": version})
    scope = {"scope": {"name": "cutaway"}, "spans": made}
    return json.dumps(
        {"resourceSpans": [{"resource": {"attributes": told}, "scopeSpans": [scope]}]}
    )


def _spans(trace: TraceFile) -> Iterator[tuple[str, float, float, Values]]:
    """The request first. Names follow the conventions for generative AI, as the server's do."""
    ends = trace.of_kind("end")
    end = _number(ends[-1], "at") if ends else 0.0
    timings = trace.section("timings")
    queue, first = _number(timings, "queue"), _number(timings, "first_token")
    operation = "chat" if trace.of_kind("message") else "text_completion"
    model = trace.section("model").get("name")
    yield f"{operation} {model}", 0.0, end, {"gen_ai.operation.name": operation, **_asked(trace)}
    yield "queue", 0.0, queue, {}
    yield "prefill", queue, first, {}
    yield "decode", first, end, {}
    for step in trace.of_kind("step"):
        told = {f"cutaway.step.{name}": value for name, value in step.items() if name in _OF_A_STEP}
        number = _cell(step.get("number"))
        yield f"step {number}", _number(step, "began"), _number(step, "ended"), told


_OF_A_STEP = ("kernel", "start", "count", "rows", "drafts", "others", "seconds", "bytes", "flops")


def _asked(trace: TraceFile) -> Values:
    answer, sampling = trace.section("answer"), trace.section("sampling")
    reason = answer.get("finish_reason")
    params = ("temperature", "top_p", "top_k", "max_tokens", "seed")
    return {
        "gen_ai.provider.name": "cutaway",
        "gen_ai.request.model": trace.section("model").get("name"),
        **{f"gen_ai.request.{name}": sampling.get(name) for name in params},
        "gen_ai.usage.input_tokens": answer.get("num_prompt_tokens"),
        "gen_ai.usage.cache_read.input_tokens": answer.get("num_cached"),
        "gen_ai.usage.output_tokens": answer.get("num_tokens"),
        "gen_ai.response.finish_reasons": None if reason is None else [reason],
    }


def _attributes(values: Values) -> list[Values]:
    """What is not known is left out."""
    found = [(key, _any_value(value)) for key, value in values.items()]
    return [{"key": key, "value": value} for key, value in found if value is not None]


def _any_value(value: object) -> Values | None:
    """A value as OTLP's JSON writes it: integers of 64 bits are strings there."""
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value} if math.isfinite(value) else None
        case str():
            return {"stringValue": value}
        case list():
            each = (_any_value(item) for item in cast("list[object]", value))
            return {"arrayValue": {"values": [item for item in each if item is not None]}}
        case _:
            return None


def as_html(trace: TraceFile) -> str:
    """One page without script or reference: the answer as chips, figures, every view's picture."""
    answer, model = trace.section("answer"), trace.section("model")
    title = f"Cutaway: {model.get('name')}, {answer.get('num_tokens')} tokens"
    figures = "".join(
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(_shown(value))}</td></tr>"
        for section in ("answer", "timings", "sampling")
        for name, value in trace.section(section).items()
    )
    return (
        f"<!doctype html>\n<html lang=en><meta charset=utf-8><title>{html.escape(title)}</title>"
        f"<style>{_STYLE}</style>\n<h1>{html.escape(title)}</h1>\n{_chips(trace)}"
        f"<table>{figures}</table>\n" + "".join(map(_section, trace.views)) + "</html>\n"
    )


def _shown(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _chips(trace: TraceFile) -> str:
    prompts = trace.of_kind("prompt")
    asked = cast("list[object]", prompts[0].get("texts") or []) if prompts else []
    given = [token.get("text") for token in trace.of_kind("token") if "text" in token]
    rows = (("prompt", asked), ("answer", given))
    return "".join(
        f"<h2>{name}</h2><p>"
        + "".join(f"<span class=chip>{html.escape(str(text))}</span>" for text in texts)
        + "</p>\n"
        for name, texts in rows
        if texts
    )


def _section(view: SavedView) -> str:
    lines = "\n".join(
        "".join(
            html.escape(text)
            if style == "plain"
            else f'<span class="{html.escape(style)}">{html.escape(text)}</span>'
            for text, style in line
        ).rstrip()
        for line in view.lines
    )
    proof = view.proof or "from the record"
    return (
        f"<h2>{html.escape(view.name)}: {html.escape(view.question)}</h2>"
        f"<p class=dim>{html.escape(proof)}</p><pre>{lines}</pre>\n"
    )


_STYLE = (
    ":root{color-scheme:light dark}body{font:16px system-ui;max-width:66em;margin:2em auto;"
    "padding:0 1em}pre{font:13px/1.25 monospace;overflow:auto}.dim{opacity:.7}"
    ".strong{font-weight:bold}.good{color:#2a8a2a}.bad{color:#c33}th{text-align:left;"
    "padding-right:1em}.chip{display:inline-block;white-space:pre;border:1px solid #8888;"
    "border-radius:3px;margin:1px;padding:0 3px;font-family:monospace}"
    ".token-0{color:#08a}.token-1{color:#a70}.token-2{color:#a3a}.token-3{color:#2a8a2a}"
    ".token-4{color:#47d}.token-5{color:#d44}"
)

FORMATS: Mapping[str, Callable[[TraceFile], str]] = {
    "chrome": as_chrome,
    "csv": as_csv,
    "otlp": as_otlp,
    "html": as_html,
}


def _number(values: Values, name: str) -> float:
    """A number of an event; 0 where a stranger's file has none."""
    value = values.get(name)
    if isinstance(value, int | float) and abs(value) < 1e12:
        return float(value)
    return 0.0
