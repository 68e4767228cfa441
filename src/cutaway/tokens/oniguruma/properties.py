"""Character properties by Oniguruma's names, as `regex` writes the same sets."""

from __future__ import annotations

from cutaway.tokens.oniguruma.newer import UNASSIGNED

_CATEGORIES = (
    "L Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs Zl Zp Cc Cf"
)
_LONG_NAMES = {
    "Letter": "L",
    "Uppercase_Letter": "Lu",
    "Lowercase_Letter": "Ll",
    "Titlecase_Letter": "Lt",
    "Modifier_Letter": "Lm",
    "Other_Letter": "Lo",
    "Mark": "M",
    "Nonspacing_Mark": "Mn",
    "Spacing_Mark": "Mc",
    "Number": "N",
    "Decimal_Number": "Nd",
    "Letter_Number": "Nl",
    "Other_Number": "No",
    "Punctuation": "P",
    "Symbol": "S",
    "Separator": "Z",
    "Space_Separator": "Zs",
}
_SCRIPTS = (
    "Arabic Armenian Bengali Bopomofo Cherokee Cyrillic Devanagari Ethiopic Georgian Greek "
    "Gujarati Gurmukhi Han Hangul Hebrew Hiragana Kannada Katakana Khmer Lao Latin Malayalam "
    "Mongolian Myanmar Oriya Sinhala Tamil Telugu Thai Tibetan Yi"
)
# Oniguruma takes these six of Latin-1 for parts of words, and no other number of their kind; inside
# of a class it does not.
_LATIN_WORD = "\u00b2\u00b3\u00b9\u00bc\u00bd\u00be"

# The members of a class: what each name means to `regex`.
_BY_CATEGORY = {name: rf"\p{{gc={name}}}" for name in _CATEGORIES.split()}
# Alphabetic is more than letters: numbers of letters (U+2167, U+12444) and letters in a circle or
# a square (U+24B6, U+1F149), too, are parts of words.
_WORD_IN_CLASS = r"\p{Alphabetic}\p{gc=M}\p{gc=Nd}\p{gc=Pc}"
WORD = _WORD_IN_CLASS + _LATIN_WORD
_SHORT = {
    "alnum": r"\p{Alphabetic}\p{gc=Nd}",
    "alpha": r"\p{Alphabetic}",
    "ascii": r"\x00-\x7f",
    "digit": r"\p{gc=Nd}",
    "space": r"\s",
    "xdigit": "0-9A-Fa-f",
}
POSIX = _SHORT | {"punct": r"\p{gc=P}\p{gc=S}"}
ESCAPES = {"s": r"\s", "d": r"\p{gc=Nd}", "w": WORD, "h": _SHORT["xdigit"]}
IN_CLASS = ESCAPES | {"w": _WORD_IN_CLASS}


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").replace(" ", "").lower()


PROPERTIES = (
    {_plain(name): members for name, members in _BY_CATEGORY.items()}
    | {_plain(name): _BY_CATEGORY[short] for name, short in _LONG_NAMES.items()}
    | {_plain(name): rf"\p{{sc={name}}}" for name in _SCRIPTS.split()}
    | _SHORT
    | {"punct": _BY_CATEGORY["P"], "alphabetic": _SHORT["alpha"]}
)
# Sets that are the same whether case counts or not.
CASELESS = frozenset(
    {ESCAPES["s"], ESCAPES["d"], *(_BY_CATEGORY[name] for name in ("N", "Nd", "P", "Z", "Zs"))}
)
_WITHOUT_CASE, _LOWER = PROPERTIES["lo"], PROPERTIES["ll"]


def property_members(name: str) -> str | None:
    r"""Members of a class for the name in \p{...}; None where the name is not known here."""
    return PROPERTIES.get(_plain(name))


def older(members: str) -> str:
    """The members less what Oniguruma's Unicode does not have, as one member of a class."""
    if members == _WITHOUT_CASE:
        return f"[{members}--[{UNASSIGNED}\u0295]]"
    less = f"[{members}--[{UNASSIGNED}]]"
    return f"[{less}\u0295]" if members == _LOWER else less
