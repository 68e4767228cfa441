"""N08: patterns of tokenizer.json cut as Oniguruma cuts them, or they are refused."""

from __future__ import annotations

import random
import sys
from functools import cache

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st
from published_patterns import OTHERS, PUBLISHED
from tokenizers import Regex, pre_tokenizers

from cutaway.core.errors import UnsupportedModelError
from cutaway.tokens.oniguruma.newer import UNASSIGNED
from cutaway.tokens.oniguruma.pattern import OnigurumaPattern
from cutaway.tokens.oniguruma.properties import ESCAPES, POSIX, PROPERTIES
from cutaway.tokens.splitting import Splitter
from trials import patience

# ruff: noqa: RUF001 - characters that look alike are what is tested
ODD = " \n\r\t\v\x1c\x85\u00a0\u2028\u3000'sStTrReEdDmMlLkK\u017f\u212a\ufb06\u0345"
ODD += "\u00b2\u0295\u01c5aZ09١中の가\u0301.,!&|-[]^$_/\U0001f600\u1ad0\U000323b0"

ALL = PUBLISHED | OTHERS
SETS = [f"\\{sign}" for sign in ESCAPES] + [f"\\p{{{name}}}" for name in PROPERTIES]
SETS += [f"[{inner}]" for inner in SETS] + [f"[[:{name}:]]" for name in POSIX]


def theirs(pattern: str, text: str) -> list[str]:
    cut = pre_tokenizers.Split(Regex(pattern), "isolated").pre_tokenize_str(text)
    return [piece for piece, _ in cut]


def ours(pattern: str, text: str) -> list[str]:
    return Splitter([OnigurumaPattern(pattern)]).split(text)


@cache
def assigned() -> str:
    """All characters that `regex` knows, and a few that nobody does."""
    every = "".join(map(chr, [*range(0xD800), *range(0xE000, sys.maxunicode + 1)]))
    return "".join(regex.findall(r"[^\p{Cn}\p{Co}\p{Han}\p{Hangul}]", every)) + "\u0378中㐀가각"


def drawn(rng: random.Random) -> str:
    """A random text: odd characters, words, any characters."""
    parts = []
    for _ in range(rng.randrange(1, 8)):
        kind = rng.randrange(4)
        if kind == 0:
            parts.append("".join(rng.choices(ODD, k=rng.randrange(1, 6))))
        elif kind == 1:
            parts.append(
                rng.choice(["we'RE", " don't", "  ", "12345", "été", "漢字かな", "\r\n", "--"])
            )
        elif kind == 2:
            parts.append("".join(rng.choices(assigned(), k=rng.randrange(1, 5))))
        else:
            parts.append("".join(rng.choices("abcXYZ 019.,'\n", k=rng.randrange(1, 9))))
    return "".join(parts)


@cache
def texts(count: int, *, seed: int) -> list[str]:
    """So many random texts, the same for every pattern."""
    rng = random.Random(seed)
    return [drawn(rng) for _ in range(count)]


@cache
def every_character(first: int, step: int) -> list[str]:
    """Of `assigned` every step-th, between letters, in texts as short as theirs are quick with."""
    some = assigned()[first::step]
    return ["a".join(some[start : start + 2000]) for start in range(0, len(some), 2000)]


def differing(pattern: str, among: list[str]) -> list[str]:
    """Those texts that the pattern cuts otherwise than theirs does."""
    splitter = Splitter([OnigurumaPattern(pattern)])
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    return [
        text
        for text in among
        if splitter.split(text) != [piece for piece, _ in split.pre_tokenize_str(text)]
    ]


@pytest.mark.parametrize("name", ALL)
def test_n08_a_pattern_cuts_as_it_does_there(name: str) -> None:
    assert differing(ALL[name], texts(60, seed=8)) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_n08_two_thousand_texts_for_each_pattern(name: str) -> None:
    """A quarter of them in CI."""
    assert differing(ALL[name], texts(patience(2_000, in_ci=500), seed=17)) == []


@pytest.mark.parametrize(
    "text",
    [
        "\U00010658\U000134a8\ua4b8\u1d94\u07c9\U0001f168\U000111f3\nXY,ZX\nc\u212awe'RE",
        "'9 \na Z\U0001080b don't0Z12345\U00012444D,",
        "0\U0001f149 1\u2167 2\u24b6 3\u00bd 4\u2460 5\u200d",
    ],
)
@pytest.mark.parametrize(
    "pattern",
    [r"\d{1,3}(?=(?:\d{3})*\b)", r"\b", r"\B", r"\w+", r"\W", r"[^\w]", r"[\W]", r"[\w&&[^\d]]+"],
)
def test_n08_numbers_of_letters_and_letters_in_circles_are_parts_of_words(
    pattern: str, text: str
) -> None:
    assert ours(pattern, text) == theirs(pattern, text)


@pytest.mark.slow
@pytest.mark.parametrize("pattern", SETS)
def test_n08_a_set_has_the_same_characters_there(pattern: str) -> None:
    """In CI a quarter of them: one for a set that stands alone, another for the same in []."""
    step = patience(1, in_ci=4)
    assert differing(pattern, every_character(len(pattern) % step, step)) == []


