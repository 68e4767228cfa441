"""Answers in the form of OpenAI's Responses: items of output, and the events that tell them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pydantic_core

from cutaway.core.output import Delta, TokenLogprob
from cutaway.server.conversation import AnswerFormat
from cutaway.server.openai.responses_tools import Called
from cutaway.stream.text_events import CallArguments, CallEnd, CallStart, Content, Event, Reasoning
from cutaway.text.kinds import is_table

# What each item is called in ids; items of text hold one part.
_PREFIXES = {
    "message": "msg_",
    "reasoning": "rs_",
    "function_call": "fc_",
    "custom_tool_call": "ctc_",
}
_PARTS = {"message": "output_text", "reasoning": "reasoning_text"}


class Items:
    """One answer's events, item by item.

    write:  log-probabilities of tokens as the API has them.
    find:   the client's names for a tool; calls of one that takes free text tell it whole.
    output: the items that are complete, as the whole response has them.

    Log-probabilities stand with the first words that come with a token or after it, those of a
    marker too. Those of reasoning and of calls are left out, as OpenAI does.
    """

    def __init__(
        self,
        answer_format: AnswerFormat,
        *,
        write: Callable[[Sequence[TokenLogprob]], list[dict[str, Any]]],
        find: Callable[[str], Called] = Called,
    ) -> None:
        self._find = find
        self.output: list[dict[str, Any]] = []
        self._answer_format = answer_format
        self._reader = answer_format.reader()
        self._open: dict[str, Any] | None = None
        self._text = ""  # of the open item: words, or arguments
        self._write = write
        self._waiting: list[TokenLogprob] = []  # of tokens whose words have not come
        self._scores: list[dict[str, Any]] = []  # of the open item

    @property
    def reasoning(self) -> str:
        """All reasoning."""
        items = [item for item in self.output if item["type"] == "reasoning"]
        return "".join(item["content"][0]["text"] for item in items)

    def of(self, delta: Delta) -> Iterator[dict[str, Any]]:
        """Events of what a delta says; with its end, of what was held back too."""
        self._waiting += delta.logprobs
        for event in self._reader.push(delta.text):
            yield from self._told(event)
        if delta.finish_reason is not None:
            for event in self._reader.finish():
                yield from self._told(event)
            status = "incomplete" if delta.finish_reason == "length" else "completed"
            yield from self._close(status)

    def _told(self, event: Event) -> Iterator[dict[str, Any]]:
        if not isinstance(event, Content):
            self._waiting.clear()
        match event:
            case Content(text):
                yield from self._say("message", text)
            case Reasoning(text):
                yield from self._say("reasoning", text)
            case CallStart(_, name):
                called = self._find(name)
                kind = "custom_tool_call" if called.is_custom else "function_call"
                said = {"input" if called.is_custom else "arguments": ""}
                ids = {"call_id": self._answer_format.call_id()}
                yield from self._begin(kind, {**said, **ids, **called.fields})
            case CallArguments(_, text):
                self._text += text
                if self._open is not None and self._open["type"] == "custom_tool_call":
                    return
                place = self._place(has_part=False)
                yield {"type": "response.function_call_arguments.delta", **place, "delta": text}
            case CallEnd():
                yield from self._close()

    def _say(self, kind: str, text: str) -> Iterator[dict[str, Any]]:
        if self._open is None or self._open["type"] != kind:
            first = ("role", "assistant") if kind == "message" else ("summary", list[Any]())
            yield from self._begin(kind, dict([first, ("content", list[Any]())]))
            part = {"part": _part(kind, "", [])}
            yield {"type": "response.content_part.added", **self._place(), **part}
        self._text += text
        more = {"logprobs": self._score()} if kind == "message" else {}
        yield {"type": f"response.{_PARTS[kind]}.delta", **self._place(), "delta": text, **more}

    def _score(self) -> list[dict[str, Any]]:
        """What waited, written; it belongs to the open item."""
        new, self._waiting = self._write(self._waiting), []
        self._scores += new
        return new

    def _begin(self, kind: str, fields: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield from self._close()
        item_id = _PREFIXES[kind] + uuid.uuid4().hex
        self._open = {"id": item_id, "type": kind, "status": "in_progress", **fields}
        self._text = ""
        self._scores = []
        place = {"output_index": len(self.output)}
        yield {"type": "response.output_item.added", **place, "item": self._open}

    def _close(self, status: str = "completed") -> Iterator[dict[str, Any]]:
        if self._open is None:
            return
        kind, text = self._open["type"], self._text
        done = {**self._open, "status": status}
        if kind == "custom_tool_call":
            done["input"] = text = _free_text(text)
            place = self._place(has_part=False)
            yield {"type": "response.custom_tool_call_input.delta", **place, "delta": text}
            yield {"type": "response.custom_tool_call_input.done", **place, "input": text}
        elif kind == "function_call":
            done["arguments"] = text
            place = {**self._place(has_part=False), "name": done["name"], "arguments": text}
            yield {"type": "response.function_call_arguments.done", **place}
        else:
            if kind == "message":
                self._score()  # an ending token has no words of its own
            part = _part(kind, text, self._scores)
            done["content"] = [part]
            more = {"logprobs": self._scores} if kind == "message" else {}
            yield {"type": f"response.{_PARTS[kind]}.done", **self._place(), "text": text, **more}
            yield {"type": "response.content_part.done", **self._place(), "part": part}
        place = {"output_index": len(self.output)}
        self._open = None
        self.output.append(done)
        yield {"type": "response.output_item.done", **place, "item": done}

    def _place(self, *, has_part: bool = True) -> dict[str, Any]:
        assert self._open is not None, "something is said within an item alone"
        place = {"item_id": self._open["id"], "output_index": len(self.output)}
        return {**place, "content_index": 0} if has_part else place


def _free_text(arguments: str) -> str:
    """The one text of a call's arguments; as much of it as came."""
    try:
        fields: object = pydantic_core.from_json(arguments, allow_partial="trailing-strings")
    except ValueError:
        return arguments
    given = fields.get("input") if is_table(fields) else None
    return given if isinstance(given, str) else arguments


def _part(kind: str, text: str, scores: list[dict[str, Any]]) -> dict[str, Any]:
    more: dict[str, Any] = {"annotations": [], "logprobs": scores} if kind == "message" else {}
    return {"type": _PARTS[kind], "text": text, **more}
