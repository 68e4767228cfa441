"""`cutaway tokenize`: the tokens of a text; reads the tokenizer alone, never the weights."""

from __future__ import annotations

from typing import Annotated

import typer

from cutaway.cli.session.answer_json import TokenLookup, token_object
from cutaway.cli.settings.options import AsJson, Given, SettingsFile, with_settings
from cutaway.cli.settings.setting_keys import MODEL
from cutaway.cli.terminal.terminal import note, print_data, print_json, table
from cutaway.cli.terminal.text_input import text_of


@with_settings(MODEL, only=("model", "accept_license"))
def tokenize(
    *,
    text: Annotated[
        str | None,
        typer.Argument(help="the text; - or nothing reads stdin, every byte", show_default=False),
    ] = None,
    given: Given,
    config: SettingsFile = None,
    bos: Annotated[
        bool, typer.Option("--bos", help="put in front what the model wants in front of a prompt")
    ] = False,
    control: Annotated[
        bool, typer.Option("--control", help="names of control tokens become control tokens")
    ] = False,
    json: AsJson = False,
) -> None:
    """Cut a text into tokens: id, bytes in hex and text of each."""
    from cutaway.cli.session.named_tokenizer import open_tokenizer
    from cutaway.cli.settings.settings import resolve

    written = text_of(text, param="text")
    tokenizer = open_tokenizer(resolve(given, config=config))
    token_ids = tokenizer.encode(written, control=control, bos=bos)
    if json:
        tokens = [token_object(token_id, tokenizer) for token_id in token_ids]
        print_json({"token_ids": token_ids, "tokens": tokens})
        return
    rows = [
        (str(token_id), tokenizer.token_bytes(token_id).hex(), _quoted(token_id, tokenizer))
        for token_id in token_ids
    ]
    print_data(table(("id", "bytes", "text"), rows, right="id"))
    note(f"[{len(token_ids)} tokens, {len(written)} characters]", dim=True)


def _quoted(token_id: int, tokenizer: TokenLookup) -> str:
    """A token's text in quotes, so that blanks and line ends are seen."""
    try:
        return repr(tokenizer.token_bytes(token_id).decode())
    except UnicodeDecodeError:
        return f"'{tokenizer.token_text(token_id)}'"
