"""How families of vocabularies cut text, and what happens for a family that is not known."""

from __future__ import annotations

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from cutaway.core.errors import UnsupportedModelError
from cutaway.tokens import patterns
from cutaway.tokens.patterns import ENCODINGS, GGUF_FAMILIES, encoding, gguf_family
from cutaway.tokens.splitting import Splitter

ALL_RULES = {name: family.patterns for name, family in GGUF_FAMILIES.items()} | {
    name: (rules.pattern,) for name, rules in ENCODINGS.items()
}


def cut(family: str, text: str) -> str:
    return "|".join(Splitter(gguf_family(family).patterns).split(text))


@pytest.mark.parametrize(
    ("family", "text", "pieces"),
    [
        ("gpt-2", "12345678", "12345678"),
        ("gpt-2", " 1234", " 1234"),
        ("llama-bpe", "12345678", "123|456|78"),
        ("llama-bpe", " 1234", " |123|4"),
        ("qwen2", "12345678", "1|2|3|4|5|6|7|8"),
        ("qwen2", " 1234", " |1|2|3|4"),
        ("smollm", "a 12", "a| |1|2"),
        ("deepseek-v3", "a 1234东京", "a| |123|4|东京"),
        ("default", "x=12345.", "x|=|123|45|."),
    ],
)
def test_a03_digits_are_grouped_as_the_family_does(family, text, pieces):
    assert cut(family, text) == pieces


@pytest.mark.parametrize(
    ("family", "text", "pieces"),
    [
        ("gpt-2", "We'RE 'til", "We|'|RE| '|til"),
        ("gpt-2", "(foo)bar", "(|foo|)|bar"),
        ("llama-bpe", "We'RE 'til", "We|'RE| '|til"),
        ("llama-bpe", "(foo)bar", "(foo|)bar"),
        ("qwen2", "We'RE 'til", "We|'RE| '|til"),
        ("qwen2", "(foo)bar", "(foo|)bar"),
    ],
)
def test_a04_contractions_and_brackets_follow_the_family(family, text, pieces):
    assert cut(family, text) == pieces


@pytest.mark.parametrize("name", ["", "llama", "GPT-2", "cl100k_base", "no-such-family"])
def test_a03_an_unknown_family_raises_and_never_falls_back(name):
    with pytest.raises(UnsupportedModelError, match="wrong token ids without an error"):
        gguf_family(name)


def test_a03_an_unknown_name_is_told_the_nearest_known_one():
    with pytest.raises(UnsupportedModelError, match=r'"qwen22".*Did you mean qwen2\?'):
        gguf_family("qwen22")
    with pytest.raises(UnsupportedModelError, match=r'"o200k".*Did you mean o200k_base\?'):
        encoding("o200k")


@pytest.mark.parametrize("name", ALL_RULES)
@given(st.text(st.one_of(st.characters(), st.sampled_from(" \n\r\t'sSdD19aZ.(\u2019\u0301"))))
def test_pieces_joined_are_the_text(name, text):
    pieces = Splitter(ALL_RULES[name]).split(text)
    assert "".join(pieces) == text
    assert all(pieces)


@given(st.text(st.sampled_from("a \n1'.s"), max_size=30))
def test_what_a_pattern_leaves_out_stays_between_its_matches(text):
    with_gaps = Splitter([r"\d+"]).split(text)
    assert with_gaps == [piece for piece in regex.split(r"(\d+)", text) if piece]


def test_a_pattern_with_groups_gives_whole_matches():
    assert Splitter([r"(a)(b)?"]).split("abac") == ["ab", "a", "c"]


def test_a_pattern_that_is_no_regular_expression_is_named():
    with pytest.raises(UnsupportedModelError, match=r'split pattern "\(a" cannot be compiled'):
        Splitter(["(a"])


def test_encodings_have_the_control_tokens_and_patterns_of_their_publisher(monkeypatch):
    from tiktoken_ext import openai_public

    for loader in ("load_tiktoken_bpe", "data_gym_to_mergeable_bpe_ranks"):
        monkeypatch.setattr(openai_public, loader, lambda *_, **__: {})
    for name, rules in ENCODINGS.items():
        theirs = openai_public.ENCODING_CONSTRUCTORS[name]()
        assert dict(rules.control_tokens) == theirs["special_tokens"]
        if rules.pattern != patterns.GPT2:  # ours is GPT-2's own, theirs the same made faster
            assert rules.pattern == theirs["pat_str"]
