"""Completions: prompts of every form, echo with scores as lm-eval asks, streams, refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from server_app import chat, completion, events

from cutaway.server.route_context import Context

URL = "/v1/completions"
IDS = list(b"hello")


@pytest.mark.parametrize(
    ("prompt", "count"),
    [("hello", 1), (["hello", "hello"], 2), (IDS, 1), ([IDS, IDS, IDS], 3)],
)
def test_a_prompt_may_be_text_or_ids_one_or_several(
    asked: Callable[..., Any], prompt: Any, count: int
) -> None:
    async def ask(http: httpx2.AsyncClient, _: Context) -> Any:
        return (await http.post(URL, json=completion(prompt))).json()

    answer = asked(ask)
    assert [each["index"] for each in answer["choices"]] == list(range(count))
    assert len({each["text"] for each in answer["choices"]}) == 1
    assert answer["usage"]["prompt_tokens"] == 5 * count
    assert answer["usage"]["completion_tokens"] == 8 * count
    assert answer["object"] == "text_completion"


def test_several_prompts_with_several_choices_are_numbered_in_rows(
    asked: Callable[..., Any],
) -> None:
    prompts = [f"prompt {number}" for number in range(20)]

    async def ask(http: httpx2.AsyncClient, _: Context) -> Any:
        fields = {"n": 2, "echo": True, "max_tokens": 2, "temperature": 1}
        whole = (await http.post(URL, json=completion(prompts, **fields))).json()
        return whole["choices"]

    choices = asked(ask)
    assert [each["index"] for each in choices] == list(range(40))
    assert all(each["text"].startswith(prompts[each["index"] // 2]) for each in choices)


def test_echo_scores_the_prompt_as_lm_eval_reads_it(asked: Callable[..., Any]) -> None:
    fields = {"max_tokens": 1, "logprobs": 1, "echo": True, "temperature": 0, "seed": 1234}

    async def ask(http: httpx2.AsyncClient, _: Context) -> tuple[Any, Any]:
        one = (await http.post(URL, json=completion([IDS], **fields))).json()
        scored = (await http.post(URL, json=completion(IDS, prompt_logprobs=0))).json()
        return one["choices"][0], scored["choices"][0]

    choice, scored = asked(ask)
    logprobs = choice["logprobs"]
    assert logprobs["tokens"][:5] == list("hello") and len(logprobs["tokens"]) == 6
    assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
    assert logprobs["text_offset"] == [0, 1, 2, 3, 4, 5]
    assert choice["text"].startswith("hello")
    for token, own, tops in zip(
        logprobs["tokens"][1:],
        logprobs["token_logprobs"][1:],
        logprobs["top_logprobs"][1:],
        strict=True,
    ):
        assert tops[token] == own and max(tops.values()) >= own
    assert logprobs["token_logprobs"][-1] == max(logprobs["top_logprobs"][-1].values())
    by_id = [next(iter(each.values()))["logprob"] for each in scored["prompt_logprobs"][1:]]
    assert by_id == logprobs["token_logprobs"][1:5]


def test_an_answer_that_repeats_itself_ends_if_that_is_asked_for(
    asked: Callable[..., Any],
) -> None:
    detection = {"max_pattern_size": 3, "min_pattern_size": 1, "min_count": 5}
    fields = {"max_tokens": 20, "logit_bias": {"65": 100}, "temperature": 0}

    async def ask(http: httpx2.AsyncClient, _: Context) -> tuple[Any, Any, Any, Any]:
        body = completion("hello", **fields, repetition_detection=detection)
        whole = (await http.post(URL, json=body)).json()["choices"][0]
        streamed = await http.post(URL, json={**body, "stream": True})
        off = completion("hello", **fields, repetition_detection={"max_pattern_size": 0})
        plain = (await http.post(URL, json=off)).json()["choices"][0]
        odd = completion("hello", repetition_detection={"max_pattern_size": 4, "min_count": 1})
        pieces = events(streamed.text)[:-1]
        return whole, pieces, plain, await http.post(URL, json=odd)

    whole, streamed, plain, odd = asked(ask)
    assert whole["text"] == "AAAAA" and whole["finish_reason"] == "repetition"
    assert whole["stop_reason"] == "repetition_detected"
    assert "".join(each["choices"][0]["text"] for each in streamed) == "AAAAA"
    assert streamed[-1]["choices"][0]["finish_reason"] == "repetition"
    assert plain["finish_reason"] == "length" and plain["text"] == "A" * 20
    assert odd.status_code == 400
    assert odd.json()["error"]["param"] == "repetition_detection.min_count"


def test_a_prompt_is_scored_alone_when_no_token_is_asked_for(asked: Callable[..., Any]) -> None:
    async def ask(http: httpx2.AsyncClient, _: Context) -> list[Any]:
        with_echo = completion(IDS, max_tokens=0, echo=True, logprobs=2)
        return [await http.post(URL, json=each) for each in (with_echo, completion(max_tokens=0))]

    scored, refused = asked(ask)
    (choice,) = scored.json()["choices"]
    assert choice["text"] == "hello" and len(choice["logprobs"]["tokens"]) == 5
    assert scored.json()["usage"]["completion_tokens"] == 0
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "max_tokens"


@pytest.mark.parametrize("path", [URL, "/v1/chat/completions"])
def test_counts_go_on_in_every_event_where_asked(asked: Callable[..., Any], path: str) -> None:
    async def ask(http: httpx2.AsyncClient, _: Context) -> list[Any]:
        options = {"include_usage": True, "continuous_usage_stats": True}
        fields = {"stream": True, "stream_options": options, "n": 2, "ignore_eos": True}
        body = completion(**fields) if path == URL else chat(**fields)
        return events((await http.post(path, json=body)).text)

    *chunks, last, done = asked(ask)
    assert done == "[DONE]" and last["usage"]["completion_tokens"] == 16
    said = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert said == sorted(said) and said[-1] == 16 and len(set(said)) > 8
    assert {chunk["usage"]["prompt_tokens"] for chunk in chunks} == {last["usage"]["prompt_tokens"]}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"echo": True, "logprobs": 2},
        {"logprobs": 0, "n": 2, "temperature": 1, "seed": 3},
        {"stop": "U", "max_tokens": 40},
    ],
)
def test_h01_h02_a_stream_says_what_the_whole_answer_says(
    asked: Callable[..., Any], fields: dict[str, Any]
) -> None:
    prompts = ["hello", "h\u00e9 \U0001f600"]

    async def ask(http: httpx2.AsyncClient, _: Context) -> tuple[Any, list[Any]]:
        whole = (await http.post(URL, json=completion(prompts, **fields))).json()
        usage = {"include_usage": True}
        body = completion(prompts, stream=True, stream_options=usage, **fields)
        return whole, events((await http.post(URL, json=body)).text)

    whole, (*chunks, last, done) = asked(ask)
    assert done == "[DONE]" and last["choices"] == []
    for choice in whole["choices"]:
        own = [c for ch in chunks for c in ch["choices"] if c["index"] == choice["index"]]
        assert "".join(each["text"] for each in own) == choice["text"]
        assert [c["finish_reason"] for c in own if c["finish_reason"]] == [choice["finish_reason"]]
        if choice["logprobs"] is not None:
            for name in choice["logprobs"]:
                said = [each for c in own if c["logprobs"] for each in c["logprobs"][name]]
                assert said == choice["logprobs"][name]
    for name in ("prompt_tokens", "completion_tokens"):
        assert last["usage"][name] == whole["usage"][name]


def test_sixteen_tokens_are_the_default(asked: Callable[..., Any]) -> None:
    async def ask(http: httpx2.AsyncClient, _: Context) -> Any:
        return (await http.post(URL, json=completion(max_tokens=None, ignore_eos=True))).json()

    assert asked(ask)["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize("prompt", ["", [""], [], [[]], [IDS, []], ["a", ""]])
def test_h05_a_prompt_without_tokens_is_refused_and_the_next_one_works(
    asked: Callable[..., Any], prompt: Any
) -> None:
    async def ask(http: httpx2.AsyncClient, _: Context) -> list[Any]:
        refused = await http.post(URL, json=completion(prompt))
        return [refused, await http.post(URL, json=completion())]

    refused, after = asked(ask)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "prompt"
    assert after.status_code == 200


def test_names_of_control_tokens_are_text_unless_asked_otherwise(
    asked: Callable[..., Any],
) -> None:
    async def ask(http: httpx2.AsyncClient, _: Context) -> list[int]:
        bodies = [completion("a<eos>"), completion("a<eos>", control=True)]
        answers = [(await http.post(URL, json=body)).json() for body in bodies]
        return [answer["usage"]["prompt_tokens"] for answer in answers]

    assert asked(ask) == [6, 2]


def test_filling_in_the_middle_and_best_of_are_refused_clearly(asked: Callable[..., Any]) -> None:
    async def ask(http: httpx2.AsyncClient, _: Context) -> list[Any]:
        fields: list[dict[str, Any]] = [{"suffix": "end"}, {"best_of": 3}]
        answers = [await http.post(URL, json=completion(**each)) for each in fields]
        return [*answers, await http.post(URL, json=completion(suffix="", best_of=1))]

    suffix, best_of, taken = asked(ask)
    assert suffix.json()["error"]["param"] == "suffix" and suffix.status_code == 400
    assert best_of.json()["error"]["param"] == "best_of" and best_of.status_code == 400
    assert taken.status_code == 200


def test_too_many_prompts_are_refused(asked: Callable[..., Any]) -> None:
    async def ask(http: httpx2.AsyncClient, _: Context) -> Any:
        return await http.post(URL, json=completion(["a"] * 257))

    refused = asked(ask)
    assert refused.status_code == 400 and "257" in refused.json()["error"]["message"]


def test_tokens_go_there_and_back(asked: Callable[..., Any]) -> None:
    text = "h\u00e9 <eos> \U0001f600"

    async def ask(http: httpx2.AsyncClient, _: Context) -> list[Any]:
        cut = (await http.post("/tokenize", json={"prompt": text})).json()
        joined = await http.post("/detokenize", json={"tokens": cut["tokens"]})
        info = await http.get("/tokenizer_info")
        control = await http.post("/tokenize", json={"prompt": "<eos>", "control": True})
        return [cut, joined.json(), info.json(), control.json()]

    cut, joined, info, control = asked(ask)
    assert joined["prompt"] == text and cut["count"] == len(text.encode())
    assert info["eos_token"] == "<eos>" and info["bos_token"] is None and info["chat_template"]
    assert control["tokens"] == [257]
