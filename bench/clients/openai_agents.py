"""OpenAI's Agents SDK: two tools and an output type in one task, by Responses and by chat."""

import asyncio
import sys

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel

set_tracing_disabled(True)
CLIENT = AsyncOpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none")


class Report(BaseModel):
    """What the task ends with."""

    city: str
    degrees: int


@function_tool
def temperature(city: str) -> str:
    """The temperature of a city."""
    return f"{city}: 21"


@function_tool
def rounded(value: float) -> str:
    """A number without its fraction."""
    return str(round(value))


async def main() -> None:
    """Ask by both APIs."""
    for kind in (OpenAIResponsesModel, OpenAIChatCompletionsModel):
        model = kind(model="planned", openai_client=CLIENT)
        agent = Agent(name="weather", model=model, tools=[temperature, rounded], output_type=Report)
        done = await Runner.run(agent, "How warm is Oslo?")
        assert done.final_output == Report(city="Oslo", degrees=21), done.final_output
        streamed = Runner.run_streamed(agent, "How warm is Oslo?")
        async for _ in streamed.stream_events():
            pass
        assert streamed.final_output == Report(city="Oslo", degrees=21)


asyncio.run(main())
print("done")
