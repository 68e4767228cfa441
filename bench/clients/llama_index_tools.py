"""LlamaIndex: a function agent over an OpenAI-like model."""

import asyncio
import sys

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.llms.openai_like import OpenAILike


def temperature(city: str) -> str:
    """The temperature of a city."""
    return f"{city}: 21"


def rounded(value: float) -> str:
    """A number without its fraction."""
    return str(round(value))


MODEL = OpenAILike(
    model="planned",
    api_base=f"{sys.argv[1]}/v1",
    api_key="none",
    is_chat_model=True,
    is_function_calling_model=True,
    context_window=100_000,
)


async def main() -> None:
    """One task."""
    agent = FunctionAgent(tools=[temperature, rounded], llm=MODEL, system_prompt="Be brief.")
    answer = str(await agent.run("How warm is Oslo?"))
    assert '"degrees": 21' in answer, answer


asyncio.run(main())
print("done")
