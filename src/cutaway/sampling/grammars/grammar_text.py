"""A grammar in the compiler's own words, and the bounds under which the compiler works.

Knows llguidance and no vocabulary.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import TYPE_CHECKING

from cutaway.core.errors import GrammarError
from cutaway.core.grammar import Grammar

if TYPE_CHECKING:
    from llguidance import LLParserLimits
    from llguidance._lib import JsonCompileOptions  # a type of the stub alone

# The form of Python's json.dumps, which models saw most in training. Free blanks would let a
# model that likes them write nothing else.
_JSON_FORM: JsonCompileOptions = {
    "item_separator": ", ",
    "key_separator": ": ",
    "whitespace_flexible": False,
    "lenient": False,
    "coerce_one_of": False,
}


def check_installed() -> None:
    """Raise GrammarError where the compiler is not installed."""
    if find_spec("llguidance") is None:
        raise GrammarError(
            "answers of a given form need llguidance, which is not installed; run "
            "`pip install 'cutaway[grammar]'`."
        )


def compiler_text(grammar: Grammar) -> str:
    """The grammar as llguidance takes it."""
    from llguidance import LLMatcher

    if grammar.kind == "regex":
        return LLMatcher.grammar_from_regex(grammar.text)
    if grammar.kind == "lark":
        return LLMatcher.grammar_from_lark(grammar.text)
    if grammar.kind == "choice":
        return LLMatcher.grammar_from_lark(_choice_rules(grammar.choices))
    schema = '{"type": "object"}' if grammar.kind == "json_object" else grammar.text
    if schema.strip() == "true":
        schema = "{}"  # the same, and the compiler wants an object
    return LLMatcher.grammar_from_json_schema(schema, overrides=_JSON_FORM)


def compiler_limits() -> LLParserLimits:
    """Bounds on what one grammar may cost, when it is compiled and in each step.

    A mask over 49,152 tokens stays below 60 ms on grammars made to be slow, where llguidance's own
    limits, some four to five times as high, let 130 ms pass.
    """
    from llguidance import LLParserLimits

    return LLParserLimits(
        initial_lexer_fuel=500_000,
        step_lexer_fuel=50_000,
        step_max_items=10_000,
        max_lexer_states=50_000,
        max_grammar_size=100_000,
        verbose_errors=False,  # the others would put the answer into messages and logs
    )


def refusal(error: str) -> str:
    """The compiler's complaint, short enough for a message."""
    first = " ".join(error.replace("<non-verbose/>", "").split())
    return first if len(first) <= 300 else first[:297] + "..."


def _choice_rules(choices: tuple[str, ...]) -> str:
    # One terminal, so that a choice may be the start of another.
    return "start: CHOICE\nCHOICE: " + "\n | ".join(map(_lark_string, choices))


def _lark_string(text: str) -> str:
    """A Lark string; JSON's escapes are among Lark's."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
