"""Character classes of Oniguruma: nested, intersected, with POSIX names, with and without case."""

from __future__ import annotations

from collections.abc import Callable

from cutaway.core.limits import quote
from cutaway.tokens.oniguruma import properties
from cutaway.tokens.oniguruma.reader import Refusal, escape, read_escape, read_property

# Letters that fold to an ASCII letter and are none.
FOLDED = {"k": "\u212a", "s": "\u017f"}
NESTED = 20


def either_case(character: str) -> str:
    """Members of a class: a character in each of its cases.

    Raises: Refusal for a letter with case beyond ASCII: its partners hang on a Unicode version.
    """
    if character.isascii():
        lower = character.lower()
        if lower == character.upper():
            return escape(character)
        return lower + character.upper() + FOLDED.get(lower, "")
    if {character.lower(), character.upper(), character.casefold()} != {character}:
        raise Refusal(f"{quote(character)} without case")
    return escape(character)


class ClassReader:
    """Reads one class, from behind its bracket to behind the bracket that ends it."""

    def __init__(
        self, text: str, at: int, known: Callable[[str], str], *, without_case: bool, depth: int = 0
    ) -> None:
        self.text, self.at, self.known = text, at, known
        self.without_case, self.depth = without_case, depth
        self.only = ""  # the one letter of a class that has no more
        if depth > NESTED:
            raise Refusal(f"more than {NESTED} classes in each other")

    def read(self) -> str:
        """The class, as `regex` writes it."""
        is_not = self._take("^")
        sides: list[list[str]] = [[]]
        if self.text.startswith("]", self.at):
            raise Refusal("] as the first of a class")
        while not self._take("]"):
            if self.at >= len(self.text):
                raise Refusal("[ without its ]")
            if self._take("&&"):
                sides.append([])
                continue
            sides[-1].append(self._member())
        if not all(sides):
            raise Refusal("&& with nothing beside it")
        if len(sides) == 1 and len(sides[0]) == 1 and not is_not:
            self.only = sides[0][0][:1].lower()
        joined = "&&".join(f"[{''.join(side)}]" for side in sides)
        inner = "".join(sides[0]) if len(sides) == 1 else joined
        return f"[{'^' if is_not else ''}{inner}]"

    def _take(self, sign: str) -> bool:
        if not self.text.startswith(sign, self.at):
            return False
        self.at += len(sign)
        return True

    def _member(self) -> str:
        if self.text.startswith("[:", self.at) and ":]" in self.text[self.at :]:
            return self._posix()
        if self._take("["):
            inner = ClassReader(
                self.text,
                self.at,
                self.known,
                without_case=self.without_case,
                depth=self.depth + 1,
            )
            written = inner.read()
            self.at = inner.at
            return written
        if self.text[self.at] == "\\":
            members = self._set()
            if members:
                if (
                    self.text.startswith("-", self.at)
                    and self.text[self.at + 1 : self.at + 2] != "]"
                ):
                    raise Refusal("- behind a set in a class")
                return members
        first = self._character()
        last = self._end_of_range()
        return self._range(first, last) if last else self._one(first)

    def _posix(self) -> str:
        end = self.text.find(":]", self.at)
        name = self.text[self.at + 2 : end]
        members = properties.POSIX.get(name.removeprefix("^"))
        if members is None:
            raise Refusal(f"the class [:{name}:]")
        self.at = end + 2
        return self._written(members, is_not=name.startswith("^"))

    def _set(self) -> str | None:
        """A property or one of \\s, \\d, \\w, \\h; None where a single character stands here."""
        sign = self.text[self.at + 1 : self.at + 2]
        if sign and sign in "pP":
            members, is_not, self.at = read_property(self.text, self.at + 1)
        elif sign and sign.lower() in properties.IN_CLASS:
            members, is_not = properties.IN_CLASS[sign.lower()], sign.isupper()
            self.at += 2
        else:
            return None
        return self._written(members, is_not=is_not)

    def _written(self, members: str, *, is_not: bool) -> str:
        if self.without_case and members not in properties.CASELESS:
            raise Refusal("a property of letters in a class without case")
        members = self.known(members)
        return f"[^{members}]" if is_not else members

    def _character(self) -> str:
        sign = self.text[self.at]
        self.at += 1
        if sign != "\\":
            return sign
        if self._take("b"):
            return "\b"
        character, self.at = read_escape(self.text, self.at)
        return character

    def _end_of_range(self) -> str | None:
        following = self.text[self.at + 1 : self.at + 2]
        if not self.text.startswith("-", self.at) or following in ("]", ""):
            return None
        if following == "[" or self.text.startswith("-&&", self.at):
            raise Refusal("- before a class")
        self.at += 1
        if self.text[self.at] == "\\" and self.text[self.at + 1 : self.at + 2].lower() in "pdswh":
            raise Refusal("a range that ends in a set")
        return self._character()

    def _range(self, first: str, last: str) -> str:
        if first > last:
            raise Refusal(f"the range {quote(f'{first}-{last}')}, which ends before it begins")
        if not self.without_case:
            return f"{escape(first)}-{escape(last)}"
        if not last.isascii():
            raise Refusal("a range beyond ASCII without case")
        return "".join(either_case(chr(code)) for code in range(ord(first), ord(last) + 1))

    def _one(self, character: str) -> str:
        return either_case(character) if self.without_case else escape(character)
