"""`cutaway why`: what made an answer slow, expensive or wrong, and what it is without that."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from cutaway.cli.session.opened_answer import look_at, words_of
from cutaway.cli.settings.options import AsJson, Given, SettingsFile, with_settings
from cutaway.cli.settings.setting_keys import CHAT, ENGINE, MODEL, SAMPLING
from cutaway.cli.terminal.pictures import print_drawing
from cutaway.cli.terminal.terminal import print_json


@with_settings(MODEL, ENGINE, SAMPLING, CHAT)
def why(
    *,
    prompt: Annotated[
        str | None, typer.Argument(help="the prompt; - or nothing reads stdin", show_default=False)
    ] = None,
    given: Given,
    config: SettingsFile = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="send the prompt as a message, through the template")
    ] = False,
    json: AsJson = False,
) -> None:
    """Answer a prompt and say what made the answer slow, expensive or wrong.

    Causes come from the record of that run; what is called measured was run again without them.
    """
    words = words_of(prompt, given, is_chat=chat)

    from cutaway.cli.session.session import open_session
    from cutaway.compare.why import why as diagnose

    session = open_session(given, config=config)
    found = diagnose(session.llm.engine, look_at(session, words, is_chat=chat))
    if json:
        print_json({"model": session.llm.engine.model.name, **asdict(found)})
    else:
        print_drawing(found.draw())
