"""Single characters and properties as Oniguruma writes them, and characters for `regex`."""

from __future__ import annotations

from cutaway.core.limits import quote
from cutaway.tokens.oniguruma.properties import property_members

CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v", "a": "\a", "e": "\x1b"}


class Refusal(Exception):  # noqa: N818 - told with its place, as an error of its own
    """What is not known to mean the same in both dialects, in words."""


def escape(character: str) -> str:
    """A character that stands for itself, inside of a class and outside."""
    if character.isalnum() or ord(character) > 127:
        return character
    return f"\\x{ord(character):02x}"


def escape_oniguruma(character: str) -> str:
    """A character that stands for itself in Oniguruma's dialect."""
    is_plain = character.isalnum() or not character.isascii()
    return character if is_plain else f"\\{character}"


def read_escape(text: str, at: int) -> tuple[str, int]:
    """The character behind the backslash before `at`, and where it ends."""
    sign = text[at : at + 1]
    if sign in CONTROLS and sign:
        return CONTROLS[sign], at + 1
    if sign == "x" and text.startswith("{", at + 1):
        end = text.find("}", at)
        return _numbered(text[at + 2 : max(end, 0)], "\\x{", most=8), end + 1
    if sign == "x":
        digits = text[at + 1 : at + 3]
        digits = digits if len(digits) == 2 and _is_hex(digits) else digits[:1]
        if int(_hex(digits), 16) > 127:
            raise Refusal("\\x of a byte above 7f, which is no character alone")
        return chr(int(digits, 16)), at + 1 + len(digits)
    if sign == "u":
        return _numbered(text[at + 1 : at + 5], "\\u", most=4, least=4), at + 5
    if not sign or (sign.isascii() and sign.isalnum()):
        raise Refusal(f"\\{sign}")
    return sign, at + 1


def _is_hex(digits: str) -> bool:
    return bool(digits) and not set(digits) - set("0123456789abcdefABCDEF")


def _hex(digits: str) -> str:
    if not _is_hex(digits):
        raise Refusal(f"{quote(digits)} in place of digits")
    return digits


def _numbered(digits: str, sign: str, *, most: int, least: int = 1) -> str:
    if not least <= len(digits) <= most or int(_hex(digits), 16) > 0x10FFFF:
        raise Refusal(f"{sign} with {quote(digits)}")
    if 0xD800 <= int(digits, 16) < 0xE000:
        raise Refusal(f"{sign} with half of a pair")
    return chr(int(digits, 16))


def read_property(text: str, at: int) -> tuple[str, bool, int]:
    r"""Members, whether they are left out, and the end of p{...} or P{...} at `at`."""
    end = text.find("}", at)
    if not text.startswith("{", at + 1) or end < 0:
        raise Refusal(f"\\{text[at]} without a name in braces")
    name = text[at + 2 : end]
    is_not = (text[at] == "P") != name.startswith("^")
    members = property_members(name.removeprefix("^"))
    if members is None:
        raise Refusal(f"the property {quote(name)}")
    return members, is_not, end + 1
