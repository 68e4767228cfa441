"""The fields that objects inside a request of Anthropic's Messages may have, and their schemas."""

from __future__ import annotations

from typing import Any

from cutaway.server.field_types import array, object_schema, optional
from cutaway.server.reasoning import EFFORT
from cutaway.server.reasoning import THINKING as THINKING_SWITCH
from cutaway.server.tools import MAX_TOOLS
from cutaway.text.object_fields import ObjectFields, RefusedField

# An answer may be sent back as it came, with what stood beside its content.
MESSAGE = ObjectFields(
    "a message",
    read=("role", "content"),
    notes=(
        *("id", "type", "model", "stop_reason", "stop_sequence", "stop_details", "usage"),
        *("container", "context_management"),
    ),
)
_CACHE = ("cache_control",)
_NO_CITATIONS = {
    "citations": RefusedField("It cites nothing.", ({"enabled": False},)),
}
TEXT = ObjectFields("a text block", read=("type", "text"), notes=(*_CACHE, "citations"))
THINKING = ObjectFields("a thinking block", read=("type", "thinking"), notes=("signature",))
REDACTED = ObjectFields("a redacted_thinking block", read=("type",), notes=("data",))
TOOL_USE = ObjectFields(
    "a tool_use block",
    read=("type", "id", "name", "input"),
    notes=(*_CACHE, "caller", "toolset_name"),
)
TOOL_RESULT = ObjectFields(
    "a tool_result block",
    read=("type", "tool_use_id", "content", "is_error"),
    notes=(*_CACHE, "toolset_name"),
)
DOCUMENT = ObjectFields(
    "a document block",
    read=("type", "source", "title", "context"),
    notes=_CACHE,
    refused=_NO_CITATIONS,
)
DOCUMENT_SOURCE = ObjectFields("a document's source", read=("type", "data"), notes=("media_type",))
SEARCH_RESULT = ObjectFields(
    "a search_result block",
    read=("type", "title", "source", "content"),
    notes=_CACHE,
    refused=_NO_CITATIONS,
)
TOOL_REFERENCE = ObjectFields("a tool_reference block", read=("type", "tool_name"), notes=_CACHE)
TOOL = ObjectFields(
    "a tool",
    read=("type", "name", "description", "input_schema", "input_examples", "allowed_callers"),
    notes=(*_CACHE, "strict", "defer_loading", "eager_input_streaming"),
)
TOOL_CHOICE = ObjectFields("tool_choice", read=("type", "name", "disable_parallel_tool_use"))
OUTPUT_CONFIG = ObjectFields(
    "output_config",
    read=("effort", "format"),
    refused={"task_budget": RefusedField("Set max_tokens instead.")},
)
OUTPUT_FORMAT = ObjectFields("output_config.format", read=("type", "schema"), notes=("name",))
BLOCKS = (
    *(TEXT, THINKING, REDACTED, TOOL_USE, TOOL_RESULT, DOCUMENT, DOCUMENT_SOURCE, SEARCH_RESULT),
    TOOL_REFERENCE,
)
OBJECTS = (MESSAGE, *BLOCKS, TOOL, TOOL_CHOICE, THINKING_SWITCH, OUTPUT_CONFIG, OUTPUT_FORMAT)

_TEXT = object_schema(TEXT)
_TEXTS = [{"type": "string"}, array(_TEXT)]
_SOURCE = object_schema(DOCUMENT_SOURCE)
_BLOCK = {
    "anyOf": [
        _TEXT,
        *(object_schema(each) for each in (THINKING, REDACTED, TOOL_USE)),
        object_schema(TOOL_RESULT, {"content": {"anyOf": [*_TEXTS, {"type": "null"}]}}),
        object_schema(DOCUMENT, {"source": _SOURCE}),
        object_schema(SEARCH_RESULT, {"content": {"anyOf": _TEXTS}}),
        object_schema(TOOL_REFERENCE),
    ]
}
MESSAGES = array(
    object_schema(
        MESSAGE,
        {"content": {"anyOf": [{"type": "string"}, array(_BLOCK)]}},
        required=["role", "content"],
    ),
    minItems=1,
)
SYSTEM = {"anyOf": [*_TEXTS, {"type": "null"}]}
TOOLS = array(
    {
        "anyOf": [
            object_schema(TOOL, {"type": {"enum": ["custom", None]}}),
            # A provider's own tools are taken as they are, and the model is not told of them.
            {"type": "object", "properties": {"type": {"type": "string"}}},
        ]
    },
    maxItems=MAX_TOOLS,
)
CHOICES = object_schema(
    TOOL_CHOICE, {"type": {"enum": ["auto", "any", "tool", "none"]}}, required=["type"]
)
CONFIG: dict[str, Any] = object_schema(
    OUTPUT_CONFIG,
    {
        "effort": EFFORT,
        "format": optional(object_schema(OUTPUT_FORMAT, {"type": {"const": "json_schema"}})),
    },
)
