"""Errors: one shape, a fitting status, and bodies that are no JSON, too deep or too odd."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from scripted import ScriptedService, scripted
from server_app import chat, completion, events

from cutaway.core.errors import DeadlineError, GrammarError, NumericsError, OverloadedError
from cutaway.core.output import Delta
from cutaway.core.request import Request
from cutaway.server import conversation
from cutaway.server.route_context import Context

URL = "/v1/chat/completions"
JSON = {"content-type": "application/json"}


def error_of(answer: httpx2.Response, status: int) -> dict[str, Any]:
    """The error object, whose shape is checked."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]
    assert set(answer.json()) == {"error"}
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str) and error["message"]
    for word in ("Traceback", "cutaway.", ".py", "Error("):
        assert word not in error["message"]
    return error


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "not_found"),
        ("POST", "/v1/embeddings", 404, "unsupported_endpoint"),
        ("POST", "/v1/audio/speech", 404, "unsupported_endpoint"),
        ("GET", URL, 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("GET", "/v1/models/unknown", 404, "model_not_found"),
        ("GET", "/v1/models/a/b", 404, "model_not_found"),
        ("GET", "//v1/nothing", 404, "not_found"),
        ("GET", "/V1/models", 404, "not_found"),
        ("GET", "/docs", 404, "not_found"),
    ],
)
def test_h04_paths_and_methods_fail_in_the_apis_shape(
    asked: Callable[..., Any], method: str, path: str, status: int, code: str
) -> None:
    async def ask(http: httpx2.AsyncClient, _: Context) -> Any:
        body = "{}" if method == "POST" else None
        return await http.request(
            method, f"http://127.0.0.1:8000{path}", headers=JSON, content=body
        )

    error = error_of(asked(ask), status)
    assert error["code"] == code and error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        (URL, "POST"),
        ("/cutaway/v1/lesson", "DELETE, GET, POST"),
        ("/openapi.json", "GET, HEAD"),
    ],
)
def test_every_method_of_a_path_is_told(asked: Callable[..., Any], path: str, methods: str) -> None:
    async def ask(http: httpx2.AsyncClient, _: Context) -> Any:
        return await http.request("PUT", path, headers=JSON, content="{}")

    answer = asked(ask)
    assert answer.headers.get("allow") == methods, (answer.status_code, answer.text)
    assert error_of(answer, 405)["message"].endswith(f"it takes {methods}.")


@pytest.mark.parametrize("path", [URL, "/v1/completions"])
def test_h12_any_model_but_the_served_one_is_unknown(asked: Callable[..., Any], path: str) -> None:
    async def ask(http: httpx2.AsyncClient, _: Context) -> list[Any]:
        make = chat if path == URL else completion
        bodies = [{**make(), "model": name} for name in ("gpt-4", "", "TINY", "../tiny", "tiny\0")]
        listed = (await http.get("/v1/models")).json()
        one = (await http.get(f"/v1/models/{listed['data'][0]['id']}")).json()
        return [[await http.post(path, json=body) for body in bodies], listed, one]

    refused, listed, one = asked(ask)
    for answer in refused:
        assert error_of(answer, 404)["code"] == "model_not_found"
    assert listed["object"] == "list" and listed["data"] == [one]
    assert set(one) >= {"id", "object", "created", "owned_by"} and one["id"] == "tiny"


DEEP = b"[" * 2_000_000


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"null", b"[]", b'"text"', b"1", b'{"a": 1,}', b"{} {}", b"\xff\xfe"),
        *(b'{"model": NaN}', b'{"model": Infinity}', b'{"model": "\xc4\xe3\xba\xc3"}'),
        *(DEEP, b'{"a":' + DEEP, b'{"a":' * 70 + b"1" + b"}" * 70),
        *(b'{"seed": ' + b"9" * 5000 + b"}", b'{"seed": 1e999}'),
    ],
    ids=lambda body: repr(body[:20]),
)
def test_h08_a_body_that_is_not_json_is_refused_and_not_echoed(
    asked: Callable[..., Any], body: bytes
) -> None:
    async def ask(http: httpx2.AsyncClient, _: Context) -> list[Any]:
        refused = await http.post(URL, content=body, headers=JSON)
        return [refused, await http.get("/health")]

    refused, after = asked(ask)
    error = error_of(refused, 400)
    assert len(error["message"]) < 300
    assert after.status_code == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "", "json"])
