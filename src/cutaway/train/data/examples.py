"""Examples as people write them, in JSON lines or Parquet: a text, a conversation or two answers.

The fields are those that TRL's trainers read. Knows no tokenizer: tokens come in masks.py.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar, cast

from cutaway.core.errors import ConfigError, RequestError, TemplateError
from cutaway.core.limits import quote
from cutaway.text.chat_messages import Message, from_dicts
from cutaway.text.prompt import encode
from cutaway.text.template import ChatTemplate
from cutaway.tokens.tokenizer import Tokenizer
from cutaway.tokens.unicode import is_unicode

Made = TypeVar("Made")
_PARQUET = ".parquet"


@dataclass(frozen=True)
class Document:
    """A text to learn as it is."""

    text: str


@dataclass(frozen=True)
class Conversation:
    """Messages of which the assistant's are learned.

    tools: what the template is told of functions.
    """

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, object], ...] | None = None


@dataclass(frozen=True)
class PreferencePair:
    """Two answers to one prompt, of which one was preferred."""

    prompt: tuple[Message, ...]
    chosen: tuple[Message, ...]
    rejected: tuple[Message, ...]

    @property
    def conversations(self) -> tuple[Conversation, Conversation]:
        """The whole conversation with the chosen answer, and with the rejected one."""
        return Conversation(self.prompt + self.chosen), Conversation(self.prompt + self.rejected)


def read_documents(path: Path) -> list[Document]:
    """The texts of a file: `text` of each line or row, else the whole file as one document.

    Raises: ConfigError naming file, line and field.
    """
    if path.suffix not in (".jsonl", _PARQUET):
        return [Document(_decoded(path))]
    return read_each(path, lambda fields: Document(_text(fields, "text")))


def read_conversations(path: Path) -> list[Conversation]:
    """The conversations of a .jsonl file: `messages`, and `tools` where there are some.

    Raises: ConfigError naming file, line and field.
    """
    return read_each(path, _conversation)


def read_pairs(path: Path) -> list[PreferencePair]:
    """The pairs of a .jsonl file: `prompt`, `chosen` and `rejected`, as messages or plain strings.

    Without `prompt` it is what both conversations begin with.

    Raises: ConfigError naming file, line and field.
    """
    return read_each(path, _pair)


def read_each(path: Path, make: Callable[[Mapping[str, object]], Made]) -> list[Made]:
    """What is made of each line of a .jsonl file, or each row of a Parquet file.

    Raises: ConfigError naming file and line for whatever make refuses.
    """
    made: list[Made] = []
    is_parquet = path.suffix == _PARQUET
    for number, line in _rows(path) if is_parquet else _lines(path):
        try:
            fields: object = json.loads(line) if isinstance(line, str) else line
            if not isinstance(fields, dict):
                raise RequestError(f"the line is {quote(fields)}; it must be a JSON object.")
            made.append(make(cast("dict[str, object]", fields)))
        except (ValueError, RecursionError, RequestError, TemplateError) as error:
            raise ConfigError(f"{path}, line {number}: {error}") from None
    if not made:
        raise ConfigError(f"{path} has no line with an example.")
    return made


def _conversation(fields: Mapping[str, object]) -> Conversation:
    messages = _told(fields.get("messages"))
    tools = fields.get("tools")
    if tools is None or tools == []:
        return Conversation(messages)
    if not isinstance(tools, list):
        raise RequestError(f"tools is {quote(tools)}; it must be a list of functions.")
    return Conversation(messages, tuple(cast("list[Mapping[str, object]]", tools)))


def _pair(fields: Mapping[str, object]) -> PreferencePair:
    for name in ("chosen", "rejected"):
        if name not in fields:
            raise RequestError(f"{name} is missing; a pair has chosen and rejected.")
    chosen = _side(fields, "chosen", "assistant")
    rejected = _side(fields, "rejected", "assistant")
    if "prompt" in fields:
        return PreferencePair(_side(fields, "prompt", "user"), chosen, rejected)
    shared = 0
    while shared < min(len(chosen), len(rejected)) - 1 and chosen[shared] == rejected[shared]:
        shared += 1
    if not shared:
        raise RequestError("prompt is missing, and chosen and rejected do not begin alike.")
    return PreferencePair(chosen[:shared], chosen[shared:], rejected[shared:])


def _side(fields: Mapping[str, object], name: str, role: str) -> tuple[Message, ...]:
    value = fields.get(name)
    if isinstance(value, str):
        value = [{"role": role, "content": value}]
    return _told(value)


def _told(value: object) -> tuple[Message, ...]:
    """Messages, none of them without a word: nothing is learnt of silence."""
    messages = from_dicts(value)
    for message in messages:
        if not message.content and message.reasoning is None:
            raise RequestError(f"{message.place}.content is null; a message needs words or calls.")
    return messages


def _text(fields: Mapping[str, object], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise RequestError(f"{name} is {quote(value)}; it must be a string.")
    if not is_unicode(value):
        raise RequestError(f"{name} has half of a surrogate pair, which is no character of a text.")
    return value


def _rows(path: Path) -> Iterator[tuple[int, object]]:
    """Rows of a Parquet file by their numbers; columns without a value in a row are left out."""
    try:
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise ConfigError(
            f"{path} is a Parquet file, and pyarrow is not installed. Install it: pip install "
            "'cutaway[parquet]'."
        ) from None
    try:
        opened = parquet.ParquetFile(path)
        batches: Iterator[Any] = opened.iter_batches()
        rows: Iterator[dict[str, object]] = chain.from_iterable(b.to_pylist() for b in batches)
        for number, row in enumerate(rows, start=1):
            yield number, cast(object, without_nothing(row))
    except (OSError, ValueError) as error:  # pyarrow's own faults are among the latter
        raise ConfigError(f"{path} cannot be read as Parquet: {error}.") from None


def without_nothing(value: Any) -> Any:
    """A row without the fields that other rows have: Parquet gives all rows the same."""
    if isinstance(value, dict):
        entries = cast("dict[str, Any]", value).items()
        return {name: without_nothing(each) for name, each in entries if each is not None}
    if isinstance(value, list):
        return [without_nothing(each) for each in cast("list[Any]", value)]
    return value


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    lines: Sequence[str] = _decoded(path).split("\n")
    return ((number, line) for number, line in enumerate(lines, start=1) if line.strip())


def _decoded(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as UTF-8 text: {error}.") from None


def encode_prompt(
    messages: Sequence[Message], template: ChatTemplate, tokenizer: Tokenizer
) -> tuple[int, ...]:
    """The ids of messages behind which the assistant is to answer. Raises: TemplateError."""
    token_ids = encode(
        template.render(messages),
        tokenizer.encode,
        tokenizer.control_tokens,
        encode_inner=partial(tokenizer.encode, is_start=False),
    )
    return tuple(token_ids)
