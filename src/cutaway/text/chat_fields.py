"""The fields that objects of a chat may have, in the form of OpenAI's chat API."""

from __future__ import annotations

from cutaway.text.object_fields import ObjectFields, RefusedField

# The same thing under the names that clients use; the first one that is set counts.
REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning", "reasoning_text")
# Lists of thoughts: OpenRouter's and LiteLLM's, most often beside one of the above.
THOUGHT_LISTS = ("reasoning_details", "thinking_blocks")
_CALLS = ("tool_calls", "tool_call_id")
MESSAGE = ObjectFields(
    "a message",
    read=(
        "role",
        "content",
        "name",
        *_CALLS,
        "refusal",
        *REASONING_FIELDS,
        *THOUGHT_LISTS,
        "prefix",
    ),
    # What clients note of a message for themselves or for a cache; parsed is the content again.
    notes=(
        *("id", "status", "phase", "annotations", "cache_control", "metadata", "created_at"),
        *("parsed", "provider_specific_fields", "createdAt", "updatedAt", "updated_at"),
        *("timestamp", "model", "usage", "opts"),  # of programs that send back their own rows
    ),
    refused={
        "function_call": RefusedField("Send tool_calls."),
        "audio": RefusedField("It reads text alone."),
    },
)
# Of lists of parts; ids and places in a stream come from libraries that keep what they were sent.
_PART_NOTES = ("id", "index", "annotations", "citations", "cache_control", "logprobs")
TEXT_PART = ObjectFields(
    "a text part", read=("type", "text"), notes=(*_PART_NOTES, "prompt_cache_breakpoint")
)
REFUSAL_PART = ObjectFields("a refusal", read=("type", "refusal"), notes=_PART_NOTES)
# extra_content and the like are what other providers want back with their own calls.
TOOL_CALL = ObjectFields(
    "a tool call",
    read=("id", "type", "function"),
    notes=("index", "cache_control", "extra_content", "provider_specific_fields"),
)
CALLED_FUNCTION = ObjectFields(
    "a called function",
    read=("name", "arguments"),
    notes=("parsed_arguments", "strict", "provider_specific_fields"),
)
OBJECTS = (MESSAGE, TEXT_PART, REFUSAL_PART, TOOL_CALL, CALLED_FUNCTION)
