"""What newcomers to the Python API stumbled over, each by its number in the report of the three.

tests/house/test_house_reports.py lists the numbers.
"""

from __future__ import annotations

import asyncio
import copy
import gc
import inspect
import json
import pickle
import weakref
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import get_type_hints

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import cutaway
import tiny
from cutaway import LLM, AsyncLLM, Generation, Grammar, RequestError, SamplingParams
from cutaway.cli.settings.settings import resolve
from cutaway.core.errors import EngineClosedError, ReplayError
from cutaway.engine.config import EngineConfig
from cutaway.engine.engine_settings import EngineSettings
from cutaway.kernels.large_blocks import give_back_freed
from cutaway.service import llm as front
from cutaway.service.looking import ViewPlaces
from cutaway.views.parts.query import Query

TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}[assistant]"
SHORT = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
HI = [{"role": "user", "content": "hi"}]
RECOMMENDED = {"temperature": 0.2, "top_k": 7, "top_p": 0.9}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("tiny")
    values = tiny.config(vocab_size=300, eos_token_id=256)
    (path / "config.json").write_text(json.dumps(values))
    (path / "chat_template.jinja").write_text(TEMPLATE)
    return f"random:{path}/config.json"


@pytest.fixture(scope="module")
def llm(model: str) -> Iterator[LLM]:
    with LLM(model, dtype="float32", cache_tokens=1024) as made:
        yield made


@pytest.fixture(scope="module")
def answer(llm: LLM) -> Generation:
    params = replace(SHORT, n=2, logprobs=1, prompt_logprobs=0)
    return llm.generate("abc", params)[0]


# 3: what is public can be pickled, copied, hashed and turned into a dict.

PARAMS = st.builds(
    SamplingParams,
    temperature=st.floats(0, 5),
    top_k=st.integers(-1, 100),
    logit_bias=st.dictionaries(st.integers(0, 99), st.floats(-100, 100), max_size=4),
    seed=st.none() | st.integers(-(2**63), 2**63 - 1),
    stop=st.lists(st.text("ab\n", min_size=1, max_size=3), max_size=3),
    stop_token_ids=st.lists(st.integers(0, 99), max_size=3),
    grammar=st.none() | st.just(Grammar.regex("a+")) | st.just(Grammar.choice(["x", "y"])),
)


@settings(max_examples=60, deadline=None)
@given(PARAMS)
def test_3_params_are_plain_values(params: SamplingParams) -> None:
    for again in (pickle.loads(pickle.dumps(params)), copy.deepcopy(params), copy.copy(params)):
        assert again == params and hash(again) == hash(params)
        assert again.on(RECOMMENDED) == params.on(RECOMMENDED)
    told = asdict(params)
    assert json.loads(json.dumps(told))["stop"] == list(params.stop)
    grammar = params.grammar
    assert SamplingParams(**{**told, "grammar": grammar}) == params


def test_3_a_bias_does_not_change() -> None:
    bias = SamplingParams(logit_bias={1: 2.0}).logit_bias
    for change in ("clear", "popitem"):
        with pytest.raises(TypeError, match="does not change"):
            getattr(bias, change)()
    with pytest.raises(TypeError, match="does not change"):
        bias[1] = 3.0  # type: ignore[index]
    with pytest.raises(TypeError, match="does not change"):
        bias.update({2: 1.0})  # type: ignore[attr-defined]
    assert bias == {1: 2.0}


def test_3_answers_are_plain_values(llm: LLM, answer: Generation) -> None:
    for each in (answer, llm.chat(HI, SHORT)):
        for again in (pickle.loads(pickle.dumps(each)), copy.deepcopy(each), copy.copy(each)):
            assert again == each and hash(again) == hash(each)
            assert again.messages == each.messages
        assert asdict(each)["choices"][0]["text"] == each.text
        pickled = pickle.loads(pickle.dumps(each))
        assert each.text.split("<")[0] in pickled._repr_html_()
    (delta, *_) = llm.stream("abc", SHORT)
    assert pickle.loads(pickle.dumps(delta)) == delta


# 5: one default everywhere.


