"""Grammars in the engine: beside free requests, under preemption and drafts, and when they fail."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from cutaway.core.errors import GrammarError
from cutaway.core.grammar import Grammar
from cutaway.core.request import Request, SamplingParams
from cutaway.engine.drafters import NGramDrafter
from cutaway.engine.engine import Engine
from cutaway.engine.loading.loaded_model import LoadedModel
from cutaway.sampling.grammars.grammar_state import CompiledGrammar
from drafters import EachAlone
from engines import END, Answer, engine, loaded, run, workload

sys.path.append(str(Path(__file__).parents[1] / "sampling"))

from grammar_cases import HOSTILE, SCHEMAS

_POINT = Grammar.json_schema(SCHEMAS["point, required in another order"])
_LIST = Grammar.json_schema({"type": "array", "items": {"enum": ["aa", "ab"]}, "maxItems": 6})
_GRAMMARS = (_POINT, _LIST, Grammar.regex("(ab|cd){3,9}"), Grammar.choice(["yes", "no", "nob"]))


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return loaded()


@pytest.fixture(scope="module")
def shared(model: LoadedModel) -> Iterator[Engine]:
    """Each engine reads the vocabulary for its grammars, a quarter of a second of a core."""
    made = engine(model)
    yield made
    close(made)


@pytest.fixture
def target(shared: Engine) -> Iterator[Engine]:
    yield shared
    assert not shared.has_work and shared.cache_stats.used == 0, "the next test finds it idle"


def close(made: Engine) -> None:
    compiler = made._admission._compiler
    if compiler is not None:
        compiler.close()


def ask(grammar: Grammar | None, name: str = "r", **settings: Any) -> Request:
    params = SamplingParams(**{"max_tokens": 120, "seed": 3, "grammar": grammar, **settings})
    return Request(request_id=name, prompt_token_ids=(1, 2, 3), params=params)


def only(target: Engine, request: Request) -> Answer:
    return run(target, [request])[(request.request_id, 0)]


def mixed(seed: int, *, count: int = 8) -> list[Request]:
    """A workload in which every other request has a grammar."""
    chance = random.Random(seed)
    requests = workload(seed, count)
    for index in range(0, count, 2):
        params = replace(
            requests[index].params,
            grammar=chance.choice(_GRAMMARS),
            stop=(),
            max_tokens=chance.randint(4, 40),
        )
        requests[index] = replace(requests[index], params=params)
    return requests


def essences(answers: dict[tuple[str, int], Answer]) -> dict[tuple[str, int], Any]:
    return {key: (answer.essence, answer.logprobs) for key, answer in answers.items()}


@pytest.mark.parametrize("name", SCHEMAS)
def test_h16_a_random_model_gives_valid_json_at_temperature_1(target: Engine, name: str) -> None:
    schema = SCHEMAS[name]
    judge = jsonschema.Draft202012Validator(
        schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )
    answers = run(target, [ask(Grammar.json_schema(schema), n=3, max_tokens=200)])
    num_whole = 0
    for answer in answers.values():
        assert answer.last is not None and answer.last.finish_reason in ("stop", "length")
        if answer.last.finish_reason == "stop":
            judge.validate(json.loads(answer.text))
            num_whole += 1
    assert num_whole


@pytest.mark.parametrize("seed", range(2))
def test_mixed_batches_give_what_each_gives_alone(model: LoadedModel, seed: int) -> None:
    requests = mixed(seed)
    together, alone = engine(model), engine(model)
    batched = essences(run(together, requests))
    single = {}
    for request in requests:
        single |= essences(run(alone, [request]))
    assert batched == single
    close(together)
    close(alone)


@pytest.mark.parametrize("draft", [False, True])
def test_e08_preemption_keeps_the_place_in_the_grammar(model: LoadedModel, draft: bool) -> None:
    requests = [
        ask(grammar, f"r{number}", seed=number, temperature=temperature, max_tokens=60)
        for number, (grammar, temperature) in enumerate(
            [(Grammar.regex("(ab|cd|ef){9,20}"), 1.3), (_LIST, 1.0), (None, 0.7)] * 3
        )
    ]
    drafter = NGramDrafter(longest=2, shortest=1) if draft else None
    large = engine(model)
    small = engine(model, num_pages=16, prefix_cache=False, drafter=drafter)
    for target in (large, small):
        for request in requests:
            if request.params.grammar is not None:
                target.grammar_state(request.params)  # from now on it is ready at once
    assert essences(run(small, requests)) == essences(run(large, requests))
    assert small.scheduler.num_preemptions > 0
    close(large)
    close(small)


@pytest.mark.parametrize("seed", range(2))
def test_drafts_change_nothing_under_a_grammar(model: LoadedModel, seed: int) -> None:
    requests = mixed(seed)
    plain, drafting = engine(model), engine(model, drafter=NGramDrafter(longest=2, shortest=1))
    assert essences(run(drafting, requests)) == essences(run(plain, requests))
    close(plain)
    close(drafting)


class _Wild(EachAlone):
    """Proposes whatever comes to mind: words of the grammars, ends, and noise."""

    def __init__(self) -> None:
        self._chance = random.Random(4)

    def guess(self, token_ids: Any) -> list[int]:
        words = [[*b"abab"], [*b'{"y": 1, "x": 5}'], [*b'["aa", "ab"]'], [END, *b"a"], [*b"\n\n"]]
        word = self._chance.choice(words)
        start = self._chance.randrange(len(word))
        return word[start : start + self._chance.randint(1, 6)]


@pytest.mark.parametrize("seed", range(2))
def test_wild_drafts_change_nothing_either(model: LoadedModel, seed: int) -> None:
    requests = mixed(seed)
    plain, drafting = engine(model), engine(model, drafter=_Wild())
    assert essences(run(drafting, requests)) == essences(run(plain, requests))
    close(plain)
    close(drafting)


def test_drafts_that_fit_are_taken(model: LoadedModel) -> None:
    steps: list[int] = []
    for drafter in (None, NGramDrafter(longest=2, shortest=1)):
        target = engine(model, drafter=drafter)
        target.add(ask(Grammar.regex("(ab){40}c"), max_tokens=100))
        count = 0
        while target.has_work:
            count += any(delta.token_ids for delta in target.step())
        steps.append(count)
        close(target)
    assert steps[1] < steps[0] / 2


def test_choices_of_one_request_go_their_own_ways(target: Engine) -> None:
    answers = run(target, [ask(Grammar.regex("[a-z]{8}"), n=4)])
    texts = [answer.text for answer in answers.values()]
    assert len(set(texts)) > 1 and all(len(text) == 8 and text.isalpha() for text in texts)


def test_the_answer_ends_when_the_grammar_is_over(target: Engine) -> None:
    answer = only(target, ask(Grammar.regex("abc"), temperature=0))
    assert (answer.text, answer.token_ids) == ("abc", [*b"abc"]), "no end token was needed"
    assert answer.last is not None and answer.last.usage is not None
    assert (answer.last.finish_reason, answer.last.stopped_by) == ("stop", None)
    assert answer.last.usage.completion_tokens == 3


def test_the_last_token_may_be_the_one_that_completes_the_grammar(target: Engine) -> None:
    answer = only(target, ask(Grammar.regex("abc"), max_tokens=3))
    assert answer.last is not None and answer.last.finish_reason == "stop"
    answer = only(target, ask(Grammar.regex("abcd"), max_tokens=3))
    assert answer.last is not None and answer.last.finish_reason == "length"
    assert answer.text == "abc"


def test_an_end_may_come_where_the_grammar_may_end(target: Engine) -> None:
    answer = only(target, ask(Grammar.regex("a*"), logit_bias={END: 100}))
    assert (answer.text, answer.token_ids) == ("", [END])
    assert answer.last is not None and answer.last.stopped_by == END


def test_min_tokens_holds_the_end_back_but_not_the_grammar(target: Engine) -> None:
    answer = only(target, ask(Grammar.regex("a*"), logit_bias={END: 100}, min_tokens=5))
    assert answer.token_ids == [*b"aaaaa", END]
    answer = only(target, ask(Grammar.regex("aaa"), min_tokens=5))
    assert answer.token_ids == [*b"aaa"]
    assert answer.last is not None and answer.last.finish_reason == "stop"


def test_ignore_eos_goes_on_as_far_as_the_grammar_does(target: Engine) -> None:
    answer = only(target, ask(Grammar.regex("a{0,7}"), logit_bias={END: 100}, ignore_eos=True))
    assert answer.token_ids == [*b"aaaaaaa"]
    assert answer.last is not None and answer.last.finish_reason == "stop"


def test_a_stop_string_ends_the_answer_in_the_middle_of_the_grammar(target: Engine) -> None:
    answer = only(target, ask(Grammar.regex("abcdef"), stop=("cd",)))
    assert answer.text == "ab"
    assert answer.last is not None and answer.last.stopped_by == "cd"
    answer = only(target, ask(Grammar.regex("abcdef"), stop_token_ids=(ord("c"),)))
    assert answer.text == "ab"
    # What waited as the start of a stop string is shown when the grammar is over.
    answer = only(target, ask(Grammar.regex("abcd"), stop=("cde",)))
    assert answer.text == "abcd"


def test_ends_below_min_tokens_that_leave_nothing_end_this_request_alone(target: Engine) -> None:
    stuck = ask(Grammar.regex("ab"), "stuck", stop_token_ids=(ord("a"),), min_tokens=1)
    free = ask(None, "free", max_tokens=5)
    answers = run(target, [stuck, free])
    last, other = answers[("stuck", 0)].last, answers[("free", 0)].last
    assert last is not None and last.finish_reason == "error"
    assert isinstance(last.error, GrammarError) and "no token is left" in str(last.error)
    assert other is not None and other.finish_reason in ("length", "stop")


@pytest.mark.parametrize("name", ["a chain of rules", "an open parenthesis", "all of itself"])
@pytest.mark.parametrize("draft", [False, True])
def test_a_refused_grammar_ends_its_request_and_the_mates_are_the_same_bits(
    model: LoadedModel, name: str, draft: bool
) -> None:
    drafter = NGramDrafter() if draft else None
    mates = mixed(11, count=5)
    with_hostile, with_benign = engine(model, drafter=drafter), engine(model, drafter=drafter)
    bad = ask(HOSTILE[name], "odd", n=2)
    good = ask(_POINT, "odd", n=2)
    answers = run(with_hostile, [mates[0], bad, *mates[1:]])
    twins = run(with_benign, [mates[0], good, *mates[1:]])
    for choice in (0, 1):
        last = answers.pop(("odd", choice)).last
        assert last is not None and last.finish_reason == "error"
        assert isinstance(last.error, GrammarError) and last.error.param == "grammar"
        twins.pop(("odd", choice))
    assert essences(answers) == essences(twins)
    assert with_hostile.cache_stats.used == 0
    close(with_hostile)
    close(with_benign)


def test_nobody_waits_for_a_grammar_that_is_being_compiled(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = engine(model)
    compiled = target._admission._grammars().compile(_POINT).result(timeout=300)
    slow: Future[CompiledGrammar] = Future()
    monkeypatch.setattr(target._admission._grammars(), "compile", lambda _: slow)
    target.add(ask(_POINT, "slow", n=2))
    target.add(ask(_POINT, "aborted"))
    target.add(ask(None, "free", max_tokens=6))
    while target.scheduler.has_work:
        assert all(delta.request_id == "free" for delta in target.step())
    assert target.step() == [] and target.has_work
    target.abort("aborted")
    (last,) = target.step()
    assert (last.request_id, last.finish_reason) == ("aborted", "abort")
    slow.set_result(compiled)
    answers = run(target, [])
    assert set(answers) == {("slow", 0), ("slow", 1)}
    assert not target.has_work
    close(target)


def test_all_that_wait_can_be_aborted(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    target = engine(model)
    never: Future[CompiledGrammar] = Future()
    monkeypatch.setattr(target._admission._grammars(), "compile", lambda _: never)
    target.add(ask(_POINT, n=3))
    target.abort("r")
    assert [delta.finish_reason for delta in target.step()] == ["abort"] * 3
    assert not target.has_work
    close(target)


def test_logprobs_are_those_of_the_model_and_not_of_the_mask(target: Engine) -> None:
    free = only(target, ask(None, "free", max_tokens=1, logprobs=3))
    masked = only(target, ask(Grammar.regex("ab"), "masked", max_tokens=1, logprobs=3))
    assert masked.logprobs[0].top == free.logprobs[0].top
    assert masked.logprobs[0].token_id == ord("a")


def test_without_the_library_the_request_is_refused_at_once(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = engine(model)
    monkeypatch.setattr("cutaway.sampling.grammars.grammar_text.find_spec", lambda _: None)
    with pytest.raises(GrammarError, match="pip install"):
        target.add(ask(_POINT))
    assert not target.has_work
    assert only(target, ask(None, max_tokens=2)).last is not None
