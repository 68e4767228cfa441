"""How much a model is to reason: what APIs call effort or thinking, as its template takes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cutaway.core.errors import RequestError
from cutaway.core.limits import inside, quote
from cutaway.server.field_types import object_schema
from cutaway.server.route_context import Context
from cutaway.server.tools import object_of
from cutaway.stream.formats import choose_reasoning
from cutaway.text.object_fields import ObjectFields, RefusedField

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
EFFORT = {
    "anyOf": [{"enum": list(EFFORTS)}, {"type": "null"}],
    "description": "as far as the template reads it; without effect where a model does not reason",
}


# The switch as Anthropic has it, and DeepSeek, GLM and Kimi in OpenAI's chat; a budget is a hint.
THINKING = ObjectFields(
    "thinking", read=("type",), notes=("budget_tokens", "display", "block_binding")
)
_TYPES = ("enabled", "adaptive", "disabled")
THINKING_SCHEMA = object_schema(THINKING, {"type": {"enum": list(_TYPES)}})
# As OpenRouter has it in chat.
CHAT_REASONING = ObjectFields(
    "reasoning",
    read=("effort", "enabled"),
    notes=("max_tokens", "summary", "generate_summary"),
    refused={"exclude": RefusedField("Leave reasoning_content unread.", (False,))},
)
CHAT_REASONING_SCHEMA: dict[str, Any] = object_schema(
    CHAT_REASONING, {"effort": EFFORT, "enabled": {"type": ["boolean", "null"]}}
)
OBJECTS = (THINKING, CHAT_REASONING)
# What templates call the switch.
_SWITCHES = ("enable_thinking", "thinking")


def effort_extras(effort: object, context: Context, *, param: str) -> dict[str, object]:
    """Variables of the template for an effort; a hint where the template reads none.

    Raises: RequestError for another word, and for none where a model cannot but reason.
    """
    if effort is None:
        return {}
    if effort not in EFFORTS:
        raise RequestError(
            f"{param} is {quote(effort)}; it must be one of {', '.join(EFFORTS)}.", param=param
        )
    if choose_reasoning(context.template_source) is None and "reasoning_effort" not in _read(
        context
    ):
        return {}
    is_wanted = effort != "none"
    switch = thinking_extras(is_wanted, context)
    if switch:
        return switch
    if is_wanted:
        return {"reasoning_effort": effort} if "reasoning_effort" in _read(context) else {}
    raise RequestError(
        f"{param} is {quote(effort)}; this model always reasons. Leave it out.", param=param
    )


def thinking_extras(is_wanted: bool, context: Context) -> dict[str, object]:
    """Variables of the template for a switch. It changes nothing where there is none."""
    return {name: is_wanted for name in _SWITCHES if name in _read(context)}


def switch_extras(value: object, context: Context, *, param: str) -> dict[str, object]:
    """Variables of the template for an object that says whether the model is to reason.

    Raises: RequestError for any other value.
    """
    if value is None:
        return {}
    fields = object_of(value, param)
    THINKING.check(fields, param)
    kind = fields.get("type")
    if kind not in _TYPES:
        place = inside(param, "type")
        raise RequestError(
            f"{place} is {quote(kind)}; it must be enabled, adaptive or disabled.", param=place
        )
    return thinking_extras(kind != "disabled", context)


def chat_extras(asked: Mapping[str, object], context: Context) -> dict[str, object]:
    """The same for all that programs send to chat; each field may say it, and none against another.

    asked: reasoning_effort, reasoning, thinking and enable_thinking as they came.

    Raises: RequestError naming the field.
    """
    extras: dict[str, object] = {}
    for param, value in asked.items():
        for name, wanted in _chat_extras(param, value, context).items():
            if extras.setdefault(name, wanted) != wanted:
                raise RequestError(
                    f"{param} is {quote(value)}, and another field says otherwise; send one of "
                    f"{', '.join(asked)}.",
                    param=param,
                )
    return extras


def _chat_extras(param: str, value: object, context: Context) -> dict[str, object]:
    if value is None:
        return {}
    if param == "reasoning_effort":
        return effort_extras(value, context, param=param)
    if param == "reasoning":
        fields = object_of(value, param)
        CHAT_REASONING.check(fields, param)
        is_wanted = fields.get("enabled")
        place = inside(param, "enabled")
        return effort_extras(fields.get("effort"), context, param=inside(param, "effort")) | (
            {} if is_wanted is None else thinking_extras(_switch(is_wanted, place), context)
        )
    if isinstance(value, bool) or param == "enable_thinking":
        return thinking_extras(_switch(value, param), context)
    return switch_extras(value, context, param=param)


def _switch(value: object, param: str) -> bool:
    if not isinstance(value, bool):
        raise RequestError(f"{param} is {quote(value)}; it must be true or false.", param=param)
    return value


def _read(context: Context) -> frozenset[str]:
    return context.template.variables if context.template_source else frozenset()
