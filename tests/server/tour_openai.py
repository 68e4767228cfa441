"""A tour of the server with OpenAI's own client, run by a Python that has it: URL MODEL KEY.

With `calls` behind them, the model is one that calls the tool by itself; with `kept`, the server
has a store.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import openai


def main(url: str, model: str, key: str, kind: str = "") -> None:
    """Ask for everything that the client can ask for and check what comes."""
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)
    for stop in AUTOMATIC if kind == "calls" else STOPS:
        stop(client, model)
        print(f"{stop.__name__}: as expected")
    if kind == "kept":
        responses_kept(client, model)
    if kind in ("calls", "kept"):
        print("all as expected")
        return
    wrong_key(url, model)
    asyncio.run(at_once(openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key), model))
    print("all as expected")


def asked(model: str, **more: Any) -> dict[str, Any]:
    messages = [
        {"role": "system", "content": "You are brief."},
        {"role": "user", "content": [{"type": "text", "text": "What is "}, TEXT]},
    ]
    return {"model": model, "messages": messages, "temperature": 0, "max_tokens": 12, **more}


TEXT = {"type": "text", "text": "gravity?"}


def models(client: openai.OpenAI, model: str) -> None:
    (listed,) = client.models.list().data
    assert listed.id == model and client.models.retrieve(model).id == model


def chat(client: openai.OpenAI, model: str) -> None:
    answer = client.chat.completions.create(**asked(model, logprobs=True, top_logprobs=3, seed=1))
    (choice,) = answer.choices
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason in ("stop", "length") and answer.usage
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert choice.logprobs and choice.logprobs.content
    first = choice.logprobs.content[0]
    assert len(first.top_logprobs) == 3 and first.logprob == first.top_logprobs[0].logprob
    several = client.chat.completions.create(**asked(model, n=3, temperature=1, seed=5))
    assert [each.index for each in several.choices] == [0, 1, 2]
    newer = asked(model, max_tokens=None, max_completion_tokens=2)
    short = client.chat.completions.create(**newer)
    assert short.usage and short.usage.completion_tokens <= 2
    assert answer._request_id


def repetition(client: openai.OpenAI, model: str) -> None:
    """Asked for as in vLLM: another reason than OpenAI's, which its client hands on."""
    detection = {"max_pattern_size": 2, "min_count": 4}
    loop = asked(model, max_tokens=30, logit_bias={"65": 100}, stop=None)
    loop["extra_body"] = {"repetition_detection": detection}
    choice = client.chat.completions.create(**loop).choices[0]
    assert choice.finish_reason == "repetition"  # pyright: ignore
    assert choice.model_extra == {"stop_reason": "repetition_detected"}
    with client.chat.completions.stream(**loop) as stream:
        for _ in stream:
            pass
        (streamed,) = stream.get_final_completion().choices
    assert streamed.message.content == choice.message.content
    assert streamed.finish_reason == "repetition"  # pyright: ignore
    loop["extra_body"] = {"repetition_detection": {**detection, "min_count": 1}}
    try:
        client.chat.completions.create(**loop)
    except openai.BadRequestError as error:
        assert error.param == "repetition_detection.min_count"
    else:
        raise AssertionError("a pattern that stands once repeats nothing")


def chat_stream(client: openai.OpenAI, model: str) -> None:
    whole = client.chat.completions.create(**asked(model))
    usage = {"include_usage": True}
    chunks = list(client.chat.completions.create(**asked(model, stream=True, stream_options=usage)))
    said = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert said[0].delta.role == "assistant"
    assert "".join(c.delta.content or "" for c in said) == whole.choices[0].message.content
    assert said[-1].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].usage and whole.usage
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    with client.chat.completions.create(**asked(model, stream=True, max_tokens=100)) as stream:
        next(iter(stream))  # and leave


def extras(client: openai.OpenAI, model: str) -> None:
    more = {"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1, "ignore_eos": True}
    answer = client.chat.completions.create(
        **asked(model, temperature=1, stop=["zzzz"], logit_bias={"5": -100}), extra_body=more
    )
    assert answer.usage and answer.usage.completion_tokens == 12
    assert answer.model_extra and answer.model_extra["timings"]["predicted_n"] == 12
    scored = client.chat.completions.create(**asked(model), extra_body={"prompt_logprobs": 0})
    assert scored.model_extra and len(scored.model_extra["prompt_logprobs"]) > 1


def completions(client: openai.OpenAI, model: str) -> None:
    one = client.completions.create(model=model, prompt="The cat", max_tokens=4, temperature=0)
    many = client.completions.create(
        model=model, prompt=["The cat", "A dog"], max_tokens=4, temperature=0, n=1
    )
    assert [each.index for each in many.choices] == [0, 1]
    assert many.choices[0].text == one.choices[0].text
    echoed = client.completions.create(
        model=model, prompt="The cat", max_tokens=1, temperature=0, echo=True, logprobs=1
    )
    logprobs = echoed.choices[0].logprobs
    assert echoed.choices[0].text.startswith("The cat") and logprobs and logprobs.token_logprobs
    assert logprobs.token_logprobs[0] is None


def stream_of_completions(client: openai.OpenAI, model: str) -> None:
    fields: dict[str, Any] = {"prompt": "The cat", "max_tokens": 6, "temperature": 0}
    whole = client.completions.create(model=model, **fields)
    chunks = list(client.completions.create(model=model, stream=True, **fields))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text


def refusals(client: openai.OpenAI, model: str) -> None:
    cases: list[tuple[type[openai.APIStatusError], str | None, dict[str, Any]]] = [
        (openai.BadRequestError, "temperature", asked(model, temperature=9)),
        (openai.BadRequestError, "n", asked(model, n=0, stream=True)),
        (openai.BadRequestError, "messages", asked(model, messages=[])),
        (openai.BadRequestError, "temprature", asked(model, extra_body={"temprature": 1})),
        (openai.NotFoundError, "model", asked("another")),
    ]
    for kind, param, body in cases:
        try:
            client.chat.completions.create(**body)
        except kind as error:
            assert error.param == param, error
        else:
            raise AssertionError(f"{param} was taken")
    try:
        client.embeddings.create(model=model, input="x")
    except openai.NotFoundError as error:
        assert "embeddings" in str(error)
    else:
        raise AssertionError("embeddings were served")


SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Bonn"]}, "days": {"type": "integer", "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER = {"name": "weather", "description": "Tell the weather of a city.", "parameters": SCHEMA}
TOOLS: Any = [{"type": "function", "function": WEATHER}]
FLAT_TOOLS: Any = [{"type": "function", **WEATHER}]
NAMED: Any = {"type": "function", "function": {"name": "weather"}}


def fits(text: str) -> bool:
    """Whether a text is JSON and valid by the schema."""
    value = json.loads(text)
    days = value["days"]
    return set(value) == {"city", "days"} and value["city"] in ("Oslo", "Bonn") and days <= 9


def schemas(client: openai.OpenAI, model: str) -> None:
    shape: Any = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}}
    limits = {"max_tokens": 60, "response_format": shape}
    answer = client.chat.completions.create(**asked(model, **limits))
    assert answer.choices[0].message.content and fits(answer.choices[0].message.content)
    loose = asked(model, max_tokens=200, response_format={"type": "json_object"}, stop=["}"])
    assert (client.chat.completions.create(**loose).choices[0].message.content or "")[0] == "{"
    extra = {"structured_outputs": {"choice": ["yes", "no"]}}
    chosen = client.chat.completions.create(**asked(model, extra_body=extra))
    assert chosen.choices[0].message.content in ("yes", "no")