def test_h08_a_body_of_another_type_is_refused(asked: Callable[..., Any], kind: str) -> None:
    async def ask(http: httpx2.AsyncClient, _: Context) -> Any:
        return await http.post(URL, content=b"{}", headers={"content-type": kind})

    assert error_of(asked(ask), 400)["code"] == "unsupported_content_type"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "user", "content": "MARK"}]},
        {"stop": ["MARK"]},
        {"user": "MARK"},
        {"messages": [{"role": "user", "content": "x"}], "MARK": 1},
    ],
)
def test_h07_a_lone_surrogate_is_refused_before_any_event(
    asked: Callable[..., Any], stream: bool, fields: dict[str, Any]
) -> None:
    async def ask(http: httpx2.AsyncClient, _: Context) -> Any:
        import json

        body = json.dumps(chat(stream=stream, **fields)).replace("MARK", "\\ud83d")
        return await http.post(URL, content=body.encode(), headers=JSON)

    error_of(asked(ask), 400)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("temperature", 999999), ("temperature", -1), ("top_p", -1), ("repetition_penalty", 0)),
        *(("n", 10**6), ("top_logprobs", 10**6), ("top_logprobs", True), ("top_logprobs", 21)),
        *(
            ("prompt_logprobs", -1),
            ("max_tokens", 10**18),
            ("stop", [str(i) for i in range(10**5)]),
        ),
        *(("stop", ""), ("seed", 2**70), ("n", 0), ("max_tokens", -2)),
    ],
)
def test_h09_extreme_numbers_are_refused_by_name(
    asked: Callable[..., Any], field: str, value: Any
) -> None:
    async def ask(http: httpx2.AsyncClient, _: Context) -> Any:
        return await http.post(URL, json=chat(**{"logprobs": True, field: value}))

    assert error_of(asked(ask), 400)["param"] == field


def test_h09_a_string_of_ten_megabytes_is_too_large(asked: Callable[..., Any]) -> None:
    async def ask(http: httpx2.AsyncClient, _: Context) -> Any:
        return await http.post(URL, json=chat("x" * 10_000_000))

    assert error_of(asked(ask), 413)["code"] == "body_too_large"


def test_a_prompt_that_cannot_fit_is_told_with_both_numbers(asked: Callable[..., Any]) -> None:
    async def ask(http: httpx2.AsyncClient, _: Context) -> list[Any]:
        long = await http.post(URL, json=chat("x" * 300))
        many = await http.post("/v1/completions", json=completion("x" * 300))
        return [long, many, await http.post(URL, json=chat(max_tokens=250))]

    long, many, asked_for = (error_of(each, 400) for each in asked(ask))
    assert long["code"] == many["code"] == asked_for["code"] == "context_length_exceeded"
    assert (long["param"], many["param"], asked_for["param"]) == (
        "messages",
        "prompt",
        "max_tokens",
    )
    assert "256" in long["message"]


@pytest.mark.parametrize("texts", [["x"] * 20_000, ["hello", "x y" * 600], ["x"] * 257])
@pytest.mark.parametrize(
    ("path", "field"),
    [
        *((URL, "messages"), ("/v1/responses", "input"), ("/v1/messages", "messages")),
        ("/v1/messages/count_tokens", "messages"),
    ],
)
def test_a_conversation_that_no_template_makes_fit_is_refused_before_it_is_written(
    asked: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    field: str,
    texts: list[str],
) -> None:
    """20,000 messages were written out for 26 s before that."""
    written: list[object] = []
    plain = conversation.render_whole

    def render(*args: Any, **options: Any) -> Any:
        written.append(args)
        return plain(*args, **options)

    monkeypatch.setattr(conversation, "render_whole", render)

    async def ask(http: httpx2.AsyncClient, _: Context) -> Any:
        said = [{"role": "user", "content": text} for text in texts]
        body = {"model": "tiny", field: said}
        if not path.endswith("count_tokens"):
            body["max_output_tokens" if field == "input" else "max_tokens"] = 8
        return await http.post(path, json=body)

    answer = asked(ask)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert f"{field} has {len(texts)} messages" in error["message"]
    assert "256 tokens" in error["message"] and "Send fewer or shorter" in error["message"]
    assert written == []
    if not path.startswith("/v1/messages"):  # Anthropic's errors have neither
        assert (error["code"], error["param"]) == ("context_length_exceeded", field)


def test_what_is_only_counted_may_be_longer_where_that_is_not_seen_before(
    asked: Callable[..., Any],
) -> None:
    async def ask(http: httpx2.AsyncClient, _: Context) -> Any:
        said = [{"role": "user", "content": "." * 300}]
        body = {"model": "tiny", "messages": said}
        return await http.post("/v1/messages/count_tokens", json=body)

    assert asked(ask).json()["input_tokens"] > 256


