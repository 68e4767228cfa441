"""The fields that objects inside a request of OpenAI's Responses may have, and their schemas."""

from __future__ import annotations

from typing import Any

from cutaway.server.constraints import FORMATS, TEXT_FORMAT
from cutaway.server.field_types import array, object_schema, optional
from cutaway.server.reasoning import EFFORT
from cutaway.server.tools import MAX_TOOLS
from cutaway.text.object_fields import ObjectFields, RefusedField

# Items that tools of a provider left in a history; nothing here makes one.
PROVIDERS_ITEMS = (
    *("web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call"),
    *("computer_call", "computer_call_output", "local_shell_call", "local_shell_call_output"),
    *("shell_call", "shell_call_output", "apply_patch_call", "apply_patch_call_output"),
    *("mcp_call", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response"),
    *("tool_search_call", "compaction", "compaction_summary"),
)
# Notes: ids and states of what was said, and who said it. A provider's own words for its thoughts
# are readable to itself alone.
_ITEM_NOTES = ("id", "status", "created_by", "agent")
_CALL_NOTES = (*_ITEM_NOTES, "caller", "async")
MESSAGE = ObjectFields(
    "a message", read=("type", "role", "content"), notes=(*_ITEM_NOTES, "phase", "name")
)
FUNCTION_CALL = ObjectFields(
    "a function_call",
    read=("type", "call_id", "name", "namespace", "arguments"),
    notes=_CALL_NOTES,
)
CUSTOM_CALL = ObjectFields(
    "a custom_tool_call",
    read=("type", "call_id", "name", "namespace", "input"),
    notes=_CALL_NOTES,
)
CALL_OUTPUT = ObjectFields(
    "an output of a call",
    read=("type", "call_id", "output"),
    notes=(*_CALL_NOTES, "name", "namespace"),
)
AGENT_MESSAGE = ObjectFields(
    "an agent_message", read=("type", "author", "recipient", "content"), notes=_ITEM_NOTES
)
REASONING_ITEM = ObjectFields(
    "a reasoning item",
    read=("type", "content", "summary"),
    notes=(*_ITEM_NOTES, "encrypted_content"),
)
ADDED_TOOLS = ObjectFields(
    "an item of tools",
    read=("type", "tools"),
    notes=(*_ITEM_NOTES, "role", "call_id", "execution"),
)
REFERENCE = ObjectFields("an item_reference", read=("type", "id"), notes=_ITEM_NOTES[1:])
TEXT_PART = ObjectFields(
    "a text part",
    read=("type", "text"),
    notes=(
        *("annotations", "logprobs", "id", "index", "cache_control"),
        *("prompt_cache_breakpoint", "parsed"),
    ),
)
REFUSAL_PART = ObjectFields("a refusal", read=("type", "refusal"), notes=("id", "index"))
# All tools are told of at once, so none is found later.
_TOOL_NOTES = ("defer_loading",)
_IN_TURN = {"async": RefusedField("Its calls are answered before it goes on.", (False,))}
FUNCTION = ObjectFields(
    "a function",
    read=("type", "name", "description", "parameters", "output_schema", "allowed_callers"),
    notes=("strict", *_TOOL_NOTES),
    refused=_IN_TURN,
)
CUSTOM_TOOL = ObjectFields(
    "a custom tool",
    read=("type", "name", "description", "format", "allowed_callers"),
    notes=_TOOL_NOTES,
    refused=_IN_TURN,
)
CUSTOM_FORMAT = ObjectFields("a custom tool's format", read=("type", "syntax", "definition"))
NAMESPACE = ObjectFields("a namespace", read=("type", "name", "description", "tools"))
TOOL_CHOICE = ObjectFields("a choice of a tool", read=("type", "name", "namespace"))
TEXT = ObjectFields("text", read=("format",), notes=("verbosity",))
REASONING = ObjectFields(
    "reasoning",
    read=("effort",),
    notes=("summary", "generate_summary", "context"),
    refused={"mode": RefusedField("It answers in one way.", ("standard",))},
)
CONVERSATION = ObjectFields("conversation", read=("id",))
ITEMS = (
    *(MESSAGE, FUNCTION_CALL, CUSTOM_CALL, CALL_OUTPUT, REASONING_ITEM, AGENT_MESSAGE, ADDED_TOOLS),
    REFERENCE,
)
OBJECTS = (
    *ITEMS,
    *(TEXT_PART, REFUSAL_PART, FUNCTION, CUSTOM_TOOL, CUSTOM_FORMAT, NAMESPACE, TOOL_CHOICE),
    *(TEXT, TEXT_FORMAT, REASONING, CONVERSATION),
)

_PARTS = array({"anyOf": [object_schema(TEXT_PART), object_schema(REFUSAL_PART)]})
_TEXTS: dict[str, Any] = {"anyOf": [{"type": "string"}, _PARTS]}
_ITEM = {
    "anyOf": [
        object_schema(MESSAGE, {"content": _TEXTS}),
        object_schema(FUNCTION_CALL),
        object_schema(CUSTOM_CALL),
        object_schema(CALL_OUTPUT, {"output": _TEXTS}),
        object_schema(REASONING_ITEM),
        object_schema(AGENT_MESSAGE),
        object_schema(ADDED_TOOLS),
        object_schema(REFERENCE),
        # What tools of a provider left in a history: told as it is.
        {"type": "object", "properties": {"type": {"enum": list(PROVIDERS_ITEMS)}}},
    ]
}
ITEM_LIST = array(_ITEM, minItems=1)
INPUT = {"anyOf": [{"type": "string"}, ITEM_LIST]}
TOOLS = array(
    {
        "anyOf": [
            object_schema(FUNCTION, {"type": {"const": "function"}}),
            object_schema(
                CUSTOM_TOOL,
                {"type": {"const": "custom"}, "format": optional(object_schema(CUSTOM_FORMAT))},
            ),
            object_schema(NAMESPACE, {"type": {"const": "namespace"}}),
            # A provider's own tools are taken as they are, and the model is not told of them.
            {"type": "object", "properties": {"type": {"type": "string"}}},
        ]
    },
    maxItems=MAX_TOOLS,
)
CHOICES = {"anyOf": [{"enum": ["none", "auto", "required"]}, object_schema(TOOL_CHOICE)]}
FORMED_TEXT = object_schema(
    TEXT, {"format": optional(object_schema(TEXT_FORMAT, {"type": {"enum": list(FORMATS)}}))}
)
REASONING_SCHEMA: dict[str, Any] = {
    **object_schema(REASONING, {"effort": EFFORT}),
    "description": "effort, as in chat; what the model thinks is told whole, not as a summary",
}
