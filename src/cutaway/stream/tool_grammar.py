"""The grammar that holds an answer to calls of tools, in the format of the model.

Knows no vocabulary, but takes the ids of markers that are control tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from cutaway.core.errors import RequestError
from cutaway.core.grammar import Grammar
from cutaway.core.limits import quote
from cutaway.stream.formats import ToolFormat

MOST_CHOICES = 128  # tools among which a call that must come may choose
MAX_CALLS = 8  # in one forced answer
# The form of json.dumps, as for schemas of whole answers.
_JSON_FORM = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
# Where a schema may list its names besides properties: a rule on all others would shut those out.
_ELSEWHERE = frozenset(("$ref", "anyOf", "oneOf", "allOf", "if", "then", "else"))
_NO_ARGUMENTS: Mapping[str, object] = {"type": "object", "properties": {}}


@dataclass(frozen=True)
class Tool:
    """A function that the model may call. parameters: the JSON schema of its arguments."""

    name: str
    parameters: Mapping[str, object] | None = None


def call_grammar(
    tools: Sequence[Tool],
    tool_format: ToolFormat,
    *,
    name: str | None = None,
    is_parallel: bool = False,
    control_tokens: Mapping[str, int] | None = None,
    form: Grammar | None = None,
) -> Grammar:
    """The grammar of tool_choice "required", or of a named tool.

    form: what else the answer may be, as a whole: JSON, by a schema or free.

    name: the tool that must be called; None leaves the choice to the model.
    is_parallel: whether several calls may come, MAX_CALLS at most.
    control_tokens: of the tokenizer, so that a marker among them comes as its token.

    Arguments are valid by the schema of their tool; names that it does not list stay out, unless
    it says additionalProperties.

    Raises: RequestError naming what is wrong with which tool.
    """
    chosen = [(index, tool) for index, tool in enumerate(tools) if name in (None, tool.name)]
    if not tools or len(chosen) > MOST_CHOICES:
        raise RequestError(
            f"tools has {len(tools)} entries; a call can be asked for of 1 to {MOST_CHOICES}. Name "
            "the one to call, or let the model choose.",
            param="tools",
        )
    if not chosen:
        raise RequestError(
            f"tool_choice names {quote(name)}, which is none of the tools: "
            f"{quote([tool.name for tool in tools])}.",
            param="tool_choice",
        )
    if tool_format.body not in ("object", "objects"):
        raise RequestError(
            f"tool_choice can be required or named only where calls are JSON; this model writes "
            f"them in the format {tool_format.name}. Use auto, or another tool format.",
            param="tool_choice",
        )
    rules = [f"call: {' | '.join(f'tool{index}' for index, _ in chosen)}"]
    for index, tool in chosen:
        schema = json.dumps(_schema(tool, index), ensure_ascii=False)
        before = f'{{"name": {json.dumps(tool.name, ensure_ascii=False)}, '
        before += f'"{tool_format.arguments}": '
        rules.append(f'tool{index}: {_quoted(before)} arguments{index} "}}"')
        rules.append(f"arguments{index}: %json {schema}")
    start = _start(tool_format, is_parallel=is_parallel, control=control_tokens or {})
    if form is not None:
        if form.kind not in ("json_schema", "json_object"):
            raise RequestError(
                f"tools stand beside a form of the kind {form.kind}; beside tools it must be JSON. "
                "Leave one out, or send tool_choice none.",
                param="tools",
            )
        schema = json.loads(form.text) if form.text else {"type": "object"}
        fields = {"x-guidance": _JSON_FORM, **(schema if isinstance(schema, dict) else {})}
        start = start.replace("start: ", "start: form | calls\ncalls: ", 1)
        rules.append(f"form: %json {json.dumps(fields, ensure_ascii=False)}")
    return Grammar.lark("\n".join([start, *rules]) + "\n")


def _start(tool_format: ToolFormat, *, is_parallel: bool, control: Mapping[str, int]) -> str:
    opening = _marker(tool_format.opening, control)
    more = f"{{0,{MAX_CALLS - 1}}}" if is_parallel else "{0,0}"
    if tool_format.body == "objects":
        rest = f' (", " call){more}' if is_parallel else ""
        return f'start: {opening} "[" call{rest} "]"'
    if not tool_format.closing:
        rest = f' ("; " call){more}' if is_parallel else ""
        return f"start: call{rest}"
    closing = _marker(tool_format.closing, control)
    rest = f' ("\\n" one){more}' if is_parallel else ""
    return f'start: one{rest}\none: {opening} "\\n" call "\\n" {closing}'


def _marker(text: str, control: Mapping[str, int]) -> str:
    return f"<[{control[text]}]>" if text in control else _quoted(text)


def _quoted(text: str) -> str:
    """A Lark string; JSON's escapes are among Lark's."""
    return json.dumps(text, ensure_ascii=False)


def _schema(tool: Tool, index: int) -> dict[str, object]:
    schema: dict[str, object] = {**(_NO_ARGUMENTS if tool.parameters is None else tool.parameters)}
    schema.setdefault("type", "object")
    if not _ELSEWHERE & schema.keys():
        schema.setdefault("additionalProperties", False)
    try:
        text = Grammar.json_schema(schema).text
    except RequestError as error:
        param = f"tools[{index}].function.parameters"
        place = param + (error.param or "").removeprefix("grammar")
        raise RequestError(f"{place}: {error}", param=place) from None
    return {**cast("dict[str, object]", json.loads(text)), "x-guidance": _JSON_FORM}


def tools_message(tools: Sequence[Mapping[str, object]], tool_format: ToolFormat) -> str:
    """What a system message says of the tools, for a model whose template does not.

    tools: the descriptions as they came, each with name, description and parameters.
    """
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    call = f'{{"name": "the tool", "{tool_format.arguments}": {{"an argument": "its value"}}}}'
    if tool_format.body == "objects":
        call = f"[{call}]"
    lines = [line for line in (tool_format.opening, call, tool_format.closing) if line]
    return (
        f"You can call these tools:\n{listed}\nTo call one, answer with this and nothing else:\n"
        + "\n".join(lines)
    )