def test_h10_a_refusal_of_a_stream_is_an_ordinary_answer(asked: Callable[..., Any]) -> None:
    async def ask(http: httpx2.AsyncClient, _: Context) -> Any:
        return await http.post(URL, json=chat(stream=True, n=0))

    assert error_of(asked(ask), 400)["param"] == "n"


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_takes_too_long_ends_with_an_error(
    asked: Callable[..., Any], stream: bool
) -> None:
    async def ask(http: httpx2.AsyncClient, context: Context) -> list[Any]:
        late = await http.post(URL, json=chat(stream=stream, max_tokens=200, ignore_eos=True))
        return [late, (await context.service.stats()).pages_used, await http.get("/metrics")]

    late, pages_used, metrics = asked(ask, request_seconds=1e-6)
    assert error_of(late, 408)["code"] == "deadline_exceeded"
    assert late.headers["x-should-retry"] == "false"
    assert pages_used == 0 and 'why="deadline_exceeded"' in metrics.text


LATE = {
    URL: chat(timeout=1e-6, max_tokens=200, ignore_eos=True),
    "/v1/completions": completion(timeout=1e-6, max_tokens=200, ignore_eos=True),
    "/v1/responses": {"model": "tiny", "input": "x", "timeout": 1e-6, "ignore_eos": True},
    "/v1/messages": {
        **{"model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": 200},
        **{"timeout": 1e-6, "ignore_eos": True},
    },
}


@pytest.mark.parametrize("path", LATE)
def test_a_request_may_have_less_time_than_the_server_gives(
    asked: Callable[..., Any], path: str
) -> None:
    async def ask(http: httpx2.AsyncClient, context: Context) -> list[Any]:
        late = await http.post(path, json=LATE[path])
        more = await http.post(path, json={**LATE[path], "timeout": 601})
        enough = await http.post(path, json={**LATE[path], "timeout": 600})
        assert (await context.service.stats()).pages_used == 0
        return [late, more, enough]

    late, more, enough = asked(ask)
    assert late.status_code == 408 and late.headers["x-should-retry"] == "false"
    assert "the 1e-06 seconds that it was given" in late.json()["error"]["message"]
    assert more.status_code == 400 and "timeout is 601" in more.json()["error"]["message"]
    assert enough.status_code == 200, enough.text


def test_a_deadline_amid_a_stream_is_its_last_event(tmp_path: Path) -> None:
    class Late(ScriptedService):
        async def follow(self, request: Request) -> AsyncIterator[Delta]:
            yield Delta(request.request_id, 0, (65,), "A")
            error = DeadlineError("the engine's own words")
            yield Delta(request.request_id, 0, finish_reason="abort", error=error)

    async def ask(http: httpx2.AsyncClient, _: ScriptedService) -> Any:
        return await http.post(URL, json=chat(stream=True, timeout=7.5))

    answer = scripted(tmp_path, "", ask, kind=Late)
    assert answer.status_code == 200 and "[DONE]" not in answer.text
    last = events(answer.text)[-1]["error"]
    assert last["code"] == "deadline_exceeded" and "the 7.5 seconds" in last["message"]


def test_prompts_that_wait_for_their_turn_have_no_longer(asked: Callable[..., Any]) -> None:
    """Of many prompts 16 are with the engine: the others' time runs all the same."""

    async def ask(http: httpx2.AsyncClient, context: Context) -> Any:
        given: list[float | None] = []
        follow = context.service.follow

        def watched(request: Request) -> AsyncIterator[Delta]:
            given.append(request.deadline)
            return follow(request)

        context.service.follow = watched  # type: ignore[method-assign]
        prompts = [f"prompt {number}" for number in range(40)]
        answer = await http.post("/v1/completions", json=completion(prompts, timeout=300))
        assert answer.status_code == 200, answer.text
        return given

    given = asked(ask)
    assert len(given) == 40 and all(0 < each < 300 for each in given)
    assert given[39] < given[15]


