"""What tools of a provider left in a history, in words: nothing here can run or read them."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import cast

from cutaway.text.chat_messages import Json, plain

MAX_WORD = 1_000  # characters without a blank; more are a picture, or what one provider can read
UNREADABLE = "[not shown, since this model cannot read it]"


def tell_item(
    kind: str, fields: Mapping[str, object], param: str, *, without: Collection[str] = ()
) -> str:
    """An item as it came, without pictures and what its maker alone can read.

    Raises: RequestError.
    """
    told = cast("dict[str, Json]", plain(fields, param))
    kept = {name: _short(value) for name, value in told.items() if name not in without}
    return f"[{kind}: {json.dumps(kept, ensure_ascii=False)}]"


def is_packed(text: str) -> bool:
    """Whether a text is no words: a picture's bytes, or what was encrypted."""
    return text.startswith("gAAAA") or (len(text) > MAX_WORD and not re.search(r"\s", text))


def _short(value: Json) -> Json:
    """The same, with a word in place of strings that are no words."""
    if isinstance(value, str):
        return UNREADABLE if is_packed(value) else value
    if isinstance(value, list):
        return [*map(_short, value)]
    if isinstance(value, dict):
        return {name: _short(each) for name, each in value.items()}
    return value
