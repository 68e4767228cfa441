"""Messages and pieces of OpenAI's chat API: content, reasoning, and calls of tools."""

from __future__ import annotations

from typing import Any

from cutaway.core.output import Delta, FinishReason
from cutaway.server.answers import ChoiceOutput
from cutaway.server.conversation import AnswerFormat
from cutaway.server.openai.answer_parts import ending_of
from cutaway.stream.text_events import CallArguments, CallEnd, CallStart, Content, Event, Reasoning

GREETING = {"role": "assistant", "content": ""}


def chat_choice(answer: ChoiceOutput, answer_format: AnswerFormat) -> dict[str, Any]:
    """The message of a whole answer, and why it ended."""
    read = answer_format.whole(answer.text)
    content = read.content if read.content or not read.calls else None
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if read.reasoning:
        message["reasoning_content"] = read.reasoning
    if read.calls:
        message["tool_calls"] = [
            _call(answer_format, each.name, arguments=each.arguments) for each in read.calls
        ]
    return {"message": message, **_ending(answer, answer_format, has_calls=bool(read.calls))}


class ChatPieces:
    """One choice of a stream, as the deltas of its events."""

    def __init__(self, answer_format: AnswerFormat) -> None:
        self._answer_format = answer_format
        self._reader = answer_format.reader()

    def skip(self, text: str) -> None:
        """Read what another server has told of the choice, to go on behind it."""
        self._reader.push(text)

    def of(self, delta: Delta) -> list[dict[str, Any]]:
        """What a delta says; with its end, also what was held back."""
        events = self._reader.push(delta.text)
        if delta.finish_reason is not None:
            events += self._reader.finish()
        return [self._piece(event) for event in events if not isinstance(event, CallEnd)]

    def ending(self, delta: Delta) -> dict[str, Any]:
        """Why the choice ended."""
        return _ending(delta, self._answer_format, has_calls=self._reader.has_calls)

    def _piece(self, event: Event) -> dict[str, Any]:
        match event:
            case Content(text):
                return {"content": text}
            case Reasoning(text):
                return {"reasoning_content": text}
            case CallStart(index, name):
                call = _call(self._answer_format, name, arguments="")
                return {"tool_calls": [{"index": index, **call}]}
            case CallArguments(index, text):
                return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
            case CallEnd():
                raise AssertionError("the end of a call has no piece of its own")


def _call(answer_format: AnswerFormat, name: str, *, arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": answer_format.call_id(), "type": "function", "function": function}


def _ending(
    answer: ChoiceOutput | Delta, answer_format: AnswerFormat, *, has_calls: bool
) -> dict[str, Any]:
    """As OpenAI: calls end an answer as tool_calls, a call that was asked for by name as stop."""
    ending = ending_of(answer)
    reason: FinishReason | None = answer.finish_reason
    is_named = answer_format.tools is not None and answer_format.tools.mode == "named"
    if has_calls and reason == "stop" and not is_named:
        ending["finish_reason"] = "tool_calls"
    return ending