def forced_calls(client: openai.OpenAI, model: str) -> None:
    for choice, reason in (("required", "tool_calls"), (NAMED, "stop")):
        fields = {"tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False}
        body = asked(model, **{**fields, "max_tokens": 100})
        whole = client.chat.completions.create(**body).choices[0]
        (call,) = whole.message.tool_calls or ()
        assert call.type == "function" and fits(call.function.arguments)
        assert whole.finish_reason == reason
        with client.chat.completions.stream(**body) as stream:
            final = stream.get_final_completion().choices[0]
        (same,) = final.message.tool_calls or ()
        assert same.function.arguments == call.function.arguments


def calls_and_results(client: openai.OpenAI, model: str) -> None:
    """An agent's round: the model calls by itself, and reads what the tool said."""
    body = asked(model, tools=TOOLS, max_tokens=200)
    whole = client.chat.completions.create(**body).choices[0]
    assert whole.finish_reason == "tool_calls" and whole.message.tool_calls
    (call,) = whole.message.tool_calls
    assert call.type == "function" and fits(call.function.arguments)
    with client.chat.completions.stream(**body) as stream:
        streamed = stream.get_final_completion().choices[0]
    assert streamed.finish_reason == "tool_calls" and streamed.message.tool_calls
    assert streamed.message.tool_calls[0].function.arguments == call.function.arguments
    said = whole.message.model_dump(exclude_none=True)
    result = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
    messages = [*body["messages"], said, result]
    assert client.chat.completions.create(**{**body, "messages": messages}).choices


def responses(client: openai.OpenAI, model: str) -> None:
    fields: dict[str, Any] = {"model": model, "temperature": 0, "max_output_tokens": 12}
    one = client.responses.create(input="What is gravity?", instructions="Be brief.", **fields)
    assert one.output_text and one.usage and one.usage.output_tokens <= 12
    assert one.status in ("completed", "incomplete") and one.store is False
    said = [{"role": "user", "content": [{"type": "input_text", "text": "What is gravity?"}]}]
    items: Any = [{"role": "system", "content": "Be brief."}, *said]
    with client.responses.stream(input=items, **fields) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response() if one.status == "completed" else None
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == f"response.{one.status}"
    assert final is None or final.output_text == one.output_text
    scored = client.responses.create(
        input="What is gravity?",
        include=["message.output_text.logprobs"],
        top_logprobs=2,
        **fields,
    )
    (part,) = scored.output[0].content  # type: ignore[union-attr]
    assert part.logprobs and all(len(each.top_logprobs) == 2 for each in part.logprobs)
    form: Any = {"format": {"type": "json_schema", "name": "place", "schema": SCHEMA}}
    shaped = client.responses.create(
        input="Where?", text=form, **{**fields, "max_output_tokens": 60}
    )
    assert fits(shaped.output_text)


def responses_calls(client: openai.OpenAI, model: str) -> None:
    fields: dict[str, Any] = {"model": model, "tools": FLAT_TOOLS, "max_output_tokens": 200}
    fields |= {"tool_choice": "required", "parallel_tool_calls": False, "temperature": 0}
    question: Any = [{"role": "user", "content": "What is the weather in Oslo?"}]
    whole = client.responses.create(input=question, **fields)
    (call,) = whole.output
    assert call.type == "function_call" and fits(call.arguments)
    with client.responses.stream(input=question, **fields) as stream:
        (same,) = stream.get_final_response().output
    assert same.type == "function_call" and same.arguments == call.arguments
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    after = [*question, call.model_dump(exclude_none=True), result]
    assert client.responses.create(input=after, **{**fields, "tool_choice": "none"}).output


def responses_refusals(client: openai.OpenAI, model: str) -> None:
    cases: Any = {"previous_response_id": "resp_1", "background": True, "temperature": 9}
    for name, value in cases.items():
        try:
            client.responses.create(model=model, input="x", **{name: value})
        except openai.BadRequestError as error:
            assert error.param == name, error
        else:
            raise AssertionError(f"{name} was taken")


def responses_kept(client: openai.OpenAI, model: str) -> None:
    first = client.responses.create(model=model, input="I am Ann.", max_output_tokens=8)
    after = client.responses.create(
        model=model, input="Who am I?", previous_response_id=first.id, max_output_tokens=8
    )
    assert after.previous_response_id == first.id and after.usage and first.usage
    assert after.usage.input_tokens > first.usage.input_tokens + first.usage.output_tokens - 2
    assert client.responses.retrieve(after.id).output_text == after.output_text
    (item,) = client.responses.input_items.list(after.id).data
    assert item.type == "message"
    begun = client.conversations.create(items=[{"role": "user", "content": "I am Ann."}])
    client.responses.create(model=model, input="Hello", conversation=begun.id, max_output_tokens=8)
    assert len(list(client.conversations.items.list(begun.id))) == 3
    try:
        client.responses.cancel(first.id)
    except openai.BadRequestError as error:
        assert "is complete" in error.message
    else:
        raise AssertionError("a finished answer was cancelled")
    client.responses.delete(first.id)
    client.conversations.delete(begun.id)
    try:
        client.responses.retrieve(first.id)
    except openai.NotFoundError as error:
        assert error.code == "not_found"
    else:
        raise AssertionError("a deleted answer is there")


def wrong_key(url: str, model: str) -> None:
    try:
        openai.OpenAI(base_url=f"{url}/v1", api_key="wrong").models.list()
    except openai.AuthenticationError as error:
        assert error.code == "invalid_api_key"
    else:
        raise AssertionError(f"a wrong key may see {model}")


async def at_once(client: openai.AsyncOpenAI, model: str) -> None:
    answers = await asyncio.gather(
        *(client.chat.completions.create(**asked(model)) for _ in range(8))
    )
    assert len({each.choices[0].message.content for each in answers}) == 1


STOPS = (
    *(models, chat, repetition, chat_stream, extras, completions, stream_of_completions, refusals),
    *(schemas, forced_calls, responses, responses_calls, responses_refusals),
)
AUTOMATIC = (calls_and_results,)

if __name__ == "__main__":
    main(*sys.argv[1:])
