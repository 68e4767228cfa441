"""LangChain: a loop over bound tools by OpenAI's chat and by Anthropic's messages."""

import sys

from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

URL = sys.argv[1]


@tool
def temperature(city: str) -> str:
    """The temperature of a city."""
    return f"{city}: 21"


@tool
def rounded(value: float) -> str:
    """A number without its fraction."""
    return str(round(value))


TOOLS = {each.name: each for each in (temperature, rounded)}
for model in (
    ChatOpenAI(model="planned", base_url=f"{URL}/v1", api_key="none"),
    ChatOpenAI(model="planned", base_url=f"{URL}/v1", api_key="none", use_responses_api=True),
    ChatAnthropic(model="planned", base_url=URL, api_key="none"),
):
    bound = model.bind_tools(list(TOOLS.values()))
    messages = [HumanMessage("How warm is Oslo?")]
    calls = 0
    while True:
        answer = bound.invoke(messages)
        messages.append(answer)
        if not answer.tool_calls:
            break
        for call in answer.tool_calls:
            calls += 1
            result = TOOLS[call["name"]].invoke(call["args"])
            messages.append(ToolMessage(result, tool_call_id=call["id"]))
    text = answer.text if isinstance(answer.text, str) else answer.text()
    assert calls == 2 and '"degrees": 21' in text, (calls, text)
print("done")
