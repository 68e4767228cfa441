"""Places and pages that are used again and again: nobody reads what another left, and NaN stays.

What an answer is, to the last bit of its log-probabilities, is taken from an engine in which it
was alone. A page that is handed out is full of NaN until its new holder has written it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from test_engine_hostile import SIZES, VOCAB

import tiny
from cutaway import LLM
from cutaway.core.errors import NumericsError
from cutaway.core.output import Delta
from cutaway.core.request import Request
from cutaway.engine.engine import Engine
from cutaway.kernels import capture
from cutaway.weights.random import RandomWeights
from engines import workload
from trials import ran, seed, trials

pytestmark = pytest.mark.skipif(
    not capture.is_available(), reason="the native kernels are not built: run `make native`"
)

POISON = VOCAB - 1  # a token whose embedding is not finite; no benign prompt has it
Said = list[tuple[Any, ...]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("recycled") / "config.json"
    path.write_text(json.dumps(tiny.config(vocab_size=VOCAB, **SIZES)))
    return f"random:{path}"


def opened(model: str, **more: Any) -> Engine:
    settings = {"page_size": 8, "max_sequences": 12, "prefill_chunk": 32, "cache_tokens": 320}
    return LLM(model, **{**settings, **more}).engine


def asked(number: int) -> Request:
    """One of many requests, each with words of its own at the start of its prompt."""
    chance = Random(number)
    (each,) = workload(number, count=1)
    canary = tuple(chance.randrange(256) for _ in range(9))
    params = replace(each.params, logprobs=2, n=1, max_tokens=chance.randint(1, 30))
    owner = chance.choice(("alice", "bob"))
    return replace(
        each,
        request_id=f"r{number}",
        prompt_token_ids=canary + each.prompt_token_ids,
        params=params,
        owner=owner,
        cache_salt=owner.encode(),
    )


def essence(delta: Delta) -> tuple[Any, ...]:
    return delta.token_ids, delta.text, delta.logprobs, delta.finish_reason


def alone(model: str, requests: list[Request]) -> dict[str, Said]:
    """What each is told in an engine that does nothing else and caches nothing."""
    target, said = opened(model, prefix_cache=False), dict[str, Said]()
    for request in requests:
        target.add(request)
        while target.has_work:
            said.setdefault(request.request_id, []).extend(map(essence, target.step()))
    return {name: joined(deltas) for name, deltas in said.items()}


def joined(deltas: Said) -> Said:
    """The same, however it was cut into steps."""
    tokens = [token for delta in deltas for token in delta[0]]
    text = "".join(delta[1] for delta in deltas)
    logprobs = [each for delta in deltas for each in delta[2]]
    return [(tokens, text, logprobs, deltas[-1][3])]


def spoil_what_is_handed_out(target: Engine) -> None:
    """Fill each page with NaN when it gets a new holder."""
    for group, allocator in enumerate(target.scheduler.cache.allocators):

        def take(
            *words: Any, honest: Any = allocator.take, group: int = group, **more: Any
        ) -> int | None:
            page = honest(*words, **more)
            for layer in target.runner.pool.layers if page is not None else ():
                if layer.group == group:
                    for pages in layer.fields.values():
                        pages[page] = float("nan")
            return page

        allocator.take = take  # type: ignore[method-assign]


def test_recycled_places_and_pages_show_nothing_of_who_had_them(model: str) -> None:
    chance, count = Random(seed(7)), trials(300)
    requests = [asked(number) for number in range(100)]
    expected = alone(model, requests)
    target = opened(model)
    spoil_what_is_handed_out(target)
    said: dict[str, Said] = {}
    lives = ended = aborted = 0
    while lives < count or target.has_work:
        while lives < count and len(said) < 16 and chance.random() < 0.7:
            number = chance.randrange(len(requests))
            request = replace(requests[number], request_id=f"{lives}.r{number}")
            said[request.request_id] = []
            target.add(request)
            lives += 1
        if said and chance.random() < 0.1:
            name = chance.choice(list(said))
            target.abort(name)
            aborted += 1
        for delta in target.step():
            said[delta.request_id].append(essence(delta))
            if delta.finish_reason is None:
                continue
            (got,) = joined(said.pop(delta.request_id))
            (right,) = expected[delta.request_id.partition(".")[2]]
            if got[3] == "abort":
                assert got[0] == right[0][: len(got[0])], delta.request_id
                assert got[2] == right[2][: len(got[2])], delta.request_id
            else:
                assert got == right, delta.request_id
                ended += 1
    assert target.cache_stats.used == 0
    preempted = target.scheduler.num_preemptions
    assert ended > count // 2 and aborted > count // 60 and preempted > count // 100
    assert target.cache_stats.hit_tokens > 0 and target.cache_stats.evictions > 0
    ran(lives, total_preempted=preempted, total_aborted=aborted)


def spoil_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the embedding of one token numbers that are not finite, in models opened from now on."""
    honest = RandomWeights.tensor

    def tensor(self: RandomWeights, name: str) -> torch.Tensor:
        made = honest(self, name)
        if "embed_tokens" in name:
            made[POISON, ::7] = float("nan")
        return made

    monkeypatch.setattr(RandomWeights, "tensor", tensor)


