"""Answers and models as a notebook shows them: HTML without script, which outlives the session."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence

from cutaway.core.output import TokenLogprob
from cutaway.tokens.tokenizer import Tokenizer

_CHIP = (
    "display:inline-block;white-space:pre;border:1px solid #8888;border-radius:3px;margin:1px;"
    "padding:0 3px;font-family:monospace"
)


def chips(
    token_ids: Sequence[int],
    tokenizer: Tokenizer,
    logprobs: Sequence[TokenLogprob] | None = None,
) -> str:
    """A box per token; its id and, where it is known, its probability show as a title.

    A lower edge is the wider the likelier the token was, so that it is seen without colour.
    """
    from cutaway.views.parts.subject import (
        visible,  # brings all views, which most processes never need
    )

    boxes: list[str] = []
    for index, token_id in enumerate(token_ids):
        title, style = f"id {token_id}", _CHIP
        if logprobs is not None:
            probability = math.exp(logprobs[index].logprob)
            title += f", probability {probability:.1%}"
            style += f";border-bottom-width:{1 + round(4 * probability)}px"
        text = html.escape(visible(tokenizer.token_bytes(token_id)))
        boxes.append(f'<span style="{style}" title="{title}">{text}</span>')
    return "".join(boxes)


def block(title: str, body: str) -> str:
    """Some HTML under a title."""
    return f"<div><b>{html.escape(title)}</b><div>{body}</div></div>"


def facts_table(facts: Mapping[str, object]) -> str:
    """Names and values, one a line."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
        f"<td>{html.escape(str(value))}</td></tr>"
        for name, value in facts.items()
    )
    return f"<table>{rows}</table>"
