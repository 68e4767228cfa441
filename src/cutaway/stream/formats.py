"""How models write calls of tools and reasoning: one table, and the rule that chooses from it.

Knows a chat template as text alone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from cutaway.core.errors import ConfigError
from cutaway.core.limits import quote

Body = Literal["object", "objects", "python", "line"]


@dataclass(frozen=True)
class ToolFormat:
    """How one family of models writes a call.

    opening:      what a call begins with; empty where the body itself is told by its first
        character, and then only at the start of an answer.
    body:         object: one JSON object; objects: a list of them; python: a list of calls;
        line: the rest of the line.
    closing:      what a call ends with.
    arguments:    the key of the arguments, for what we write; either key is read.
    at_start:     whether calls stand only at the start of an answer.
    sign:         regex that its templates match.
    """

    name: str
    body: Body
    sign: str
    opening: str = ""
    closing: str = ""
    arguments: str = "arguments"
    at_start: bool = False

    def markers_among(self, control_tokens: Collection[str]) -> frozenset[str]:
        """Its markers that are control tokens: they show only without skip_special_tokens."""
        return frozenset({self.opening, self.closing} & set(control_tokens))


# The first whose sign is found in a template counts.
FORMATS: tuple[ToolFormat, ...] = (
    ToolFormat("mistral", "objects", r"\[TOOL_CALLS\]", opening="[TOOL_CALLS]"),
    ToolFormat("hermes", "object", r"<tool_call>", opening="<tool_call>", closing="</tool_call>"),
    ToolFormat("pythonic", "python", r"\[\w+\(\w+=|func_name1?\(", at_start=True),
    ToolFormat(
        "llama3",
        "object",
        r"<\|python_tag\|>|\"parameters\": ",
        opening="<|python_tag|>",
        arguments="parameters",
        at_start=True,
    ),
    # For models that were never trained on calls: one plain line, as `cutaway chat` asks for.
    ToolFormat("line", "line", r"(?!)", opening="TOOL"),
)
BY_NAME: Mapping[str, ToolFormat] = {each.name: each for each in FORMATS}
FALLBACK = BY_NAME["hermes"]  # what a model is told to write whose template knows no tools


def choose_format(template: str | None, *, name: str | None = None) -> ToolFormat:
    """The format of a model, by its chat template's text or by name.

    Raises: ConfigError naming the formats there are.
    """
    if name is not None:
        if name not in BY_NAME:
            raise ConfigError(
                f"tool format is {quote(name)}; it must be one of {', '.join(BY_NAME)}. Leave it "
                "out "
                "to take what the model's template shows."
            )
        return BY_NAME[name]
    for each in FORMATS:
        if template is not None and re.search(each.sign, template):
            return each
    return FALLBACK


def knows_tools(template: str | None) -> bool:
    """Whether a template reads the tools that it is given; else they must be told in a message."""
    return template is not None and re.search(r"\btools\b", template) is not None


@dataclass(frozen=True)
class ReasoningFormat:
    """The markers around reasoning, which comes before the answer."""

    opening: str = "<think>"
    closing: str = "</think>"

    def is_open_after(self, prompt: str) -> bool:
        """Whether the prompt, as the template wrote it, has begun the reasoning already."""
        return prompt.rstrip().endswith(self.opening)


def choose_reasoning(template: str | None) -> ReasoningFormat | None:
    """The reasoning format of a model, by its template; None where there is no sign of any."""
    found = ReasoningFormat()
    return found if template is not None and found.opening in template else None
