"""Options that hold an answer to a form: a JSON schema, JSON, a regex, choices or a grammar.

What they mean is the server's to say (server/constraints.py), so both take the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cutaway.core.errors import RequestError
from cutaway.core.grammar import Grammar

FORM = "Form of the answer"

JsonSchema = Annotated[
    str | None,
    typer.Option(
        metavar="SCHEMA",
        help="JSON that is valid by this schema: a file, or the schema itself, as in {...}",
        rich_help_panel=FORM,
        show_default=False,
    ),
]
JsonObject = Annotated[
    bool, typer.Option("--json-object", help="any JSON object", rich_help_panel=FORM)
]
Regex = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT", help="a match of the whole", rich_help_panel=FORM, show_default=False
    ),
]
Choices = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TEXT",
        help="one of these texts; repeat it for each",
        rich_help_panel=FORM,
        show_default=False,
    ),
]
GrammarFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="a text of this grammar, in llguidance's dialect of Lark",
        rich_help_panel=FORM,
        show_default=False,
    ),
]


def form_of(
    *,
    json_schema: str | None,
    json_object: bool,
    regex: str | None,
    choice: list[str] | None,
    grammar: Path | None,
) -> Grammar | None:
    """The one form that was asked for. Raises: RequestError naming the option."""
    from cutaway.server.constraints import make_grammar

    given: list[tuple[str, str, object]] = []
    if json_schema is not None:
        given.append(("--json-schema", "json", _schema(json_schema)))
    if json_object:
        given.append(("--json-object", "json_object", True))
    if regex is not None:
        given.append(("--regex", "regex", regex))
    if choice:
        given.append(("--choice", "choice", choice))
    if grammar is not None:
        given.append(("--grammar", "grammar", _text(grammar, "--grammar")))
    if len(given) > 1:
        names = " and ".join(name for name, _, _ in given)
        raise RequestError(f"{names} are given; an answer has one form. Leave out all but one.")
    for name, kind, asked in given:
        return make_grammar(kind, asked, param=name)
    return None


def _schema(given: str) -> str:
    """The text of a schema. No name of a file begins with a brace in practice."""
    return given if given.lstrip().startswith("{") else _text(Path(given), "--json-schema")


def _text(file: Path, option: str) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise RequestError(f"{option} is {file}, which cannot be read: {reason}.") from None
