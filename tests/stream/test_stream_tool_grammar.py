"""Grammars of forced calls: what they let through is read by the parser and valid by the schema."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest

from cutaway.core.errors import RequestError
from cutaway.sampling.grammars.grammar_compiler import GrammarCompiler
from cutaway.sampling.grammars.grammar_state import GrammarState
from cutaway.stream.answer import AnswerParser
from cutaway.stream.formats import BY_NAME
from cutaway.stream.text_events import gather
from cutaway.stream.tool_grammar import MAX_CALLS, Tool, call_grammar, tools_message
from cutaway.tokens.byte_tokenizer import byte_tokenizer

END = 256
TOOLS = [
    Tool(
        "weather",
        {
            "type": "object",
            "properties": {"city": {"enum": ["Rome", 'a"b']}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    ),
    Tool("now"),
    Tool("ünïcode.f", {"properties": {"x": {"type": "null"}}, "required": ["x"]}),
]
SCHEMAS: dict[str, Any] = {tool.name: tool.parameters or {} for tool in TOOLS}


@pytest.fixture(scope="module")
def compiler() -> Any:
    made = GrammarCompiler(byte_tokenizer(eos_token_id=END), num_rows=300, end_ids=frozenset({END}))
    yield made
    made.close()


def drawn(compiler: GrammarCompiler, grammar: Any, seed: int) -> str:
    """A text of the grammar, or its first 4000 bytes."""
    chance = random.Random(seed)
    state = GrammarState(compiler.compile(grammar).result(timeout=300))
    written = bytearray()
    while len(written) < 4000:
        (mask,) = state.masks([])
        allowed = [i for i in range(300) if mask[i >> 3] >> (i & 7) & 1]
        token_id = chance.choice(allowed)
        if token_id == END:
            break
        written.append(token_id)
        if state.completes(token_id):
            break
    return written.decode()


@pytest.mark.parametrize("name", ["hermes", "llama3", "mistral"])
@pytest.mark.parametrize("is_parallel", [False, True])
@pytest.mark.parametrize("is_forced", [False, True])
def test_h14_forced_calls_are_read_and_valid(
    compiler: GrammarCompiler, name: str, is_parallel: bool, is_forced: bool
) -> None:
    form = BY_NAME[name]
    grammar = call_grammar(TOOLS, form, is_parallel=is_parallel)
    seen: set[str] = set()
    for seed in range(12):
        text = drawn(compiler, grammar, seed)
        parser = AnswerParser(form, tools=list(SCHEMAS), is_forced=is_forced)
        answer = gather([event for char in text for event in parser.push(char)] + parser.finish())
        assert answer.content == ""
        calls = [call for call in answer.calls if call.is_whole]
        assert calls
        assert len(answer.calls) <= (MAX_CALLS if is_parallel else 1)
        for call in calls:
            jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])
            seen.add(call.name)
    assert len(seen) > 1


def test_h14_a_named_tool_is_the_only_one(compiler: GrammarCompiler) -> None:
    grammar = call_grammar(TOOLS, BY_NAME["hermes"], name="now")
    assert drawn(compiler, grammar, 1) == (
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    )


def test_a_marker_that_is_a_control_token_comes_as_its_token() -> None:
    marked = call_grammar(TOOLS, BY_NAME["mistral"], control_tokens={"[TOOL_CALLS]": 5})
    assert "<[5]>" in marked.text and "TOOL_CALLS" not in marked.text


@pytest.mark.parametrize(
    ("make", "param", "words"),
    [
        (lambda: call_grammar([], BY_NAME["hermes"]), "tools", "1 to 128"),
        (lambda: call_grammar([Tool("f")] * 129, BY_NAME["hermes"]), "tools", "1 to 128"),
        (
            lambda: call_grammar(TOOLS, BY_NAME["hermes"], name="none"),
            "tool_choice",
            "none of the tools",
        ),
        (lambda: call_grammar(TOOLS, BY_NAME["pythonic"]), "tool_choice", "pythonic"),
        (lambda: call_grammar(TOOLS, BY_NAME["line"]), "tool_choice", "line"),
        (
            lambda: call_grammar([Tool("f", {"minProperties": 2})], BY_NAME["hermes"]),
            "tools[0].function.parameters",
            "minProperties",
        ),
    ],
)
def test_what_cannot_be_forced_is_refused(make: Any, param: str, words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        make()
    assert caught.value.param == param


def test_a_model_that_knows_no_tools_is_told_how_to_call_them() -> None:
    described = [{"name": "f", "description": "does", "parameters": {}}]
    for name in ("hermes", "mistral", "llama3"):
        message = tools_message(described, BY_NAME[name])
        assert json.dumps(described[0]) in message and BY_NAME[name].opening in message
