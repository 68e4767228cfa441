"""A pattern of Oniguruma, as HF's tokenizers compile it, as one of `regex` that matches alike.

The two dialects share most of their signs and not their meaning: `{1,3}+`, `(?m)`, `^`, `&&` and
`\\h` are other things in each. What is not known to mean the same is refused.
Source: doc/RE of Oniguruma 6.9 (its own syntax), and its behaviour inside tokenizers 0.23.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from cutaway.core.errors import UnsupportedModelError
from cutaway.core.limits import quote
from cutaway.tokens.oniguruma import properties
from cutaway.tokens.oniguruma.classes import ClassReader, either_case
from cutaway.tokens.oniguruma.reader import Refusal, escape, read_escape, read_property

NESTED = 50
# Pairs of letters that one character can stand for where case does not count, as U+FB05 for st.
LIGATURES = ("ss", "st", "ff", "fi", "fl")
NEWLINES = "(?>\\r\\n|[\\n\\x0b\\f\\r\\x85\u2028\u2029])"
GROUPS = {"?:": "(?:", "?=": "(?=", "?!": "(?!", "?>": "(?>", "?<=": "(?<=", "?<!": "(?<!"}


@dataclass(frozen=True)
class Flags:
    """What (?i), (?m), (?x) switch on: case does not count, . takes newlines, blanks go."""

    i: bool = False
    m: bool = False
    x: bool = False


def translate(pattern: str) -> tuple[str, str]:
    """Patterns for texts of long known characters, and for texts with newer ones.

    Raises: UnsupportedModelError naming pattern, place and the sign that is not known.
    """
    return _translate(pattern, lambda members: members), _translate(pattern, properties.older)


def _translate(pattern: str, known: Callable[[str], str]) -> str:
    reader = _Reader(pattern, known)
    try:
        whole = reader.alternatives(Flags(), depth=0)
        if reader.at < len(pattern):
            raise Refusal(") without its (")
    except Refusal as refusal:
        raise UnsupportedModelError(
            f"split pattern {quote(pattern)}: {refusal} at character {reader.at + 1}. Cutaway "
            "translates what Oniguruma and the `regex` package are known to match alike, and "
            "refuses the rest: other pieces would give other token ids without an error."
        ) from None
    return "(?V1)" + whole


class _Reader:
    """Reads a pattern from left to right, and writes what it read."""

    def __init__(self, pattern: str, known: Callable[[str], str]) -> None:
        self.text, self.at = pattern, 0
        self.known = known  # members of a class -> members that Oniguruma's Unicode has
        self.letter = ""  # the letter before, where case does not count

    def alternatives(self, flags: Flags, depth: int) -> str:
        """Everything up to the end of the group, which is left to be read."""
        if depth > NESTED:
            raise Refusal(f"more than {NESTED} groups in each other")
        written: list[str] = []
        while self.at < len(self.text) and self.text[self.at] != ")":
            if self.take("|"):
                self.letter = ""
                written.append("|")
                continue
            changed = self.read_switch(flags)
            if changed is not None:  # holds to the end of the group, with its alternatives
                written.append(f"(?:{self.alternatives(changed, depth + 1)})")
                break
            if flags.x and self.blank():
                continue
            written.append(self.read_repeat(self.atom(flags, depth), flags))
        return "".join(written)

    def take(self, sign: str) -> bool:
        """Whether the sign stands here; it is read then."""
        if not self.text.startswith(sign, self.at):
            return False
        self.at += len(sign)
        return True

    def blank(self) -> bool:
        if self.take("#"):
            end = self.text.find("\n", self.at)
            self.at = len(self.text) if end < 0 else end + 1
            return True
        if self.text[self.at] in " \t\n\r\f\v":
            self.at += 1
            return True
        return False

    def read_switch(self, flags: Flags) -> Flags | None:
        """The flags after `(?i)` and the like; None where no switch stands here."""
        end = self.text.find(")", self.at)
        if not self.text.startswith("(?", self.at) or end < 0:
            return None
        inner = self.text[self.at + 2 : end]
        if not inner or set(inner) - set("imx-"):
            return None
        self.at = end + 1
        return _with_flags(flags, inner)

    def atom(self, flags: Flags, depth: int) -> str:
        """One character, class, anchor or group."""
        before, self.letter = self.letter, ""
        sign = self.text[self.at]
        if sign == "(":
            return self.group(flags, depth)
        if sign == "[":
            reader = ClassReader(self.text, self.at + 1, self.known, without_case=flags.i)
            written = reader.read()
            self.at = reader.at
            self.letter = reader.only if flags.i else ""
            self._check_pair(before)
            return written
        if sign in "*+?":
            raise Refusal(f"{sign} with nothing before it")
        self.at += 1
        if sign == "\\":
            return self.escape(flags, before)
        if sign == ".":
            return r"(?s:.)" if flags.m else r"[^\n]"
        if sign == "^":  # the start of a line, but not behind the last newline
            return r"(?:\A|(?<=\n)(?!\Z))"
        if sign == "$":
            return r"(?=\n|\Z)"
        return self.literal(sign, flags, before)

    def literal(self, character: str, flags: Flags, before: str) -> str:
        if not flags.i:
            return escape(character)
        self.letter = character.lower()
        self._check_pair(before)
        members = either_case(character)
        return escape(members) if len(members) == 1 else f"[{members}]"

    def _check_pair(self, before: str) -> None:
        if before + self.letter in LIGATURES:
            raise Refusal(f"{before + self.letter} without case, for which one character may stand")

    def escape(self, flags: Flags, before: str) -> str:
        """What stands behind a backslash, outside of a class."""
        sign = self.text[self.at : self.at + 1]
        if sign in ("p", "P"):
            members, is_not, self.at = read_property(self.text, self.at)
            return f"[{'^' if is_not else ''}{self.known(members)}]"
        self.at += 1
        if sign.lower() in properties.ESCAPES and sign:
            members = self.known(properties.ESCAPES[sign.lower()])
            return f"[{'^' if sign.isupper() else ''}{members}]"
        word = f"[{self.known(properties.WORD)}]"
        known = {
            "A": r"\A",
            "z": r"\Z",
            "Z": r"(?=\n?\Z)",
            "R": NEWLINES,
            "N": r"[^\n]",
            "O": r"(?s:.)",
            "b": f"(?:(?<={word})(?!{word})|(?<!{word})(?={word}))",
            "B": f"(?:(?<={word})(?={word})|(?<!{word})(?!{word}))",
        }
        if sign in known and sign:
            return known[sign]
        character, self.at = read_escape(self.text, self.at - 1)
        return self.literal(character, flags, before)

    def group(self, flags: Flags, depth: int) -> str:
        """A group; none is captured, since nothing may refer to one."""
        self.at += 1
        opened = "(?:"
        if self.take("?#"):
            end = self.text.find(")", self.at)
            if end < 0:
                raise Refusal("a comment without its end")
            self.at = end + 1
            return ""
        if self.text.startswith("?", self.at):
            opened, flags = self._special(flags)
        inner = self.alternatives(flags, depth + 1)
        if not self.take(")"):
            raise Refusal("( without its )")
        return f"{opened}{inner})"

    def _special(self, flags: Flags) -> tuple[str, Flags]:
        for sign in sorted(GROUPS, key=len, reverse=True):
            if self.take(sign):
                return GROUPS[sign], flags
        end = self.text.find(":", self.at)
        inner = self.text[self.at + 1 : end]
        if end > 0 and inner and not set(inner) - set("imx-"):
            self.at = end + 1
            return "(?:", _with_flags(flags, inner)
        name, found, _ = self.text[self.at + 2 :].partition(">")
        if self.text.startswith("?<", self.at) and found and name.isidentifier():
            self.at += len(name) + 3
            return "(?:", flags
        raise Refusal(f"a group that begins with {quote('(' + self.text[self.at : self.at + 3])}")

    def read_repeat(self, atom: str, flags: Flags) -> str:
        """The atom with how often it may come."""
        here = self.at
        count = self._count()
        if count is None:
            return atom
        if not atom:
            raise Refusal("a number of times for nothing")
        if self.letter in ("s", "f") and count != "?" and flags.i:
            raise Refusal(f"{self.letter} without case, more than once")
        self.letter = ""
        is_interval = count[0] == "{"
        written = f"(?:{atom})" if atom.startswith("(?") and atom[2] in "=!<" else atom
        written += count
        if self.take("+"):  # for an interval no more than a second repetition, unlike elsewhere
            written = f"(?:{written})+" if is_interval else written + "+"
        elif self.take("?"):
            is_fixed = is_interval and "," not in count
            written = f"(?:{written})?" if is_fixed else written + "?"
        if self._count() is not None:
            self.at = here
            raise Refusal("two numbers of times in a row")
        return written

    def _count(self) -> str | None:
        """`?`, `*`, `+` or an interval, which is read; None for what is none."""
        for sign in "?*+":
            if self.take(sign):
                return sign
        end = self.text.find("}", self.at)
        if not self.text.startswith("{", self.at) or end < 0:
            return None
        low, comma, high = self.text[self.at + 1 : end].partition(",")
        if not (low or high) or not all(n.isascii() and n.isdigit() for n in (low, high) if n):
            return None  # then the brace is a character
        if high and int(low or 0) > int(high):
            raise Refusal("an interval that ends before it begins")
        if max(int(low or 0), int(high or 0)) > 1000:
            raise Refusal("an interval of more than 1000")
        self.at = end + 1
        return f"{{{low or 0}{comma}{high}}}"


def _with_flags(flags: Flags, letters: str) -> Flags:
    on, _, off = letters.partition("-")
    if "-" in off:
        raise Refusal(f"the flags {letters}")
    return replace(flags, **dict.fromkeys(on, True), **dict.fromkeys(off, False))
