"""What another server told of an answer is continued, with its seed to the same tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from server_app import chat, completion, events

from cutaway.server.route_context import Context

IDS = {"token_ids": True}
SETTINGS = {"temperature": 1, "seed": 7, "max_tokens": 16, "frequency_penalty": 0.5, "logprobs": 1}


async def streamed(http: httpx2.AsyncClient, url: str, body: dict[str, Any]) -> dict[str, Any]:
    """Text, ids, log-probabilities, end and counts of a streamed answer."""
    answer = await http.post(
        url, json={**body, "stream": True, "stream_options": {"include_usage": True}}
    )
    assert answer.status_code == 200, answer.text
    whole: dict[str, Any] = {"text": "", "ids": [], "scores": [], "reason": None}
    *told, done = events(answer.text)
    assert done == "[DONE]"
    for event in told:
        if event.get("usage"):
            whole["counts"] = event["usage"]
        for choice in event["choices"]:
            whole["text"] += choice.get("text") or choice.get("delta", {}).get("content") or ""
            whole["ids"] += choice.get("token_ids", [])
            scores = choice.get("logprobs") or {}
            whole["scores"] += scores.get("token_logprobs") or scores.get("content") or []
            whole["reason"] = choice["finish_reason"] or whole["reason"]
    return whole


@pytest.mark.parametrize("num_told", [1, 5, 15])
@pytest.mark.parametrize("url", ["/v1/completions", "/v1/chat/completions"])
def test_an_answer_goes_on_as_if_undisturbed(
    asked: Callable[..., Any], url: str, num_told: int
) -> None:
    async def ask(http: httpx2.AsyncClient, _: Context) -> None:
        if url == "/v1/completions":
            body = completion("hello", **SETTINGS)
        else:
            body = chat("hello", **{**SETTINGS, "logprobs": True, "top_logprobs": 1})
        whole = await streamed(http, url, {**body, "cutaway": IDS})
        assert len(whole["ids"]) == 16
        told = whole["ids"][:num_told]
        rest = await streamed(http, url, {**body, "cutaway": {**IDS, "continue_token_ids": told}})
        assert told + rest["ids"] == whole["ids"]
        assert whole["text"].endswith(rest["text"])
        assert len(rest["scores"]) == 16 - num_told
        assert rest["reason"] == whole["reason"]
        for count in ("prompt_tokens", "completion_tokens"):
            assert rest["counts"][count] == whole["counts"][count]

    asked(ask)


def test_a_form_goes_on_where_it_stood(asked: Callable[..., Any]) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    form = {"type": "json_schema", "json_schema": {"name": "f", "schema": schema}}

    async def ask(http: httpx2.AsyncClient, _: Context) -> None:
        url = "/v1/chat/completions"
        body = chat("hello", temperature=1, seed=3, max_tokens=60, response_format=form)
        whole = await streamed(http, url, {**body, "cutaway": IDS})
        told = whole["ids"][: len(whole["ids"]) // 2]
        rest = await streamed(http, url, {**body, "cutaway": {"continue_token_ids": told}})
        assert whole["text"].endswith(rest["text"]) and rest["text"]
        assert rest["reason"] == whole["reason"] == "stop"

    pytest.importorskip("llguidance")
    asked(ask)


@pytest.mark.parametrize(
    ("url", "changes", "message"),
    [
        ("completions", {"n": 2}, "n is 2; one answer is continued"),
        ("completions", {"max_tokens": 2}, "max_tokens is 2, of the whole answer"),
        ("completions", {"prompt": ["a", "b"]}, "with 2 prompts; one answer is continued"),
        ("completions", {"echo": True, "logprobs": 1}, "a prompt is scored before"),
        ("completions", {"cutaway": {"continue_token_ids": [99999]}}, "token ids go from 0"),
        ("chat/completions", {"stream": False}, "without stream; what was told goes on"),
    ],
)
def test_what_cannot_be_continued_is_refused(
    asked: Callable[..., Any], url: str, changes: dict[str, Any], message: str
) -> None:
    made = completion("hello") if url == "completions" else chat("hello")
    told = {"continue_token_ids": [65, 66]}
    body = {**made, "max_tokens": 9, "stream": True, "cutaway": told, **changes}

    async def ask(http: httpx2.AsyncClient, _: Context) -> Any:
        return await http.post(f"/v1/{url}", json=body)

    answer = asked(ask)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert message in error["message"] and error["param"] == "cutaway.continue_token_ids"
    assert error["message"].startswith("cutaway.continue_token_ids")
