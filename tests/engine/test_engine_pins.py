"""Pinned prefixes: found whatever comes, by everybody, and nothing behind them by anybody else."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tiny
from cutaway.core.errors import ConfigError
from cutaway.core.request import Request, SamplingParams
from cutaway.engine.build import build_engine
from cutaway.engine.config import EngineConfig
from cutaway.engine.engine import Engine
from cutaway.engine.pages.pins import MOST_BYTES, parse_pins
from cutaway.replay.recorded_answers import verify_answer
from engines import engine, loaded, run, workload

SYSTEM = tuple(range(1, 45))  # 5 pages of 8 and half of one


def pinned_engine(num_pages: int = 45, *, model: Any = None, **settings: Any) -> Engine:
    config = EngineConfig(page_size=8, **settings)
    return ready(Engine(model or loaded(), config, num_pages=num_pages, pinned=[("shop", SYSTEM)]))


def ready(target: Engine) -> Engine:
    """An engine whose pinned prefixes are computed, which tells nobody of them."""
    while target.has_work:
        assert target.step() == []
    return target


def ask(number: int, *, salt: bytes = b"", begin: tuple[int, ...] = SYSTEM) -> Request:
    chance = random.Random(number)
    own = tuple(chance.randrange(256) for _ in range(20))
    params = SamplingParams(temperature=0.7, seed=number, max_tokens=5, ignore_eos=True)
    name = f"r{number}-{salt.hex()}-{len(begin)}"
    return Request(
        request_id=name,
        prompt_token_ids=(*begin, *own),
        params=params,
        cache_salt=salt,
        owner=salt.hex(),
    )


def cached(target: Engine, request: Request) -> int:
    last = run(target, [request])[request.request_id, 0].last
    assert last is not None and last.usage is not None
    return last.usage.cached_tokens


def flood(target: Engine, count: int = 12) -> None:
    """More prompts than all pages hold, of nobody who has the prefix."""
    for number in range(count):
        begin = tuple((17 * number + 3 * place) % 251 for place in range(1, 51))
        run(target, [ask(1000 + number, begin=begin)])


def test_a_pinned_prefix_is_there_after_a_flood() -> None:
    plain, pinned = engine(loaded(), num_pages=45), pinned_engine()
    for target in (plain, pinned):
        cached(target, ask(0))
        flood(target)
    assert cached(plain, ask(1)) == 0
    assert cached(pinned, ask(1)) == 40
    assert pinned.cache_stats.evictions


def test_answers_are_what_they_are_without_it() -> None:
    plain, pinned = engine(loaded()), pinned_engine(200)
    requests = [
        replace(each, prompt_token_ids=(*SYSTEM[: 8 * (n % 7)], *each.prompt_token_ids))
        for n, each in enumerate(workload(7, count=14))
    ]
    ours, theirs = run(pinned, requests), run(plain, requests)
    assert {k: a.essence for k, a in ours.items()} == {k: a.essence for k, a in theirs.items()}
    assert pinned.ledger is not None
    for record in [each for each in pinned.ledger.answers if each.tokens]:
        assert verify_answer(pinned, record).is_exact


def test_all_owners_find_it_and_none_what_another_said_behind_it() -> None:
    target = pinned_engine(200)
    alice, bob = (ask(5, salt=salt) for salt in (b"alice", b"bob"))
    assert [cached(target, each) for each in (alice, bob)] == [40, 40]
    again = [replace(each, request_id=f"{each.request_id}-again") for each in (alice, bob)]
    assert [cached(target, each) for each in again] == [56, 56]
    other = ask(6, salt=b"alice")
    assert cached(target, other) == 40
    assert target.pins.cards[0].found == 5


def test_the_longest_of_several_counts() -> None:
    pinned = [("short", SYSTEM[:16]), ("long", SYSTEM[:32])]
    target = ready(Engine(loaded(), EngineConfig(page_size=8), num_pages=60, pinned=pinned))
    run(target, [ask(1)])
    assert [(card.name, card.found) for card in target.pins.cards] == [("short", 0), ("long", 1)]
    assert cached(target, ask(2, begin=SYSTEM[:20])) == 16


def test_what_is_pinned_is_listed_with_its_bytes_and_told_to_nobody() -> None:
    config = EngineConfig(page_size=8)
    target = Engine(loaded(), config, num_pages=45, pinned=[("shop", SYSTEM)])
    (card,) = target.pins.cards
    assert (card.name, card.num_tokens, card.num_pages, card.is_ready) == ("shop", 40, 5, False)
    assert card.num_bytes == 5 * sum(target.runner.pool.page_bytes)
    assert ready(target).pins.cards[0].is_ready
    stats = target.cache_stats
    assert (stats.pinned, stats.used, stats.cached) == (5, 5, 0)
    assert target.cache.allocators[0].owners() == {}, "they count for nobody"


@pytest.mark.parametrize("window", [16, 24])
def test_windows_keep_what_a_prompt_behind_it_sees(tmp_path: Path, window: int) -> None:
    values = tiny.config(sliding_window=window, model_type="mistral")
    values["architectures"] = ["MistralForCausalLM"]
    (tmp_path / "config.json").write_text(json.dumps(values), encoding="utf-8")
    config = EngineConfig(dtype="float64", device="cpu", cache_tokens=480, page_size=8)
    target = build_engine(f"random:{tmp_path}/config.json", config)
    target.pin("shop", SYSTEM)
    ready(target)
    cached(target, ask(0))
    flood(target)
    assert cached(target, ask(1)) == 40
    assert 0 < target.cache_stats.pinned <= window // 8 + 1


def test_the_longest_sequence_fits_beside_what_is_pinned() -> None:
    target = pinned_engine(21)
    assert target.max_length == 160 - len(SYSTEM)
    longest = replace(
        ask(1, begin=(7,) * 60),
        params=SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True),
    )
    answer = run(target, [longest])[longest.request_id, 0]
    assert answer.last is not None and answer.last.finish_reason == "length"
    assert len(answer.token_ids) == target.max_length - 80
    with pytest.raises(ConfigError, match=r"pin \"more\" takes 2 pages, and 0 are left beside"):
        target.pins.begin("more", tuple(range(16)))


def test_prefixes_that_cannot_be_pinned_are_refused() -> None:
    target = pinned_engine(100)
    with pytest.raises(ConfigError, match=r"pin \"tiny\" has 7 tokens, and a page has 8"):
        target.pins.begin("tiny", range(7))
    with pytest.raises(ConfigError, match=r"pin \"shop\" is there already"):
        target.pins.begin("shop", range(8))
    with pytest.raises(ConfigError, match="prefix_cache is false"):
        EngineConfig(pin=("a=b",), prefix_cache=False)


def test_settings_name_a_file_of_text(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("Be kind.")
    (tmp_path / "b").write_bytes(b"\xff\xfe")
    (tmp_path / "c").write_bytes(b"x" * (MOST_BYTES + 1))
    assert parse_pins([f"shop={tmp_path}/a"]) == [("shop", "Be kind.")]
    for given, message in (
        ("shop", "it must be NAME=FILE"),
        (f"x={tmp_path}/none", "No such file"),
        (f"x={tmp_path}/b", "is not UTF-8"),
        (f"x={tmp_path}/c", "at most 1048576 are read"),
    ):
        with pytest.raises(ConfigError, match=message):
            parse_pins([given])


def test_other_weights_pin_nothing() -> None:
    target = pinned_engine()
    run(target, [ask(0)])
    target.renew_weights()
    assert target.pins.cards == () and target.cache_stats.pinned == 0
    assert cached(target, ask(1)) == 0
