"""An answer's text, as it comes, cut into content, reasoning and calls of tools.

Knows text only. Every decision is taken at a character and looks back alone, so the way in which
the text is cut into pieces makes no difference.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Generator

from cutaway.stream.call_body import (
    MAX_CHARACTERS,
    FoundCall,
    ObjectScanner,
    read_object,
    read_python,
)
from cutaway.stream.formats import ReasoningFormat, ToolFormat
from cutaway.stream.text_events import (
    CallArguments,
    CallEnd,
    CallStart,
    Content,
    Event,
    Reasoning,
    merge_neighbours,
)

_BLANKS = " \t\r\n"
_LINE = re.compile(r"[ \t]+(\w+)[ \t]*:[ \t]*(.*?)[ \t]*")

Char = str | None  # the next character; None when there is no more
# A part of the parser: takes characters as they come, gives back the first that is not its own.
Part = Generator[None, Char, Char]


class AnswerParser:
    """Reads one answer.

    tools:    names of the tools there are; a call of another is content. Empty: any name.
    format:   how the model writes calls; None reads none (tool_choice "none", or no tools).
    reasoning: its markers; None looks for none.
    is_reasoning: the prompt has begun the reasoning already.
    is_forced: a grammar holds the answer to calls, so they are told as they come. Otherwise a
        call is told when it is whole, because what only begins like one is content.

    Markers and the blanks around them are told to nobody; a call that is malformed or cut off
    comes back as content, character for character.
    """

    def __init__(
        self,
        tool_format: ToolFormat | None = None,
        *,
        tools: Collection[str] = (),
        reasoning: ReasoningFormat | None = None,
        is_reasoning: bool = False,
        is_forced: bool = False,
    ) -> None:
        self._format = tool_format
        self._tools = frozenset(tools)
        self._reasoning = reasoning
        self._is_reasoning = is_reasoning
        self._is_forced = is_forced
        self._events: list[Event] = []
        self._num_read = 0
        self._num_calls = 0
        self._num_told = 0  # calls whose start was told; one more than num_calls inside a call
        self._parts = self._answer()
        next(self._parts)

    def push(self, text: str) -> list[Event]:
        """What is known now and was not before."""
        for char in text:
            self._num_read += 1
            self._parts.send(char)
        return self._take()

    def finish(self) -> list[Event]:
        """What still waited, when no more comes."""
        self._num_read += 1  # as if an end had been read: CallEnd counts what lies before
        try:
            self._parts.send(None)
        except StopIteration:
            pass
        return self._take()

    def _take(self) -> list[Event]:
        events, self._events = self._events, []
        return merge_neighbours(events)

    def _say(self, text: str) -> None:
        if text:
            self._events.append(Content(text))

    # Below, each part reads the character it is given and yields for the next.

    def _answer(self) -> Generator[None, Char, None]:
        char = yield
        blanks = ""
        if self._reasoning is not None:
            if not self._is_reasoning:
                blanks, char = yield from _blanks(char)
                text, char = yield from _literal(char, self._reasoning.opening)
                self._is_reasoning = text == self._reasoning.opening
                if not self._is_reasoning:
                    self._say(blanks + text)
                    blanks = ""
                    if text:
                        yield from self._plain(char)
                        return
            if self._is_reasoning:
                char = yield from self._thoughts(char, self._reasoning.closing)
                blanks, char = yield from _blanks(char)
                blanks = ""
        if self._format is None:
            yield from self._plain(char)
        elif self._format.body == "line":
            yield from self._lines(char, self._format)
        elif self._format.at_start:
            yield from self._start(char, self._format)
        else:
            yield from self._marked(char, self._format)

    def _plain(self, char: Char) -> Part:
        while char is not None:
            self._say(char)
            char = yield
        return None

    def _thoughts(self, char: Char, closing: str) -> Part:
        """Reasoning until its closing marker; the blanks at its ends are left out."""
        _, char = yield from _blanks(char)
        while char is not None:
            blanks, char = yield from _blanks(char)
            text, char = yield from _literal(char, closing)
            if text == closing:
                return char
            if text or char is None:
                self._events.append(Reasoning(blanks + text))
            else:
                self._events.append(Reasoning(blanks + char))
                char = yield
        return None

    def _marked(self, char: Char, form: ToolFormat) -> Part:
        """Text with calls between their markers."""
        after_call = False
        while char is not None:
            blanks, char = yield from _blanks(char)
            text, char = yield from _literal(char, form.opening)
            if text == form.opening:
                raw, char, is_call = yield from self._call(char, form)
                after_call = is_call
                if not is_call:
                    self._say(blanks + text + raw)
                continue
            if not text and char is not None:
                self._say(blanks + char)
                char = yield
            elif text or not after_call:  # blanks behind the last call are its own
                self._say(blanks + text)
            after_call = False
        return None

    def _start(self, char: Char, form: ToolFormat) -> Part:
        """Calls at the start of the answer, or text."""
        blanks, char = yield from _blanks(char)
        while True:
            text, char = yield from _literal(char, form.opening)
            raw, is_call = "", False
            if text in ("", form.opening):
                raw, char, is_call = yield from self._call(char, form)
            if not is_call:
                self._say(blanks + text + raw)
                return (yield from self._plain(char))
            blanks, char = yield from _blanks(char)
            if char == ";":  # between two calls
                char = yield
                blanks, char = yield from _blanks(char)
            if char is None:
                return None

    def _call(self, char: Char, form: ToolFormat) -> Generator[None, Char, tuple[str, Char, bool]]:
        """One marker's worth of calls: what was read, and whether it was a call."""
        if form.body == "objects":
            return (yield from self._list(char))
        if form.body == "python":
            return (yield from self._python(char))
        raw, char = yield from _blanks(char)
        text, char, found = yield from self._object(char, exact=not form.closing)
        if not found:
            return (raw + text, char, False) if self._is_between_calls else self._cut_off(char)
        if form.closing:
            blanks, char = yield from _blanks(char)
            raw += text + blanks
            text, char = yield from _literal(char, form.closing)
            # An answer may end with its last call's body: the end of text stands for the marker.
            if text != form.closing and char is not None and self._is_between_calls:
                return raw + text, char, False
        self._tell(found)
        return "", char, True

    def _list(self, char: Char) -> Generator[None, Char, tuple[str, Char, bool]]:
        """A JSON list of calls; those before one that is malformed stand."""
        raw, char = yield from _blanks(char)
        if char != "[":
            return raw, char, False
        raw, char = raw + "[", (yield)
        is_first = True
        while True:
            blanks, char = yield from _blanks(char)
            text, char, found = yield from self._object(char, exact=False)
            raw += blanks + text
            if not found:
                if not self._is_between_calls:
                    return self._cut_off(char)
                break
            blanks, char = yield from _blanks(char)
            raw += blanks
            if char == "]":
                char = yield
                self._tell(found)
                return "", char, True
            if char not in (",", None):
                break
            self._tell(found)
            is_first = False
            if char is None:
                return "", None, True
            raw, char = char, (yield)
        if is_first:
            return raw, char, False
        self._say(raw)
        return "", char, True

    def _object(
        self, char: Char, *, exact: bool
    ) -> Generator[None, Char, tuple[str, Char, list[FoundCall]]]:
        """A JSON object that is a call; nothing found when it is not, or is cut off."""
        if char != "{":
            return "", char, []
        scanner = ObjectScanner()
        raw: list[str] = []
        while char is not None and not scanner.is_done and len(raw) < MAX_CHARACTERS:
            raw.append(char)
            piece = scanner.push(char)
            if self._is_forced and piece and scanner.name is not None:
                if self._is_between_calls:
                    self._events.append(CallStart(self._num_calls, scanner.name))
                    self._num_told += 1
                self._events.append(CallArguments(self._num_calls, piece))
            char = yield
        text = "".join(raw)
        found = read_object(text, scanner.arguments, self._tools, exact=exact)
        return text, char, found if scanner.is_done else []

    def _python(self, char: Char) -> Generator[None, Char, tuple[str, Char, bool]]:
        """A Python list of calls, held until its bracket closes."""
        if char != "[":
            return "", char, False
        raw, char = "[", (yield)
        blanks, char = yield from _blanks(char)
        raw += blanks
        if char is None or not (char.isidentifier()):
            return raw, char, False
        parts, depth, quote, is_escaped = [raw], 1, "", False
        while char is not None and depth and len(parts) < MAX_CHARACTERS:
            parts.append(char)
            if quote:
                quote = "" if char == quote and not is_escaped else quote
                is_escaped = char == "\\" and not is_escaped
            elif char in "'\"":
                quote, is_escaped = char, False
            else:
                depth += (char in "[({") - (char in "])}")
            char = yield
        raw = "".join(parts)
        found = read_python(raw, self._tools) if not depth else []
        self._tell(found)
        return raw, char, bool(found)

    def _lines(self, char: Char, form: ToolFormat) -> Part:
        """Lines of text; a line that is a call by itself is one, whatever follows."""
        while char is not None:
            raw = ""
            while char is not None and char in " \t":
                raw, char = raw + char, (yield)
            text, char = yield from _literal(char, form.opening)
            raw += text
            if text == form.opening:
                rest = ""
                while char not in ("\n", None) and len(rest) < MAX_CHARACTERS:
                    rest, char = rest + (char or ""), (yield)
                match = _LINE.fullmatch(rest)
                if match is not None and char in ("\n", None):
                    if not self._tools or match[1] in self._tools:
                        arguments = json.dumps({"argument": match[2]}, ensure_ascii=False)
                        self._tell([FoundCall(match[1], arguments)])
                        char = None if char is None else (yield)
                        continue
                raw += rest
            self._say(raw)
            while char is not None:
                self._say(char)
                is_end = char == "\n"
                char = yield
                if is_end:
                    break
        return None

    @property
    def _is_between_calls(self) -> bool:
        return self._num_told == self._num_calls

    def _tell(self, found: list[FoundCall]) -> None:
        """Tell of whole calls, as far as they were not told while they came."""
        for call in found:
            if self._is_between_calls:
                self._events.append(CallStart(self._num_calls, call.name))
                self._events.append(CallArguments(self._num_calls, call.arguments))
                self._num_told += 1
            self._events.append(CallEnd(self._num_calls, self._num_read - 1))
            self._num_calls += 1

    def _cut_off(self, char: Char) -> tuple[str, Char, bool]:
        """Leave a call that was told and is not whole as it is."""
        self._num_calls = self._num_told
        return "", char, True


def _blanks(char: Char) -> Generator[None, Char, tuple[str, Char]]:
    """Blanks, as many as there are."""
    found = ""
    while char is not None and char in _BLANKS:
        found, char = found + char, (yield)
    return found, char


def _literal(char: Char, word: str) -> Generator[None, Char, tuple[str, Char]]:
    """As much of a word as there is. No word here begins again inside itself."""
    assert word[:1] not in word[1:] or not word, "what was read could be another start of it"
    found = ""
    while len(found) < len(word) and char == word[len(found)]:
        found, char = found + word[len(found)], (yield)
    return found, char
