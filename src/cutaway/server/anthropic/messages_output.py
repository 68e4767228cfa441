"""Answers in Anthropic's form: blocks of content, and the events that tell them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pydantic_core

from cutaway.core.output import Delta, Usage
from cutaway.server.conversation import AnswerFormat
from cutaway.stream.text_events import CallArguments, CallEnd, CallStart, Content, Event, Reasoning

_EMPTY: dict[str, dict[str, Any]] = {
    "text": {"type": "text", "text": ""},
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
}


class Blocks:
    """One answer's events, block by block."""

    def __init__(self, answer_format: AnswerFormat) -> None:
        self._answer_format = answer_format
        self._reader = answer_format.reader()
        self._open: str | None = None  # the kind of the block that is open
        self._index = -1

    def of(self, delta: Delta) -> Iterator[dict[str, Any]]:
        """Events of what a delta says; with its end, of what was held back too."""
        for event in self._reader.push(delta.text):
            yield from self._told(event)
        if delta.finish_reason is not None:
            for event in self._reader.finish():
                yield from self._told(event)
            yield from self._close()

    def ending(self, delta: Delta) -> dict[str, Any]:
        """Why the answer ended."""
        by = delta.stopped_by
        if delta.finish_reason == "length":
            return {"stop_reason": "max_tokens", "stop_sequence": None}
        if self._reader.has_calls:
            return {"stop_reason": "tool_use", "stop_sequence": None}
        if isinstance(by, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": by}
        return {"stop_reason": "end_turn", "stop_sequence": None}

    def _told(self, event: Event) -> Iterator[dict[str, Any]]:
        match event:
            case Content(text):
                yield from self._within("text")
                yield self._delta({"type": "text_delta", "text": text})
            case Reasoning(text):
                yield from self._within("thinking")
                yield self._delta({"type": "thinking_delta", "thinking": text})
            case CallStart(_, name):
                call_id = self._answer_format.call_id("toolu_")
                call = {"type": "tool_use", "id": call_id, "name": name}
                yield from self._begin("tool_use", {**call, "input": dict[str, Any]()})
            case CallArguments(_, text):
                yield self._delta({"type": "input_json_delta", "partial_json": text})
            case CallEnd():
                yield from self._close()

    def _within(self, kind: str) -> Iterator[dict[str, Any]]:
        if self._open != kind:
            yield from self._begin(kind, _EMPTY[kind])

    def _begin(self, kind: str, block: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield from self._close()
        self._open = kind
        self._index += 1
        yield {"type": "content_block_start", "index": self._index, "content_block": block}

    def _close(self) -> Iterator[dict[str, Any]]:
        if self._open is not None:
            self._open = None
            yield {"type": "content_block_stop", "index": self._index}

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}


def content_of(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The blocks that the events of an answer make up, as Anthropic's client puts them together."""
    blocks: list[dict[str, Any]] = []
    arguments: dict[int, str] = {}
    for event in events:
        match event:
            case {"content_block": block}:
                blocks.append({**block})
            case {"index": index, "delta": {"partial_json": text}}:
                arguments[index] = arguments.get(index, "") + text
            case {"index": index, "delta": {"type": kind, **said}}:
                name = kind.removesuffix("_delta")
                blocks[index][name] += said[name]
            case _:
                pass
    for index, text in arguments.items():
        # A call that max_tokens cut off has as much of its input as came.
        blocks[index]["input"] = pydantic_core.from_json(text, allow_partial=True)
    return blocks


def usage_of(usage: Usage) -> dict[str, int]:
    """Token counts. Tokens of the prompt that were found in the cache count apart."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }
