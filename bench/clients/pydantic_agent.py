"""pydantic-ai: two tools and a native output type, by OpenAI's two APIs and by Anthropic's."""

import sys

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

URL = sys.argv[1]


class Report(BaseModel):
    """What the task ends with."""

    city: str
    degrees: int


OPENAI = OpenAIProvider(base_url=f"{URL}/v1", api_key="none")
for model in (
    OpenAIChatModel("planned", provider=OPENAI),
    OpenAIResponsesModel("planned", provider=OPENAI),
    AnthropicModel("planned", provider=AnthropicProvider(base_url=URL, api_key="none")),
):
    anthropic = isinstance(model, AnthropicModel)
    agent = Agent(model, output_type=str if anthropic else NativeOutput(Report))

    @agent.tool_plain
    def temperature(city: str) -> str:
        """The temperature of a city."""
        return f"{city}: 21"

    @agent.tool_plain
    def rounded(value: float) -> str:
        """A number without its fraction."""
        return str(round(value))

    done = agent.run_sync("How warm is Oslo?")
    told = Report.model_validate_json(done.output) if anthropic else done.output
    assert told == Report(city="Oslo", degrees=21), done.output
print("done")
