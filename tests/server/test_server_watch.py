"""What can be watched: metrics and log lines; and what must never be seen there."""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from server_app import answered, chat, completion

from cutaway.server import body as bodies
from cutaway.server.entry.auth import Keys
from cutaway.server.looks import views
from cutaway.server.route_context import Context
from cutaway.server.watching import log
from cutaway.server.watching.metrics import Metrics
from cutaway.service import view_queue
from cutaway.service.service import EngineStats, FleetStats, GuessCount, ReplicaStats

# Stems that vLLM's dashboards read; ours begin with cutaway: instead of vllm:.
STEMS = (
    *("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"),
    *("num_preemptions_total", "prompt_tokens_total", "generation_tokens_total"),
    *("prefix_cache_queries_total", "prefix_cache_hits_total"),
    *("time_to_first_token_seconds_bucket", "inter_token_latency_seconds_bucket"),
    *("e2e_request_latency_seconds_bucket", "request_queue_time_seconds_bucket"),
    *("request_prefill_time_seconds_bucket", "request_decode_time_seconds_bucket"),
    *("request_inference_time_seconds_bucket", "request_success_total"),
    *("request_params_n_bucket", "request_params_max_tokens_bucket"),
    *("spec_decode_num_draft_tokens_total", "spec_decode_num_accepted_tokens_total"),
    "spec_decode_num_drafts_total",
)
DOCS = Path(__file__).parents[2] / "docs"
CANARY, KEY = "canary-content-7f3a", "key-canary-5d2e9b81"


def value(text: str, name: str, **labels: str) -> float:
    """A number of the exposition."""
    wanted = "".join(f'[^}}]*{label}="{value}"' for label, value in sorted(labels.items()))
    found = re.search(rf"^cutaway:{name}{{{wanted}[^}}]*}} (\S+)$", text, re.MULTILINE)
    assert found, f"{name} {labels} is in\n{text}"
    return float(found[1])


def test_metrics_have_vllms_stems_and_count_what_happened(asked: Callable[..., Any]) -> None:
    async def ask(http: httpx2.AsyncClient, _: Context) -> str:
        await http.post("/v1/chat/completions", json=chat(n=2, ignore_eos=True))
        await http.post("/v1/completions", json=completion("hello", ignore_eos=True))
        await http.post("/v1/completions", json=completion(n=0))
        return (await http.get("/metrics")).text

    text = asked(ask)
    for stem in STEMS:
        assert f"\ncutaway:{stem}" in text, stem
    assert value(text, "generation_tokens_total") == 24
    assert value(text, "prompt_tokens_total") == len("user: hello\nassistant:") + 5
    assert value(text, "request_success_total", finished_reason="length") == 3
    assert value(text, "time_to_first_token_seconds_count") == 3
    assert value(text, "inter_token_latency_seconds_count") == 21
    assert value(text, "num_requests_running") == 0
    assert value(text, "http_requests_total", route="/v1/completions", status="400") == 1


def test_guesses_are_counted_by_drafter_and_place() -> None:
    counts = (
        GuessCount("model", 0, 9, 6),
        GuessCount("model", 1, 6, 5),
        GuessCount("ngram", 0, 4, 1),
    )
    text = Metrics("m").text(EngineStats(guesses=counts)).decode()
    assert value(text, "spec_decode_num_drafts_total") == 13
    for each in counts:
        where = {"drafter": each.drafter, "position": str(each.place)}
        name = "spec_decode_num_{}_tokens_per_pos_total"
        assert value(text, name.format("accepted"), **where) == each.right
        assert value(text, name.format("tried"), **where) == each.tried


def test_every_metric_stands_on_a_page() -> None:
    engine = EngineStats(running=1)
    fleet = FleetStats(
        replicas=(ReplicaStats(name="a", state="ready", numbers=engine),),
        resumed={"yes": 1},
        routes={"cache": 1},
    )
    text = Metrics("m").text(replace(engine, fleet=fleet)).decode()
    typed = re.findall(r"^# TYPE cutaway:(\w+) (\w+)$", text, re.MULTILINE)
    names = {name for name, _ in typed if not name.endswith("_created")}
    assert len(names) > 40
    pages = "".join((DOCS / name).read_text("utf-8") for name in ("serve.md", "fleet.md"))
    told = set(re.findall(r"`(\w+)`", pages))
    # Those of an engine are told once: a replica's have its word before the same name.
    assert {name.removeprefix("replica_") for name in names - told} - told == set()


def test_metrics_answer_while_the_engine_is_down(asked: Callable[..., Any]) -> None:
    async def ask(http: httpx2.AsyncClient, context: Context) -> Any:
        await context.service.close()
        return await http.get("/metrics")

    answer = asked(ask)
    assert answer.status_code == 200 and "num_requests_running" not in answer.text


