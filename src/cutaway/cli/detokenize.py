"""`cutaway detokenize`: the text of token ids, byte for byte."""

from __future__ import annotations

import json as jsons
import sys
from typing import Annotated, cast

import typer

from cutaway.cli.settings.options import AsJson, Given, SettingsFile, with_settings
from cutaway.cli.settings.setting_keys import MODEL
from cutaway.cli.terminal.terminal import is_seen, note, print_data, print_json
from cutaway.cli.terminal.text_input import stdin_text
from cutaway.core.errors import RequestError
from cutaway.core.limits import quote
from cutaway.core.whole_numbers import whole_number


@with_settings(MODEL, only=("model", "accept_license"))
def detokenize(
    *,
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            help="token ids; nothing or - reads them from stdin, also as JSON", show_default=False
        ),
    ] = None,
    given: Given,
    config: SettingsFile = None,
    skip_control: Annotated[
        bool, typer.Option("--skip-control", help="leave control tokens out")
    ] = False,
    json: AsJson = False,
) -> None:
    """Put token ids together to the text that they stand for.

    What `cutaway tokenize --json` printed comes back as it was.
    """
    from cutaway.cli.session.named_tokenizer import open_tokenizer
    from cutaway.cli.settings.settings import resolve

    written = " ".join(ids or ["-"])
    token_ids = parse_ids(stdin_text(param="ids") if written == "-" else written)
    tokenizer = open_tokenizer(resolve(given, config=config))
    beyond = [token_id for token_id in token_ids if token_id >= tokenizer.vocab_size]
    if beyond:
        # A model may have more rows than its tokenizer has tokens, and answer with one of them.
        note(f"warning: {beyond[0]} is no token; ids go from 0 to {tokenizer.vocab_size - 1}.")
    if skip_control:
        token_ids = [each for each in token_ids if each not in tokenizer.control_ids]
    exact = tokenizer.decode_bytes(token_ids)
    text = exact.decode(errors="replace")
    if json:
        print_json({"token_ids": token_ids, "text": text, "bytes": exact.hex()})
    elif is_seen(sys.stdout):
        print_data(text)
    else:
        sys.stdout.buffer.write(exact)


def parse_ids(text: str) -> list[int]:
    """Ids from `1 2 3`, `1, 2, 3`, a JSON list, or a JSON object that has token_ids.

    Raises: RequestError naming what is no id.
    """
    try:
        value: object = jsons.loads(text)
    except ValueError:
        value = text.replace(",", " ").split()
    if isinstance(value, dict):
        value = cast("dict[str, object]", value).get("token_ids")
    items = cast("list[object]", value) if isinstance(value, list) else [value]
    return [_id(item) for item in items]


def _id(item: object) -> int:
    written = whole_number(item) if isinstance(item, str) else None
    if written is not None:
        return written
    if isinstance(item, int) and not isinstance(item, bool) and 0 <= item < 10**19:
        return item
    raise RequestError(
        f"ids holds {quote(item)}; give integers from 0 up, or JSON with token_ids.", param="ids"
    )
