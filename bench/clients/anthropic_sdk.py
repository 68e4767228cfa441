"""Anthropic's SDK for Python: tools by Messages, streamed, the answers' own blocks sent back."""

import sys

from anthropic import Anthropic

client = Anthropic(base_url=sys.argv[1], api_key="none")
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
VALUE = {"type": "object", "properties": {"value": {"type": "number"}}, "required": ["value"]}
tools: list = [
    {"name": "temperature", "input_schema": CITY},
    {"name": "rounded", "input_schema": VALUE},
]
messages: list = [{"role": "user", "content": "How warm is Oslo?"}]
asked = {"model": "planned", "max_tokens": 1000, "tools": tools}
while True:
    with client.messages.stream(messages=messages, **asked) as stream:
        message = stream.get_final_message()
    messages.append({"role": "assistant", "content": message.content})
    calls = [block for block in message.content if block.type == "tool_use"]
    if not calls:
        break
    results = [{"type": "tool_result", "tool_use_id": call.id, "content": "21"} for call in calls]
    messages.append({"role": "user", "content": results})
assert len(messages) == 6 and '"degrees": 21' in message.content[0].text, messages
print("done")
