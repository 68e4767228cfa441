"""The commands of a conversation: a slash, a name, an argument; each maps state to state."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from cutaway.cli.repl import local_tools
from cutaway.cli.repl.chat_state import ChatState, load, save
from cutaway.cli.repl.remembered_facts import Fact
from cutaway.cli.settings.integer_text import parse_integer
from cutaway.cli.settings.setting_keys import BY_NAME, SAMPLING_NAMES
from cutaway.core.errors import RequestError
from cutaway.core.limits import check, quote, similar
from cutaway.core.request import SamplingParams
from cutaway.core.whole_numbers import whole_number

OUTSIDE = "[outside the model]"

# A word of letters after the slash: /etc/hosts at the start of a message is no command.
_COMMAND = re.compile(r"\s*/([A-Za-z?]+)(?:\s+(.*))?", re.DOTALL)


class FactStore(Protocol):
    """What is asked of the store of facts."""

    def add(self, text: str) -> Fact:
        """Store a fact. Raises: RequestError when it is empty or too long."""
        ...

    def facts(self) -> list[Fact]:
        """All facts, oldest first."""
        ...

    def forget(self, number: int | None = None) -> int:
        """Remove one fact, or all; returns how many there were."""
        ...


@dataclass(frozen=True)
class Around:
    """What commands may look at beside the conversation."""

    defaults: SamplingParams
    memory: FactStore
    about_model: Callable[[], Sequence[str]]
    about_answer: Callable[[], Sequence[str]]


@dataclass(frozen=True)
class CommandOutcome:
    """What a command leaves: the conversation, lines to show, and whether this was the end."""

    conversation: ChatState
    lines: tuple[str, ...] = ()
    is_end: bool = False


Act = Callable[[str, ChatState, Around], CommandOutcome]


@dataclass(frozen=True)
class Verb:
    """One command."""

    names: tuple[str, ...]
    usage: str
    help: str
    act: Act


def parse(message: str) -> tuple[str, str] | None:
    """Name and argument of a command; None for a message."""
    match = _COMMAND.fullmatch(message)
    return (match[1].lower(), (match[2] or "").strip()) if match else None


def apply(name: str, argument: str, conversation: ChatState, around: Around) -> CommandOutcome:
    """Carry out one command.

    Raises: RequestError naming what is wrong; the conversation is then as before.
    """
    for verb in VERBS:
        if name in verb.names:
            return verb.act(argument, conversation, around)
    known = [each for verb in VERBS for each in verb.names]
    near = similar(name, known)
    hint = f"did you mean /{near[0]}?" if near else "/help lists the commands."
    raise RequestError(f"there is no command /{name}; {hint}", param="command")


def _help(argument: str, conversation: ChatState, around: Around) -> CommandOutcome:
    width = max(len(verb.usage) for verb in VERBS)
    lines = [f"{verb.usage:<{width}}  {verb.help}" for verb in VERBS]
    lines += [
        f"{chr(34) * 3:<{width}}  begins and ends a message of many lines",
        f"{'Ctrl-C':<{width}}  stops the answer; at the prompt it clears the line",
        f"{'Ctrl-D':<{width}}  ends",
    ]
    return CommandOutcome(conversation, tuple(lines))


def _set(argument: str, conversation: ChatState, around: Around) -> CommandOutcome:
    name, _, text = argument.partition(" ")
    name = name.replace("-", "_")
    if not name:
        chosen = conversation.sampling(around.defaults)
        lines = (f"{each} = {getattr(chosen, each)}" for each in SAMPLING_NAMES)
        return CommandOutcome(conversation, tuple(lines))
    if name not in SAMPLING_NAMES:
        near = similar(name, SAMPLING_NAMES, cutoff=0.0)[0]
        raise RequestError(
            f"there is no sampling setting {name}; the nearest is {near}. /set lists all.",
            param="set",
        )
    changes = {key: value for key, value in conversation.changes.items() if key != name}
    if text.strip():
        changes[name] = _setting(name, text.strip())
    changed = replace(conversation, changes=changes)
    value = getattr(changed.sampling(around.defaults), name)
    return CommandOutcome(changed, (f"{name} = {value}",))


def _setting(name: str, text: str) -> object:
    """The value that a text means for a setting. Raises: RequestError with what is allowed."""
    kind = BY_NAME[name].kind
    if kind == "texts":
        return (_unquoted(text),)
    if kind == "text":
        return text  # SamplingParams says what it may be
    value: object = text
    try:
        if kind == "int":
            value = parse_integer(text)
        elif kind == "float":
            value = float(text)
    except ValueError:
        pass  # the check says what is allowed
    if kind == "bool":
        value = {"true": True, "on": True, "false": False, "off": False}.get(text.lower(), text)
    check(name, value)
    return value


def _unquoted(text: str) -> str:
    """A text in quotes is JSON: a line cannot hold the line end at which an answer may stop."""
    if not text.startswith('"'):
        return text
    try:
        return str(json.loads(text))
    except ValueError:
        raise RequestError(
            f"{text} is no JSON string; close the quotes, or leave them out.", param="stop"
        ) from None


def _show(argument: str, conversation: ChatState, around: Around) -> CommandOutcome:
    on = {True: "on", False: "off"}
    changes = ", ".join(f"{name} = {value}" for name, value in conversation.changes.items())
    lines = [
        *around.about_model(),
        f"messages: {len(conversation.turns)}",
        f"system: {conversation.system or 'what the template brings'}",
        f"set here: {changes or 'nothing'}",
        f"tools: {on[conversation.has_tools]}   memory: {on[conversation.has_memory]}",
    ]
    return CommandOutcome(conversation, tuple(lines))


def _why(argument: str, conversation: ChatState, around: Around) -> CommandOutcome:
    return CommandOutcome(conversation, tuple(around.about_answer()))


def _system(argument: str, conversation: ChatState, around: Around) -> CommandOutcome:
    if argument:
        text = None if argument == "none" else argument
        conversation = replace(conversation, system=text)
    return CommandOutcome(
        conversation, (f"system: {conversation.system or 'what the template brings'}",)
    )


def _save(argument: str, conversation: ChatState, around: Around) -> CommandOutcome:
    path = _path(argument)
    try:
        save(conversation, path)
    except OSError as error:
        raise RequestError(f"{path} cannot be written: {error.strerror}.", param="file") from None
    return CommandOutcome(conversation, (f"saved {len(conversation.turns)} messages to {path}",))


def _load(argument: str, conversation: ChatState, around: Around) -> CommandOutcome:
    path = _path(argument)
    loaded = load(path)
    kept = replace(loaded, has_tools=conversation.has_tools, has_memory=conversation.has_memory)
    return CommandOutcome(kept, (f"loaded {len(kept.turns)} messages from {path}",))


def _path(argument: str) -> Path:
    if not argument:
        raise RequestError("the name of a file is missing: /save chat.json", param="file")
    return Path(argument).expanduser()


def _clear(argument: str, conversation: ChatState, around: Around) -> CommandOutcome:
    count = len(conversation.turns)
    return CommandOutcome(replace(conversation, turns=()), (f"forgot {count} messages",))


def _tools(argument: str, conversation: ChatState, around: Around) -> CommandOutcome:
    chosen = replace(conversation, has_tools=_switch(argument, conversation.has_tools))
    state = "on" if chosen.has_tools else "off"
    lines = [f"{OUTSIDE} tools are {state}: calc (arithmetic), date (today)"]
    if chosen.has_tools and not conversation.has_tools:
        lines.append("The model is told so, and shown some examples before your messages:")
        lines += local_tools.INSTRUCTIONS.splitlines()
    return CommandOutcome(chosen, tuple(lines))


def _memory(argument: str, conversation: ChatState, around: Around) -> CommandOutcome:
    word, _, rest = argument.partition(" ")
    if word == "add":
        fact = around.memory.add(rest)
        lines = [f"{OUTSIDE} stored fact {fact.number}: {fact.text}"]
        if not conversation.has_memory:
            lines.append("memory is off, so the model is not told; /memory on tells it.")
        return CommandOutcome(conversation, tuple(lines))
    if word == "forget":
        return CommandOutcome(conversation, (_forget(rest.strip(), around.memory),))
    if word in ("", "list", "on", "off"):
        switch = "" if word == "list" else word
        chosen = replace(conversation, has_memory=_switch(switch, conversation.has_memory))
        return CommandOutcome(chosen, tuple(_memory_lines(chosen, around.memory)))
    raise RequestError(
        f"/memory {word} is unknown; there are on, off, list, add TEXT, forget N and forget all.",
        param="memory",
    )


def _memory_lines(conversation: ChatState, memory: FactStore) -> list[str]:
    state = "on" if conversation.has_memory else "off"
    facts = memory.facts()
    return [
        f"{OUTSIDE} memory is {state}: {len(facts)} facts, told in the system message when on",
        *(f"{fact.number}  {fact.text}" for fact in facts),
    ]


def _forget(which: str, memory: FactStore) -> str:
    number = whole_number(which)
    if which != "all" and number is None:
        raise RequestError(
            f"forget is given {quote(which)}; it needs a number of /memory list, or all.",
            param="memory",
        )
    count = memory.forget(number)
    return f"{OUTSIDE} forgot {count} facts"


def _switch(argument: str, current: bool) -> bool:
    if argument not in ("", "on", "off"):
        raise RequestError(f"{quote(argument)} is no state; it must be on or off.", param="command")
    return current if not argument else argument == "on"


def _exit(argument: str, conversation: ChatState, around: Around) -> CommandOutcome:
    return CommandOutcome(conversation, is_end=True)


VERBS: tuple[Verb, ...] = (
    Verb(("help", "?"), "/help", "lists the commands", _help),
    Verb(("set",), "/set NAME VALUE", "sets sampling; without a value back to the default", _set),
    Verb(("show",), "/show", "shows model, settings and counts", _show),
    Verb(("why",), "/why", "says what made the last answer slow, expensive or wrong", _why),
    Verb(("system",), "/system TEXT", "sets the system message; none removes it", _system),
    Verb(("save",), "/save FILE", "writes the conversation as JSON", _save),
    Verb(("load",), "/load FILE", "goes on with a saved conversation", _load),
    Verb(("clear",), "/clear", "forgets all messages, keeps the settings", _clear),
    Verb(("tools",), "/tools on|off", "a calculator and the date, outside the model", _tools),
    Verb(
        ("memory",),
        "/memory on|off|list|add TEXT|forget N",
        "facts in a local file, outside the model",
        _memory,
    ),
    Verb(("exit", "bye", "quit"), "/exit", "ends; so does /bye", _exit),
)
