"""Grammars over a vocabulary of bytes: what is allowed, where it ends, what is refused."""

from __future__ import annotations

import gc
import json
import os
import random
import re
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import wait
from typing import Any

import jsonschema
import pytest
import torch
from grammar_cases import HEAVY, HOSTILE, REFUSED_SCHEMAS, SCHEMAS
from hypothesis import given
from hypothesis import strategies as st

from cutaway.core.errors import GrammarError, RequestError
from cutaway.core.grammar import Grammar
from cutaway.core.request import SamplingParams
from cutaway.sampling.candidates import SamplerRow
from cutaway.sampling.grammars import grammar_compiler
from cutaway.sampling.grammars.grammar_compiler import MAX_KEPT, GrammarCompiler
from cutaway.sampling.grammars.grammar_state import GrammarState, allows_any
from cutaway.sampling.grammars.grammar_trial import TrialCompiler
from cutaway.sampling.sampler import Sampler
from cutaway.tokens.byte_tokenizer import byte_tokenizer

V, END, SECOND_END = 300, 256, 257


@pytest.fixture(scope="module")
def compiler() -> Iterator[GrammarCompiler]:
    made = compiler_of(frozenset({END, SECOND_END}))
    yield made
    made.close()


def compiler_of(end_ids: frozenset[int]) -> GrammarCompiler:
    return GrammarCompiler(byte_tokenizer(eos_token_id=END), num_rows=V, end_ids=end_ids)


def state(compiler: GrammarCompiler, grammar: Grammar, **flags: bool) -> GrammarState:
    return GrammarState(compiler.compile(grammar).result(timeout=300), **flags)


def ids(mask: bytes) -> set[int]:
    return {i for i in range(8 * len(mask)) if mask[i >> 3] >> (i & 7) & 1}


def chars(mask: bytes) -> str:
    return "".join("$" if i >= 256 else chr(i) for i in sorted(ids(mask)))


def walk(state: GrammarState, chance: random.Random, *, most: int = 3000) -> bytes | None:
    """Tokens drawn evenly from what is allowed; None when there was no end to it."""
    written = bytearray()
    while len(written) < most:
        (mask,) = state.masks([])
        token_id = chance.choice(sorted(ids(mask)))
        if token_id >= 256:
            return bytes(written)
        written.append(token_id)
        if state.completes(token_id):
            return bytes(written)
    return None


def test_only_what_fits_may_come_and_an_end_where_the_text_is_whole(
    compiler: GrammarCompiler,
) -> None:
    at = state(compiler, Grammar.regex("a[bc]?d*"))
    assert chars(at.masks([])[0]) == "a"
    assert not at.completes(ord("a"))
    assert chars(at.masks([])[0]) == "bcd$$", "both ends may come"
    assert not at.completes(ord("d"))
    assert chars(at.masks([])[0]) == "d$$"


def test_a_grammar_that_is_over_says_so(compiler: GrammarCompiler) -> None:
    at = state(compiler, Grammar.choice(["no", "now"]))
    assert [at.completes(ord(c)) for c in "now"] == [False, False, True]
    at = state(compiler, Grammar.choice(["no", "now"]))
    assert [at.completes(ord(c)) for c in "no"] == [False, False]
    assert chars(at.masks([])[0]) == "w$$"


@given(st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=5), st.randoms())
def test_one_of_the_choices_comes_whatever_characters_it_has(
    compiler: GrammarCompiler, choices: list[str], chance: random.Random
) -> None:
    written = walk(state(compiler, Grammar.choice(choices)), chance)
    assert written is not None and written.decode() in choices


def test_ends_may_be_held_back_until_nothing_else_may_come(compiler: GrammarCompiler) -> None:
    at = state(compiler, Grammar.regex("ab*"), may_end=False)
    at.completes(ord("a"))
    assert chars(at.masks([])[0]) == "b"
    whole = state(compiler, Grammar.regex("ab?"), may_end=False)
    whole.completes(ord("a"))
    assert whole.completes(ord("b"))
    assert chars(whole.masks([])[0]) == "$$"


def test_drafts_are_looked_at_and_taken_back(compiler: GrammarCompiler) -> None:
    at = state(compiler, Grammar.regex("a[bc]+d"))
    assert at.longest_allowed([*b"abcx"]) == [*b"abc"]
    assert at.longest_allowed([*b"a", END, *b"b"]) == [*b"a"]
    assert at.longest_allowed([]) == at.longest_allowed([*b"x"]) == []
    assert [chars(mask) for mask in at.masks([*b"abcd"])] == ["a", "bc", "bcd", "bcd", "$$"]
    assert chars(at.masks([])[0]) == "a"
    at.completes(ord("a"))
    assert [chars(mask) for mask in at.masks([*b"b"])] == ["bc", "bcd"]