def test_5_the_models_sampling_acts_where_nothing_is_given(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llm.engine, "model", replace(llm.engine.model, sampling=RECOMMENDED))
    ours = llm.request("x", SamplingParams(seed=1)).params
    assert (ours.temperature, ours.top_k, ours.top_p) == (0.2, 7, 0.9)
    assert llm.request("x").params == llm.sampling
    given_ = llm.request("x", SamplingParams(temperature=1.0, top_k=0)).params
    assert (given_.temperature, given_.top_k, given_.top_p) == (1.0, 0, 0.9)
    changed = llm.request("x", replace(SamplingParams(seed=1), seed=2)).params
    assert (changed.temperature, changed.seed) == (0.2, 2), "what was not given stays so"


@pytest.mark.parametrize(
    "chosen", [{}, {"seed": 1}, {"temperature": 1.0}, {"top_k": 0, "min_p": 0.1}, {"stop": ("a",)}]
)
def test_5_python_and_the_command_line_take_the_same(llm: LLM, chosen: dict[str, object]) -> None:
    there = resolve(chosen, recommended=RECOMMENDED).sampling()
    assert SamplingParams(**chosen).on(RECOMMENDED) == there


# 7: what is wrong is refused with the field, the value and what is allowed.


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda llm: llm.generate("x", {"temperature": 0}), r'params is \{"temperature": 0\}'),
        (lambda llm: llm.generate("x", ["greedy"]), 'params is "greedy"'),
        (lambda llm: llm.generate(5), "prompts is 5"),
        (lambda llm: llm.generate(None), "prompts is null"),
        (lambda llm: llm.generate({"a": 1}), "prompts is"),
        (lambda llm: llm.generate(b"abc"), "prompts is"),
        (lambda llm: llm.generate(["a", 5]), r"prompts\[1\] is 5"),
        (lambda llm: llm.generate(["a", None]), r"prompts\[1\] is null"),
        (lambda llm: llm.generate([["a"]]), r"prompts\[0\]\[0\] is \"a\""),
        (lambda llm: llm.generate([1, 2.5]), r"prompts\[0\] is 1"),
        (lambda llm: llm.generate([[1, True]]), r"prompts\[0\]\[1\] is true"),
        (lambda llm: llm.chat("hello"), "messages"),
        (lambda llm: llm.stream("x", {"a": 1}), r'params is \{"a": 1\}'),
        (lambda llm: llm.stream(5), "prompt is 5"),
        (lambda llm: llm.stream_chat([{"role": "usr", "content": "x"}]), "user"),
        (lambda llm: LLM(5), "model is 5"),
        (lambda llm: SamplingParams(stop=[1]), "stop is"),
        (lambda llm: SamplingParams(max_tokens=np.float32(2.5)), "max_tokens is 2.5"),
    ],
)
def test_7_what_is_wrong_is_told_at_the_call(
    llm: LLM, call: Callable[[LLM], object], words: str
) -> None:
    with pytest.raises(RequestError, match=words):
        call(llm)


def test_7_conversations_find_their_way(llm: LLM) -> None:
    """vllm-project/vllm#6416, #8117, #12234: several conversations, or one where a text belongs."""
    talk = [{"role": "user", "content": "hi"}]
    with pytest.raises(RequestError, match=r"prompts\[0\] is .*; a conversation goes to chat"):
        llm.generate(talk)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match=r"generate\(\[encode_chat\(each\) for each in"):
        llm.chat([talk, talk])  # type: ignore[list-item]
    both = llm.generate([llm.encode_chat(each) for each in (talk, talk)], SHORT)
    assert both[0].token_ids == both[1].token_ids == llm.chat(talk, SHORT).token_ids


def test_7_numbers_of_other_libraries_and_none_are_taken(llm: LLM) -> None:
    params = SamplingParams(
        temperature=np.float32(0), max_tokens=np.int64(4), ignore_eos=True, stop=None, top_k=None
    )
    assert type(params.max_tokens) is int and type(params.temperature) is float
    expected = llm.generate("abc", SHORT)[0].token_ids
    for ids in (np.array([97, 98, 99]), torch.tensor([97, 98, 99]).tolist(), (97, 98, 99)):
        assert llm.generate(ids, params)[0].token_ids == expected
    assert SamplingParams(stop_token_ids=np.array([3]).tolist(), logit_bias={np.int64(3): 1})


