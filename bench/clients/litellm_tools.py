"""LiteLLM: a loop over tools as an OpenAI-like provider, streamed at the end."""

import json
import sys

import litellm

URL = sys.argv[1]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
VALUE = {"type": "object", "properties": {"value": {"type": "number"}}, "required": ["value"]}
TOOLS = [
    {"type": "function", "function": {"name": "temperature", "parameters": CITY}},
    {"type": "function", "function": {"name": "rounded", "parameters": VALUE}},
]
ASKED = {"model": "openai/planned", "api_base": f"{URL}/v1", "api_key": "none", "tools": TOOLS}
messages: list = [{"role": "user", "content": "How warm is Oslo?"}]
calls = 0
while True:
    answer = litellm.completion(messages=messages, **ASKED).choices[0].message
    messages.append(answer)
    if not answer.tool_calls:
        break
    for call in answer.tool_calls:
        calls += 1
        assert json.loads(call.function.arguments)
        messages.append({"role": "tool", "tool_call_id": call.id, "content": "21"})
assert calls == 2 and '"degrees": 21' in answer.content, (calls, answer)
stream = litellm.completion(messages=messages[:-1], stream=True, **ASKED)
text = "".join(piece.choices[0].delta.content or "" for piece in stream)
assert '"degrees": 21' in text
print("done")