def test_a_draft_that_does_not_fit_spoils_nothing(compiler: GrammarCompiler) -> None:
    at = state(compiler, Grammar.regex("a[bc]+d"))
    at.completes(ord("a"))
    assert len(at.masks([*b"bx"])) == 2
    assert [chars(mask) for mask in at.masks([*b"b"])] == ["bc", "bcd"]


def test_answers_of_one_grammar_do_not_share_their_place(compiler: GrammarCompiler) -> None:
    grammar = Grammar.regex("a+b")
    one, other = state(compiler, grammar), state(compiler, grammar)
    one.completes(ord("a"))
    assert (chars(one.masks([])[0]), chars(other.masks([])[0])) == ("ab", "a")


def test_rows_without_a_token_never_fit(compiler: GrammarCompiler) -> None:
    at = state(compiler, Grammar.regex(r"(?s).*"))
    assert max(ids(at.masks([])[0])) == SECOND_END < V - 1


def test_a_model_without_an_end_is_complete_all_the_same() -> None:
    compiler = GrammarCompiler(byte_tokenizer(eos_token_id=None), num_rows=256, end_ids=frozenset())
    at = state(compiler, Grammar.regex("ab"))
    assert [at.completes(ord(c)) for c in "ab"] == [False, True]
    compiler.close()


@pytest.mark.parametrize("name", SCHEMAS)
def test_h16_whatever_is_drawn_is_valid_by_the_schema(compiler: GrammarCompiler, name: str) -> None:
    schema = SCHEMAS[name]
    judge = jsonschema.Draft202012Validator(
        schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )
    judge.check_schema(schema)
    chance = random.Random(name)
    ended = 0
    for _ in range(40):
        written = walk(state(compiler, Grammar.json_schema(schema)), chance)
        if written is not None:
            ended += 1
            judge.validate(json.loads(written))
    assert ended >= 5, "a test that sees no answers proves nothing"


@pytest.mark.parametrize("name", REFUSED_SCHEMAS)
def test_h16_what_no_mask_can_hold_to_is_refused(compiler: GrammarCompiler, name: str) -> None:
    with pytest.raises(RequestError) as caught:
        compiler.compile(Grammar.json_schema(REFUSED_SCHEMAS[name])).result(timeout=300)
    # By the path of what cannot be held to, where the schema is one at all.
    assert (caught.value.param or "").partition(".")[0] == "grammar"
    assert len(str(caught.value)) < 500


def test_h17_blanks_cannot_be_multiplied(compiler: GrammarCompiler) -> None:
    """A model that likes blanks best gets one after each colon and comma, and comes to the end."""
    likes = (*b" \n\t\r", *b'"}],:', *range(33, 256))
    for grammar in (
        Grammar.json_object(),
        Grammar.json_schema({"type": "object", "required": ["a", "b"]}),
    ):
        at, written = state(compiler, grammar), bytearray()
        while len(written) < 200:
            allowed = ids(at.masks([])[0])
            written.append(next(i for i in likes if i in allowed))
            if at.completes(written[-1]):
                break
        # Inside a string blanks are text: there the model may go on for ever.
        outside = re.sub(rb'"[^"]*"?', b"", bytes(written))
        assert b"  " not in outside and not set(b"\n\t\r") & set(outside)


def test_json_comes_in_the_form_of_json_dumps(compiler: GrammarCompiler) -> None:
    value = {"a": [1, 2], "b": {"c": None}}
    at = state(compiler, Grammar.json_object())
    for byte in json.dumps(value).encode()[:-1]:
        assert byte in ids(at.masks([])[0])
        assert not at.completes(byte)
    assert at.completes(ord("}"))


@pytest.mark.parametrize("name", HOSTILE)
def test_grammars_made_to_do_harm_are_refused(compiler: GrammarCompiler, name: str) -> None:
    with pytest.raises(GrammarError):
        compiler.compile(HOSTILE[name]).result(timeout=300)


@pytest.mark.parametrize("name", HEAVY)
def test_heavy_grammars_end_one_way_or_the_other(compiler: GrammarCompiler, name: str) -> None:
    made = compiler.compile(HEAVY[name])
    wait([made], timeout=300)
    assert made.done()
    if made.exception() is None:
        at = GrammarState(made.result())
        assert allows_any(at.masks([])[0])


def test_a_process_on_trial_that_dies_is_replaced() -> None:
    trial = TrialCompiler()
    trial.check(Grammar.regex("a"))
    first = trial._apart.process
    assert first is not None
    first.kill()
    first.wait()
    with pytest.raises(GrammarError, match="too complex"):
        trial.check(Grammar.regex("a"))
    trial.check(Grammar.regex("a"))
    assert trial._apart.process is not first
    trial.close()
    trial.close()


