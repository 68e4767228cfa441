"""Traces as other tools read them, and two traces compared."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from cutaway.trace.difference import difference
from cutaway.trace.export import FORMATS
from cutaway.trace.file import SavedView, TraceFile, Values

TEXT = "=SUM(1) <script>alert(1)</script>"


def step(number: int, began: float, count: int) -> Values:
    times = {"began": began, "computed": began + 0.03, "ended": began + 0.04}
    return {"type": "step", "number": number, "count": count, "others": 2, "seconds": 0.01, **times}


def token(index: int, at: float, token_id: int, text: str) -> Values:
    place = {"type": "token", "index": index, "step": 7 + index, "at": at}
    return {**place, "id": token_id, "text": text, "logprob": -0.5 * (index + 1)}


def trace() -> TraceFile:
    manifest = {
        "model": {"name": "m"},
        "answer": {"num_prompt_tokens": 3, "num_tokens": 2, "num_cached": 1},
        "sampling": {"temperature": 0.5},
        "timings": {"queue": 0.01, "prefill": 0.04, "first_token": 0.05, "decode": 0.06},
    }
    events = (
        {"type": "prompt", "ids": [1, 2, 3], "texts": ["a", "b", "c"]},
        step(7, 0.01, 3),
        token(0, 0.05, 5, TEXT),
        step(8, 0.07, 1),
        token(1, 0.11, 6, "x"),
        {"type": "end", "at": 0.11, "reason": "length", "text": TEXT + "x"},
    )
    lines = ((("1 < 2 ", "plain"), ("strong", "strong")),)
    return TraceFile(manifest, events, (SavedView("some", "Why?", None, lines, {}),))


def test_chrome_has_a_slice_per_step() -> None:
    events = json.loads(FORMATS["chrome"](trace()))["traceEvents"]
    slices = {e["name"]: (e["ts"], e["dur"], e["tid"]) for e in events if e["ph"] == "X"}
    assert slices["queue"] == (0.0, 10_000.0, 1)
    assert slices["prefill step 7"] == (10_000.0, 40_000.0, 1)
    assert slices["decode step 8"] == (70_000.0, 40_000.0, 1)
    assert slices["forward"][2] != slices["sampling"][2] != 1


def test_csv_has_a_line_per_token_and_no_formula() -> None:
    rows = list(csv.DictReader(io.StringIO(FORMATS["csv"](trace()))))
    assert [row["id"] for row in rows] == ["5", "6"]
    assert rows[0]["text"] == "'" + TEXT and rows[1]["step_began"] == "0.07"


def test_otlp_nests_spans_under_the_request() -> None:
    (resource,) = json.loads(FORMATS["otlp"](trace()))["resourceSpans"]
    (scope,) = resource["scopeSpans"]
    by_name = {span["name"]: span for span in scope["spans"]}
    root = by_name["chat"]
    assert "parentSpanId" not in root and len(root["traceId"]) == 32
    assert all(s.get("parentSpanId") == root["spanId"] for n, s in by_name.items() if n != "chat")
    assert by_name["prefill"]["startTimeUnixNano"] == "10000000"
    assert by_name["step 8"]["endTimeUnixNano"] == "110000000"
    told = {each["key"]: each["value"] for each in root["attributes"]}
    assert told["gen_ai.usage.output_tokens"] == {"intValue": "2"}


def test_html_has_no_script_and_no_reference() -> None:
    page = FORMATS["html"](trace())
    tags: list[tuple[str, dict[str, str | None]]] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            tags.append((tag, dict(attrs)))

    Reader().feed(page)
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in tags}
    assert all(set(attributes) <= {"class", "lang", "charset"} for _, attributes in tags)
    assert "&lt;script&gt;" in page and "1 &lt; 2" in page and 'class="strong"' in page


def test_a_strangers_trace_is_exported_as_far_as_it_goes() -> None:
    odd = TraceFile({"model": 3}, ({"type": "step", "began": "x"}, {"type": "token"}), ())
    for name, form in FORMATS.items():
        assert isinstance(form(odd), str), name


def test_two_traces_and_what_differs() -> None:
    left = trace()
    same = difference(left, trace())
    assert same.is_same and same.first_token is None and same.logprob == 0
    changed = {**left.manifest, "sampling": {"temperature": 1.0}}
    events = [
        {**event, "id": 9, "text": "y"} if event.get("index") == 1 else event
        for event in left.events
    ]
    found = difference(left, TraceFile(changed, tuple(events), ()))
    assert found.settings == (("sampling.temperature", 0.5, 1.0),)
    assert (found.first_token, found.texts) == (1, ("x", "y")) and not found.is_same
    assert dict((n, (a, b)) for n, a, b in found.timings)["between tokens, median"] == (
        pytest.approx(0.06),
        pytest.approx(0.06),
    )
    shorter = replace(left, events=tuple(e for e in left.events if e.get("index") != 1))
    assert difference(left, shorter).texts == ("x", "(the end)")


def test_redacted_traces_do_not_tell() -> None:
    events = ({"type": "prompt", "count": 3}, {"type": "token", "index": 0, "at": 0.1})
    hidden = TraceFile({}, events, ())
    found = difference(hidden, hidden)
    assert found.same_prompt is None and found.first_token is None and found.logprob is None