def test_an_engine_that_does_not_move_is_not_ready(
    asked: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask(http: httpx2.AsyncClient, context: Context) -> list[Any]:
        monkeypatch.setattr(type(context.service), "silent_seconds", 61.0)
        return [await http.get("/ready"), await http.post(URL, json=chat())]

    for answer in asked(ask):
        assert error_of(answer, 503)["code"] == "engine_stuck"

    async def patient(http: httpx2.AsyncClient, context: Context) -> httpx2.Response:
        context.max_silent_seconds = 62
        return await http.get("/ready")

    assert asked(patient).status_code == 200


class RefusingService(ScriptedService):
    """Ends every answer with one error that it keeps, as the compiler keeps those of grammars."""

    kept = GrammarError("grammar cannot be compiled.")

    async def follow(self, request: Request) -> AsyncGenerator[Delta]:
        """The error alone."""
        yield Delta(request.request_id, 0, finish_reason="error", error=self.kept)


@pytest.mark.parametrize("stream", [False, True])
def test_an_error_of_a_form_names_the_field_when_requests_share_it(
    tmp_path: Path, stream: bool
) -> None:
    form = {"type": "json_object"}
    tool = {"type": "function", "function": {"name": "look"}}
    bodies = [
        (URL, chat(response_format=form), "response_format"),
        (URL, chat(structured_outputs={"json_object": True}), "structured_outputs"),
        (URL, chat(tools=[tool], tool_choice="required"), "tools"),
        (URL, chat(), None),
        ("/v1/completions", completion(response_format=form), "response_format"),
        ("/v1/responses", {"model": "tiny", "input": "a", "text": {"format": form}}, "text.format"),
    ]

    async def ask(http: httpx2.AsyncClient, _: ScriptedService) -> list[httpx2.Response]:
        return await asyncio.gather(
            *(http.post(path, json={**body, "stream": stream}) for path, body, _ in bodies)
        )

    answers = scripted(tmp_path, "", ask, kind=RefusingService)
    named = [error_of(answer, 400)["param"] for answer in answers]
    assert named == [param for _, _, param in bodies]
    assert RefusingService.kept.param == "grammar"


def failing(context: Context, error: Exception, *, after: int) -> None:
    """Make the engine's news end with an error after some of them."""
    follow = context.service.follow

    async def broken(request: Request) -> AsyncIterator[Delta]:
        count = 0
        async for delta in follow(request):
            if count == after:
                raise error
            count += 1
            yield delta

    context.service.follow = broken  # type: ignore[method-assign]


@pytest.mark.parametrize("error", [NumericsError("not a number"), RuntimeError("secret /srv/x.py")])
def test_h10_a_fault_amid_a_stream_is_its_last_event(
    asked: Callable[..., Any], error: Exception
) -> None:
    async def ask(http: httpx2.AsyncClient, context: Context) -> Any:
        failing(context, error, after=3)
        return await http.post(URL, json=chat(stream=True))

    answer = asked(ask)
    assert answer.status_code == 200
    *chunks, last = events(answer.text)
    assert last["error"]["type"] == "server_error" and "secret" not in answer.text
    assert all(c["finish_reason"] is None for chunk in chunks for c in chunk["choices"])
    assert "[DONE]" not in answer.text


@pytest.mark.parametrize("stream", [False, True])
def test_h04_a_fault_of_ours_is_one_plain_sentence(asked: Callable[..., Any], stream: bool) -> None:
    async def ask(http: httpx2.AsyncClient, context: Context) -> Any:
        failing(context, RuntimeError("secret"), after=0)
        return await http.post(URL, json=chat(stream=stream))

    answer = asked(ask)
    assert error_of(answer, 500)["code"] == "internal_error" and "secret" not in answer.text


@pytest.mark.parametrize("stream", [False, True])
def test_a_fault_of_ours_in_one_of_many_prompts_ends_the_request(
    asked: Callable[..., Any], stream: bool
) -> None:
    async def ask(http: httpx2.AsyncClient, context: Context) -> Any:
        failing(context, RuntimeError("secret"), after=0)
        body = completion(["one", "two", "three"], stream=stream)
        answer = await http.post("/v1/completions", json=body)
        assert (await context.service.stats()).pages_used == 0
        return answer

    answer = asked(ask)
    assert error_of(answer, 500)["code"] == "internal_error" and "secret" not in answer.text


@pytest.mark.parametrize("stream", [False, True])
def test_h11_overload_says_when_to_come_back(asked: Callable[..., Any], stream: bool) -> None:
    async def ask(http: httpx2.AsyncClient, context: Context) -> list[Any]:
        failing(context, OverloadedError("the queue is full.", retry_after=7), after=0)
        refused = await http.post(URL, json=chat(stream=stream))
        rest = [await http.get(path) for path in ("/health", "/v1/models", "/metrics")]
        return [refused, *rest]

    refused, health, models, metrics = asked(ask)
    assert error_of(refused, 503)["code"] == "overloaded"
    assert 'reason="overloaded"' in metrics.text and "aborted_requests_total{" not in metrics.text
    assert refused.headers["retry-after"] == "7"
    assert health.status_code == models.status_code == 200


@pytest.mark.parametrize("state", ["starting", "draining", "failed"])
def test_a_server_that_is_not_ready_takes_nothing_in(asked: Callable[..., Any], state: str) -> None:
    async def ask(http: httpx2.AsyncClient, context: Context) -> list[Any]:
        context.service.state = state  # type: ignore[misc]
        answers = [await http.post(path, json=chat()) for path in (URL, "/tokenize")]
        ready, health = await http.get("/ready"), await http.get("/health")
        context.service.state = "ready"  # type: ignore[misc]
        return [*answers, ready, health]

    *refused, health = asked(ask)
    for answer in refused:
        error_of(answer, 503)
        assert int(answer.headers["retry-after"]) >= 1
    assert health.status_code == 200