def spoil(target: Engine, name: str, where: str, value: float) -> bool:
    """Put a number that is not finite where one request alone reads it, once it runs."""
    for sequence in target.scheduler.running:
        if sequence.request.request_id != name or not sequence.num_computed_tokens:
            continue
        if where == "kv":
            group = target.runner.pool.layers[0].group
            page = sequence.tables.groups[group].pages[-1]
            if target.scheduler.cache.allocators[group].references(page) != 1:
                return False
            for pages in target.runner.pool.layers[0].fields.values():
                pages[page] = value
        return True
    return False


@pytest.mark.parametrize("where", ["logits", "kv", "weights"])
def test_a_number_that_is_not_finite_ends_its_own_request_alone(
    model: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance, count = Random(seed(23)), trials(15)
    if where == "weights":
        spoil_one_row(monkeypatch)
    target, twin = opened(model, cache_tokens=2048), opened(model, cache_tokens=2048)
    honest = target.runner.run
    victim, value, armed = "", 0.0, False

    def run(batch: Any, *further: Any) -> torch.Tensor:
        logits = honest(batch, *further)
        for index, scheduled in enumerate(batch.scheduled):
            if armed and where == "logits" and scheduled.sequence.request.request_id == victim:
                for row in batch.sample_rows(index):
                    logits[row, chance.randrange(VOCAB)] = value
        return logits

    target.runner.run = run  # type: ignore[method-assign]
    for number in range(count):
        batch = [replace(asked(1000 + 8 * number + i), request_id=f"r{i}") for i in range(8)]
        batch = [replace(each, params=replace(each.params, min_tokens=1)) for each in batch]
        slot, value = chance.randrange(8), chance.choice((float("nan"), float("inf")))
        victim, armed = f"r{slot}", where == "logits"
        bad = batch[slot]
        bad = replace(bad, params=replace(bad.params, max_tokens=9, ignore_eos=True, stop=()))
        batch[slot] = bad
        expected = told(twin, batch, None)
        if where == "weights":
            poisoned = (*bad.prompt_token_ids[:-1], POISON)
            batch[slot] = replace(bad, prompt_token_ids=poisoned)
        when = chance.randrange(1, 4) if where == "kv" else 1
        got = told(target, batch, (victim, where, value, when))
        last = got.pop(victim)[-1]
        assert last[3] == "error" and last[4] is NumericsError, (number, last)
        expected.pop(victim)
        assert got == expected, f"batch {number}"
        pool = (field for layer in target.runner.pool.layers for field in layer.fields.values())
        assert all(bool(torch.isfinite(field).all()) for field in pool), "it was not zeroed"
        armed = False
        # What was spoilt is not found again: asked once more, it is answered as if never asked.
        once_more = [replace(bad, request_id="again")]
        assert told(target, once_more, None) == told(twin, once_more, None)
        assert target.cache_stats.used == 0
    ran(count)


def told(target: Engine, requests: list[Request], fault: Any) -> dict[str, Said]:
    """All that is said about each; fault: whom to spoil, where, with what, from which step on."""
    said: dict[str, Said] = {}
    for request in requests:
        target.add(request)
    steps = 0
    is_spoilt = fault is None or fault[1] != "kv"
    while target.has_work:
        steps += 1
        if not is_spoilt and steps > fault[3]:
            is_spoilt = spoil(target, *fault[:3])
        for delta in target.step():
            said.setdefault(delta.request_id, []).append(
                (*essence(delta), type(delta.error), str(delta.error))
            )
    return said
