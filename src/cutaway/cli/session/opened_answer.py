"""A prompt answered and its record opened: what commands that show an answer have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING

from cutaway.cli.settings.setting_keys import VIEW_TOKENS
from cutaway.cli.terminal.text_input import text_of
from cutaway.core.errors import RequestError

if TYPE_CHECKING:
    from cutaway.cli.session.session import Session
    from cutaway.core.grammar import Grammar
    from cutaway.replay.look import Look
    from cutaway.text.chat_messages import Message


def words_of(prompt: str | None, given: Mapping[str, object], *, is_chat: bool) -> str:
    """The prompt, read. Raises: RequestError where a system message has no conversation."""
    if "system" in given and not is_chat:
        raise RequestError("--system is for messages; add --chat.", param="system")
    return text_of(prompt, param="prompt")


def look_at(session: Session, words: str, *, is_chat: bool, grammar: Grammar | None = None) -> Look:
    """The prompt, answered in the form that was asked for, and its record opened."""
    from cutaway.cli.session.session import bound_params
    from cutaway.text.chat_messages import from_dicts

    llm, messages, began = session.llm, None, perf_counter()
    if is_chat:
        messages = from_dicts(session.messages(words))
        token_ids = llm.encode_chat(session.messages(words))
    else:
        token_ids = llm.encode(words)
    encode_seconds = perf_counter() - began
    num_left = llm.engine.max_length - len(token_ids)
    params = bound_params(session.settings.sampling(), default=VIEW_TOKENS, num_left=num_left)
    request = llm.request(token_ids, replace(params, grammar=grammar))
    for delta in session.stream(request):
        if delta.error is not None:
            raise delta.error
    return open_answer(
        session, request.request_id, messages=messages, encode_seconds=encode_seconds
    )


def open_answer(
    session: Session,
    request_id: str,
    *,
    messages: tuple[Message, ...] | None,
    encode_seconds: float | None,
) -> Look:
    """An answer of this session. Raises: RequestError where nothing was recorded."""
    from cutaway.replay.look import Look

    engine = session.llm.engine
    answer = None if engine.ledger is None else engine.ledger.find(request_id)
    if answer is None:
        raise RequestError(
            "nothing was recorded: ledger_bytes is too small. Leave out --ledger-bytes.",
            param="ledger_bytes",
        )
    return Look(engine, answer, messages=messages, encode_seconds=encode_seconds)