def test_n08_what_oniguruma_does_not_have_yet_is_what_regex_has_more(seed: int = 3) -> None:
    rng = random.Random(seed)
    newer = regex.findall(f"[{UNASSIGNED}]", assigned())
    for character in rng.sample(newer, 300):
        assert theirs(r"\p{Cn}", f"a{character}a") == ["a", character, "a"]
    for character in rng.sample(assigned(), 300):
        if character not in newer and character != "\u0378":
            assert theirs(r"\p{Cn}", f"a{character}a") == [f"a{character}a"]


SIGNS = {
    r"\p{N}{1,3}+": "1234567",  # an interval has no possessive form
    r"a{2}?": "aaaaa",
    r"a{2,3}?b": "aaab",
    r"(?m:.)": "a\nb",
    r"\h": "fg \t",
    r"\v": "\v\n",
    r"^a|b$": "a\nab\nb\n",
    r"\n^": "a\nb\n",
    r"a\Z": "a\na\n",
    r"b\z": "b\nb",
    r"a(?i)b|c": "aBCacC",
    r"(?x) a b # c": "ab a b",
    r"[a-z&&[^aeiou]&&b-d]": "abcdef",
    r"[^a&&b]": "abc",
    r"[\p{L}&&[^\p{Han}]]+": "a1中b",
    r"[[:punct:]]": "$.a+",
    r"[[:^alpha:]]": "a\u00e91",
    r"\p{^L}": "a1",
    r"(?i:[k-s])": "K\u212as\u017f",
    r"(?i)[^a]": "aAb",
    r"a{": "a{a",
    r"a{,2}": "aaaa",
    r"[a\-z]": "a-mz",
    r"\b": "ab \u00b2cd",
    r"(?<=a)b|(?<!\s)c": "ab c",
    r"\R": "\r\n\r\u2028",
    r"\x41\u4e00\x{4e01}": "A\u4e00\u4e01",
    r"(?<word>\w+)": "ab \u00b2",
}


@pytest.mark.parametrize("pattern", SIGNS)
def test_n08_a_sign_means_what_it_means_there(pattern: str) -> None:
    assert ours(pattern, SIGNS[pattern]) == theirs(pattern, SIGNS[pattern])


REFUSED = {
    r"(a)\1": r"\\1 at character",
    r"\X": r"\\X",
    r"\Ga": r"\\G",
    r"\K": r"\\K",
    r"\p{AN}": 'the property "AN"',
    r"\pL": "without a name",
    r"(?i:st)": "for which one character may stand",
    r"(?i)[\p{L}]": "letters in a class without case",
    r"(?i:\u00e9)": "without case",
    r"(?~abc)": "a group that begins",
    r"(?s:.)": "a group that begins",
    r"a**": "two numbers of times",
    r"[]a]": r"\] as the first",
    r"[a&&]": "&& with nothing",
    r"[a": "without its",
    r"(a": "without its",
    r"a)": "without its",
    r"\xe9": "above 7f",
    r"[z-a]": "ends before it begins",
    r"*a": "nothing before",
    "(" * 99 + ")" * 99: "in each other",
    "[" * 99 + "a" + "]" * 99: "in each other",
}


@pytest.mark.parametrize("pattern", REFUSED)
def test_n08_what_has_no_sure_translation_is_refused_with_its_place(pattern: str) -> None:
    with pytest.raises(UnsupportedModelError, match=REFUSED[pattern]) as refused:
        OnigurumaPattern(pattern)
    assert "other token ids without an error" in str(refused.value)


ATOMS = [*"ab1 .-", r"\s", r"\S", r"\d", r"\w", r"\p{L}", r"\P{Lu}", r"\p{N}", "[ab]", "[^a\\s]"]
ATOMS += [r"[\w&&[^\d]]", r"[^\p{L}\p{N}&&[^ ]]", "[a-f[1-9]]", "(?i:k)", r"\n", "$", "^", r"\b"]
TIMES = [
    "",
    "",
    "",
    "?",
    "*",
    "+",
    "??",
    "*?",
    "+?",
    "?+",
    "*+",
    "++",
    "{2}",
    "{1,2}",
    "{1,}?",
    "{2}?",
]
LETTERS = "abAB1 2.-\n\u00e9\u0130kK\u212a\u00b2\u2167中"
atoms = st.builds(
    lambda a, n: a + (n if a not in ("$", "^", r"\b") else ""),
    *map(st.sampled_from, (ATOMS, [*TIMES, "{1,2}+"])),
)
patterns = st.recursive(
    st.lists(atoms, min_size=1, max_size=4).map("".join),
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=3).map("|".join),
        st.builds(
            lambda sign, body: f"({sign}{body})",
            st.sampled_from(["", "?:", "?=", "?!", "?>", "?i:"]),
            inner,
        ),
        st.builds(str.__add__, inner, inner),
    ),
    max_leaves=6,
)


@settings(max_examples=patience(300, in_ci=100), deadline=None)
@given(patterns, st.text(st.sampled_from(LETTERS), max_size=12))
def test_n08_any_pattern_cuts_as_it_does_there_or_is_refused(pattern: str, text: str) -> None:
    try:
        ours_cut = ours(pattern, text)
    except UnsupportedModelError:
        return
    assert ours_cut == theirs(pattern, text)
