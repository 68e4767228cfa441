"""How much each engine has to do, as routers of others read it."""

from __future__ import annotations

from dataclasses import replace

from cutaway.server.watching.loads import tell_loads
from cutaway.service.service import EngineStats, FleetStats, ReplicaStats

ONE = EngineStats(
    running=3,
    waiting=2,
    pages_used=10,
    pages_total=40,
    page_size=16,
    max_sequences=8,
    hit_tokens=25,
    query_tokens=100,
)


def test_one_engine_is_rank_0() -> None:
    told = tell_loads(ONE)
    assert told["loads"] == [
        {
            "dp_rank": 0,
            "num_running_reqs": 3,
            "num_waiting_reqs": 2,
            "num_total_reqs": 5,
            "num_used_tokens": 160,
            "max_total_num_tokens": 640,
            "max_running_requests": 8,
            "token_usage": 0.25,
            "cache_hit_rate": 0.25,
        }
    ]
    assert told["dp_rank_count"] == 1
    assert told["aggregate"] == {
        "total_running_reqs": 3,
        "total_waiting_reqs": 2,
        "total_reqs": 5,
        "avg_token_usage": 0.25,
    }


def test_engines_of_a_fleet_keep_their_numbers_where_one_tells_none() -> None:
    fleet = FleetStats(
        replicas=(
            ReplicaStats(name="0", state="ready", numbers=ONE),
            ReplicaStats(name="1", state="failed"),
            ReplicaStats(name="2", state="ready", numbers=replace(ONE, running=1, pages_used=30)),
        ),
        waiting=7,
        resumed={},
        routes={},
        estimated_tokens=0,
        found_tokens=0,
    )
    told = tell_loads(EngineStats(running=4, waiting=11, fleet=fleet))
    loads = told["loads"]
    assert isinstance(loads, list)
    assert [each["dp_rank"] for each in loads] == [0, 2]
    assert told["aggregate"] == {
        "total_running_reqs": 4,
        "total_waiting_reqs": 11,
        "total_reqs": 15,
        "avg_token_usage": 0.5,
    }


def test_an_engine_that_has_just_begun_divides_by_nothing() -> None:
    (load,) = tell_loads(EngineStats())["loads"]  # type: ignore[misc, attr-defined]
    assert load["token_usage"] == load["cache_hit_rate"] == 0.0
