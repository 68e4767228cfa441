"""Words that views work on: the tokens that spell one, and sums of words as people write them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from cutaway.core.errors import RequestError
from cutaway.core.limits import quote
from cutaway.tokens.tokenizer import Tokenizer

MAX_TERMS = 8


@dataclass(frozen=True)
class Equation:
    """Words to add (+1) and take away (-1), and what should come of it, if that is named."""

    terms: tuple[tuple[int, str], ...]
    expected: str | None


def equation_of(text: str) -> Equation | None:
    """`king - man + woman = queen` as terms; None for words without a sign between them.

    Raises: RequestError for a sign without a word, or for more than MAX_TERMS.
    """
    left, equals, right = text.partition("=")
    first, *rest = re.split(r"(?:^|\s)([+-])(?=\s)", left.strip())
    if not rest:
        return None
    signs, words = rest[0::2], [each.strip() for each in rest[1::2] if each.strip()]
    if first.strip():
        signs, words = ["+", *signs], [first.strip(), *words]
    if len(words) != len(signs) or len(words) > MAX_TERMS or (equals and not right.strip()):
        raise RequestError(
            f"text is {quote(text)}; words and signs must take turns, at most {MAX_TERMS} words, "
            "as in 'king - man + woman = queen'.",
            param="text",
        )
    terms = tuple((1 if sign == "+" else -1, word) for sign, word in zip(signs, words, strict=True))
    return Equation(terms, right.strip() or None)


def ids_of_word(tokenizer: Tokenizer, word: str) -> tuple[int, ...]:
    """The fewest ids that spell a word, with a blank in front where that takes no more.

    Raises: RequestError for a word that gives no token.
    """
    spelled = [tokenizer.encode(f" {word.strip()}"), tokenizer.encode(word.strip())]
    ids = min((each for each in spelled if each), key=len, default=None)
    if not word.strip() or ids is None:
        raise RequestError(f"text is {quote(word)}; it must hold a word.", param="text")
    return tuple(ids)


def num_letters(text: str) -> int:
    """How much of a word a token is: its letters, in any script."""
    return sum(c.isalpha() for c in text)
