"""Levers on what the model is given: a token of the answer, the system message, the question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from cutaway.compare.levers import Change
from cutaway.compare.side import Side
from cutaway.compare.sides.pair import Pair, Source
from cutaway.core.errors import RequestError
from cutaway.core.limits import quote
from cutaway.engine.loading.loaded_model import LoadedModel
from cutaway.text.chat_messages import Message, Text
from cutaway.text.prompt import encode
from cutaway.text.reach import render_whole


def change_words(source: Source, change: Change, base: Side) -> Pair:
    """Both sides of a change of what the model is given.

    Raises: RequestError for a place behind the answer, a token or a length that there is not.
    """
    if change.lever == "token":
        return _token(source, change, base)
    if change.lever == "context":
        kept = change.whole(least=1, most=len(source.prompt))
        return Pair(base, replace(base, prompt=source.prompt[-kept:]), forced=source.token_ids)
    model = source.engine.model
    if source.messages is None:
        if change.lever == "system":
            raise RequestError(
                "system is a message of a conversation; this answer has none. Add --chat.",
                param="change",
            )
        prompt = model.tokenizer.encode(change.value, bos=True)
    else:
        prompt = _encoded(model, _said(source.messages, change))
    return Pair(base, replace(base, prompt=tuple(prompt)), forced=source.token_ids)


def _token(source: Source, change: Change, base: Side) -> Pair:
    known = source.token_ids
    if change.place is None or change.place >= len(known):
        raise RequestError(
            f"token@{quote(change.place)} is behind the answer; its steps are 0 to "
            f"{len(known) - 1}.",
            param="change",
        )
    source.check_prompt_can_hold_answer(change)
    model = source.engine.model
    if change.value.isascii() and change.value.isdigit():
        most = model.facts.vocab_size - 1
        ids = [replace(change, lever="token").whole(least=0, most=most)]
    else:
        ids = model.tokenizer.encode(change.value, is_start=False)
    if not ids:
        raise change.refusal("it must be a token's id, or a text in its place")
    lead = (*known[: change.place], *ids)
    if len(lead) >= (base.params.max_tokens or 0):
        raise RequestError(
            f"{quote(str(change))} leaves nothing to be drawn: the answer has at most "
            f"{base.params.max_tokens} tokens. Change an earlier one, or raise max_tokens.",
            param="change",
        )
    forced = (*lead, *known[len(lead) :])[: len(known)]
    return Pair(base, replace(base, lead=lead), forced=forced)


def _said(messages: Sequence[Message], change: Change) -> tuple[Message, ...]:
    """The conversation with another system message, or with another last question."""
    said = (Text(change.value),)
    if change.lever == "system":
        rest = [each for each in messages if each.role != "system"]
        return tuple(rest) if not change.value else (Message("system", said), *rest)
    last = max(index for index, each in enumerate(messages) if each.role == "user")
    return (*messages[:last], Message("user", said), *messages[last + 1 :])


def ask_of(source: Source, model: LoadedModel) -> tuple[int, ...]:
    """The same question in another model's tokens."""
    if source.messages is not None:
        return tuple(_encoded(model, source.messages))
    text = source.engine.model.tokenizer.decode(source.prompt)
    return tuple(model.tokenizer.encode(text, bos=True))


def _encoded(model: LoadedModel, messages: Sequence[Message]) -> list[int]:
    plain = model.tokenizer.encode
    prompt = render_whole(model.template, tuple(messages))
    inner = partial(plain, is_start=False)
    return encode(prompt, plain, model.tokenizer.control_tokens, encode_inner=inner)
