"""OpenAI's SDK for Python: tools by chat, streamed, and by Responses, in its own objects."""

import sys

from openai import OpenAI

client = OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none")
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
VALUE = {"type": "object", "properties": {"value": {"type": "number"}}, "required": ["value"]}
KNOWN = (("temperature", CITY), ("rounded", VALUE))

messages: list = [{"role": "user", "content": "How warm is Oslo?"}]
tools: list = [
    {"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in KNOWN
]
while True:
    with client.chat.completions.stream(model="planned", messages=messages, tools=tools) as stream:
        message = stream.get_final_completion().choices[0].message
    messages.append(message)
    if not message.tool_calls:
        break
    messages += [
        {"role": "tool", "tool_call_id": call.id, "content": "21"} for call in message.tool_calls
    ]
assert len(messages) == 6 and '"degrees": 21' in (message.content or ""), messages

items: list = [{"role": "user", "content": "How warm is Oslo?"}]
tools = [{"type": "function", "name": name, "parameters": schema} for name, schema in KNOWN]
while True:
    answer = client.responses.create(model="planned", input=items, tools=tools)
    items += answer.output
    calls = [item for item in answer.output if item.type == "function_call"]
    if not calls:
        break
    items += [
        {"type": "function_call_output", "call_id": call.call_id, "output": "21"} for call in calls
    ]
assert '"degrees": 21' in answer.output_text, answer
print("done")
