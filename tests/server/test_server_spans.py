"""Spans of OpenTelemetry: what a receiver of OTLP hears of requests, and what it never does."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

import httpx2
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from server_app import chat, client, completion, serving
from test_server_program import served

from cutaway.cli.serve import spans_to
from cutaway.core.errors import ConfigError
from cutaway.server.watching.spans import Spans
from program import environment

URL = "/v1/chat/completions"
SECRET = "xylophone"
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
STAGES = ("prepare", "queue", "prefill", "decode")


class Receiver:
    """Takes spans by HTTP."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        bodies = self.bodies

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == "/v1/traces"
                bodies.append(self.rfile.read(int(self.headers["content-length"])))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def resources(self) -> list[Any]:
        read = [ExportTraceServiceRequest.FromString(body) for body in self.bodies]
        return [each for request in read for each in request.resource_spans]

    def spans(self) -> list[Any]:
        scopes = [scope for resource in self.resources() for scope in resource.scope_spans]
        return [span for scope in scopes for span in scope.spans]


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()
    try:
        yield receiver
    finally:
        receiver.close()


def attributes(span: Any) -> dict[str, Any]:
    """Names and values; a list is a tuple."""
    return {each.key: _value(each.value) for each in span.attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return tuple(_value(each) for each in value.array_value.values)
    return getattr(value, kind)


def asked(folder: Path, ask: Any) -> Receiver:
    """What was received of the requests that a coroutine function makes."""

    async def body(receiver: Receiver) -> None:
        async with serving(folder) as (app, context), client(app) as http:
            context.spans = Spans(receiver.url, model="tiny")
            try:
                await ask(http, context)
            finally:
                await asyncio.to_thread(context.spans.close)

    with receiving() as receiver:
        asyncio.run(body(receiver))
        return receiver


def test_a_request_is_one_span_with_its_stages_in_it(folder: Path) -> None:
    sent = {"traceparent": f"00-{TRACE}-{PARENT}-01"}

    async def ask(http: httpx2.AsyncClient, _: Any) -> None:
        body = chat(SECRET, n=2, temperature=0.5, seed=3, stop=["zebra"], ignore_eos=True)
        answer = await http.post(URL, json=body, headers=sent)
        assert answer.status_code == 200, answer.text

    receiver = asked(folder, ask)
    *parts, whole = receiver.spans()
    assert whole.name == "chat tiny" and whole.kind == 2  # of a server
    assert (whole.trace_id.hex(), whole.parent_span_id.hex()) == (TRACE, PARENT)
    told = attributes(whole)
    assert told["gen_ai.operation.name"] == "chat"
    assert told["gen_ai.request.model"] == told["gen_ai.response.model"] == "tiny"
    assert told["gen_ai.response.id"] == f"chatcmpl-{told['cutaway.request_id']}"
    assert told["gen_ai.response.finish_reasons"] == ("length", "length")
    assert told["gen_ai.request.temperature"] == 0.5 and told["gen_ai.request.seed"] == 3
    assert told["gen_ai.request.choice.count"] == 2 and told["gen_ai.request.max_tokens"] == 8
    assert told["gen_ai.usage.output_tokens"] == 16
    assert "error.type" not in told and whole.status.code == 0
    names = [(part.name, attributes(part)["cutaway.choice"]) for part in parts]
    assert sorted(names) == sorted([(s, 0) for s in STAGES] + [(s, 1) for s in STAGES[1:]])
    for part in parts:
        assert part.parent_span_id == whole.span_id and part.trace_id == whole.trace_id
        assert part.start_time_unix_nano <= part.end_time_unix_nano
    first = {part.name: part for part in parts if attributes(part)["cutaway.choice"] == 0}
    assert first["prepare"].start_time_unix_nano == whole.start_time_unix_nano
    for before, after in pairwise(STAGES):
        assert first[before].end_time_unix_nano == first[after].start_time_unix_nano
    own = attributes(receiver.resources()[0].resource)
    assert own["service.name"] == "cutaway" and own["service.version"]
    sent_bytes = b"".join(receiver.bodies)
    assert SECRET.encode() not in sent_bytes and b"zebra" not in sent_bytes


def test_times_add_up_while_the_wall_clock_jumps(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, days = time.time_ns, cycle((0, 1, -1))
    monkeypatch.setattr(time, "time_ns", lambda: real() + next(days) * 86_400 * 10**9)

    async def ask(http: httpx2.AsyncClient, _: Any) -> None:
        for _ in range(4):
            answer = await http.post(URL, json=chat(n=2, temperature=1))
            assert answer.status_code == 200

    spans = asked(folder, ask).spans()
    whole = {span.span_id: span for span in spans if not span.parent_span_id}
    assert len(whole) == 4 and len(spans) == 4 * 8
    for span in spans:
        own = whole.get(span.parent_span_id, span)
        start, end = span.start_time_unix_nano, span.end_time_unix_nano
        assert own.start_time_unix_nano <= start + 10**6 and end <= own.end_time_unix_nano
        assert 0 <= end - start < 3600 * 10**9


def test_the_environment_names_the_service(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "ours")

    async def ask(http: httpx2.AsyncClient, _: Any) -> None:
        await http.post(URL, json=chat(max_tokens=1))

    assert attributes(asked(folder, ask).resources()[0].resource)["service.name"] == "ours"


def test_every_prompt_has_a_span_and_faults_are_told(folder: Path) -> None:
    async def ask(http: httpx2.AsyncClient, _: Any) -> None:
        many = await http.post("/v1/completions", json=completion(["a", "b"], stream=True))
        late = await http.post(URL, json=chat(timeout=1e-6))
        wrong = await http.post(URL, json=chat(temperature=9))  # never came to the engine
        assert (many.status_code, late.status_code, wrong.status_code) == (200, 408, 400)

    whole = [span for span in asked(folder, ask).spans() if not span.parent_span_id]
    assert [span.name for span in whole] == ["text_completion tiny"] * 2 + ["chat tiny"]
    assert len({span.trace_id for span in whole}) == 3
    assert attributes(whole[-1])["error.type"] == "deadline_exceeded"
    assert whole[-1].status.code == 2


def test_the_program_sends_them_before_it_ends(folder: Path) -> None:
    with receiving() as receiver:
        with served(folder, "--otlp-endpoint", receiver.url) as (process, url, _):
            assert httpx2.post(f"{url}{URL}", json=chat(), timeout=300).status_code == 200
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        assert [span.name for span in receiver.spans()][-1] == "chat tiny"


def test_a_receiver_that_is_not_there_harms_nobody(folder: Path) -> None:
    with served(folder, "--otlp-endpoint", "http://127.0.0.1:9") as (process, url, _):
        assert httpx2.post(f"{url}{URL}", json=chat(), timeout=300).status_code == 200
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=300)
    assert process.returncode == 0 and "Traceback" not in err, err


@pytest.mark.parametrize("url", ["127.0.0.1:4318", "grpc://127.0.0.1:4317", ""])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="otlp_endpoint is"):
        spans_to(url, "tiny")


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cutaway.server.watching.spans", None)
    with pytest.raises(ConfigError, match=r"pip install 'cutaway\[otel\]'"):
        spans_to("http://127.0.0.1:4318", "tiny")


def test_nothing_is_imported_unless_asked_for() -> None:
    code = "import sys, cutaway.server.run; print('opentelemetry.sdk' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