@pytest.mark.skipif(sys.platform == "win32", reason="there are no forks there")
def test_what_ends_one_trial_ends_no_other_and_starts_no_process_anew() -> None:
    trial = TrialCompiler(seconds=0.2)
    trial.check(Grammar.regex("a"))
    first = trial._apart.process
    assert first is not None
    for name in ("a chain of rules", "regexes to intersect"):  # a stack, and time
        with pytest.raises(GrammarError, match=r"within 0\.2 seconds"):
            trial.check(HOSTILE[name])
        trial.check(Grammar.regex("a"))
        with pytest.raises(GrammarError, match="cannot be compiled"):
            trial.check(Grammar.regex("("))
    assert trial._apart.process is first and first.poll() is None
    trial.close()
    assert first.poll() is not None


@pytest.mark.skipif(sys.platform == "win32", reason="a process cannot be stopped there")
def test_a_trial_is_bounded_by_what_it_computes_and_not_by_the_clock() -> None:
    trial = TrialCompiler(seconds=0.5)
    trial.check(Grammar.regex("a"))
    assert trial._apart.process is not None
    pid = trial._apart.process.pid
    os.kill(pid, signal.SIGSTOP)  # as a busy machine does
    timer = threading.Timer(1.0, os.kill, (pid, signal.SIGCONT))
    timer.start()
    trial.check(Grammar.regex("b"))
    assert trial._apart.process.pid == pid
    timer.join()
    trial.close()


def test_a_grammar_is_compiled_once_and_the_oldest_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiler = compiler_of(frozenset({END}))
    first = compiler.compile(Grammar.regex("a"))
    assert compiler.compile(Grammar.regex("a")) is first
    made = [compiler.compile(Grammar.choice([f"x{i}"])) for i in range(MAX_KEPT)]
    assert compiler.compile(Grammar.regex("a")) is not first
    wait(made, timeout=300)
    monkeypatch.setattr(grammar_compiler, "MAX_KEPT_BYTES", 2**12)
    large = [compiler.compile(Grammar.choice([f"{i}" + "y" * 600])) for i in range(20)]
    wait(large, timeout=300)
    assert 2**11 < sum(len(grammar.text) for grammar in compiler._kept) <= 2**12
    compiler.close()


def test_threads_and_processes_end_with_the_compiler() -> None:
    def threads() -> set[threading.Thread]:
        return {t for t in threading.enumerate() if t.name.startswith("cutaway-grammar")}

    before = threads()
    compiler = compiler_of(frozenset({END}))
    assert threads() == before, "nothing starts before the first grammar"
    compiler.compile(Grammar.regex("a")).result(timeout=300)
    own = threads() - before
    assert own
    del compiler
    gc.collect()
    for thread in own:
        thread.join(timeout=300)
        assert not thread.is_alive()


def test_without_the_compiler_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    monkeypatch.setattr("cutaway.sampling.grammars.grammar_text.find_spec", lambda _: None)
    with pytest.raises(GrammarError, match=r"pip install 'cutaway\[grammar\]'"):
        compiler_of(frozenset({END}))


def test_masked_tokens_are_out_of_reach_of_bias_and_penalties() -> None:
    logits = torch.tensor([[5.0, 4.0, 3.0, 2.0]])
    allowed = bytes([0b1100, 0, 0, 0])
    settings: dict[str, Any] = {"logit_bias": {0: 100.0}, "repetition_penalty": 0.1}
    for temperature in (0.0, 1.0):
        params = SamplingParams(temperature=temperature, logprobs=2, **settings)
        row = SamplerRow(
            params=params,
            seed=1,
            position=3,
            prompt_token_ids=(0, 1),
            allowed=allowed,
            num_logprobs=2,
        )
        (drawn,) = Sampler(4).sample(logits, [row])
        assert drawn.token_id in (2, 3)
        assert [t for t, _ in drawn.score.top] == [0, 1], "reported is the raw distribution"


def test_rows_with_and_without_a_mask_are_the_same_alone_and_together() -> None:
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(12, V, generator=generator) * 4
    chance = random.Random(7)
    rows = [
        SamplerRow(
            params=SamplingParams(temperature=chance.choice([0, 1.0]), top_p=0.9),
            seed=i,
            position=i,
            allowed=chance.choice([None, os.urandom(40)]),
        )
        for i in range(12)
    ]
    sampler = Sampler(V)
    together = sampler.sample(logits, rows)
    alone = [sampler.sample(logits[i : i + 1], rows[i : i + 1])[0] for i in range(12)]
    assert together == alone


def test_a_mask_that_allows_nothing_gives_no_token() -> None:
    row = SamplerRow(params=SamplingParams(), seed=1, position=1, allowed=bytes(4))
    (drawn,) = Sampler(4).sample(torch.zeros(1, 4), [row])
    assert drawn.is_bad
