"""What form a request asks of its answer: fields of several APIs become one grammar.

The grammar itself is compiled where tokens are drawn; here only the request's words are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from cutaway.core.errors import RequestError
from cutaway.core.grammar import Grammar
from cutaway.core.limits import quote
from cutaway.text.object_fields import ObjectFields

FORMATS = ("text", "json_object", "json_schema")
STRUCTURES = ("json", "json_object", "regex", "choice", "grammar")


# name, description and strict say nothing that is not done anyway.
_NAMES = ("name", "description", "strict")
RESPONSE_FORMAT = ObjectFields("response_format", read=("type", "json_schema", "schema"))
NAMED_SCHEMA = ObjectFields("a named schema", read=("schema",), notes=_NAMES)
TEXT_FORMAT = ObjectFields("text.format", read=("type", "schema"), notes=_NAMES)
OBJECTS = (RESPONSE_FORMAT, NAMED_SCHEMA)


def grammar_of(response_format: object, structured_outputs: object) -> Grammar | None:
    """The one grammar that a request asks for; None where the answer is free.

    response_format:    OpenAI's field.
    structured_outputs: vLLM's: an object with one of json, json_object, regex, choice, grammar.

    Raises: RequestError naming the field; when both are given.
    """
    formed = _response_format(response_format)
    structured = _structured(structured_outputs)
    if formed is not None and structured is not None:
        raise RequestError(
            "response_format and structured_outputs are both given; send one of them.",
            param="structured_outputs",
        )
    return formed or structured


def schema_grammar(schema: object, param: str) -> Grammar:
    """The grammar of a JSON schema that stands in that field. Raises: RequestError."""
    return make_grammar("json", schema, param=param)


def _response_format(value: object) -> Grammar | None:
    if value is None:
        return None
    fields = _object(value, "response_format")
    RESPONSE_FORMAT.check(fields, "response_format")
    kind, named = fields.get("type"), dict[str, object]()
    if kind == "json_schema" or "json_schema" in fields:  # checked beside any type
        named = {**_object(fields.get("json_schema"), "response_format.json_schema")}
        NAMED_SCHEMA.check(named, "response_format.json_schema")
    if kind == "text":
        return None
    if kind == "json_object":
        # llama.cpp's words for a schema; others write them as OpenAI's json_schema.
        if "schema" in fields:
            return make_grammar("json", fields["schema"], param="response_format.schema")
        kind = "json_schema" if "json_schema" in fields else kind
    if kind == "json_object":
        return Grammar.json_object()
    if kind != "json_schema":
        raise RequestError(
            f"response_format.type is {quote(kind)}; it must be one of {', '.join(FORMATS)}.",
            param="response_format.type",
        )
    schema = named.get("schema")
    if schema is None:
        return Grammar.json_object()  # as OpenAI: a name without a schema asks for JSON alone
    return make_grammar("json", schema, param="response_format.json_schema.schema")


def _structured(value: object) -> Grammar | None:
    if value is None:
        return None
    fields = _object(value, "structured_outputs")
    if len(fields) != 1 or next(iter(fields)) not in STRUCTURES:
        raise RequestError(
            f"structured_outputs is {quote(value)}; it must have exactly one of "
            f"{', '.join(STRUCTURES)}.",
            param="structured_outputs",
        )
    kind, asked = next(iter(fields.items()))
    return make_grammar(kind, asked, param=f"structured_outputs.{kind}")


def make_grammar(kind: str, asked: object, *, param: str) -> Grammar:
    """A grammar of one of STRUCTURES; its faults are told under the name of the field."""
    try:
        match kind:
            case "json":
                return Grammar.json_schema(asked)
            case "choice" if isinstance(asked, list):
                return Grammar.choice(cast("list[str]", asked))
            case "regex" if isinstance(asked, str):
                return Grammar.regex(asked)
            case "grammar" if isinstance(asked, str):
                return Grammar.lark(asked)
            case "json_object" if asked is True:
                return Grammar.json_object()
            case _:
                must_be = {"choice": "a list of strings", "json_object": "true"}
                raise RequestError(
                    f"{param} is {quote(asked)}; it must be {must_be.get(kind, 'a string')}.",
                    param=param,
                )
    except RequestError as error:
        place = param + (error.param or "").removeprefix("grammar")  # within a schema
        words = place + str(error).removeprefix(error.param or "") if place != param else str(error)
        raise RequestError(words, param=place) from None


def _object(value: object, param: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise RequestError(f"{param} is {quote(value)}; it must be an object.", param=param)
    entries = cast("Mapping[str, object]", value)
    return {name: item for name, item in entries.items() if item is not None}