def test_7_a_path_names_a_model(model: str) -> None:
    with pytest.raises(cutaway.CutawayError, match=r"nothing\.gguf"):
        LLM(Path("nothing.gguf"))


@pytest.mark.parametrize("bad", [5, None, {"a": 1}, ["a", 3]])
def test_7_the_async_front_refuses_the_same(model: str, bad: object, capfd) -> None:
    async def body() -> None:
        async with AsyncLLM(model, dtype="float32", cache_tokens=256) as llm:
            with pytest.raises(RequestError, match=r"prompts"):
                await llm.generate(bad)
            with pytest.raises(RequestError, match="params is"):
                llm.stream("x", {"a": 1})

    asyncio.run(body())
    assert "fault of Cutaway" not in capfd.readouterr().err


# 8: a proof takes no word that it does not know.


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"level": "nonsense"}, 'level is "nonsense"; it must be shape-faithful or invariant'),
        ({"level": "shape_faithful"}, "Did you mean shape-faithful?"),
        ({"level": None}, "level is null"),
        ({"prefill_chunk": 7}, "prefill_chunk belongs to level invariant"),
        ({"level": "invariant", "prefill_chunk": 0}, "prefill_chunk is 0"),
        ({"level": "invariant", "prefill_chunk": -3}, "prefill_chunk is -3"),
        ({"level": "invariant", "prefill_chunk": 1.5}, "prefill_chunk is 1.5"),
    ],
)
def test_8_a_level_that_is_not_known_proves_nothing(
    llm: LLM, answer: Generation, asked: dict[str, object], words: str
) -> None:
    with pytest.raises(RequestError) as caught:
        llm.verify(answer, **asked)
    assert words in str(caught.value)


# 9: an answer knows its record.


def test_9_answers_are_verified_and_seen(llm: LLM, answer: Generation) -> None:
    others = llm.generate(["one", "two", "three"], SHORT)
    for choice in (0, 1):
        verdict = llm.verify(answer, choice=choice)
        assert verdict.is_exact and verdict.num_tokens == 4
    for each in others:
        assert llm.verify(each).is_exact
        other = llm.verify(each, level="invariant", prefill_chunk=2)
        assert other.borders is not None and other.borders.startswith("the prompt is cut at 2")
        assert llm.view(each, "tokens").payload
    lens = llm.view(answer, "lens", layer=1)
    assert lens.proof is not None and lens.proof.is_exact
    assert lens.as_json()["view"] == "lens" and lens.as_json()["is_exact"] is True
    assert json.dumps(lens.as_json())
    assert lens.view.question in str(lens) and "array(" not in repr(lens)
    assert "<pre>" in lens._repr_html_() and "<script" not in lens._repr_html_()
    said = llm.chat(HI, SHORT)
    assert "hi" in str(llm.view(said, "template"))


def test_9_what_has_no_record_says_so(llm: LLM, model: str, answer: Generation) -> None:
    with pytest.raises(RequestError, match="there are: characters"):
        llm.view(answer, "lense")
    with pytest.raises(RequestError, match="layer is 9"):
        llm.view(answer, "attention", layer=9)
    with pytest.raises(RequestError, match="lair is no field"):
        llm.view(answer, "attention", lair=1)
    with pytest.raises(ReplayError, match="choice is 2"):
        llm.verify(answer, choice=2)
    with LLM(model, dtype="float32", cache_tokens=256) as other:
        with pytest.raises(ReplayError, match="no record"):
            other.verify(answer)
        for text in ("x", "y", "z"):
            other.generate(text, SHORT)
        mine = llm.generate("q", SHORT)[0]
        with pytest.raises(ReplayError, match="not of this model"):
            other.verify(replace(mine, request_id="llm-1"))
    with LLM(model, dtype="float32", cache_tokens=256, ledger_bytes=0) as silent:
        with pytest.raises(ReplayError, match="raise ledger_bytes"):
            silent.verify(silent.generate("x", SHORT)[0])


# 10: both fronts have the same verbs.

VERBS = (
    *("generate", "chat", "stream", "stream_chat", "verify", "view", "encode", "encode_chat"),
    *("decode", "close"),
)


