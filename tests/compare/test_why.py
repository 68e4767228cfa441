"""Each cause of a slow, expensive or wrong answer: where it is found, and what is measured instead.

Times are ticks of a clock that ticks when it is asked, so that a busy machine changes nothing.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import clocks
import engines
import tiny
from cutaway import LLM
from cutaway.compare.cause import Cause
from cutaway.compare.rerun import Rerun
from cutaway.compare.why import why
from cutaway.compare.why_wrong import word_asked
from cutaway.core.errors import ReplayError
from cutaway.core.request import Request, SamplingParams
from cutaway.engine.drafters import NGramDrafter
from cutaway.engine.engine import Engine
from cutaway.replay.look import Look
from cutaway.tokens.byte_tokenizer import byte_tokenizer
from cutaway.trace.records import AnswerRecord


@pytest.fixture(autouse=True)
def even_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks.tick(monkeypatch)


def engine_of(*, max_length: int = 2048, **settings: Any) -> Engine:
    """Of one layer: a cause is found in steps, of which these tests take thousands."""
    model = engines.loaded(num_hidden_layers=1, max_position_embeddings=max_length)
    return engines.engine(model, **settings)


def request(name: str, ids: Sequence[int], max_tokens: int = 6, **params: Any) -> Request:
    given: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True, **params}
    asked = SamplingParams(max_tokens=max_tokens, **given)
    return Request(request_id=name, prompt_token_ids=tuple(ids), params=asked)


def found(engine: Engine, name: str) -> AnswerRecord:
    assert engine.ledger is not None
    answer = engine.ledger.find(name)
    assert answer is not None
    return answer


def causes(engine: Engine, name: str) -> dict[str, Cause]:
    diagnosis = why(engine, Look(engine, found(engine, name)))
    assert max(map(len, diagnosis.draw().text().splitlines())) <= 100
    return {cause.name: cause for cause in diagnosis.causes}


def test_a_request_that_waited_for_a_place() -> None:
    engine = engine_of(max_sequences=1)
    engines.run(engine, [request("a", range(20), 30), request("b", range(100, 120), 4)])
    queue = causes(engine, "b")["queue"]
    assert "30 steps of up to 1 other ran meanwhile" in queue.found
    assert "all places (max_sequences, 1) were taken" in queue.found
    assert queue.instead is not None and queue.instead.startswith("alone it waited ")
    assert "queue" not in causes(engine, "a")


def test_a_long_prompt_in_an_empty_cache() -> None:
    engine = engine_of(prefill_chunk=64)
    engines.run(engine, [request("a", range(200), 4)])
    told = causes(engine, "a")
    assert "200 of 200 prompt tokens computed in 4 steps" in told["prefill"].found
    assert "the last 100 of them alone took" in (told["prefill"].instead or "")
    assert "no recorded answer began like this" in told["cache miss"].found
    assert "with the prefix warm 192 tokens were found" in (told["cache miss"].instead or "")
    assert "200 prompt tokens" in told["prompt"].found
    assert "with the prefix warm the prompt took" in (told["prompt"].instead or "")


def test_half_a_prompt_is_cold_however_often_it_is_asked() -> None:
    """What one diagnosis ran must not make the next one's measure warm."""
    engine = engine_of(prefill_chunk=64)
    engines.run(engine, [request("a", range(200), 4)])
    first, again = (causes(engine, "a")["prefill"].instead for _ in range(2))
    times = [re.findall(r"took ([\d.]+) ms", text or "") for text in (first, again)]
    assert times[0] == times[1] != []


def test_a_miss_names_where_the_nearest_answer_parts() -> None:
    engine = engine_of()
    engines.run(engine, [request("a", [*range(60, 80), 65, *range(100, 140)])])
    engines.run(engine, [request("b", [*range(60, 80), 66, *range(100, 140)])])
    miss = causes(engine, "b")["cache miss"]
    assert 'differs from token 20 on ("B" here, "A" there)' in miss.found
    assert miss.found.startswith("45 of 61 prompt tokens were not found")


