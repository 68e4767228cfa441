"""`cutaway view`: one prompt, one answer, and the stages of that very run, drawn in characters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cutaway.cli.keys import CHAT, ENGINE, MODEL, SAMPLING
from cutaway.cli.options import AsJson, ConfigFile, Given, integer, with_settings
from cutaway.cli.pictures import show
from cutaway.cli.reading import text_of
from cutaway.cli.terminal import print_json
from cutaway.core.errors import RequestError

if TYPE_CHECKING:
    from cutaway.cli.session import Session
    from cutaway.engine.look import Look
    from cutaway.views.view import Shown

VIEW_TOKENS = 32  # of an answer that is looked at, unless told otherwise


def _place(help_text: str) -> typer.models.OptionInfo:
    return typer.Option(parser=integer, metavar="N", show_default=False, help=help_text)


@with_settings(MODEL, ENGINE, SAMPLING, CHAT)
def view(
    *,
    prompt: Annotated[
        str | None, typer.Argument(help="the prompt; - or nothing reads stdin", show_default=False)
    ] = None,
    given: Given,
    config: ConfigFile = None,
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
    }
    asked = [field for field, value in places.items() if value is not None]
    if name is None and asked:
        raise RequestError(f"--{asked[0]} belongs to one view; name it with --view.", param="view")
    if "system" in given and not chat:
        raise RequestError("--system is for messages; add --chat.", param="system")
    words = text_of(prompt, param="prompt")

    from cutaway.cli.session import open_session
    from cutaway.views import VIEWS, view_of
    from cutaway.views.query import query_of

    views = VIEWS if name is None else (view_of(name),)
    query = query_of(places)
    session = open_session(given, config=config)
    look = _answered(session, words, is_chat=chat)
    if name is None:
        look.prepare(views, query)
    for each in views:
        shown = each.show(look.subject, query)
        if json:
            print_json(_object(session, shown))
        else:
            show(shown)


def _answered(session: Session, words: str, *, is_chat: bool) -> Look:
    """The prompt, answered, and its record opened."""
    from cutaway.cli.session import bounded
    from cutaway.engine.look import Look
    from cutaway.text.messages import from_dicts

    llm, messages = session.llm, None
    if is_chat:
        messages = from_dicts(session.messages(words))
        token_ids = llm.encode_chat(session.messages(words))
    else:
        token_ids = llm.encode(words)
    num_left = llm.engine.max_length - len(token_ids)
    params = bounded(session.settings.sampling(), default=VIEW_TOKENS, num_left=num_left)
    request = llm.request(token_ids, params)
    for delta in session.stream(request):
        if delta.error is not None:
            raise delta.error
    ledger = llm.engine.ledger
    answer = None if ledger is None else ledger.find(request.request_id)
    if answer is None:
        raise RequestError(
            "nothing was recorded: ledger_bytes is too small. Leave out --ledger-bytes.",
            param="ledger_bytes",
        )
    return Look(llm.engine, answer, messages=messages)


def _object(session: Session, shown: Shown) -> dict[str, object]:
    """What --json prints of a view: its numbers beside its name and proof."""
    from cutaway.views.payload import as_json

    model = session.llm.engine.model
    values = as_json(shown.payload)
    assert isinstance(values, dict), "a payload is a dataclass"
    return {
        "view": shown.view.name,
        "model": model.name,
        "proof": None if shown.proof is None else str(shown.proof),
        "is_exact": None if shown.proof is None else shown.proof.is_exact,
        **values,
    }
