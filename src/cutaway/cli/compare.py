"""`cutaway compare`: one prompt answered, and answered again with one thing changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cutaway.cli.session.opened_answer import look_at, words_of
from cutaway.cli.settings.options import AsJson, Given, SettingsFile, integer, with_settings
from cutaway.cli.settings.setting_keys import CHAT, ENGINE, MODEL, SAMPLING
from cutaway.cli.terminal.pictures import print_drawing
from cutaway.cli.terminal.terminal import note, print_json
from cutaway.compare.levers import LEVERS, change_of
from cutaway.core.errors import RequestError

if TYPE_CHECKING:
    from cutaway.cli.session.session import Session
    from cutaway.compare.comparison import Comparison

_LEVERS = "\n".join(f"- {name}: {meaning}" for name, meaning in LEVERS.items())


@with_settings(MODEL, ENGINE, SAMPLING, CHAT)
def compare(
    *,
    prompt: Annotated[
        str | None, typer.Argument(help="the prompt; - or nothing reads stdin", show_default=False)
    ] = None,
    given: Given,
    config: SettingsFile = None,
    change: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=VALUE",
            show_default=False,
            help="what to change; given several times, each is compared alone",
        ),
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="send the prompt as a message, through the template")
    ] = False,
    runs: Annotated[
        int, typer.Option(parser=integer, metavar="N", help="how often each side is measured")
    ] = 3,
    price: Annotated[
        float | None,
        typer.Option(metavar="X", show_default=False, help="what an hour of this machine costs"),
    ] = None,
    json: AsJson = False,
) -> None:
    if not change:
        raise RequestError(
            "nothing is to be changed; say what, as in --change temperature=0.5.", param="change"
        )
    if runs < 1:
        raise RequestError(f"runs is {runs}; it must be at least 1.", param="runs")
    changes = [change_of(each) for each in change]
    words = words_of(prompt, given, is_chat=chat)

    from cutaway.cli.session.session import open_session
    from cutaway.compare.compare import compare as compared

    session = open_session(given, config=config)
    subject = look_at(session, words, is_chat=chat).subject
    for index, each in enumerate(changes):
        found = compared(
            session.llm.engine,
            subject.answer,
            each,
            name=session.settings.model,
            messages=subject.messages,
            num_runs=runs,
            price=price,
            tell=lambda words: note(words, dim=True),
        )
        if json:
            print_json(_object(session, found))
        else:
            print_drawing(found.draw(), is_first=index == 0)


compare.__doc__ = f"""Answer a prompt, then change one thing of it and say what that does.

What is the first token that differs, how far did each step's chances move, and what did it take
of time, memory and operations. What can be changed:

{_LEVERS}
"""


def _object(session: Session, found: Comparison) -> dict[str, object]:
    from cutaway.views.parts.payload import as_json

    values = as_json(found)
    assert isinstance(values, dict), "a comparison is a dataclass"
    return {"model": session.llm.engine.model.name, **values}
