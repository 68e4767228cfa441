"""Fields that OpenAI's chat and completions share, and how they become sampling parameters."""

from __future__ import annotations

from typing import Annotated, Any

from cutaway.core import limits
from cutaway.core.errors import RequestError
from cutaway.core.request import DRAFTS, SamplingParams
from cutaway.server.constraints import (
    FORMATS,
    NAMED_SCHEMA,
    RESPONSE_FORMAT,
    STRUCTURES,
    grammar_of,
)
from cutaway.server.field_types import (
    Body,
    DrawBody,
    Ignored,
    Limited,
    array,
    bias_of,
    object_schema,
    optional,
    take_schema,
    whole,
    wholes,
)
from cutaway.server.openai.foreign_fields import ForeignFields
from cutaway.server.route_context import Context

_STOP = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        array({"type": "string", "minLength": 1}, maxItems=limits.MAX_STOP_STRINGS),
        {"type": "null"},
    ],
    "description": f"the answer ends before any of these; at most {limits.MAX_STOP_BYTES} bytes",
}
NO_LIMIT = -1
_TOKEN_IDS = array({"type": "integer", "minimum": 0}, maxItems=limits.MAX_STOP_TOKENS)
_BIAS = {
    "type": "object",
    "propertyNames": {"pattern": "^[0-9]{1,10}$"},
    "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
    "maxProperties": limits.MAX_LOGIT_BIAS,
    "description": "token ids, and what is added to their logits",
}
_FORMAT = object_schema(
    RESPONSE_FORMAT,
    {"type": {"enum": list(FORMATS)}, "json_schema": optional(object_schema(NAMED_SCHEMA))},
)
_DRAFT = {
    "type": "string",
    "examples": list(DRAFTS),
    "description": "where guesses come from that are verified beside the answer's tokens, for a "
    "draft model also by its name; they change its time alone",
}
_STRUCTURED: dict[str, Any] = {
    "type": "object",
    "properties": {name: {} for name in STRUCTURES},
    "minProperties": 1,
    "maxProperties": 1,
}


_REPETITION: dict[str, Any] = {
    "type": "object",
    "properties": {
        name: {"type": "integer", "minimum": limits.LIMITS[name].least}
        for name in ("max_pattern_size", "min_pattern_size", "min_count")
    },
    "required": ["max_pattern_size"],
    "additionalProperties": False,
}


class MostTokens(Limited):
    """Tokens at most; -1 is as many as there is room for, as llama.cpp and Ollama have it."""

    def check(self, value: object, param: str) -> object:
        """The value, if it is -1 or within the range. Raises: RequestError."""
        return NO_LIMIT if whole(value) == NO_LIMIT else super().check(value, param)

    @property
    def schema(self) -> dict[str, Any]:
        """The range as a JSON schema, -1 and null allowed."""
        return {**super().schema, "minimum": NO_LIMIT}

    def describe(self) -> str:
        """What it may be, in words."""
        return f"{super().describe()}; {NO_LIMIT} is as many as there is room for"


class StreamOptions(Body):
    """What a stream holds beside the answer.

    continuous_usage_stats: token counts so far in every event, as vLLM has it.
    """

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: Ignored = None  # nothing is padded here


class SamplingBody(ForeignFields, DrawBody):
    """How the answer is drawn and when it ends.

    lora: the adapter that answers, or off; its name may also stand in model.
    """

    model: str
    lora: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logit_bias: Annotated[object, take_schema(optional(_BIAS))] = None
    seed: Annotated[int | None, Limited("seed")] = None
    n: Annotated[int | None, Limited("n")] = None
    max_tokens: Annotated[int | None, MostTokens("max_tokens")] = None
    min_tokens: Annotated[int | None, Limited("min_tokens")] = None
    stop: Annotated[object, take_schema(_STOP)] = None
    stop_token_ids: Annotated[object, take_schema(optional(_TOKEN_IDS))] = None
    ignore_eos: Annotated[bool | None, Limited("ignore_eos")] = None
    timeout: Annotated[float | None, Limited("timeout")] = None
    include_stop_str_in_output: Annotated[bool | None, Limited("include_stop")] = None
    skip_special_tokens: Annotated[bool | None, Limited("skip_special_tokens")] = None
    prompt_logprobs: Annotated[int | None, Limited("prompt_logprobs")] = None
    response_format: Annotated[object, take_schema(optional(_FORMAT))] = None
    structured_outputs: Annotated[object, take_schema(optional(_STRUCTURED))] = None
    draft: Annotated[object, take_schema(optional(_DRAFT))] = None
    repetition_detection: Annotated[object, take_schema(optional(_REPETITION))] = None
    user: Ignored = None
    metadata: Ignored = None
    service_tier: Ignored = None


# Fields that are called as in SamplingParams; the others have a line of their own below.
_SAME = (
    *limits.DRAW_SETTINGS,
    *("seed", "n", "max_tokens", "min_tokens", "stop", "stop_token_ids"),
    *("ignore_eos", "skip_special_tokens", "prompt_logprobs", "draft", "repetition_detection"),
)


def params_of(body: SamplingBody, context: Context, **more: Any) -> SamplingParams:
    """Sampling parameters: what is given, else what the model recommends, else the defaults.

    more: parameters that an API writes in its own way; None counts as not given.

    Raises: RequestError naming the field.
    """
    asked: dict[str, Any] = {name: getattr(body, name) for name in _SAME}
    asked["stop_token_ids"] = wholes(body.stop_token_ids)
    asked["logit_bias"] = bias_of(body.logit_bias)
    asked["include_stop"] = body.include_stop_str_in_output
    if "grammar" not in more:
        asked["grammar"] = grammar_of(body.response_format, body.structured_outputs)
    asked.update(more)
    if asked["max_tokens"] == NO_LIMIT:
        asked["max_tokens"] = None
    return context.sampling_params(asked)


def check_streaming(body: SamplingBody) -> None:
    """Raise RequestError for options of a stream that contradict each other."""
    options = body.stream_options
    if options is not None and options.continuous_usage_stats and not options.include_usage:
        raise RequestError(
            "stream_options.continuous_usage_stats is true without include_usage; send "
            "include_usage: true as well.",
            param="stream_options.continuous_usage_stats",
        )


def grammar_field(body: SamplingBody) -> str | None:
    """The field that asks for a form of the answer; errors of the form name it."""
    if body.structured_outputs is not None:
        return "structured_outputs"
    return None if body.response_format is None else "response_format"


def includes_usage(body: SamplingBody) -> bool:
    """Whether a stream ends with its token counts."""
    return body.stream_options is not None and bool(body.stream_options.include_usage)


def counts_on(body: SamplingBody) -> bool:
    """Whether every event of a stream has the token counts so far."""
    return includes_usage(body) and bool(
        body.stream_options is not None and body.stream_options.continuous_usage_stats
    )
