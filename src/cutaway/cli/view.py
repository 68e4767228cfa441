"""`cutaway view`: one prompt, one answer, and the stages of that very run, drawn in characters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cutaway.cli.session.answer_forms import (
    Choices,
    GrammarFile,
    JsonObject,
    JsonSchema,
    Regex,
    form_of,
)
from cutaway.cli.session.opened_answer import look_at, words_of
from cutaway.cli.settings.options import AsJson, Given, SettingsFile, integer, with_settings
from cutaway.cli.settings.setting_keys import CHAT, ENGINE, MODEL, SAMPLING
from cutaway.cli.terminal.pictures import show
from cutaway.cli.terminal.terminal import print_json
from cutaway.core.errors import RequestError

if TYPE_CHECKING:
    from cutaway.cli.session.session import Session
    from cutaway.views.parts.view import Shown


def _place(help_text: str) -> typer.models.OptionInfo:
    return typer.Option(parser=integer, metavar="N", show_default=False, help=help_text)


@with_settings(MODEL, ENGINE, SAMPLING, CHAT)
def view(
    *,
    prompt: Annotated[
        str | None, typer.Argument(help="the prompt; - or nothing reads stdin", show_default=False)
    ] = None,
    given: Given,
    config: SettingsFile = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--view", metavar="NAME", show_default=False, help="one view; all of them otherwise"
        ),
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="send the prompt as a message, through the template")
    ] = False,
    position: Annotated[int | None, _place("a token of prompt and answer together, from 0")] = None,
    token: Annotated[int | None, _place("a token of the answer, from 0")] = None,
    layer: Annotated[int | None, _place("a layer, from 0")] = None,
    head: Annotated[int | None, _place("an attention head, from 0")] = None,
    expert: Annotated[int | None, _place("an expert, from 0")] = None,
    top: Annotated[int | None, _place("how many of a ranking")] = None,
    text: Annotated[
        str | None,
        typer.Option("--text", show_default=False, help="words for a view that takes some"),
    ] = None,
    price: Annotated[
        float | None,
        typer.Option(
            metavar="X", show_default=False, help="what an hour of this machine costs, for cost"
        ),
    ] = None,
    json_schema: JsonSchema = None,
    json_object: JsonObject = False,
    regex: Regex = None,
    choice: Choices = None,
    grammar: GrammarFile = None,
    json: AsJson = False,
) -> None:
    """Answer a prompt and show each stage with the numbers of that run.

    Inner values come from running the recorded answer again; each picture says whether that gave
    the very logits that were served.
    """
    places = {
        "position": position,
        "token": token,
        "layer": layer,
        "head": head,
        "expert": expert,
        "top": top,
        "text": text,
        "price": price,
    }
    asked = [field for field, value in places.items() if value is not None]
    if name is None and asked:
        raise RequestError(f"--{asked[0]} belongs to one view; name it with --view.", param="view")
    words = words_of(prompt, given, is_chat=chat)
    form = form_of(
        json_schema=json_schema,
        json_object=json_object,
        regex=regex,
        choice=choice,
        grammar=grammar,
    )

    from cutaway.cli.session.session import open_session
    from cutaway.views import VIEWS, view_of
    from cutaway.views.parts.query import query_of

    views = VIEWS if name is None else (view_of(name),)
    query = query_of(places)
    session = open_session(given, config=config)
    look = look_at(session, words, is_chat=chat, grammar=form)
    if name is None:
        look.prepare(views, query)
    for index, each in enumerate(views):
        shown = each.show(look.subject, query)
        if json:
            print_json(_object(session, shown))
        else:
            show(shown, is_first=index == 0)


def _object(session: Session, shown: Shown) -> dict[str, object]:
    """What --json prints of a view: its numbers beside its name and proof."""
    told = shown.as_json()
    return {"view": told.pop("view"), "model": session.llm.engine.model.name, **told}
