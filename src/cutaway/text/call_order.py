"""Results of calls where templates look for them: in the order of their calls, with their names.

Programs run calls side by side and send results as they come; an id tells whose each is. Many
templates write no ids, so a model takes the first result for the first call's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cutaway.text.chat_messages import Message, Part, ToolCall, ToolResult


def order_results(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The same history; results with the id of a call stand in the order of the calls.

    Results without an id, or with one that no call or several calls have, stay where they are.
    """
    placed = list(messages)
    calls: list[ToolCall] = []  # that may be answered
    slots: list[tuple[int, int]] = []  # of results, by message and part
    for index, message in enumerate(placed):
        if message.role == "assistant":
            if slots:
                _order(placed, calls, slots)
                calls, slots = [], []
            calls += [part for part in message.content if isinstance(part, ToolCall)]
        else:
            parts = enumerate(message.content)
            slots += [(index, at) for at, part in parts if isinstance(part, ToolResult)]
    _order(placed, calls, slots)
    return tuple(placed)


def _order(placed: list[Message], calls: list[ToolCall], slots: list[tuple[int, int]]) -> None:
    """Put the results of one round in order, and say whose they are."""
    ids = [call.call_id for call in calls]
    known = {call.call_id: call for call in calls if call.call_id and ids.count(call.call_id) == 1}
    own: list[tuple[tuple[int, int], ToolResult]] = []
    for index, at in slots:
        part = placed[index].content[at]
        if isinstance(part, ToolResult) and part.call_id in known:
            name = part.name or known[part.call_id].name
            own.append(((index, at), replace(part, name=name)))
    ranks = {call_id: rank for rank, call_id in enumerate(ids)}
    ordered = sorted((result for _, result in own), key=lambda each: ranks[each.call_id])
    for (slot, _), result in zip(own, ordered, strict=True):
        _put(placed, slot, result)


def _put(placed: list[Message], slot: tuple[int, int], result: ToolResult) -> None:
    index, at = slot
    content: list[Part] = list(placed[index].content)
    if content[at] != result:
        content[at] = result
        placed[index] = replace(placed[index], content=tuple(content))
