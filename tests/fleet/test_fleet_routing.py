"""Where a fleet sends requests, without engines: balance, caches, turns, and bounded memory."""

from __future__ import annotations

import os
import random
import tracemalloc
from collections import Counter
from itertools import count

import pytest

from cutaway.fleet.owner_turns import Turns
from cutaway.fleet.prefixes import ENTRY_BYTES, MOST_BYTES, Prefixes
from cutaway.fleet.routing import EngineLoad, EngineWanted, FleetRouter

SECRET = b"secret of a test"


def router_of(members: int, *, tokens: int = 100_000, seed: int = 0, **loads: int) -> FleetRouter:
    prefixes = Prefixes(SECRET, page_size=16)
    made = FleetRouter(prefixes, chance=random.Random(seed))
    for number in range(members):
        settings = {"max_sequences": 64, "step_tokens": 2048, **loads}
        load = EngineLoad(str(number), rate=1000.0, **settings)
        made.loads[load.name] = load
        prefixes.join(load.name, tokens)
    return made


def wanted(
    router: FleetRouter, prompt: list[int], *, owner: str = "", salt: bytes = b""
) -> EngineWanted:
    keys = router.prefixes.keys(prompt, salt)
    return EngineWanted(owner=owner, num_tokens=len(prompt), keys=keys)


def test_scale_s22_cold_requests_are_spread_evenly() -> None:
    router = router_of(4)
    sent: Counter[str] = Counter()
    for number in range(4000):
        prompt = [number, *range(40)]
        (binding,) = router.bindings([wanted(router, prompt)])
        sent[binding.load.name] += 1
        router.leave(binding)
    chi_square = sum((sent[str(m)] - 1000) ** 2 / 1000 for m in range(4))
    assert chi_square < 16.27, f"{sent}: chance alone gives more once in 1,000 times (3 degrees)"


def test_scale_s26_affinity_never_drowns_one_engine() -> None:
    """Zipf prompts: half of all share one beginning of 1,024 tokens."""
    router, chance = router_of(4), random.Random(3)
    beginnings = [[100 + tree] * 1024 for tree in range(50)]
    weights = [1 / (rank + 1) ** 1.2 for rank in range(50)]
    work: Counter[str] = Counter()
    open_: list = []
    waiting: list[EngineWanted] = []
    for number in range(3000):
        prompt = [*chance.choices(beginnings, weights)[0], *([number] * 300)]
        waiting.append(wanted(router, prompt))
        for binding in router.bindings(list(waiting)):
            waiting.remove(binding.wanted)
            work[binding.load.name] += binding.missing + 500  # an answer of some length
            open_.append(binding)
        while len(open_) > 24 or (waiting and open_):
            router.leave(open_.pop(0))
    assert not waiting or open_
    mean = sum(work.values()) / 4
    assert max(work.values()) <= 1.3 * mean, f"{work}"


def test_scale_s26_prompts_that_many_ask_for_do_not_come_to_lie_in_one_engine() -> None:
    """As bench/fleet_hits.py asks, and each is answered before the next comes: none is busy."""
    busiest: list[float] = []
    for seed in range(6):
        router, chance = router_of(4, tokens=8192, seed=seed), random.Random(seed)
        weights = [1 / rank for rank in range(1, 61)]
        sent: Counter[str] = Counter()
        for number in range(600):
            (family,) = chance.choices(range(60), weights)
            prompt = [*([100 + family] * 512), *([number] * 64)]
            (binding,) = router.bindings([wanted(router, prompt)])
            sent[binding.load.name] += 1
            router.leave(binding)
        busiest.append(max(sent.values()) / 150)
    assert sum(busiest) / 6 <= 1.25, f"{busiest}: by chance alone it is 1.5"


