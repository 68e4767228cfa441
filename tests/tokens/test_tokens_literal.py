"""N10: a pattern that is a text stands for itself, whatever signs of expressions it has."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from cutaway.tokens.oniguruma.pattern import OnigurumaPattern
from cutaway.tokens.splitting import Splitter

SIGNS = r".^$*+?{}[]\|()&&[-]#~ \n" + "\n\t a1é漢"


@settings(max_examples=200, deadline=None)
@given(st.text(SIGNS, min_size=1, max_size=4), st.text(SIGNS, max_size=30))
@example(".", "a.b..c")
@example("[a]", "x[a]a")
@example(" ", "  a b ")
@example("\\n", "a\\n\nb")
def test_n10_a_text_stands_for_itself(pattern: str, text: str) -> None:
    theirs = pre_tokenizers.Split(pattern, "isolated").pre_tokenize_str(text)
    assert Splitter([OnigurumaPattern.literal(pattern)]).split(text) == [p for p, _ in theirs]