@pytest.mark.parametrize("verb", VERBS)
def test_10_both_fronts_take_the_same(verb: str) -> None:
    ours, theirs = (inspect.signature(getattr(front, verb)) for front in (LLM, AsyncLLM))
    assert str(ours.parameters) == str(theirs.parameters)


def test_10_public_verbs_of_one_are_those_of_the_other() -> None:
    def public(front: type) -> set[str]:
        return {name for name in vars(front) if not name.startswith("_")}

    # request, requests, generation: for programs that speak to the engine itself, as a server does.
    own = {"engine", "request", "requests", "generation"}
    service = {"ask", "look", "listen", "compare", "follow"}
    assert public(LLM) - own == {*VERBS, "sampling"}
    assert public(AsyncLLM) - service == {*VERBS, "sampling", "lora"}, "LLM sets its own lora"


def test_10_the_async_front_answers_as_the_other(llm: LLM, model: str) -> None:
    async def body() -> None:
        async with AsyncLLM(model, dtype="float32", cache_tokens=1024) as other:
            many = await other.generate(["one", "two"], SHORT)
            assert [a.token_ids for a in many] == [
                a.token_ids for a in llm.generate(["one", "two"], SHORT)
            ]
            said = await other.chat(HI, SHORT)
            assert said.token_ids == llm.chat(HI, SHORT).token_ids
            assert (await other.verify(said)).is_exact
            assert (await other.view(said, "lens", layer=1)).proof.is_exact
            assert other.decode(other.encode("abc")) == "abc"
            assert repr(other).startswith("AsyncLLM('")
            with pytest.raises(RequestError):
                await other.generate(["fine", ""], SHORT)
            assert await other.generate("after", SHORT)

    asyncio.run(body())


def test_10_what_is_closed_says_so(model: str) -> None:
    with LLM(model, dtype="float32", cache_tokens=256) as llm:
        answer = llm.generate("abc", SHORT)[0]
        stream = llm.stream("abc", SHORT)
        next(stream)
        assert "parameters, float32 on cpu" in repr(llm)
    assert repr(llm) == "LLM(closed)"
    for call in (
        lambda: next(stream),
        lambda: llm.generate("abc"),
        lambda: llm.verify(answer),
        lambda: llm.view(answer, "tokens"),
        lambda: llm.encode("abc"),
    ):
        with pytest.raises(EngineClosedError):
            call()
    llm.close()


def test_24_what_is_closed_is_freed_and_given_back(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_back: list[bool] = []
    monkeypatch.setattr(front, "give_back_freed", lambda: given_back.append(engine() is None))
    llm = LLM(model, dtype="float32", cache_tokens=256)
    engine = weakref.ref(llm.engine)
    llm.view(llm.generate("abc", SHORT)[0], "lens", layer=1)
    gc.collect()
    llm.close()
    gc.collect()
    assert engine() is None and len(given_back) == 1
    give_back_freed()


def test_10_a_log_probability_says_its_token(llm: LLM, answer: Generation) -> None:
    assert [each.text for each in answer.prompt_logprobs if each] == ["b", "c"]
    for score in answer.logprobs:
        assert llm.decode([score.token_id]) == score.text


# 4, 18: what is typed.


def test_4_settings_have_names_and_types() -> None:
    config = get_type_hints(EngineConfig)
    told = get_type_hints(EngineSettings)
    assert list(told) == [each.name for each in fields(EngineConfig)]
    assert {name: str(kind | None) for name, kind in config.items() if name in told} == {
        name: str(kind) for name, kind in told.items()
    }
    assert [*get_type_hints(ViewPlaces)] == [each.name for each in fields(Query)]


def test_18_one_stop_string_and_several_are_texts() -> None:
    assert SamplingParams(stop="\n").stop == ("\n",)
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")
    assert str(get_type_hints(SamplingParams)["stop"]) == "collections.abc.Sequence[str]"


# 12: packed weights do not call themselves float32 alone.


def test_12_packed_weights_are_told(model: str) -> None:
    from cutaway.kernels import capture

    if not capture.is_available():
        pytest.skip("no native kernels here")
    with LLM(model, cache_tokens=256) as llm:
        assert "packed weights in 8 bits" in repr(llm)
        assert "packed weights in 8 bits" in llm._repr_html_()