def test_a_miss_where_nothing_is_kept() -> None:
    engine = engine_of(prefix_cache=False)
    engines.run(engine, [request("a", range(100), 2)])
    told = causes(engine, "a")
    assert "the prefix cache is off" in told["cache miss"].found
    assert told["cache miss"].instead is None
    assert "the last 50 tokens of it alone took" in (told["prompt"].instead or "")


def test_a_prompt_that_was_found_is_no_miss() -> None:
    engine = engine_of()
    engines.run(engine, [request("a", range(64), 40)])
    engines.run(engine, [request("b", range(64), 40)])
    told = causes(engine, "b")
    assert "cache miss" not in told and "prompt" not in told
    assert "prefill" not in told, "one step of forty is no cause"


def test_company_and_what_it_is_worth() -> None:
    engine = engine_of(max_sequences=2)
    engines.run(engine, [request("a", range(20), 20), request("b", range(100, 120), 20)])
    told = causes(engine, "a")
    assert "19 of 19 steps after the first token were shared" in told["company"].found
    assert (told["company"].instead or "").startswith("alone it was ")
    # By this clock a step takes the same with two as with one, or a little more.
    bound = told["memory-bound decode"]
    assert (bound.instead or "").startswith("2 at once took ")
    assert "0% of the steps were not shared" in bound.found
    single = engine_of(max_sequences=1)
    engines.run(single, [request("a", range(20))])
    alone = causes(single, "a")
    assert "company" not in alone and alone["decode"].instead is None


def test_decode_that_several_at_once_do_not_make_cheaper(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of()
    engines.run(engine, [request("a", range(20))])

    def gap(self: Rerun, answer: AnswerRecord, company: int = 1) -> float:
        return 0.01 * company

    monkeypatch.setattr(Rerun, "gap", gap)
    bound = causes(engine, "a")["decode bound by arithmetic"]
    assert "4 at once took 40.0 ms a step and alone 10.0 ms: 1.0 times" in (bound.instead or "")


def test_a_long_context_is_tried_with_its_end_alone() -> None:
    engine = engine_of(num_pages=400)
    ids = [i % 251 for i in range(1100)]
    engines.run(engine, [request("a", ids)])
    long = causes(engine, "a")["long context"]
    assert "looked at up to 1105 before it" in long.found
    assert "with the last 256" in (long.instead or "")
    engines.run(engine, [request("b", range(90))])
    assert "long context" not in causes(engine, "b")


def test_preemption_tells_what_was_computed_again() -> None:
    engine = engine_of(num_pages=12)
    engines.run(engine, [request(name, [ord(name)] * 20, 40) for name in "abc"])
    name = max("abc", key=lambda each: len(found(engine, each).admissions))
    answer, ledger = found(engine, name), engine.ledger
    assert ledger is not None and len(answer.admissions) > 1
    again = 0
    for left, right in pairwise(answer.admissions):
        last = ledger.step(left.steps[-1])
        assert last is not None
        part = next(part for part in last.parts if part.answer == answer.number)
        again += part.end - right.num_hit
    preemption = causes(engine, name)["preemption"]
    assert f"then {again} token" in preemption.found
    assert f"{len(answer.admissions) - 1} time" in preemption.found
    assert "alone, never preempted, its first 40 tokens took" in (preemption.instead or "")


def test_guesses_are_held_against_steps_without() -> None:
    engine = engines.engine(engines.loaded(), drafter=NGramDrafter())  # this one repeats itself
    engines.run(engine, [request("a", range(20), 60)])
    drafts = causes(engine, "a").get("drafts")
    answer = found(engine, "a")
    accepted = len(answer.tokens) - len({token.step for token in answer.tokens})
    assert drafts is not None and drafts.found.startswith(f"{accepted} of ")
    assert "its steps without took" in (drafts.instead or "")


def test_doubtful_spans_with_probability_and_other_draws() -> None:
    engine = engine_of()
    engines.run(engine, [request("a", range(20), 40, temperature=2.0, seed=1)])
    diagnosis = why(engine, Look(engine, found(engine, "a")))
    doubts = [cause for cause in diagnosis.causes if cause.name == "low confidence"]
    tokens = found(engine, "a").tokens
    least = min(tokens, key=lambda token: token.logit - token.logsumexp)
    assert f"{math.exp(least.logit - least.logsumexp):.1%} for " in doubts[0].found
    assert 0 < len(doubts) <= 3
    for doubt in doubts:
        assert re.search(r"entropy \d\.\d\d nats", doubt.found)
        assert "of 4 other draws at temperature 1 say the same" in (doubt.instead or "")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("How many r in strawberry?", "strawberry"),
        ("how many r's are there in the word 'strawberry', in your opinion?", "strawberry"),
        ('You are helpful.\nHow many "s" does Mississippi have? Thanks.', "Mississippi"),
        ("Count the letters of banana.", "banana"),
        ("Spell the word accommodation backwards", "accommodation"),
        ("Which vowels does the word queue contain?", "queue"),
        ("How many people live in Paris?", None),
        ("Write a letterhead.", None),
    ],
)
def test_the_word_whose_letters_are_asked_for(text: str, word: str | None) -> None:
    span = word_asked(text)
    assert (None if span is None else text[slice(*span)]) == word


