"""Engines with stores behind their pages say what they would say without."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tiny
from cutaway.cache.stores import HostPages
from cutaway.core.errors import ConfigError
from cutaway.core.request import Request, SamplingParams
from cutaway.engine.build import build_engine
from cutaway.engine.config import EngineConfig
from cutaway.engine.engine import Engine
from cutaway.engine.pages.page_stores import stores_of
from cutaway.replay.recorded_answers import verify_answer
from engines import engine, loaded, run, workload

HOST_BYTES = 10**7


def prompts(count: int, length: int = 60) -> list[Request]:
    chance = random.Random(5)
    return [
        Request(
            request_id=f"p{number}",
            prompt_token_ids=tuple(chance.randrange(256) for _ in range(length)),
            params=SamplingParams(temperature=0.8, seed=number, max_tokens=6, ignore_eos=True),
        )
        for number in range(count)
    ]


def with_host(**settings: Any) -> Engine:
    """An engine of few pages over a host's memory of many: two pools of the CPU stand for both."""
    made = engine(loaded(), num_pages=22, host_cache_bytes=HOST_BYTES, **settings)
    made.attach(stores_of(made, None, None))
    return made


def one_by_one(target: Engine, requests: list[Request]) -> list[Any]:
    return [run(target, [request])[request.request_id, 0] for request in requests]


def found(answers: list[Any]) -> list[int]:
    return [answer.last.usage.cached_tokens for answer in answers]


def test_what_leaves_the_cache_is_found_in_the_hosts_memory() -> None:
    asked = prompts(6)
    plain, backed = engine(loaded(), num_pages=22), with_host()
    expected = one_by_one(plain, asked + asked)
    answers = one_by_one(backed, asked + asked)
    assert [a.essence for a in answers] == [a.essence for a in expected]
    assert found(expected)[6:] == [0] * 6, "six prompts do not fit in 21 pages"
    assert found(answers)[6:] == [56] * 6
    stats = backed.cache_stats
    assert stats.restored > 20 and backed.cache.moves.stores[0].stats.found == stats.restored


@pytest.mark.parametrize("seed", range(4))
def test_crowds_over_few_pages_say_what_they_say_alone(seed: int) -> None:
    requests = workload(seed, count=10)
    alone = engine(loaded())
    expected = {
        key: answer for request in requests for key, answer in run(alone, [request]).items()
    }
    backed = with_host()
    for _ in range(2):  # the second time most is found again
        answers = run(backed, requests, arrivals=range(0, 20, 2))
        assert {k: a.essence for k, a in answers.items()} == {
            k: a.essence for k, a in expected.items()
        }
    assert backed.cache_stats.restored


def test_scale_s33_spoilt_pages_are_computed_again() -> None:
    asked = prompts(6)
    backed = with_host()
    expected = [answer.essence for answer in one_by_one(backed, asked)]
    store = backed.cache.moves.stores[0]
    assert isinstance(store, HostPages)
    for slots in store._slots:
        slots[:, 100] ^= 0xFF
    answers = one_by_one(backed, asked)
    assert [answer.essence for answer in answers] == expected
    assert store.stats.spoilt and backed.cache_stats.restored < 20


def test_an_answer_over_restored_pages_verifies() -> None:
    """Who wrote a page before says nothing of what was put back there."""
    backed = with_host()
    asked = prompts(6)
    one_by_one(backed, asked)
    again = [replace(request, request_id=f"{request.request_id}-again") for request in asked]
    assert found(one_by_one(backed, again)) == [56] * 6
    assert backed.ledger is not None
    for request in again:
        answer = backed.ledger.find(request.request_id)
        assert answer is not None and verify_answer(backed, answer).is_exact


def native(folder: Path, *, changes: dict[str, Any] | None = None, **settings: Any) -> Engine:
    path = folder / "config.json"
    wide = {"hidden_size": 64, "head_dim": 16, "intermediate_size": 128}
    path.write_text(json.dumps(tiny.config(**wide, **(changes or {}))), encoding="utf-8")
    given = {"cache_tokens": 2048, "page_size": 8, "device": "cpu", **settings}
    return build_engine(f"random:{path}", EngineConfig.of(given))


def test_prompts_are_found_after_a_restart(tmp_path: Path) -> None:
    asked, pages = prompts(3), str(tmp_path / "pages")
    first = native(tmp_path, disk_cache=pages)
    expected = one_by_one(first, asked)
    first.close()
    second = native(tmp_path, disk_cache=pages)
    answers = one_by_one(second, asked)
    assert [a.essence for a in answers] == [a.essence for a in expected]
    assert found(expected) == [0, 0, 0] and found(answers) == [56, 56, 56]
    assert second.cache.moves.stores[0].stats.spoilt == 0
    second.close()


@pytest.mark.parametrize(
    "other",
    [
        {"kv_dtype": "int8"},
        {"page_size": 16},
        {"dtype": "float32"},
        {"override": ("rope_theta=9",)},
    ],
    ids=str,
)
def test_scale_s35_another_layout_or_model_finds_nothing(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    asked, pages = prompts(2), str(tmp_path / "pages")
    first = native(tmp_path, disk_cache=pages)
    one_by_one(first, asked)
    first.close()
    second = native(tmp_path, disk_cache=pages, **other)
    plain = native(tmp_path, **other)
    answers = one_by_one(second, asked)
    assert found(answers) == [0, 0]
    assert [a.essence for a in answers] == [a.essence for a in one_by_one(plain, asked)]
    second.close()


def test_owners_find_nothing_of_one_another_on_a_disk(tmp_path: Path) -> None:
    (asked,), pages = prompts(1), str(tmp_path / "pages")
    first = native(tmp_path, disk_cache=pages)
    run(first, [asked])
    first.close()
    second = native(tmp_path, disk_cache=pages)
    salted = Request(
        request_id="other",
        prompt_token_ids=asked.prompt_token_ids,
        params=asked.params,
        cache_salt=b"bob",
    )
    assert found(one_by_one(second, [salted])) == [0]
    second.close()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"host_cache_bytes": -1}, "host_cache_bytes is -1; it must be at least 0"),
        ({"disk_cache_bytes": -1}, "disk_cache_bytes is -1; it must be at least 0"),
        ({"disk_cache": "x", "prefix_cache": False}, "prefix_cache is false"),
        ({"disk_cache": "x", "tensor": 2}, 'tensor is 2 and disk_cache is "x"; ranks do not'),
        ({"host_cache_bytes": 9, "pipeline": 2}, "pipeline is 2 and host_cache_bytes is 9"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineConfig(**settings)


def test_another_configuration_of_the_same_weights_finds_nothing(tmp_path: Path) -> None:
    """What positions turn by is in no weight."""
    asked, pages = prompts(1), str(tmp_path / "pages")
    (tmp_path / "a").mkdir()
    first = native(tmp_path / "a", disk_cache=pages)
    one_by_one(first, asked)
    first.close()
    (tmp_path / "b").mkdir()
    second = native(tmp_path / "b", changes={"rope_theta": 9.0}, disk_cache=pages)
    assert second.fingerprints == first.fingerprints
    assert found(one_by_one(second, asked)) == [0]
    second.close()