def test_an_engine_that_joins_late_is_not_flooded() -> None:
    router = router_of(2)
    for number in range(3000):  # more than one rescaling of what was given
        (binding,) = router.bindings([wanted(router, [number, *range(40)])])
        router.leave(binding)
    late = EngineLoad("late", 64, 2048, rate=1000.0)
    router.prefixes.join("late", 100_000)
    router.join(late)
    sent: Counter[str] = Counter()
    for number in range(300):
        (binding,) = router.bindings([wanted(router, [number, *range(50)])])
        router.leave(binding)
        sent[binding.load.name] += 1
    assert max(sent.values()) - min(sent.values()) <= 40, f"{sent}"


def test_a_known_beginning_is_worth_a_short_wait_and_no_long_one() -> None:
    router = router_of(2)
    prompt = [7] * 1024
    (first,) = router.bindings([wanted(router, prompt)])
    router.begin(first)
    (second,) = router.bindings([wanted(router, [*prompt, 1, 2, 3])])
    assert second.load is first.load and second.why == "cache"
    first.load.waiting_tokens = 40_000
    (third,) = router.bindings([wanted(router, [*prompt, 4, 5, 6])])
    assert third.load is not first.load, "four times 1,027 tokens are less than that wait"


def test_who_waits_for_a_busy_engine_counts_as_waiting_there() -> None:
    router = router_of(2, step_tokens=64)
    prompt = [7] * 1024
    (first,) = router.bindings([wanted(router, prompt)])
    queue = [wanted(router, [*prompt, *([number] * 200)]) for number in range(60)]
    bound = list(router.bindings(queue))
    other = [each for each in bound if each.load is not first.load]
    assert other, "the queue for the first became longer than computing all of it elsewhere"


def test_scale_s24_an_engine_that_starts_anew_has_nothing() -> None:
    prefixes = Prefixes(SECRET, page_size=16)
    prefixes.join("a", 10_000)
    keys = prefixes.keys([1] * 640, b"")
    prefixes.note("a", keys)
    assert prefixes.found_tokens("a", keys) == 640
    prefixes.join("a", 10_000)
    assert prefixes.found_tokens("a", keys) == 0


def test_scale_s24_what_was_not_found_corrects_the_guess() -> None:
    router = router_of(1)
    prompt = [1] * 1280
    (first,) = router.bindings([wanted(router, prompt)])
    old = router.prefixes.keys([2] * 1280, b"")
    router.leave(first)
    (second,) = router.bindings([wanted(router, prompt)])
    assert second.estimated == 1280 - 1 or second.estimated == 1280
    router.prefixes.note("0", old)
    router.learn(second, cached_tokens=0)
    assert (router.estimated_tokens, router.found_tokens) == (second.estimated, 0)
    again = router.prefixes.keys(prompt, b"")
    assert router.prefixes.found_tokens("0", again) == 1280, "it is being computed now"


def test_correcting_forgets_what_was_used_before() -> None:
    prefixes = Prefixes(SECRET, page_size=16)
    prefixes.join("a", 100_000)
    old, new = (prefixes.keys([number] * 640, b"") for number in (1, 2))
    use = prefixes.note("a", old)
    prefixes.note("a", new)
    prefixes.correct("a", use)
    assert prefixes.found_tokens("a", old) == 0
    assert prefixes.found_tokens("a", new) == 640


def test_an_engine_is_credited_with_no_more_than_it_holds() -> None:
    prefixes = Prefixes(SECRET, page_size=16)
    prefixes.join("a", 640)
    first, second = (prefixes.keys([number] * 640, b"") for number in (1, 2))
    prefixes.note("a", first)
    prefixes.note("a", second)
    assert len(prefixes) == 10
    assert prefixes.found_tokens("a", second) == 640
    assert prefixes.found_tokens("a", first) == 0


def test_of_a_prompt_the_end_is_dropped_first() -> None:
    prefixes = Prefixes(SECRET, page_size=16)
    prefixes.join("a", 64 * 15)
    long, short = (prefixes.keys([number] * 64 * 10, b"") for number in (1, 2))
    prefixes.note("a", long)
    prefixes.note("a", short)
    assert prefixes.found_tokens("a", long) == 64 * 5
    assert prefixes.found_tokens("a", short) == 64 * 10


