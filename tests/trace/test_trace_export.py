"""Traces as other tools read them, and two traces compared."""

from __future__ import annotations

import csv
import io
import json
import math
import random
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from cutaway.trace.difference import difference
from cutaway.trace.export import FORMATS
from cutaway.trace.file import SavedView, TraceFile, Values

RUN = {"kernel": "native", "other_tokens": 4, "seconds": 0.01}
TEXT = "=SUM(1) <script>alert(1)</script>"


def step(number: int, began: float, count: int) -> Values:
    times = {"began": began, "computed": began + 0.03, "ended": began + 0.04}
    return {"type": "step", "number": number, "count": count, "others": 2, **RUN, **times}


def token(index: int, at: float, token_id: int, text: str) -> Values:
    place = {"type": "token", "index": index, "step": 7 + index, "at": at}
    return {**place, "id": token_id, "text": text, "logprob": -0.5 * (index + 1)}


def trace() -> TraceFile:
    manifest = {
        "model": {"name": "m"},
        "answer": {
            "num_prompt_tokens": 3,
            "num_tokens": 2,
            "num_cached": 1,
            "finish_reason": "length",
        },
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
    tokens = [(e["name"], e["ts"], e["args"]["id"]) for e in events if e["ph"] == "i"]
    assert tokens == [(TEXT, 50_000.0, 5), ("x", 110_000.0, 6)]
    assert next(e["args"] for e in events if e["ph"] == "C") == {"its own": 3, "others": 4}


def test_chrome_keeps_the_rules_of_the_trace_event_format() -> None:
    """Fields that its documentation asks of each phase, and slices of a thread that nest."""
    chance, clock = random.Random(0), 1.0
    steps: list[Values] = []
    for number in range(500):
        clock += chance.choice([0.0, 1e-7, 0.0123])
        ends = sorted(clock + chance.random() * 0.01 for _ in range(2))
        times = {"began": clock, "computed": ends[0], "ended": ends[1]}
        steps.append({**step(number, 0.0, chance.randint(1, 3)), **times})
        clock = ends[1]
    told = json.loads(
        FORMATS["chrome"](replace(trace(), events=(*trace().events, *steps))),
        parse_constant=lambda word: pytest.fail(f"{word} is no JSON"),
    )
    assert told["displayTimeUnit"] in ("ms", "ns")
    open_slices: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in told["traceEvents"]:
        assert isinstance(event["name"], str) and event["ph"] in "XiCM"
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int)
        assert event["ts"] >= 0
        match event["ph"]:
            case "X":
                assert isinstance(event["cat"], str) and event["dur"] >= 0
                place = (event["pid"], event["tid"])
                open_slices.setdefault(place, []).append((event["ts"], event["ts"] + event["dur"]))
            case "i":
                assert event["s"] in ("g", "p", "t")
            case "C":
                assert all(isinstance(n, int | float) for n in event["args"].values())
            case _:
                assert event["name"] in ("process_name", "thread_name") and event["args"]["name"]
    for slices in open_slices.values():
        slices.sort()
        for (_, end), (began, _) in pairwise(slices):
            assert began >= end - 1e-6, "two slices of a thread overlap"


def test_csv_has_a_line_per_token_and_no_formula() -> None:
    rows = list(csv.DictReader(io.StringIO(FORMATS["csv"](trace()))))
    assert [row["id"] for row in rows] == ["5", "6"]
    assert rows[0]["text"] == "'" + TEXT and rows[1]["step_began"] == "0.07"


def test_otlp_nests_spans_under_the_request() -> None:
    (resource,) = json.loads(FORMATS["otlp"](trace()))["resourceSpans"]
    (scope,) = resource["scopeSpans"]
    root, *others = scope["spans"]
    by_name = {span["name"]: span for span in others}
    assert root["name"] == "text_completion m" and root["kind"] == 2
    assert "parentSpanId" not in root
    assert all(span["parentSpanId"] == root["spanId"] for span in others)
    assert by_name["prefill"]["startTimeUnixNano"] == "10000000"
    assert by_name["step 8"]["endTimeUnixNano"] == "110000000"
    told = {each["key"]: each["value"] for each in root["attributes"]}
    assert told["gen_ai.usage.output_tokens"] == {"intValue": "2"}
    assert told["gen_ai.request.temperature"] == {"doubleValue": 0.5}
    assert told["gen_ai.response.finish_reasons"]["arrayValue"]["values"] == [
        {"stringValue": "length"}
    ]
    assert "gen_ai.request.seed" not in told, "what is not known is left out"
    asked = ({"type": "message", "role": "user"}, *trace().events)
    (resource,) = json.loads(FORMATS["otlp"](replace(trace(), events=asked)))["resourceSpans"]
    assert resource["scopeSpans"][0]["spans"][0]["name"] == "chat m"


def test_otlp_keeps_the_rules_of_its_json() -> None:
    """Ids in hexadecimal, 64-bit integers as strings, one kind of value for each attribute."""
    (resource,) = json.loads(FORMATS["otlp"](trace()))["resourceSpans"]
    spans = resource["scopeSpans"][0]["spans"]
    assert len({span["spanId"] for span in spans}) == len(spans)
    for span in spans:
        assert len(span["traceId"]) == 32 and int(span["traceId"], 16) > 0
        assert len(span["spanId"]) == 16 and int(span["spanId"], 16) > 0
        assert int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"])
        assert isinstance(span["startTimeUnixNano"], str) and span["kind"] in range(1, 6)
        for attribute in span["attributes"]:
            ((kind, value),) = attribute["value"].items()
            types = {"intValue": str, "doubleValue": float, "stringValue": str, "arrayValue": dict}
            assert isinstance(value, types[kind]), attribute


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
    times = {"began": math.inf, "computed": 10**400, "ended": -1}
    steps: tuple[Values, ...] = (
        {"type": "step", "began": "x"},
        {"type": "step", "number": [], **times},
    )
    odd = TraceFile(
        {"model": 3}, (*steps, {"type": "token"}, {"type": "token", "at": math.nan}), ()
    )
    for name, form in FORMATS.items():
        told = form(odd)
        assert isinstance(told, str), name
        if name in ("chrome", "otlp"):
            json.loads(told, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


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