class Words:
    """The byte tokenizer with one token more, of a whole word."""

    def __init__(self, token_id: int, word: bytes) -> None:
        self._bytes, self._own = byte_tokenizer(eos_token_id=engines.END), {token_id: word}

    def token_bytes(self, token_id: int) -> bytes:
        return self._own.get(token_id) or self._bytes.token_bytes(token_id)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bytes, name)


def test_letters_in_one_token_are_tried_apart() -> None:
    engine = engine_of()
    engine.model = replace(engine.model, tokenizer=Words(258, b" strawberry"))  # type: ignore[arg-type]
    ids = [*b"How many r in", 258, *b"?"]
    engines.run(engine, [request("a", ids, 8)])
    hidden = causes(engine, "a")["letters hidden in tokens"]
    assert 'given "strawberry" as 1 token (\u00b7strawberry), not as 10 letters' in hidden.found
    assert (hidden.instead or "").startswith("with the letters apart it says ")
    engines.run(engine, [request("b", b"How many r in strawberry?", 8)])
    assert "letters hidden in tokens" not in causes(engine, "b"), "there each letter is a token"


def test_an_answer_that_was_cut() -> None:
    engine = engine_of(max_length=256)
    engines.run(engine, [request("a", range(20), 6)])
    cut = causes(engine, "a")["truncated"]
    assert f"the context has room for {engine.max_length - 26} more" in cut.found
    assert re.search(
        r"it (comes to its end after|does not come to an end within) \d+", cut.instead or ""
    )
    engines.run(engine, [request("b", range(20), engine.max_length - 20)])
    full = causes(engine, "b")["truncated context"]
    assert f"the context of {engine.max_length} was full" in full.found
    assert "with the first 128 tokens left out it " in (full.instead or "")


def test_a_window_is_held_against_all_of_the_context(tmp_path: Path) -> None:
    changed = {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
    config = tiny.config(**changed, sliding_window=16, vocab_size=320)
    (tmp_path / "config.json").write_text(json.dumps(config))
    engine = LLM(f"random:{tmp_path}/config.json", cache_tokens=512, dtype="float32").engine
    engines.run(engine, [request("a", range(40))])
    window = causes(engine, "a")["window"]
    layers = config["num_hidden_layers"]
    assert f"{layers} of {layers} layers saw the last 16 tokens alone" in window.found
    assert "the first 29 were out of their sight" in window.found
    assert "with the last 16 tokens alone" in (window.instead or "")


def test_a_running_engine_is_left_alone() -> None:
    engine = engine_of()
    engines.run(engine, [request("a", range(20))])
    engine.add(request("b", range(30)))
    with pytest.raises(ReplayError, match="when it has ended and nothing else runs"):
        why(engine, Look(engine, found(engine, "a")))


def test_an_answer_whose_steps_were_dropped_is_not_diagnosed() -> None:
    engine = engine_of()
    engines.run(engine, [request("a", range(20))])
    look = Look(engine, found(engine, "a"))
    look.subject.answer.is_whole = False
    with pytest.raises(ReplayError, match=r'steps of request "a" were dropped.*ledger_bytes'):
        why(engine, look)
