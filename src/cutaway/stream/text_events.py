"""What an answer's text turns out to be: content, reasoning, calls of tools. Plain data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Content:
    """Words for the reader."""

    text: str


@dataclass(frozen=True)
class Reasoning:
    """What the model thought before it answered."""

    text: str


@dataclass(frozen=True)
class CallStart:
    """A call begins; index counts the answer's calls from 0."""

    index: int
    name: str


@dataclass(frozen=True)
class CallArguments:
    """A piece of the JSON object of a call's arguments."""

    index: int
    text: str


@dataclass(frozen=True)
class CallEnd:
    """A call is whole. end: characters of the answer that were read when it was."""

    index: int
    end: int


Event = Content | Reasoning | CallStart | CallArguments | CallEnd


@dataclass(frozen=True)
class ParsedCall:
    """One call of a tool. arguments: JSON; cut off where the answer was."""

    name: str
    arguments: str
    is_whole: bool


@dataclass(frozen=True)
class ParsedAnswer:
    """All events of an answer, put together."""

    content: str
    reasoning: str
    calls: tuple[ParsedCall, ...]


def gather(events: Iterable[Event]) -> ParsedAnswer:
    """The answer that the events of a stream make up."""
    content = reasoning = ""
    names: list[str] = []
    arguments: list[str] = []
    whole: set[int] = set()
    for event in events:
        match event:
            case Content(text):
                content += text
            case Reasoning(text):
                reasoning += text
            case CallStart(_, name):
                names.append(name)
                arguments.append("")
            case CallArguments(index, text):
                arguments[index] += text
            case CallEnd(index, _):
                whole.add(index)
    calls = (
        ParsedCall(name, text, index in whole)
        for index, (name, text) in enumerate(zip(names, arguments, strict=True))
    )
    return ParsedAnswer(content, reasoning, tuple(calls))


def merge_neighbours(events: Iterable[Event]) -> list[Event]:
    """The same events with neighbouring pieces of one kind joined."""
    joined: list[Event] = []
    for event in events:
        last = joined[-1] if joined else None
        match last, event:
            case Content(before), Content(text):
                joined[-1] = Content(before + text)
            case Reasoning(before), Reasoning(text):
                joined[-1] = Reasoning(before + text)
            case CallArguments(index, before), CallArguments(same, text) if index == same:
                joined[-1] = CallArguments(index, before + text)
            case _:
                joined.append(event)
    return joined
