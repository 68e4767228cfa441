"""A tour of the server with Anthropic's own client, run by a Python that has it: URL MODEL KEY.

With `calls` behind them, the model is one that calls the tool by itself.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import anthropic


def main(url: str, model: str, key: str, kind: str = "") -> None:
    """Ask for everything that the client can ask for and check what comes."""
    client = anthropic.Anthropic(base_url=url, api_key=key, max_retries=0)
    for stop in AUTOMATIC if kind == "calls" else STOPS:
        stop(client, model)
        print(f"{stop.__name__}: as expected")
    if kind != "calls":
        keys(url, model, key)
    print("all as expected")


QUESTION: Any = {"role": "user", "content": "What is the weather in Oslo?"}
SCHEMA: Any = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Bonn"]}, "days": {"type": "integer", "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER: Any = {"name": "weather", "description": "Tell the weather.", "input_schema": SCHEMA}


def asked(model: str, **more: Any) -> dict[str, Any]:
    """Arguments of a call; newer clients have no name for how an answer is drawn."""
    drawn = {"temperature": 0, **more.pop("extra_body", {})}
    fields = {"model": model, "messages": [QUESTION], "max_tokens": 12}
    return {**fields, "extra_body": drawn, **more}


def fits(value: Any) -> bool:
    """Whether a value is valid by the schema."""
    days = value["days"]
    return set(value) == {"city", "days"} and value["city"] in ("Oslo", "Bonn") and days <= 9


def text_of(message: Any) -> str:
    (block,) = message.content
    assert block.type == "text"
    return block.text


def models(client: anthropic.Anthropic, model: str) -> None:
    (listed,) = client.models.list(limit=5).data
    assert listed.id == listed.display_name == model and listed.type == "model"
    assert client.models.retrieve(model) == listed


def messages(client: anthropic.Anthropic, model: str) -> None:
    whole = client.messages.create(**asked(model, system="Be brief."))
    assert whole.role == "assistant" and whole.type == "message" and text_of(whole)
    assert whole.stop_reason in ("end_turn", "max_tokens") and whole.usage.output_tokens <= 12
    blocks = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    parts = [{"role": "user", "content": [{"type": "text", "text": QUESTION["content"]}]}]
    same = client.messages.create(**asked(model, system=blocks, messages=parts))
    assert text_of(same) == text_of(whole)
    cached = same.usage.cache_read_input_tokens
    assert cached and cached + same.usage.input_tokens > same.usage.input_tokens
    extra = {"temperature": 1, "top_k": 5, "top_p": 0.9, "min_p": 0.1, "seed": 1}
    assert client.messages.create(**asked(model, extra_body=extra)).content


def streams(client: anthropic.Anthropic, model: str) -> None:
    whole = client.messages.create(**asked(model))
    with client.messages.stream(**asked(model)) as stream:
        assert "".join(stream.text_stream) == text_of(whole)
        final = stream.get_final_message()
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens
    raw = [each.type for each in client.messages.create(**asked(model, stream=True))]
    assert raw[:2] == ["message_start", "content_block_start"]
    assert raw[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    with client.messages.stream(**asked(model, max_tokens=100)) as stream:
        next(iter(stream))  # and leave


def stops(client: anthropic.Anthropic, model: str) -> None:
    whole = text_of(client.messages.create(**asked(model)))
    word = whole.split()[1]
    stopped = client.messages.create(**asked(model, stop_sequences=[word]))
    assert stopped.stop_reason == "stop_sequence" and stopped.stop_sequence == word
    assert text_of(stopped) == whole[: whole.index(word)]


def counts(client: anthropic.Anthropic, model: str) -> None:
    fields: dict[str, Any] = {"model": model, "messages": [QUESTION], "system": "Be brief."}
    plain = client.messages.count_tokens(**fields).input_tokens
    usage = client.messages.create(max_tokens=1, **fields).usage
    assert plain == usage.input_tokens + (usage.cache_read_input_tokens or 0)
    assert client.messages.count_tokens(tools=[WEATHER], **fields).input_tokens > plain


def forced_calls(client: anthropic.Anthropic, model: str) -> None:
    for choice in ({"type": "any"}, {"type": "tool", "name": "weather"}):
        choice["disable_parallel_tool_use"] = True  # type: ignore[assignment]
        fields = asked(model, tools=[WEATHER], tool_choice=choice, max_tokens=100)
        whole = client.messages.create(**fields)
        (call,) = whole.content
        assert call.type == "tool_use" and fits(call.input) and whole.stop_reason == "tool_use"
        with client.messages.stream(**fields) as stream:
            (same,) = stream.get_final_message().content
        assert same.type == "tool_use" and same.input == call.input


def schemas(client: anthropic.Anthropic, model: str) -> None:
    form = {"format": {"type": "json_schema", "schema": SCHEMA}}
    answer = client.messages.create(**asked(model, max_tokens=60, output_config=form))
    assert fits(json.loads(text_of(answer)))


def refusals(client: anthropic.Anthropic, model: str) -> None:
    image = {"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "x"}}]}
    cases: list[tuple[type[anthropic.APIStatusError], str, dict[str, Any]]] = [
        (anthropic.BadRequestError, "temperature", asked(model, extra_body={"temperature": 9})),
        (anthropic.BadRequestError, "max_tokens", asked(model, max_tokens=0, stream=True)),
        (anthropic.BadRequestError, "messages[0].content[0].type", asked(model, messages=[image])),
        (anthropic.BadRequestError, "tool_choice", asked(model, tool_choice={"type": "any"})),
        (anthropic.NotFoundError, "model", asked("another")),
    ]
    for kind, words, body in cases:
        try:
            client.messages.create(**body)
        except kind as error:
            told: Any = error.body
            assert told["type"] == "error" and words in told["error"]["message"], error
        else:
            raise AssertionError(f"{words} was taken")


def keys(url: str, model: str, key: str) -> None:
    try:
        anthropic.Anthropic(base_url=url, api_key="wrong", max_retries=0).messages.create(
            **asked(model)
        )
    except anthropic.AuthenticationError:
        pass
    else:
        raise AssertionError(f"a wrong key may ask {model}")
    bearer = anthropic.Anthropic(base_url=url, api_key=None, auth_token=key, max_retries=0)
    assert bearer.messages.create(**asked(model, max_tokens=1)).content is not None


def calls_and_results(client: anthropic.Anthropic, model: str) -> None:
    """An agent's round: the model calls by itself, and reads what the tool said."""
    body = asked(model, tools=[WEATHER], max_tokens=200)
    whole = client.messages.create(**body)
    assert whole.stop_reason == "tool_use"
    thinking, text, call = whole.content
    assert thinking.type == "thinking" and text.type == "text"
    assert call.type == "tool_use" and fits(call.input)
    with client.messages.stream(**body) as stream:
        streamed = stream.get_final_message()
    assert [each.type for each in streamed.content] == [each.type for each in whole.content]
    assert streamed.content[2].input == call.input  # type: ignore[union-attr]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "rain"}
    said = {"role": "assistant", "content": whole.content}
    turns = [QUESTION, said, {"role": "user", "content": [result]}]
    assert client.messages.create(**{**body, "messages": turns}).content


STOPS = (models, messages, streams, stops, counts, forced_calls, schemas, refusals)
AUTOMATIC = (calls_and_results,)

if __name__ == "__main__":
    main(*sys.argv[1:])
