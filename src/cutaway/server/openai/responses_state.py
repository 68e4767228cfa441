"""What Responses keeps where the server has a store: the turns that a request goes on from."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cutaway.core.errors import RequestError
from cutaway.core.limits import quote
from cutaway.server.error_replies import HttpError
from cutaway.server.openai.kept import Entry, Kept
from cutaway.server.openai.responses_fields import CONVERSATION
from cutaway.server.tools import object_of
from cutaway.text.kinds import is_row, is_table

MAX_TURNS = 1_000  # of one chain
HOW = "this server keeps no answers. Start it with --store FILE, or send the whole conversation."


@dataclass(frozen=True)
class Earlier:
    """What stands before the input of a request, and where the new turn is to be kept."""

    items: tuple[Entry, ...] = ()
    previous: str | None = None
    conversation: str | None = None


def earlier_of(previous: object, conversation: object, store: Kept | None, owner: str) -> Earlier:
    """The items that a request goes on from. Raises: RequestError; HttpError 404."""
    conversation_id = _conversation_id(conversation)
    asked = {"previous_response_id": previous, "conversation": conversation_id}
    named = {name: value for name, value in asked.items() if value is not None}
    if not named:
        return Earlier()
    name, value = next(iter(named.items()))
    if not isinstance(value, str):
        raise RequestError(f"{name} is {quote(value)}; it must be an id, a string.", param=name)
    if len(named) > 1:
        raise RequestError(
            f"previous_response_id is {quote(previous)} and conversation is "
            f"{quote(conversation_id)}; only one of the two can be given.",
            param="previous_response_id",
        )
    if store is None:
        raise RequestError(f"{name} is {quote(value)}; {HOW}", param=name)
    if name == "conversation":
        entry = find_entry(store, owner, value, "conversation", param=name)
        return Earlier(tuple(entry["items"]), conversation=value)
    return Earlier(tuple(_chain(store, owner, value)), previous=value)


def _conversation_id(value: object) -> object:
    if not is_table(value):
        return value
    CONVERSATION.check(object_of(value, "conversation"), "conversation")
    if not isinstance(value.get("id"), str):
        raise RequestError(
            f"conversation.id is {quote(value.get('id'))}; it must be an id, a string.",
            param="conversation.id",
        )
    return value["id"]


def _chain(store: Kept, owner: str, last: str) -> list[Entry]:
    turns: list[list[Entry]] = []
    at: str | None = last
    while at is not None:
        if len(turns) == MAX_TURNS:
            raise RequestError(
                f"previous_response_id is {quote(last)}; it has more than {MAX_TURNS:,} answers "
                "before it. Begin anew, with the items that matter as input.",
                param="previous_response_id",
            )
        entry = find_entry(store, owner, at, "response", param="previous_response_id")
        turns.append([*entry["input"], *entry["response"]["output"]])
        at = entry["response"]["previous_response_id"]
    return [item for turn in reversed(turns) for item in turn]


def find_entry(
    store: Kept, owner: str, entry_id: str, kind: Any, *, param: str | None = None
) -> Entry:
    """An owner's entry. Raises: HttpError 404, the same for what is not there and another's."""
    entry = store.get(owner, entry_id, kind)
    if entry is None:
        raise HttpError(
            status=404,
            message=f"{kind.capitalize()} with id {quote(entry_id)} not found. It was never kept, "
            "was deleted, or is older than this server keeps.",
            param=param,
            code="not_found",
        )
    return entry


def as_items(given: object) -> list[Entry]:
    """The input as a list of items, each with an id."""
    content = [{"type": "input_text", "text": given}]
    items = given if is_row(given) else [{"role": "user", "content": content}]
    return [{"id": f"item_{uuid.uuid4().hex}", "type": "message", **_table(item)} for item in items]


def _table(item: object) -> Mapping[str, Any]:
    assert is_table(item), "items were read before they are kept"
    return {str(name): value for name, value in item.items() if value is not None}


def keep(store: Kept, owner: str, earlier: Earlier, given: object, response: Entry) -> None:
    """Keep a finished answer with its input. Raises: OSError."""
    items = as_items(given)
    entry = {"input": items, "response": response}
    store.put(owner, response["id"], "response", entry)
    if earlier.conversation is not None:
        store.append(owner, earlier.conversation, [*items, *response["output"]])
