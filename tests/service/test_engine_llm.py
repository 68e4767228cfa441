"""The fronts for programs, over a folder in the Hugging Face layout with random weights."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path

import pytest

import tiny
from cutaway import LLM, AsyncLLM, SamplingParams
from cutaway.core.errors import (
    ConfigError,
    ContextLengthError,
    EngineClosedError,
    ReplayError,
    RequestError,
    TemplateError,
)
from cutaway.core.looks import ComparisonRequest, EventBatch, ViewRequest
from cutaway.core.output import Delta
from cutaway.service import inbox
from cutaway.service.llm import Generation

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
GREEDY = SamplingParams(temperature=0.0, max_tokens=12)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    values = tiny.config(vocab_size=300, eos_token_id=256)
    (path / "config.json").write_text(json.dumps(values))
    (path / "chat_template.jinja").write_text(TEMPLATE)
    return path


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return LLM(f"random:{folder}/config.json", dtype="float32", cache_tokens=4096)


def test_generate_keeps_the_order_of_the_prompts(llm: LLM) -> None:
    prompts = ["one", "two and more", "three"]
    together = llm.generate(prompts, GREEDY)
    for prompt, generation in zip(prompts, together, strict=True):
        assert bytes(generation.prompt_token_ids).decode() == prompt
        assert generation.token_ids == llm.generate(prompt, GREEDY)[0].token_ids


def test_token_ids_are_a_prompt_as_well(llm: LLM) -> None:
    as_text = llm.generate("abc", GREEDY)[0]
    assert llm.generate([97, 98, 99], GREEDY)[0].token_ids == as_text.token_ids
    both = llm.generate([[97, 98, 99], "abc"], GREEDY)
    assert [g.token_ids for g in both] == [as_text.token_ids] * 2


def test_results_have_what_was_asked_for(llm: LLM) -> None:
    plain = llm.generate("abc", GREEDY)[0]
    assert plain.logprobs is None and plain.prompt_logprobs is None
    params = SamplingParams(temperature=0.0, max_tokens=3, logprobs=2, prompt_logprobs=0, n=2)
    full = llm.generate("abc", params)[0]
    assert len(full.choices) == 2
    assert len(full.logprobs) == len(full.token_ids)
    assert all(len(score.top) == 2 for score in full.logprobs)
    assert len(full.prompt_logprobs) == 3
    assert full.usage.prompt_tokens == 3
    assert full.timings.first_token >= full.timings.prefill >= 0


def test_one_params_for_each_prompt(llm: LLM) -> None:
    short, long = (SamplingParams(max_tokens=n, ignore_eos=True) for n in (2, 5))
    got = llm.generate(["a", "b"], [short, long])
    assert [len(g.token_ids) for g in got] == [2, 5]
    with pytest.raises(RequestError, match="1 entries for 2 prompts"):
        llm.generate(["a", "b"], [short])


def test_a_bad_prompt_stops_the_call_before_anything_runs(llm: LLM) -> None:
    with pytest.raises(RequestError, match="prompt has no tokens"):
        llm.generate(["fine", ""], GREEDY)
    with pytest.raises(ContextLengthError):
        llm.generate(["fine", "x" * 300], GREEDY)
    assert not llm.engine.scheduler.has_work
    assert llm.generate("fine", GREEDY)


def test_stream_gives_what_generate_gives(llm: LLM) -> None:
    deltas = list(llm.stream("abc", GREEDY))
    whole = llm.generate("abc", GREEDY)[0]
    assert tuple(i for d in deltas for i in d.token_ids) == whole.token_ids
    assert "".join(d.text for d in deltas) == whole.text
    assert [d.finish_reason for d in deltas[:-1]] == [None] * (len(deltas) - 1)
    assert deltas[-1].finish_reason == whole.finish_reason


def test_streams_share_steps_and_may_be_left(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    first, second = llm.stream("abc", params), llm.stream("xyz", params)
    next(first), next(second)
    assert llm.engine.scheduler.num_running == 2
    first.close()
    rest = [i for d in second for i in d.token_ids]
    assert rest == list(llm.generate("xyz", params)[0].token_ids)[1:]
    assert llm.engine.cache_stats.used == 0


def test_chat_writes_the_template(llm: LLM) -> None:
    messages = [{"role": "user", "content": "hi"}]
    generation = llm.chat(messages, GREEDY)
    assert bytes(generation.prompt_token_ids).decode() == "[user]hi\n[assistant]"
    streamed = [i for d in llm.stream_chat(messages, GREEDY) for i in d.token_ids]
    assert tuple(streamed) == generation.token_ids
    with pytest.raises(RequestError, match="role"):
        llm.chat([{"content": "hi"}])


def test_a_model_without_template_says_so(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    bare = LLM(f"random:{tmp_path}/config.json", cache_tokens=256)
    with pytest.raises(TemplateError, match="no chat template"):
        bare.chat([{"role": "user", "content": "hi"}])


def test_an_unknown_setting_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean page_size"):
        LLM("smollm2", page_sise=16)
    with pytest.raises(ConfigError, match='dtype is "fp8"; it must be one of float32'):
        LLM("smollm2", dtype="fp8")
    for name in ("page_size", "max_sequences", "max_tokens_per_step", "prefill_chunk"):
        with pytest.raises(ConfigError, match=f"{name} is 0; it must be at least 1"):
            LLM("smollm2", **{name: 0})


def test_ids_without_text_print_as_numbers(llm: LLM) -> None:
    forced = SamplingParams(temperature=0.0, max_tokens=2, logit_bias={290: 100.0})
    assert llm.generate("abc", forced)[0].text == "<290><290>"


async def _gather(folder: Path) -> None:
    async with AsyncLLM(f"random:{folder}/config.json", dtype="float32", cache_tokens=4096) as llm:
        prompts = ["one", "two and more", "three"]
        together = await llm.generate(prompts, GREEDY)
        again = [(await llm.generate(p, GREEDY))[0] for p in prompts]
        assert [g.token_ids for g in together] == [g.token_ids for g in again]
        with pytest.raises(ContextLengthError):
            await llm.generate("x" * 300, GREEDY)
        long = SamplingParams(max_tokens=200, ignore_eos=True)
        task = asyncio.create_task(llm.generate("abc", long))
        await llm.generate("other", GREEDY)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        stream = llm.stream("abc", long)
        assert (await anext(stream)).token_ids
        await stream.aclose()
        assert await llm.generate("after", GREEDY)
        assert llm._llm.engine.cache_stats.used == 0
        messages = [{"role": "user", "content": "hi"}]
        chat = [d async for d in llm.stream_chat(messages, GREEDY)]
        assert chat[-1].finish_reason


def test_coroutines_share_one_engine(folder: Path) -> None:
    asyncio.run(_gather(folder))


async def _read_slowly(folder: Path) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True)
    async with AsyncLLM(f"random:{folder}/config.json", dtype="float32", cache_tokens=4096) as llm:
        expected = (await llm.generate("slow", params))[0].token_ids
        said: list[int] = []
        async for delta in llm.stream("slow", params):
            is_first = not said
            said += delta.token_ids
            if is_first:
                while not await llm.ask(lambda engine: engine.scheduler.num_waiting):
                    await asyncio.sleep(0)
                made = await llm.ask(lambda engine: engine.num_steps)
                assert not await llm.ask(lambda engine: engine.has_work), "it stands still"
                assert await llm.ask(lambda engine: engine.num_steps) == made
        assert said == list(expected)
        assert not await llm.ask(lambda engine: engine.cache_stats.used)


def test_a_slow_reader_in_the_same_process_is_held_at_its_own_answer(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "MOST_UNREAD", 8)
    asyncio.run(asyncio.wait_for(_read_slowly(folder), 60))


async def _close_early(folder: Path) -> None:
    llm = AsyncLLM(f"random:{folder}/config.json", dtype="float32", cache_tokens=4096)
    long = SamplingParams(max_tokens=200, ignore_eos=True)
    stream = llm.stream("abc", long)
    await anext(stream)
    await llm.close()
    with pytest.raises(EngineClosedError):
        async for _ in stream:
            pass
    with pytest.raises(EngineClosedError):
        await llm.generate("abc", long)


def test_closing_ends_open_answers_with_an_error(folder: Path) -> None:
    asyncio.run(_close_early(folder))


async def _close_over_looks(folder: Path) -> None:
    llm = AsyncLLM(f"random:{folder}/config.json", dtype="float32", cache_tokens=4096)
    request = llm._llm.request("abc", GREEDY)
    assert [delta async for delta in llm.follow(request)]
    place = {"request_id": request.request_id, "choice": 0, "owner": request.owner}
    bounds = {"max_bytes": 2**28, "max_flops": 10**12}
    asked = ViewRequest(**place, **bounds, view="residual", places={}, is_json=True, is_cost=False)
    tried = ComparisonRequest(
        **place, **bounds, change="seed=1", num_runs=1, price=None, max_tokens=None
    )

    async def compared() -> list[EventBatch]:
        return [batch async for batch in llm.compare(tried)]

    gate = threading.Event()
    tasks = [asyncio.create_task(llm.ask(lambda _: gate.wait()))]  # the engine's thread stands
    tasks += [asyncio.create_task(each) for each in (llm.look(asked), compared())]
    await asyncio.sleep(0)  # each has asked
    tasks.append(asyncio.create_task(llm.close()))
    await asyncio.sleep(0)
    gate.set()
    async with asyncio.timeout(120):
        _, *waited, _ = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(each) for each in waited] == [EngineClosedError] * 2


def test_closing_ends_looks_and_comparisons_that_wait(folder: Path) -> None:
    asyncio.run(_close_over_looks(folder))


def test_another_event_loop_goes_on_where_one_ended_with_a_request_in_flight(folder: Path) -> None:
    llm = AsyncLLM(f"random:{folder}/config.json", dtype="float32", cache_tokens=4096)
    engine = llm._llm.engine
    is_done, may_tell, step = threading.Event(), threading.Event(), engine.step

    def held_back() -> list[Delta]:
        deltas = step()
        is_done.set()
        may_tell.wait()
        return deltas

    async def leave() -> None:
        stream = llm.stream("abc", SamplingParams(max_tokens=200, ignore_eos=True))
        task = asyncio.ensure_future(anext(stream))
        await asyncio.to_thread(is_done.wait)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def again() -> list[Generation]:
        async with llm:
            return await llm.generate("abc", GREEDY)

    engine.step = held_back  # its news are told when nobody's event loop runs any more
    asyncio.run(leave())
    engine.step = step
    may_tell.set()
    assert asyncio.run(again())[0].token_ids
    assert engine.cache_stats.used == 0


def test_what_a_question_raises_is_raised_by_ask(folder: Path) -> None:
    async def body() -> None:
        async with AsyncLLM(f"random:{folder}/config.json", dtype="float32") as llm:
            beside = asyncio.create_task(llm.generate("abc", GREEDY))
            for kind in (ZeroDivisionError, MemoryError, ReplayError):
                with pytest.raises(kind):
                    await llm.ask(lambda _, kind=kind: _raise(kind()))
            with pytest.raises(RuntimeError, match="StopIteration"):
                await llm.ask(lambda _: _raise(StopIteration()))
            (one,), (other,) = await beside, await llm.generate("abc", GREEDY)
            assert one.token_ids == other.token_ids

    asyncio.run(body())


def _raise(error: Exception) -> None:
    raise error


def test_closing_tells_everybody_although_one_cannot_be_told(folder: Path) -> None:
    async def body() -> None:
        llm = AsyncLLM(f"random:{folder}/config.json", dtype="float32", cache_tokens=4096)
        gate = threading.Event()
        tasks = [asyncio.create_task(llm.ask(lambda _: gate.wait()))]
        tasks += [asyncio.create_task(llm.generate(text, GREEDY)) for text in ("one", "two")]
        await asyncio.sleep(0)
        llm._submit(lambda: llm._open.update(deaf=lambda _: _raise(RuntimeError())))
        llm._submit(lambda: _raise(RuntimeError()))
        tasks.append(asyncio.create_task(llm.close()))
        await asyncio.sleep(0)
        gate.set()
        async with asyncio.timeout(120):
            _, *waited, _ = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(each) for each in waited] == [EngineClosedError] * 2

    asyncio.run(body())
