"""Chat completions: shape of answers and events, counts, log-probabilities, content, templates."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from server_app import chat, check_near, events

from cutaway.server.route_context import Context

URL = "/v1/chat/completions"


def streamed(http: httpx2.AsyncClient, **fields: Any) -> Any:
    return http.post(URL, json=chat(stream=True, **fields))


def joined(chunks: list[Any], choice: int = 0) -> str:
    """The text of one choice over all events."""
    pieces = [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice]
    return "".join(each["delta"].get("content", "") for each in pieces)


def test_h01_usage_comes_only_when_it_is_asked_for(asked: Callable[..., Any]) -> None:
    async def ask(http: httpx2.AsyncClient, _: Context) -> tuple[list[Any], list[Any], Any]:
        without = events((await streamed(http)).text)
        options = {"include_usage": True}
        with_usage = events((await streamed(http, stream_options=options)).text)
        return without, with_usage, await http.post(URL, json=chat(stream_options=options))

    without, with_usage, whole = asked(ask)
    assert all("usage" not in chunk and chunk["choices"] for chunk in without[:-1])
    *chunks, last, done = with_usage
    assert done == "[DONE]" and last["choices"] == []
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in chunks)
    assert last["usage"]["total_tokens"] == last["usage"]["prompt_tokens"] + 8
    for name in ("id", "model", "created", "object"):
        assert len({chunk[name] for chunk in [*chunks, last]}) == 1
    assert whole.status_code == 200, "options of a stream ask nothing of a whole answer"


def test_h02_every_chunk_has_the_shape_that_clients_index(asked: Callable[..., Any]) -> None:
    async def ask(http: httpx2.AsyncClient, _: Context) -> Any:
        return await streamed(http, n=3, temperature=1, seed=3)

    answer = asked(ask)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.text.endswith("data: [DONE]\n\n")
    *chunks, _ = events(answer.text)
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    for choice in range(3):
        own = [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice]
        assert own[0]["delta"] == {"role": "assistant", "content": ""}
        assert all(each["finish_reason"] is None for each in own[:-1])
        assert own[-1]["finish_reason"] in ("length", "stop") and own[-1]["delta"] == {}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"n": 3, "temperature": 1, "seed": 5},
        {"logprobs": True, "top_logprobs": 3},
        {"stop": ["U", "q"], "max_tokens": 30},
        {"max_tokens": 40, "temperature": 1.5, "seed": 1},
    ],
)
def test_a_stream_says_what_the_whole_answer_says(
    asked: Callable[..., Any], fields: dict[str, Any]
) -> None:
    async def ask(http: httpx2.AsyncClient, _: Context) -> tuple[Any, list[Any]]:
        whole = (await http.post(URL, json=chat(**fields))).json()
        body = await streamed(http, stream_options={"include_usage": True}, **fields)
        return whole, events(body.text)

    whole, (*chunks, _) = asked(ask)
    assert len(whole["choices"]) == fields.get("n", 1)
    for choice in whole["choices"]:
        own = [c for ch in chunks for c in ch["choices"] if c["index"] == choice["index"]]
        assert joined(chunks, choice["index"]) == choice["message"]["content"]
        assert own[-1]["finish_reason"] == choice["finish_reason"]
        assert own[-1]["stop_reason"] == choice["stop_reason"]
        said = [each for c in own if c["logprobs"] for each in c["logprobs"]["content"]]
        check_near(said, (choice["logprobs"] or {"content": []})["content"])
    counted, again = whole["usage"], chunks[-1]["usage"]
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert counted[name] == again[name]


def test_h15_counts_hold_in_both_modes_and_for_several_choices(asked: Callable[..., Any]) -> None:
    async def ask(http: httpx2.AsyncClient, context: Context) -> list[Any]:
        first = (await http.post(URL, json=chat(n=3, temperature=1, seed=2))).json()
        again = (await http.post(URL, json=chat(max_tokens=2))).json()
        return [first, again, len(context.tokenizer.encode("user: hello\nassistant:"))]

    first, again, num_prompt = asked(ask)
    assert first["usage"]["prompt_tokens"] == num_prompt, "once, whatever n is"
    assert first["usage"]["completion_tokens"] <= 24
    assert again["usage"]["total_tokens"] == num_prompt + 2
    cached = again["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert 0 < cached <= num_prompt, "the second finds the first's pages"
    timings = again["timings"]
    assert timings["cache_n"] == cached and timings["prompt_n"] == num_prompt - cached
    assert timings["predicted_n"] == 2 and timings["predicted_ms"] > 0
    assert timings["tokenize_ms"] > 0, "the prompt was text"


def test_logprobs_hold_each_tokens_bytes_and_the_asked_alternatives(
    asked: Callable[..., Any],
) -> None:
    async def ask(http: httpx2.AsyncClient, _: Context) -> Any:
        return (await http.post(URL, json=chat(logprobs=True, top_logprobs=4))).json()

    (choice,) = asked(ask)["choices"]
    content = choice["logprobs"]["content"]
    assert len(content) == 8
    for each in content:
        assert [top["logprob"] for top in each["top_logprobs"]] == sorted(
            (top["logprob"] for top in each["top_logprobs"]), reverse=True
        )
        assert each["logprob"] == each["top_logprobs"][0]["logprob"], "greedy takes the likeliest"
        assert each["bytes"] == each["top_logprobs"][0]["bytes"] and len(each["top_logprobs"]) == 4
        assert math.exp(each["logprob"]) <= 1
    said = b"".join(bytes(each["bytes"]) for each in content)
    assert said.decode(errors="replace") == choice["message"]["content"]


def test_top_logprobs_need_logprobs(asked: Callable[..., Any]) -> None:
    async def ask(http: httpx2.AsyncClient, _: Context) -> list[Any]:
        bare = await http.post(URL, json=chat(logprobs=True))
        return [await http.post(URL, json=chat(top_logprobs=2)), bare]

    refused, bare = asked(ask)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "top_logprobs"
    (choice,) = bare.json()["choices"]
    assert all(each["top_logprobs"] == [] for each in choice["logprobs"]["content"])


def test_max_completion_tokens_is_max_tokens(asked: Callable[..., Any]) -> None:
    async def ask(http: httpx2.AsyncClient, _: Context) -> list[Any]:
        newer = chat(max_completion_tokens=3)
        both = {**newer, "max_tokens": 4}
        del newer["max_tokens"]  # type: ignore[attr-defined]
        return [await http.post(URL, json=newer), await http.post(URL, json=both)]

    newer, both = asked(ask)
    assert newer.json()["usage"]["completion_tokens"] == 3
    assert both.status_code == 400
    assert both.json()["error"]["param"] == "max_completion_tokens"


def test_a_prompt_is_scored_when_it_is_asked_for(asked: Callable[..., Any]) -> None:
    async def ask(http: httpx2.AsyncClient, _: Context) -> list[Any]:
        scored = (await http.post(URL, json=chat(prompt_logprobs=2))).json()
        return [scored, await streamed(http, prompt_logprobs=2)]

    scored, refused = asked(ask)
    assert len(scored["prompt_logprobs"]) == scored["usage"]["prompt_tokens"]
    assert scored["prompt_logprobs"][0] is None
    assert all(2 <= len(each) <= 3 for each in scored["prompt_logprobs"][1:])
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "prompt_logprobs"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab"),
        ("", ""),
        ("\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16"), "\U0001f600"),
    ],
)
def test_h06_every_part_reaches_the_prompt(
    asked: Callable[..., Any], content: Any, text: str
) -> None:
    async def ask(http: httpx2.AsyncClient, context: Context) -> tuple[Any, int]:
        body = chat(messages=[{"role": "user", "content": content}])
        num_tokens = len(context.tokenizer.encode(f"user: {text}\nassistant:"))
        return (await http.post(URL, json=body)).json(), num_tokens

    answer, num_tokens = asked(ask)
    assert answer["usage"]["prompt_tokens"] == num_tokens


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        (None, "messages"),
        ("hello", "messages"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
            "messages[0].content[0].type",
        ),
        ([{"role": "user", "content": "x", "colour": "red"}], "messages[0].colour"),
    ],
)
def test_h05_h06_messages_that_say_nothing_are_refused_by_name(
    asked: Callable[..., Any], messages: Any, param: str
) -> None:
    async def ask(http: httpx2.AsyncClient, _: Context) -> list[Any]:
        refused = await http.post(URL, json=chat(messages=messages))
        return [refused, await http.post(URL, json=chat())]

    refused, after = asked(ask)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == param
    assert after.status_code == 200


def test_i02_a_templates_refusal_is_told_in_its_own_words(asked: Callable[..., Any]) -> None:
    async def ask(http: httpx2.AsyncClient, context: Context) -> Any:
        context.template_source = "{{ raise_exception('the first role must be user') }}"
        return await http.post(URL, json=chat())

    refused = asked(ask)
    assert refused.status_code == 400
    assert "the first role must be user" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{% for i in range(1000000000) %}x{% endfor %}",
        "{{ 'x' * 1000000000 }}",
    ],
)
def test_i01_a_template_that_attacks_is_refused_and_the_server_stays(
    asked: Callable[..., Any], source: str
) -> None:
    async def ask(http: httpx2.AsyncClient, context: Context) -> list[Any]:
        context.template_source = source
        refused = await http.post(URL, json=chat())
        return [refused, await http.get("/health")]

    refused, after = asked(ask)
    assert refused.status_code == 400 and set(refused.json()) == {"error"}
    assert after.status_code == 200


def test_i03_no_template_is_an_error_and_not_a_guess(asked: Callable[..., Any]) -> None:
    async def ask(http: httpx2.AsyncClient, context: Context) -> Any:
        context.template_source = None
        return await http.post(URL, json=chat())

    refused = asked(ask)
    assert refused.status_code == 400
    assert "no chat template" in refused.json()["error"]["message"]


def test_a_templates_own_variables_are_taken_and_others_refused(asked: Callable[..., Any]) -> None:
    async def ask(http: httpx2.AsyncClient, _: Context) -> list[Any]:
        bodies = [{"mood": "calm"}, {"tone": "calm"}, "calm", {"messages": []}]
        return [await http.post(URL, json=chat(chat_template_kwargs=each)) for each in bodies]

    taken, unread, text, own = asked(ask)
    plain = len("user: hello\nassistant:")
    assert taken.json()["usage"]["prompt_tokens"] == plain + len("[calm]")
    assert unread.json()["error"]["param"] == "chat_template_kwargs.tone"
    assert text.json()["error"]["param"] == "chat_template_kwargs"
    assert own.status_code == 400


def test_what_would_change_the_answer_and_is_not_there_is_refused(
    asked: Callable[..., Any],
) -> None:
    refused: dict[str, Any] = {
        "functions": [{"name": "f"}],
        "audio": {"voice": "alloy"},
        "modalities": ["text", "audio"],
        "web_search_options": {},
        "reasoning_effort": "huge",
        "best_of": 2,
    }
    neutral = {
        "modalities": ["text"],
        "store": True,
        "verbosity": "low",
        "function_call": "none",
        "audio": None,
    }

    async def ask(http: httpx2.AsyncClient, _: Context) -> list[Any]:
        answers = [await http.post(URL, json=chat(**{n: v})) for n, v in refused.items()]
        return [*answers, await http.post(URL, json=chat(**neutral, user="u", metadata={}))]

    *answers, taken = asked(ask)
    for name, answer in zip(refused, answers, strict=True):
        assert answer.status_code == 400 and answer.json()["error"]["param"] == name
    assert taken.status_code == 200


def test_an_answer_goes_on_from_tokens_that_it_is_said_to_begin_with(
    asked: Callable[..., Any],
) -> None:
    """With the draws that it would have had: they hang on seed and place."""
    drawn = {"temperature": 1, "seed": 3, "max_tokens": 12, "ignore_eos": True, "logprobs": True}

    async def ask(http: httpx2.AsyncClient, _: Context) -> tuple[Any, Any, list[Any]]:
        own = {"token_ids": True}
        whole = (await http.post(URL, json=chat(**drawn, top_logprobs=2, cutaway=own))).json()
        begun = {"answer_token_ids": ids_of(whole)[:5], **own}
        rest = await http.post(URL, json=chat(**{**drawn, "max_tokens": 7}, cutaway=begun))
        streamed_rest = await streamed(http, **{**drawn, "max_tokens": 7}, cutaway=begun)
        return whole, rest.json(), events(streamed_rest.text)

    whole, rest, chunks = asked(ask)
    assert ids_of(whole)[5:] == ids_of(rest)
    first = whole["choices"][0]["logprobs"]["content"][0]
    assert len({other["token_id"] for other in first["top_logprobs"]}) == 2
    assert whole["usage"]["prompt_tokens"] + 5 == rest["usage"]["prompt_tokens"]
    told = [c["logprobs"]["content"] for k in chunks[:-1] for c in k["choices"] if c["logprobs"]]
    assert [entry["token_id"] for content in told for entry in content] == ids_of(rest)


def ids_of(answer: Any) -> list[int]:
    """The ids of a whole answer's tokens."""
    return [entry["token_id"] for entry in answer["choices"][0]["logprobs"]["content"]]


def test_tokens_that_an_answer_cannot_begin_with_are_refused(asked: Callable[..., Any]) -> None:
    async def ask(http: httpx2.AsyncClient, _: Context) -> list[Any]:
        formed = {"response_format": {"type": "json_object"}}
        return [
            await http.post(URL, json=chat(**more, cutaway={"answer_token_ids": ids}))
            for ids, more in (([10**6], {}), ("x", {}), ([True], {}), ([1], formed))
        ]

    answers = [answer.json()["error"] for answer in asked(ask)]
    assert {error["param"] for error in answers} == {"cutaway.answer_token_ids"}
    assert "token ids go from 0 to" in answers[0]["message"]
    assert "response_format are both given" in answers[3]["message"]