@pytest.mark.timeout(300)
def test_scale_s23_f5_the_index_is_flat_after_many_unique_prompts() -> None:
    """CUTAWAY_ROUTED_PROMPTS=1000000 is the whole bar; fewer fill the index several times over."""
    most, quarter = 2 * 2**20, int(os.environ.get("CUTAWAY_ROUTED_PROMPTS", "200000")) // 4
    prefixes = Prefixes(SECRET, page_size=16, most_bytes=most)
    for name in "ab":
        prefixes.join(name, 10**9)
    numbers = count()
    tracemalloc.start()
    try:
        sizes: list[int] = []
        for _ in range(4):
            for _ in range(quarter):
                name = "ab"[next(numbers) % 2]
                prefixes.note(name, [next(numbers).to_bytes(16, "big")])
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert quarter > 2 * (most // ENTRY_BYTES) >= 2 * len(prefixes)
    assert max(sizes) <= most, "an entry takes no more than it is counted for"
    assert max(sizes) - min(sizes) < most // 50, "flat"
    assert MOST_BYTES == 64 * 2**20


def test_scale_s25_f5_owners_find_nothing_of_one_another() -> None:
    router = router_of(3)
    prompt = [5] * 2048
    (mine,) = router.bindings([wanted(router, prompt, salt=b"me")])
    router.leave(mine)
    chosen: Counter[str] = Counter()
    for _ in range(900):
        theirs = wanted(router, prompt, salt=b"them")
        assert all(router.prefixes.found_tokens(n, theirs.keys) == 0 for n in router.loads)
        (binding,) = router.bindings(
            [EngineWanted(owner="them", num_tokens=2048, keys=theirs.keys)]
        )
        chosen[binding.load.name] += 1
        router.leave(binding)
        router.prefixes.leave(binding.load.name)
        router.prefixes.join(binding.load.name, 100_000)
        router.prefixes.note(mine.load.name, mine.wanted.keys)
    assert min(chosen.values()) > 230, f"{chosen}: where my prompt is says nothing to them"


def test_turns_go_round_owners_by_what_they_have() -> None:
    turns: Turns[EngineWanted] = Turns()
    many = [EngineWanted("many", 10) for _ in range(6)]
    few = [EngineWanted("few", 10) for _ in range(2)]
    for each in (*many, *few):
        turns.add(each)
    assert [w.owner for w in turns.in_order(4)] == ["many", "few", "many", "few"]
    turns.bind(many[0])
    assert next(turns.in_order(1)).owner == "few"
    turns.release(many[0])
    begun = EngineWanted("many", 10, has_begun=True)
    turns.add(begun)
    assert next(turns.in_order(1)) is begun, "whoever had begun goes before all"


def test_random_turns_and_bindings_leave_nothing_behind() -> None:
    for seed in range(30):
        chance = random.Random(seed)
        router, turns = (
            router_of(3, max_sequences=4, step_tokens=100, seed=seed),
            Turns[EngineWanted](),
        )
        open_: list = []
        for _ in range(300):
            if chance.random() < 0.5:
                prompt = [chance.randrange(3)] * chance.randint(1, 400)
                each = wanted(router, prompt, owner=str(chance.randrange(4)))
                each.num_answers = chance.choice([1, 1, 3])
                turns.add(each)
            if open_ and chance.random() < 0.5:
                binding = open_.pop(chance.randrange(len(open_)))
                router.leave(binding)
                turns.release(binding.wanted)
            load = router.loads[str(chance.randrange(3))]
            load.is_open = chance.random() < 0.8
            for binding in router.bindings(turns.in_order(8)):
                assert binding.load.is_open
                turns.bind(binding.wanted)
                open_.append(binding)
        for load in router.loads.values():
            load.is_open = True
        while len(turns) or open_:
            bound = list(router.bindings(turns.in_order(8)))
            for binding in bound:
                turns.bind(binding.wanted)
            open_ += bound
            assert open_, "somebody is bound while there is room"
            binding = open_.pop()
            router.leave(binding)
            turns.release(binding.wanted)
        for load in router.loads.values():
            assert (load.bound, load.waiting_tokens, dict(load.owners)) == (0, 0, {})
