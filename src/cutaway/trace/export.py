"""A trace in the formats of other tools: Chrome's trace viewer, OTLP, CSV, one page of HTML."""

from __future__ import annotations

import csv
import hashlib
import html
import io
import json
from collections.abc import Callable, Iterator, Mapping
from typing import cast

from cutaway.trace.file import SavedView, TraceFile, Values

_TOKEN_COLUMNS = ("index", "step", "at", "id", "text", "logprob", "u", "logit", "logsumexp")
_STEP_COLUMNS = ("kernel", "began", "computed", "ended", "count", "others", "seconds", "bytes")
_NANOSECONDS = 1_000_000_000


def as_chrome(trace: TraceFile) -> str:
    """Trace Event JSON, for chrome://tracing and Perfetto. Units there: microseconds."""
    events = [
        _complete("queue", 0.0, _number(trace.section("timings"), "queue"), 1, {}),
        *(_step_events(trace)),
    ]
    names = ((1, "request"), (2, "forward"), (3, "sampling"))
    threads = [
        {"name": "thread_name", "ph": "M", "pid": 1, "tid": tid, "args": {"name": name}}
        for tid, name in names
    ]
    return json.dumps({"traceEvents": [*threads, *events], "displayTimeUnit": "ms"})


def _step_events(trace: TraceFile) -> Iterator[Mapping[str, object]]:
    for step in trace.of_kind("step"):
        began, computed, ended = (_number(step, name) for name in ("began", "computed", "ended"))
        args = {name: value for name, value in step.items() if name != "type"}
        name = "prefill" if _number(step, "count") > 1 else "decode"
        yield _complete(f"{name} step {step.get('number')}", began, ended, 1, args)
        yield _complete("forward", began, computed, 2, {})
        yield _complete("sampling", computed, ended, 3, {})


def _complete(
    name: str, began: float, ended: float, thread: int, args: Values
) -> Mapping[str, object]:
    micro = {"ts": round(began * 1e6, 1), "dur": round((ended - began) * 1e6, 1)}
    return {"name": name, "ph": "X", "pid": 1, "tid": thread, "args": args, **micro}


def as_csv(trace: TraceFile) -> str:
    """A line per token of the answer, with the step that gave it."""
    steps = {step.get("number"): step for step in trace.of_kind("step")}
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow((*_TOKEN_COLUMNS, *(f"step_{name}" for name in _STEP_COLUMNS)))
    for token in trace.of_kind("token"):
        step = steps.get(token.get("step"), {})
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
    answer, model = trace.section("answer"), trace.section("model")
    ends = trace.of_kind("end")
    end = _number(ends[-1], "at") if ends else 0.0
    queue, first = (_number(trace.section("timings"), n) for n in ("queue", "first_token"))
    spans: list[tuple[str, float, float, Values]] = [
        ("chat", 0.0, end, {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "cutaway",
            "gen_ai.request.model": model.get("name"),
            "gen_ai.usage.input_tokens": answer.get("num_prompt_tokens"),
            "gen_ai.usage.cache_read.input_tokens": answer.get("num_cached"),
            "gen_ai.usage.output_tokens": answer.get("num_tokens"),
        }),
        ("queue", 0.0, queue, {}),
        ("prefill", queue, first, {}),
        ("decode", first, end, {}),
        *(
            (f"step {s.get('number')}", _number(s, "began"), _number(s, "ended"), {
                "cutaway.tokens": s.get("count"), "cutaway.others": s.get("others"),
            })
            for s in trace.of_kind("step")
        ),
    ]  # fmt: skip
    made = [
        {
            "traceId": trace_id,
            "spanId": f"{index + 1:016x}",
            **({"parentSpanId": f"{1:016x}"} if index else {}),
            "name": name,
            "kind": 1,
            "startTimeUnixNano": str(round(began * _NANOSECONDS)),
            "endTimeUnixNano": str(round(ended * _NANOSECONDS)),
            "attributes": [_attribute(key, value) for key, value in attributes.items()],
        }
        for index, (name, began, ended, attributes) in enumerate(spans)
    ]
    resource = {"attributes": [_attribute("service.name", "cutaway")]}
    scope = {"scope": {"name": "cutaway"}, "spans": made}
    return json.dumps({"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]})


def _attribute(key: str, value: object) -> Mapping[str, object]:
    if isinstance(value, int):
        return {"key": key, "value": {"intValue": str(value)}}
    return {"key": key, "value": {"stringValue": "" if value is None else str(value)}}


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
    return float(value) if isinstance(value, int | float) else 0.0
