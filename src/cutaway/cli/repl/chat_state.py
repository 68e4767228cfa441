"""The state of a conversation, as plain data: what was said and what was set."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast

from cutaway.cli.repl import local_tools, remembered_facts
from cutaway.cli.settings.setting_keys import SAMPLING_NAMES
from cutaway.core.errors import RequestError
from cutaway.core.limits import quote
from cutaway.core.request import SamplingParams
from cutaway.host.whole_file import write_whole
from cutaway.text.kinds import is_table

FORMAT = "cutaway chat 1"

Role = Literal["user", "assistant"]


_ROLES: tuple[Role, Role] = ("user", "assistant")


@dataclass(frozen=True)
class Turn:
    """One message."""

    role: Role
    content: str


@dataclass(frozen=True, kw_only=True)
class ChatState:
    """Everything that a session may change.

    system:  the system message; None leaves it to the model's template.
    changes: sampling that was set here, over that of the settings.
    """

    system: str | None = None
    turns: tuple[Turn, ...] = ()
    changes: Mapping[str, object] = field(default_factory=dict[str, object])
    has_tools: bool = False
    has_memory: bool = False

    def add(self, role: Role, content: str) -> ChatState:
        """The conversation with one more message."""
        return replace(self, turns=(*self.turns, Turn(role, content)))

    def sampling(self, default: SamplingParams) -> SamplingParams:
        """How the next answer is drawn."""
        return replace(default, **cast("dict[str, Any]", self.changes))

    def messages(self, facts: Sequence[str] = ()) -> list[dict[str, str]]:
        """What the model is given: tools and memory in the system message, examples after it."""
        parts = [self.system] if self.system is not None else []
        if self.has_tools:
            parts.append(local_tools.INSTRUCTIONS)
        if self.has_memory and facts:
            parts.append("\n".join([remembered_facts.HEADING, *(f"- {fact}" for fact in facts)]))
        first = [{"role": "system", "content": "\n\n".join(parts)}] if parts else []
        shown = local_tools.examples() if self.has_tools else ()
        pairs = [
            Turn(role, text) for pair in shown for role, text in zip(_ROLES, pair, strict=True)
        ]
        return first + [asdict(turn) for turn in (*pairs, *self.turns)]


def save(conversation: ChatState, path: Path) -> None:
    """Write a conversation as JSON. A file that is no saved chat is never overwritten.

    Raises: RequestError when there is such a file, OSError when the disk fails.
    """
    if path.exists():
        load(path)
    content = {
        "format": FORMAT,
        "system": conversation.system,
        "set": dict(conversation.changes),
        "messages": [asdict(turn) for turn in conversation.turns],
    }
    text = json.dumps(content, ensure_ascii=False, indent=1) + "\n"
    write_whole(path, text, is_private=True)


def load(path: Path) -> ChatState:
    """Read a saved conversation; tools and memory are off in it.

    Raises: RequestError naming what is no saved chat or out of range.
    """
    try:
        content: object = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}.", param="file") from None
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise _no_chat(path, "it is no JSON object")
    fields = cast("dict[str, object]", content)
    if fields.get("format") != FORMAT:
        raise _no_chat(path, f"format is {quote(fields.get('format'))}, not {quote(FORMAT)}")
    system, messages, changes = (fields.get(name) for name in ("system", "messages", "set"))
    if not isinstance(system, str | None):
        raise _no_chat(path, "system is no text")
    if not isinstance(messages, list) or not isinstance(changes, dict):
        raise _no_chat(path, "messages must be a list and set an object")
    changes = cast("dict[str, object]", changes)
    turns = tuple(_turn(each, path) for each in cast("list[object]", messages))
    unknown = [name for name in changes if name not in SAMPLING_NAMES]
    if unknown:
        raise _no_chat(path, f"set has {quote(unknown[0])}, which is no sampling setting")
    loaded = ChatState(system=system, turns=turns, changes=changes)
    loaded.sampling(SamplingParams())  # judges the values
    return loaded


def _turn(value: object, path: Path) -> Turn:
    if is_table(value):
        role, content = value.get("role"), value.get("content")
        if role in ("user", "assistant") and isinstance(content, str):
            return Turn(role, content)
    raise _no_chat(path, f"{quote(value)} is no message of user or assistant")


def _no_chat(path: Path, what: str) -> RequestError:
    return RequestError(f"{path} is no saved chat: {what}. /save writes one.", param="file")
