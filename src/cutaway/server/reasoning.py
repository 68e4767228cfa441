"""How much a model is to reason: what APIs call effort or thinking, as its template takes it."""

from __future__ import annotations

from cutaway.core.errors import RequestError
from cutaway.core.limits import quote
from cutaway.server.route_context import Context
from cutaway.stream.formats import choose_reasoning

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
EFFORT = {
    "anyOf": [{"enum": list(EFFORTS)}, {"type": "null"}],
    "description": "as far as the template reads it; without effect where a model does not reason",
}


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
    if "enable_thinking" in _read(context):
        return {"enable_thinking": is_wanted}
    if is_wanted:
        return {"reasoning_effort": effort} if "reasoning_effort" in _read(context) else {}
    raise RequestError(
        f"{param} is {quote(effort)}; this model always reasons. Leave it out.", param=param
    )


def thinking_extras(is_wanted: bool, context: Context) -> dict[str, object]:
    """Variables of the template for a switch. It changes nothing where there is none."""
    return {"enable_thinking": is_wanted} if "enable_thinking" in _read(context) else {}


def _read(context: Context) -> frozenset[str]:
    return context.template.variables if context.template_source else frozenset()
