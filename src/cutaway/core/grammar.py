"""What an answer's form may be, as plain data: a JSON schema, a regex, choices or a grammar.

Free of torch and of the library that compiles it; sampling/grammars/ does that. It judges what
can be told from the text alone: type, size and depth.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args

from cutaway.core.errors import RequestError
from cutaway.core.limits import quote
from cutaway.core.schemas import compilable

GrammarKind = Literal["json_schema", "json_object", "regex", "choice", "lark"]
KINDS: tuple[str, ...] = get_args(GrammarKind)

MAX_SCHEMA_BYTES = 64 * 1024
MAX_SCHEMA_DEPTH = 32  # of nested lists and objects, the schema's own included
MAX_REGEX_BYTES = 2 * 1024
MAX_CHOICES = 1024
MAX_CHOICES_BYTES = 64 * 1024
MAX_LARK_BYTES = 128 * 1024  # the grammar of a tool call holds the schemas of all tools


@dataclass(frozen=True)
class Grammar:
    """The only texts that an answer may be.

    kind: what text is. text: the schema as JSON, the regex, the choices as a JSON list of
    strings, or the grammar in llguidance's dialect of Lark; empty for json_object.

    Equal grammars share what was compiled, so a client's text is kept as it came.

    Raises: RequestError (param "grammar") for a wrong type, a size or a depth out of range, and
    for what a schema asks and no mask of tokens can hold to.
    """

    kind: GrammarKind
    text: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise _fault(f"grammar is of the kind {quote(self.kind)}; kinds are {', '.join(KINDS)}")
        most = _MOST_BYTES[self.kind]
        size = _size(self.text)
        if size > most:
            raise _fault(
                f"grammar is {size} bytes of {self.kind}; at most {most} are allowed. Make it "
                "shorter"
            )
        if self.kind == "json_schema":
            _check_schema(_parsed(self.text, "a JSON schema"))
        elif self.kind == "choice":
            _check_choices(_parsed(self.text, "a JSON list of strings"))
        elif self.kind != "json_object" and not self.text:
            raise _fault(f"grammar is an empty {self.kind}; give its text")

    @classmethod
    def json_schema(cls, schema: object) -> Grammar:
        """Answers that are JSON and valid by a schema, given as an object or as its JSON.

        Raises: RequestError naming the place of what cannot be held to, under "grammar".
        """
        text = schema if isinstance(schema, str) else _written(schema, "a JSON schema")
        given = cls("json_schema", text)
        parsed: object = json.loads(text)
        made = compilable(parsed)
        return given if made == parsed else cls("json_schema", _written(made, "a JSON schema"))

    @classmethod
    def json_object(cls) -> Grammar:
        """Answers that are one JSON object."""
        return cls("json_object")

    @classmethod
    def regex(cls, pattern: str) -> Grammar:
        """Answers that match a regex as a whole."""
        return cls("regex", pattern)

    @classmethod
    def choice(cls, choices: Sequence[str]) -> Grammar:
        """Answers that are one of these texts."""
        return cls("choice", _written(list(choices), "a list of strings"))

    @classmethod
    def lark(cls, text: str) -> Grammar:
        """Answers of a grammar in llguidance's dialect of Lark."""
        return cls("lark", text)

    @property
    def choices(self) -> tuple[str, ...]:
        """The texts of a choice."""
        assert self.kind == "choice", "only a choice has choices"
        return tuple(json.loads(self.text))


_MOST_BYTES: Mapping[str, int] = {
    "json_schema": MAX_SCHEMA_BYTES,
    "json_object": 0,
    "regex": MAX_REGEX_BYTES,
    "choice": MAX_CHOICES_BYTES,
    "lark": MAX_LARK_BYTES,
}


def _size(text: object) -> int:
    if not isinstance(text, str):
        raise _fault(f"grammar is {quote(text)}; its text must be a string")
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise _fault("grammar holds a lone surrogate; it must be valid Unicode") from None


def _written(value: object, what: str) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise _fault(f"grammar is {quote(value)}; it must be {what}") from None


def _parsed(text: str, what: str) -> object:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise _fault(f"grammar is {quote(text)}; it must be {what}") from None


def _refuse_constant(name: str) -> object:
    raise ValueError(name)  # NaN and Infinity are Python's, not JSON's


def _check_choices(value: object) -> None:
    if not _is_names(value) or not value:
        raise _fault(f"grammar is {quote(value)}; a choice is a list of at least one string")
    choices = cast("list[str]", value)
    if len(choices) > MAX_CHOICES:
        raise _fault(f"grammar has {len(choices)} choices; at most {MAX_CHOICES} are allowed")
    if "" in choices:
        raise _fault("grammar has an empty choice; each must have at least one character")


def _check_schema(schema: object) -> None:
    """Depth, and what the compiler takes and cannot hold to."""
    if schema is False:
        raise _fault("grammar is the schema false; nothing is valid by it. Give an object")
    if schema is True:
        return
    if not isinstance(schema, dict):
        raise _fault(f"grammar is the schema {quote(schema)}; it must be an object")
    if "x-guidance" in schema:
        raise _fault("grammar has the schema keyword x-guidance, which is not supported")
    for fields in _objects(cast("dict[str, object]", schema)):
        _check_properties(fields)


def _check_properties(fields: Mapping[str, object]) -> None:
    """Names that repeat count once, and a mask cannot tell that a name was written before."""
    least, required = fields.get("minProperties"), fields.get("required")
    num_required = len(set(cast("list[str]", required))) if _is_names(required) else 0
    if isinstance(least, int) and least > num_required:
        raise _fault(
            f"grammar has the schema keyword minProperties {least}, above the {num_required} "
            "names of required, which is not supported. Name the properties in required"
        )


def _is_names(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(each, str) for each in cast("list[object]", value)
    )


def _objects(value: object, *, depth: int = 1) -> Iterator[Mapping[str, object]]:
    """Every object in a JSON value, whatever it stands for."""
    if not isinstance(value, dict | list):
        return
    if depth > MAX_SCHEMA_DEPTH:
        raise _fault(
            f"grammar is a schema of more than {MAX_SCHEMA_DEPTH} levels; make it flatter, or "
            "name parts in $defs"
        )
    if isinstance(value, dict):
        fields = cast("dict[str, object]", value)
        yield fields
        parts: Sequence[object] = list(fields.values())
    else:
        parts = cast("list[object]", value)
    for part in parts:
        yield from _objects(part, depth=depth + 1)


def _fault(message: str) -> RequestError:
    return RequestError(f"{message}.", param="grammar")
