"""One message answered: the model's text as it comes, and tools that it calls on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from cutaway.cli.repl import local_tools
from cutaway.cli.repl.chat_state import ChatState
from cutaway.cli.repl.slash_commands import OUTSIDE
from cutaway.core.output import Delta

IsStopped = Callable[[], bool]


class Model(Protocol):
    """Answers a conversation; asked before each step whether to stop, it ends with a last delta."""

    def __call__(self, conversation: ChatState, is_stopped: IsStopped) -> Iterator[Delta]: ...


class Screen(Protocol):
    """Where an answer goes."""

    def text(self, text: str) -> None:
        """More text of the model."""
        ...

    def end(self, deltas: list[Delta]) -> None:
        """All news of one answer of the model, after its last text."""
        ...

    def outside(self, line: str) -> None:
        """What a tool did."""
        ...


@dataclass
class _Said:
    """An answer while it is made."""

    deltas: list[Delta]
    text: str = ""
    call: local_tools.LineCall | None = None


def reply(
    conversation: ChatState, model: Model, screen: Screen, *, is_interrupted: IsStopped
) -> ChatState:
    """Answer the last message, and run the tools that the answers call, at most three times.

    An interrupted answer stays as far as it came; where it has no text, its question goes too.
    Raises: the error that ended an answer.
    """
    for round_ in range(local_tools.MAX_ROUNDS + 1):
        said = _say(conversation, model, screen, is_interrupted)
        if is_interrupted() and not said.text.strip():
            return replace(conversation, turns=conversation.turns[:-1])
        conversation = conversation.add("assistant", said.text)
        if said.call is None or is_interrupted():
            break
        if round_ == local_tools.MAX_ROUNDS:
            screen.outside(
                f"{OUTSIDE} no more than {local_tools.MAX_ROUNDS} tool calls per message"
            )
            break
        result = local_tools.run_call(said.call)
        screen.outside(f"{OUTSIDE} tool {said.call.name}: {said.call.argument} -> {result}")
        conversation = conversation.add("user", local_tools.result_message(said.call, result))
    return conversation


def _say(conversation: ChatState, model: Model, screen: Screen, is_interrupted: IsStopped) -> _Said:
    said = _Said([])
    finder = local_tools.CallFinder()
    for delta in model(conversation, lambda: said.call is not None or is_interrupted()):
        said.deltas.append(delta)
        if delta.error is not None:
            raise delta.error
        if said.call is not None:
            continue  # what follows a call was written without its result
        said.text += delta.text
        screen.text(delta.text)
        if conversation.has_tools:
            is_finished = delta.finish_reason is not None
            said.call = finder.push(delta.text, is_finished=is_finished)
    if said.call is not None:
        said.text = said.text[: said.call.end]
    screen.end(said.deltas)
    return said