@pytest.mark.parametrize("form", ["json", "text"])
def test_no_content_and_no_key_is_logged_counted_or_told(
    asked: Callable[..., Any], form: log.Form, capfd: pytest.CaptureFixture[str]
) -> None:
    async def ask(http: httpx2.AsyncClient, context: Context) -> list[str]:
        path = "/v1/chat/completions"
        bad_key = {"authorization": f"Bearer {KEY}x"}
        await http.post(path, json=chat(CANARY))
        await http.post(path, json=chat(CANARY, stream=True, stop=[CANARY]))
        await http.post(path, json=chat(CANARY, user=CANARY, n=0))
        await http.post(path, json=chat(CANARY), headers=bad_key)
        await http.get(f"/{CANARY}?key={KEY}")

        def fail(*_: object, **__: object) -> object:
            raise RuntimeError(CANARY)

        context.template.render = fail  # type: ignore[method-assign]
        failed = await http.post(path, json=chat(CANARY))
        assert failed.status_code == 500
        return [failed.text, (await http.get("/metrics")).text]

    with log.writing(form):
        told = asked(ask, keys=Keys([("alice", KEY)]), key=KEY)
    logged = capfd.readouterr().err
    assert logged.count("request_id") >= 7 and "alice" in logged
    for text in (logged, *told):
        assert CANARY not in text and KEY not in text


def test_json_lines_are_json_and_hold_ids_sizes_and_times(
    asked: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    async def ask(http: httpx2.AsyncClient, _: Context) -> Any:
        return await http.post("/v1/chat/completions", json=chat())

    with caplog.at_level(logging.INFO, logger="cutaway.server"):
        answer = asked(ask)
    (record,) = [each for each in caplog.records if each.getMessage() == "request"]
    line = json.loads(log._Json().format(record))
    assert line["request_id"] == answer.headers["x-request-id"]
    assert answer.json()["id"] == f"chatcmpl-{line['request_id']}"
    assert line["route"] == "/v1/chat/completions" and line["status"] == 200
    assert line["completion_tokens"] == 8 and line["prompt_tokens"] > 0 and line["seconds"] > 0


def test_lines_that_nobody_reads_are_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    out, into = os.pipe()
    fcntl.fcntl(into, fcntl.F_SETPIPE_SZ, 4096)
    monkeypatch.setattr(log, "_STDERR", into)
    monkeypatch.setattr(log, "MAX_LINES", 5)
    with os.fdopen(out) as read, log.writing("json"):
        for number in range(300):
            log.event("request", number=number)
        said: list[dict[str, Any]] = []
        while sum(line.get("lines", 1) for line in said) < 300:
            said.append(json.loads(read.readline()))
        log.event("request", number=300)
        said.append(json.loads(read.readline()))
    os.close(into)
    written = [line["number"] for line in said if line["event"] == "request"]
    assert written == sorted(set(written)) and written[-1] == 300
    assert len(written) < 100 and sum(line.get("lines", 1) for line in said) == 301


def test_a_record_that_cannot_be_written_ends_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    class Untellable:
        def __repr__(self) -> str:
            raise ZeroDivisionError

    with log.writing("json"):
        log.event("request", number=Untellable())
        log.event("request", number=2)
    said = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [line.get("number", line.get("lines")) for line in said] == [2, 1]


def test_a_fault_that_no_request_waits_for_is_told_without_its_message(
    capfd: pytest.CaptureFixture[str],
) -> None:
    async def body() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(log.loop_fault)
        loop.call_soon(int, CANARY)
        loop.call_exception_handler({"message": CANARY})
        await asyncio.sleep(0)

    with log.writing("json"):
        asyncio.run(body())
    err = capfd.readouterr().err
    said = [json.loads(line) for line in err.splitlines()]
    assert [line["kind"] for line in said] == ["asyncio", "ValueError"] and CANARY not in err


def test_ids_are_the_servers_own(asked: Callable[..., Any]) -> None:
    async def ask(http: httpx2.AsyncClient, _: Context) -> list[str]:
        headers = {"x-request-id": "mine"}
        answers = [await http.get("/health", headers=headers) for _ in range(2)]
        return [each.headers["x-request-id"] for each in answers]

    first, second = asked(ask)
    assert first != second and "mine" not in (first, second)


def test_parsing_and_templates_run_in_worker_threads(asked: Callable[..., Any]) -> None:
    import threading

    names: list[str] = []

    async def ask(http: httpx2.AsyncClient, context: Context) -> None:
        render = context.template.render

        def watched(*args: Any, **kwargs: Any) -> Any:
            names.append(threading.current_thread().name)
            return render(*args, **kwargs)

        context.template.render = watched  # type: ignore[method-assign]
        await http.post("/v1/chat/completions", json=chat())

    asked(ask)
    # As it came, and once more with marks: whether the template leaves out anything.
    assert len(names) == 2 and all(name.startswith("cutaway-request") for name in names)


def test_no_route_reads_its_body_or_makes_a_file_on_the_loop(
    asked: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted by thread: each route of the schema that takes JSON, and each file of an answer."""
    import threading

    ran_on: dict[str, list[int]] = {"read": [], "file": [], "page": []}

    def watch(where: str, module: Any, name: str) -> None:
        real = getattr(module, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            ran_on[where].append(threading.get_ident())
            return real(*args, **kwargs)

        monkeypatch.setattr(module, name, watched)

    watch("read", bodies, "decode")
    watch("file", view_queue, "encode_trace")
    watch("page", views, "with_viewer")

    async def ask(http: httpx2.AsyncClient, context: Context) -> tuple[int, int]:
        paths = (await http.get("/openapi.json")).json()["paths"]
        posts = [
            path for path, methods in paths.items() if "requestBody" in methods.get("post", {})
        ]
        for path in posts:
            await http.post(path.replace("{trace_id}", "nobody"), json={})
        assert len(ran_on["read"]) == len(posts) > 9
        trace = await answered(http)
        place = f"/cutaway/v1/traces/{trace}/file"
        for is_page in (False, True):
            await http.post(place, json={"views": "tokens", "html": is_page})
        return threading.get_ident(), len(posts)

    loop, num_posts = asked(ask)
    assert {where: len(threads) for where, threads in ran_on.items()} == {
        "read": num_posts + 3, "file": 2, "page": 1
    }  # fmt: skip
    assert not any(loop in threads for threads in ran_on.values())


def test_too_much_to_read_is_refused(asked: Callable[..., Any]) -> None:
    async def ask(http: httpx2.AsyncClient, context: Context) -> Any:
        context.worker._open.total += 10**6
        refused = await http.post("/tokenize", json={"prompt": "x"})
        context.worker._open.total -= 10**6
        return refused

    refused = asked(ask)
    assert refused.status_code == 503 and refused.headers["retry-after"] == "1"


@pytest.mark.parametrize(
    ("fields", "allowed"),
    [
        ({"structured_outputs": {"choice": ["yes", "no"]}}, {"yes", "no"}),
        ({"structured_outputs": {"regex": "a{3}"}}, {"aaa"}),
        ({"response_format": {"type": "text"}}, None),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"enum": [1, 22]}},
                }
            },
            {"1", "22"},
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_h16_the_form_that_is_asked_for_is_kept(
    asked: Callable[..., Any], fields: dict[str, Any], allowed: set[str] | None, stream: bool
) -> None:
    pytest.importorskip("llguidance")

    async def ask(http: httpx2.AsyncClient, _: Context) -> str:
        body = completion("answer: ", max_tokens=40, temperature=1, stream=stream, **fields)
        answer = await http.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        if not stream:
            return answer.json()["choices"][0]["text"]
        from server_app import events

        return "".join(c["text"] for ch in events(answer.text)[:-1] for c in ch["choices"])

    text = asked(ask)
    assert allowed is None or text in allowed


@pytest.mark.parametrize("stream", [False, True])
def test_h16_a_schema_that_cannot_be_kept_is_refused(
    asked: Callable[..., Any], stream: bool
) -> None:
    pytest.importorskip("llguidance")
    schema = {"name": "x", "schema": {"type": "widget"}}

    async def ask(http: httpx2.AsyncClient, _: Context) -> list[Any]:
        shape = {"type": "json_schema", "json_schema": schema}
        refused = await http.post(
            "/v1/chat/completions", json=chat(response_format=shape, stream=stream)
        )
        return [refused, await http.post("/v1/chat/completions", json=chat())]

    refused, after = asked(ask)
    assert refused.status_code == 400 and after.status_code == 200
    assert refused.json()["error"]["type"] == "invalid_request_error"
    assert refused.json()["error"]["param"].startswith("response_format")


def test_h14_tools_are_checked(asked: Callable[..., Any]) -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}

    async def ask(http: httpx2.AsyncClient, _: Context) -> list[Any]:
        bodies: list[dict[str, Any]] = [
            {"tools": [{"type": "x", "function": {}}]},
            {"tools": [tool], "tool_choice": {"type": "function", "function": {"name": "g"}}},
            {"tools": [{"type": "function", "function": {"name": "a b"}}]},
            {"tool_choice": "required"},
            {"tools": [tool], "tool_choice": "none"},
            {"tools": [], "tool_choice": "auto"},
        ]
        return [await http.post("/v1/chat/completions", json=chat(**body)) for body in bodies]

    *refused, none, empty = asked(ask)
    params = ["tools[0].type", "tool_choice", "tools[0].function.name", "tool_choice"]
    assert [each.json()["error"]["param"] for each in refused] == params
    assert none.status_code == empty.status_code == 200
