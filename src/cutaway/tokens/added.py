"""Added tokens: strings that are found in the text before it is split, and are never merged."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import regex

from cutaway.tokens.oniguruma.newer import UNASSIGNED

# Unicode White_Space: what \s means to the reference; str.rstrip() would take \x1c to \x1f too.
_BLANKS = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)
_BLANKS_AT_START = regex.compile(r"\s*")
# What \w is to Rust, by the Unicode 16 of HF's tokenizers 0.23.
_WORD = regex.compile(
    r"(?V1)[[\p{Alphabetic}\p{gc=M}\p{gc=Nd}\p{gc=Pc}\p{Join_Control}]--[" + UNASSIGNED + "]]"
)


@dataclass(frozen=True, kw_only=True)
class AddedToken:
    """One added token, with the rules of tokenizer.json for where it matches.

    is_control:    it means something to the model; matched only where control tokens are asked for.
    takes_left:    blanks before it become part of it (lstrip).
    takes_right:   blanks after it become part of it (rstrip).
    single_word:   it matches only where no letter or digit touches it.
    is_normalized: it is looked for in the normalized text, after the others.
    """

    token_id: int
    content: str
    is_control: bool = False
    takes_left: bool = False
    takes_right: bool = False
    single_word: bool = False
    is_normalized: bool = False


class AddedTokenFinder:
    """Cuts a text at the added tokens in it: leftmost first, longest first.

    Source: HF tokenizers, added_vocabulary.rs, find_matches.
    """

    def __init__(self, tokens: Iterable[AddedToken]) -> None:
        self._tokens = {token.content: token for token in tokens if token.content}
        self._pattern = re.compile(_alternatives(self._tokens))

    def cut(self, text: str) -> Iterator[tuple[str, int | None]]:
        """Stretches of the text, each with the id of the token that it is, or None."""
        done = 0
        if self._tokens:
            for match in self._pattern.finditer(text):
                token = self._tokens[match[0]]
                start, end = match.span()
                if start < done or (token.single_word and _touches_word(text, start, end)):
                    continue
                if token.takes_left:
                    start = done + len(text[done:start].rstrip(_BLANKS))
                if token.takes_right:
                    blanks = _BLANKS_AT_START.match(text, end)
                    assert blanks is not None, "an empty run of blanks always matches"
                    end = blanks.end()
                if start > done:
                    yield text[done:start], None
                yield text[start:end], token.token_id
                done = end
        if done < len(text):
            yield text[done:], None


def _alternatives(contents: Iterable[str]) -> str:
    """An expression for any of them, longest first.

    Grouped by their first two characters: Gemma 3 has 6,242 that begin with "<unused", which would
    all be tried at every "<".
    """
    groups: dict[str, list[str]] = {}
    for content in sorted(contents, key=len, reverse=True):
        groups.setdefault(content[:2], []).append(re.escape(content[2:]))
    # A group of one character comes after those of two, which are longer.
    ordered = sorted(groups.items(), key=lambda group: -len(group[0]))
    return "|".join(f"{re.escape(start)}(?:{'|'.join(rest)})" for start, rest in ordered)


def _touches_word(text: str, start: int, end: int) -> bool:
    before, after = text[start - 1 : start], text[end : end + 1]
    return bool(_WORD.match(before) or _WORD.match(after))
