"""Grammars drawn at random: sound ones hold what they say, the others end in bounded time."""

from __future__ import annotations

import json
import random
import resource
import sys
from collections.abc import Iterator
from time import perf_counter, process_time

import jsonschema
import pytest
from drawn_grammars import hostile, schema
from test_sampling_grammar import END, V, walk

from cutaway.core.errors import GrammarError, RequestError
from cutaway.core.grammar import Grammar
from cutaway.sampling.grammars.grammar_compiler import GrammarCompiler
from cutaway.sampling.grammars.grammar_state import GrammarState, allows_any
from cutaway.tokens.byte_tokenizer import byte_tokenizer
from trials import ran, seed, trials

MIB = 2**20


@pytest.fixture(scope="module")
def compiler() -> Iterator[GrammarCompiler]:
    made = GrammarCompiler(byte_tokenizer(eos_token_id=END), num_rows=V, end_ids=frozenset({END}))
    yield made
    made.close()


def peak() -> int:
    """Most bytes that this process has had in memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )


def test_what_is_drawn_by_a_drawn_schema_is_valid_by_it(compiler: GrammarCompiler) -> None:
    chance = random.Random(seed(16))
    ended = 0
    for _ in range(trials(300)):
        drawn = schema(chance)
        jsonschema.Draft202012Validator.check_schema(drawn)
        judge = jsonschema.Draft202012Validator(drawn)
        try:
            compiled = compiler.compile(Grammar.json_schema(drawn)).result(timeout=300)
        except GrammarError as error:
            raise AssertionError(f"a sound schema is refused: {json.dumps(drawn)}") from error
        written = walk(GrammarState(compiled), chance)
        if written is not None:
            ended += 1
            judge.validate(json.loads(written))
    assert ended >= 0.95 * trials(300), "answers without an end prove nothing"
    ran(ended)


def test_sound_schemas_without_end_are_compiled_and_take_no_more_memory(
    compiler: GrammarCompiler,
) -> None:
    chance, texts, before = random.Random(seed(15)), set[str](), 0
    count, longest = trials(200), 0.0
    for number in range(count):
        if number == min(100, count // 2):
            before = peak()
        while (text := json.dumps(drawn := schema(chance))) in texts:
            pass
        texts.add(text)
        began = perf_counter()
        compiler.compile(Grammar.json_schema(drawn)).result(timeout=300)
        longest = max(longest, perf_counter() - began)
    grown = (peak() - before) / MIB
    assert grown < 32
    ran(count, longest_seconds=round(longest, 3), memory_grew_MiB=round(grown, 1))


def test_grammars_of_ill_will_are_refused_or_taken_in_bounded_time(
    compiler: GrammarCompiler,
) -> None:
    chance, outcomes = random.Random(seed(15)), {"refused": 0, "taken": 0}
    before, count, longest = peak(), trials(40), 0.0
    for _ in range(count):
        began, computed = perf_counter(), process_time()
        try:
            bad = hostile(chance)
            at = GrammarState(compiler.compile(bad).result(timeout=300))
            assert allows_any(at.masks([])[0])
            outcomes["taken"] += 1
        except (GrammarError, RequestError) as error:
            assert len(str(error)) < 1000
            outcomes["refused"] += 1
        seconds = perf_counter() - began
        # The process on trial is ended after a second of computing; this one does little beside.
        assert process_time() - computed < 1
        longest = max(longest, seconds)
    grown = (peak() - before) / MIB
    assert min(outcomes.values()) >= count // 20, f"a test of one outcome: {outcomes}"
    assert grown < 256
    figures = {"longest_seconds": round(longest, 3), "memory_grew_MiB": round(grown, 1)}
    ran(count, total_refused=outcomes["refused"], **figures)
