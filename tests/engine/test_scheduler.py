"""What a step computes, in which order, and what happens when pages, slots or budget run out."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import replace

import pytest

from cutaway.cache.paged import PagedCache
from cutaway.cache.prefix import root_key
from cutaway.core.errors import ConfigError, ContextLengthError
from cutaway.core.layout import CacheField, CacheSpec, Full, Window, group_layers
from cutaway.core.request import Request, SamplingParams
from cutaway.engine.admission import shares
from cutaway.engine.admission.shares import share_beside
from cutaway.engine.scheduler import Scheduled, Scheduler, SchedulerConfig
from cutaway.engine.sequence import Sequence


def make_scheduler(
    *,
    pages: int = 64,
    max_sequences: int = 8,
    max_tokens: int = 64,
    chunk: int = 64,
    max_prompt: int | None = None,
    shared: int | None = None,
    extents: Items[Full | Window] = (Full(),),
    prefix_cache: bool = True,
) -> Scheduler:
    """A scheduler over pages of 8 tokens, the scratch page not counted."""
    specs = [CacheSpec((CacheField(f"key{i}", (1,)),), e) for i, e in enumerate(extents)]
    cache = PagedCache(
        group_layers(specs),
        num_pages=[pages + 1] * len(specs),
        page_size=8,
        prefix_cache=prefix_cache,
    )
    config = SchedulerConfig(
        max_sequences=max_sequences,
        max_tokens_per_step=max_tokens,
        prefill_chunk=chunk,
        max_prompt_tokens=max_prompt,
        shared_tokens=shared,
    )
    return Scheduler(config, cache)


def make_sequence(
    prompt: int | Items[int],
    answer: int = 4,
    *,
    name: str = "r",
    choice: int = 0,
    owner: str = "",
    adapter: str = "",
    prompt_logprobs: int | None = None,
) -> Sequence:
    """A sequence whose prompt, when given as a length, is unlike any other name's."""
    ids = (
        [sum(name.encode()) * 1000 + i for i in range(prompt)]
        if isinstance(prompt, int)
        else prompt
    )
    request = Request(
        request_id=name,
        prompt_token_ids=tuple(ids),
        params=SamplingParams(max_tokens=answer, prompt_logprobs=prompt_logprobs),
        cache_salt=owner.encode(),
        owner=owner,
    )
    return Sequence(
        request=request,
        choice=choice,
        seed=0,
        max_length=len(ids) + answer,
        cache_root=root_key(owner, adapter),
    )


def answer_token(sequence: Sequence) -> int:
    """The fake model: depends on all tokens before, and on nothing else."""
    return hash(tuple(sequence.token_ids)) % 1000


def step(scheduler: Scheduler) -> list[Scheduled]:
    """One step in which no draft is accepted; sequences end at their longest."""
    steps = scheduler.schedule()
    for each in steps:
        sequence = each.sequence
        if each.samples:
            sequence.token_ids.append(answer_token(sequence))
        scheduler.complete(each, each.count - each.num_drafts)
        if sequence.num_tokens >= min(sequence.max_length, scheduler.capacity_tokens):
            scheduler.finish(sequence)
    return steps


def run(scheduler: Scheduler, *sequences: Sequence, limit: int = 1000) -> int:
    """Add sequences and step until all have ended; how many steps it took."""
    for sequence in sequences:
        scheduler.add(sequence)
    for number in range(limit):
        if not scheduler.has_work:
            assert scheduler.schedule() == []
            return number
        step(scheduler)
    raise AssertionError("no end in sight")


def scheduled_of(sequence: Sequence, count: int) -> Scheduled:
    return Scheduled(sequence, sequence.num_computed_tokens, count, 0, True)


def shape(steps: list[Scheduled]) -> list[tuple[str, int, int]]:
    return [(s.sequence.request.request_id, s.start, s.count) for s in steps]


# The order within a step


def test_a_step_takes_decodes_then_prompts_then_waiting_ones() -> None:
    scheduler = make_scheduler(max_tokens=32, chunk=16)
    scheduler.add(make_sequence(40, name="long"))
    scheduler.add(make_sequence(5, name="short"))
    assert shape(step(scheduler)) == [("long", 0, 16), ("short", 0, 5)]
    scheduler.add(make_sequence(40, name="late"))
    assert shape(step(scheduler)) == [("short", 5, 1), ("long", 16, 16), ("late", 0, 15)]
    assert shape(step(scheduler)) == [("short", 6, 1), ("long", 32, 8), ("late", 15, 16)]
    assert shape(step(scheduler)) == [("long", 40, 1), ("short", 7, 1), ("late", 31, 9)]


def test_only_the_last_chunk_wants_logits() -> None:
    scheduler = make_scheduler(chunk=7)
    sequence = make_sequence(16)
    scheduler.add(sequence)
    steps = [step(scheduler)[0] for _ in range(4)]
    assert [(s.start, s.count, s.samples) for s in steps] == [
        (0, 7, False), (7, 7, False), (14, 2, True), (16, 1, True)]  # fmt: skip
    assert all(s.num_drafts == 0 for s in steps)


def test_slots_and_budget_limit_admission() -> None:
    scheduler = make_scheduler(max_sequences=2, max_tokens=10)
    for name in "abc":
        scheduler.add(make_sequence(8, name=name))
    assert shape(step(scheduler)) == [("a", 0, 8), ("b", 0, 2)]
    assert (scheduler.num_running, scheduler.num_waiting) == (2, 1)
    assert shape(step(scheduler)) == [("a", 8, 1), ("b", 2, 6)]
    assert [s.request.request_id for s in scheduler.waiting] == ["c"]
    assert [s.request.request_id for s in scheduler.running] == ["a", "b"]


def test_a_prompt_gets_a_token_beside_a_full_house_of_decodes() -> None:
    scheduler = make_scheduler(max_sequences=4, max_tokens=4, chunk=2)
    scheduler.add(make_sequence(60, name="long"))
    for name in "abc":
        scheduler.add(make_sequence(1, answer=30, name=name))
    for _ in range(25):
        assert "long" in [name for name, _, _ in shape(step(scheduler))]


# Drafts


def decoding(scheduler: Scheduler, *names: str, answer: int = 20) -> list[Sequence]:
    """Sequences of 4 tokens that have their first answer token."""
    sequences = [make_sequence(4, answer=answer, name=name) for name in names]
    for sequence in sequences:
        scheduler.add(sequence)
    while not all(s.num_output_tokens for s in sequences):
        step(scheduler)
    return sequences


def test_drafts_are_computed_behind_the_known_token() -> None:
    scheduler = make_scheduler()
    (sequence,) = decoding(scheduler, "a")
    sequence.draft_token_ids += [71, 72, 73]
    (scheduled,) = scheduler.schedule()
    assert (scheduled.start, scheduled.count, scheduled.num_drafts) == (4, 4, 3)
    assert scheduled.samples
    assert scheduled.token_ids == [sequence.token_ids[4], 71, 72, 73]


def test_accepted_drafts_stay_and_rejected_ones_are_rolled_back() -> None:
    scheduler = make_scheduler()
    (sequence,) = decoding(scheduler, "a")
    sequence.draft_token_ids += [71, 72, 73, 74, 75, 76]
    (scheduled,) = scheduler.schedule()
    assert sequence.tables is not None
    assert sequence.tables.groups[0].capacity == 16
    sequence.token_ids += [71, 72, 9]  # two accepted, then another token
    scheduler.complete(scheduled, 3)
    assert sequence.num_computed_tokens == 7 == sequence.num_tokens - 1
    assert sequence.draft_token_ids == []
    assert sequence.tables.groups[0].capacity == 8
    assert len(scheduler.cache.allocators[0].index) == 0


def test_drafts_past_the_longest_answer_are_dropped() -> None:
    scheduler = make_scheduler()
    (sequence,) = decoding(scheduler, "a", answer=4)
    sequence.draft_token_ids += [71, 72, 73, 74]
    (scheduled,) = scheduler.schedule()
    assert scheduled.num_drafts == 2, "with the sampled one, they fill the answer"
    assert sequence.draft_token_ids == [71, 72]


def test_drafts_leave_every_prompt_a_token_of_the_budget() -> None:
    scheduler = make_scheduler(max_sequences=3, max_tokens=6, chunk=8)
    a, b = decoding(scheduler, "a", "b")
    scheduler.add(make_sequence(30, name="long"))
    step(scheduler)
    a.draft_token_ids += [1, 2, 3]
    b.draft_token_ids += [1, 2, 3]
    steps = {s.sequence.request.request_id: s for s in scheduler.schedule()}
    assert steps["long"].count == 1
    assert (steps["a"].num_drafts, steps["b"].num_drafts) == (3, 0)
    assert b.draft_token_ids == []


def test_drafts_take_only_the_pages_that_are_left() -> None:
    scheduler = make_scheduler(pages=3)
    a, b = decoding(scheduler, "a", "b")
    a.draft_token_ids += [1] * 6
    b.draft_token_ids += [1] * 6
    steps = scheduler.schedule()
    assert [s.num_drafts for s in steps] == [6, 3], "the last page went to the first"
    assert scheduler.num_preemptions == 0


def test_nobody_is_preempted_for_a_draft() -> None:
    scheduler = make_scheduler(pages=2)
    a, b = decoding(scheduler, "a", "b", answer=4)
    a.max_length = b.max_length = 30
    a.draft_token_ids += [1] * 9
    steps = scheduler.schedule()
    assert [s.num_drafts for s in steps] == [3, 0]
    assert b.tables is not None and scheduler.num_preemptions == 0


# Pages run out


def test_e10_the_youngest_gives_way_and_both_complete() -> None:
    scheduler = make_scheduler(pages=7, chunk=3)
    a, b = make_sequence(24, answer=16, name="a"), make_sequence(16, answer=16, name="b")
    run(scheduler, a, b)
    assert a.num_preemptions == 0
    assert b.num_preemptions == scheduler.num_preemptions > 0
    assert (a.num_output_tokens, b.num_output_tokens) == (16, 16)


@pytest.mark.parametrize("chunk", [1, 3, 64])
@pytest.mark.parametrize("extents", [[Full()], [Full(), Window(12, 2)], [Window(12, 2)]])
def test_e08_preemption_does_not_change_the_answers(chunk: int, extents: list) -> None:
    def answers(pages: int) -> tuple[list[list[int]], int]:
        scheduler = make_scheduler(pages=pages, chunk=chunk, extents=extents)
        sequences = [make_sequence(7 + 3 * i, answer=20, name=f"r{i}") for i in range(6)]
        steps = run(scheduler, *sequences)
        assert steps <= sum(s.max_length for s in sequences)
        assert scheduler.cache.stats.used == 0
        return [s.output_token_ids for s in sequences], scheduler.num_preemptions

    plenty, none = answers(pages=64)
    scarce, some = answers(pages=6)
    assert scarce == plenty
    assert none == 0 and (some > 0 or extents == [Window(12, 2)])


def test_e08_a_preempted_sequence_keeps_its_output_and_its_turn() -> None:
    scheduler = make_scheduler(pages=4, prefix_cache=False)
    a, b, c = (make_sequence(8, answer=24, name=name) for name in "abc")
    for each in (a, b, c):
        scheduler.add(each)
    while not scheduler.num_preemptions:
        step(scheduler)
    assert scheduler.waiting[0] is b, "it had been admitted before c came into question"
    assert b.tables is None and b.num_computed_tokens == 0 and b.num_output_tokens > 0
    kept = b.output_token_ids
    while b.tables is None:
        step(scheduler)
    assert b.output_token_ids[: len(kept)] == kept
    run(scheduler)
    assert b.num_cached_tokens == 0 and b.num_output_tokens == 24


def test_a_sequence_in_the_step_leaves_it_when_it_is_preempted() -> None:
    # "old" is still in its prompt and comes after "young", a decode, in the order of a step.
    scheduler = make_scheduler(pages=4, chunk=8, prefix_cache=False)
    old, young = make_sequence(16, answer=16, name="old"), make_sequence(3, answer=20, name="young")
    scheduler.add(old)
    step(scheduler)
    scheduler.add(young)
    step(scheduler)
    assert scheduler.cache.allocators[0].num_available == 1
    old.token_ids += [5] * 15  # as if its prompt had been longer
    scheduler.cache.allocators[0].take()
    steps = scheduler.schedule()
    assert shape(steps) == [("old", 16, 8)]
    assert young.tables is None and young.num_computed_tokens == 0
    assert scheduler.num_preemptions == 1


def test_the_youngest_waits_with_its_pages_when_only_older_ones_hold_more() -> None:
    scheduler = make_scheduler(pages=3, prefix_cache=False)
    a, b = make_sequence(9, answer=5, name="a"), make_sequence(6, answer=6, name="b")
    scheduler.add(a)
    step(scheduler)
    scheduler.add(b)
    run(scheduler)
    assert scheduler.num_preemptions == 0, "a never needed b's page, so b only had to wait"


def test_a_waiting_sequence_is_not_let_in_to_be_thrown_out() -> None:
    scheduler = make_scheduler(pages=4, prefix_cache=False)
    scheduler.add(make_sequence(14, answer=10, name="a"))
    step(scheduler)
    scheduler.add(make_sequence(9, answer=2, name="b"))
    # b's two pages are free, but a is about to need one of them.
    assert shape(step(scheduler)) == [("a", 14, 1)]
    run(scheduler)
    assert scheduler.num_preemptions == 0


def test_a_blocked_sequence_is_asked_again_only_when_pages_came_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []
    honest = PagedCache.admit
    monkeypatch.setattr(
        PagedCache, "admit", lambda *args, **kw: asked.append(1) or honest(*args, **kw)
    )
    scheduler = make_scheduler(pages=6)
    scheduler.add(make_sequence(30, answer=10, name="a"))
    step(scheduler)
    late = make_sequence(30, answer=3, name="late")
    scheduler.add(late)
    while not late.num_output_tokens:
        step(scheduler)
    assert len(asked) == 3, "once for a, once in vain, once when a had ended"


def test_a_blocked_sequence_is_asked_again_when_a_window_has_slid() -> None:
    # While a prompt is computed in chunks it holds pages that its window then lets go of.
    scheduler = make_scheduler(pages=9, max_tokens=70, extents=[Window(8)], prefix_cache=False)
    scheduler.add(make_sequence(60, answer=60, name="a"))
    assert shape(scheduler.schedule()) == [("a", 0, 60)]
    scheduler.add(make_sequence(30, answer=3, name="late"))
    (running,) = scheduler.running
    scheduler._blocked = scheduler.waiting[0], scheduler.cache.news_for("")  # as if asked now
    running.token_ids.append(1)
    scheduler.complete(scheduled_of(running, 60), 60)
    assert [name for name, _, _ in shape(step(scheduler))] == ["a", "late"]


# Owners


def flooded(**settings: int) -> tuple[Scheduler, list[Sequence]]:
    """A scheduler whose slots are all taken by one owner, in the middle of long answers."""
    scheduler = make_scheduler(**settings)
    flood = [make_sequence(8, answer=60, name=f"f{i}", owner="alice") for i in range(30)]
    for each in flood:
        scheduler.add(each)
    for _ in range(3):
        step(scheduler)
    return scheduler, flood


def test_a_newcomer_of_another_owner_gets_a_slot_and_its_prompt_in_the_next_step() -> None:
    scheduler, flood = flooded(pages=200, max_sequences=8, max_tokens=64)
    assert scheduler.num_running == 8
    oldest = scheduler.running[0]
    bob = make_sequence(24, answer=4, name="bob", owner="bob")
    scheduler.add(bob)
    steps = step(scheduler)
    assert ("bob", 0, 24) in shape(steps) and bob.num_output_tokens == 1
    assert oldest in [each.sequence for each in steps]
    assert [each.num_preemptions for each in flood[:8]] == [0] * 7 + [1], "the youngest gave way"
    while bob.num_output_tokens < 4:
        assert bob in [each.sequence for each in step(scheduler)]
    assert sum(each.num_preemptions for each in flood) == 1


def test_beside_a_prompt_of_who_has_less_the_others_get_few_tokens_and_in_turn() -> None:
    scheduler, _ = flooded(pages=400, max_sequences=30, max_tokens=512, chunk=64)
    bob = make_sequence(256, answer=4, name="bob", owner="bob")
    scheduler.add(bob)
    served: dict[str, int] = {}
    while not bob.num_output_tokens:
        steps = shape(step(scheduler))
        assert sum(count for name, _, count in steps if name != "bob") == 16
        assert scheduler.running[0].request.request_id in [name for name, _, _ in steps]
        for name, _, _ in steps:
            served[name] = served.get(name, 0) + 1
    assert served.pop("bob") == 4, "as many chunks as alone"
    assert len(served) == 29 and min(served.values()) >= 1


def begin_two_of_one_owner(prompts: tuple[int, int], **sizes: int) -> Scheduler:
    """Their first step is over. Of a window of one token a long chunk still needs every page."""
    scheduler = make_scheduler(extents=(Window(1),), prefix_cache=False, **sizes)
    scheduler.add(make_sequence(prompts[0], 9, name="a1", owner="a"))
    scheduler.add(make_sequence(prompts[1], 9, name="a2", owner="a"))
    step(scheduler)
    return scheduler


def test_where_a_prompt_of_who_has_less_gives_way_the_others_keep_to_the_rest_of_it() -> None:
    scheduler = begin_two_of_one_owner((8, 40), pages=5, max_sequences=4, max_tokens=40, chunk=16)
    scheduler.add(make_sequence(24, name="b1", owner="b"))
    scheduler.add(make_sequence(16, name="c1", owner="c"))
    # Beside 32 tokens there were 8; those of c1 went, for pages, and 4 stand beside the 16 of b1.
    assert shape(step(scheduler)) == [("a1", 8, 1), ("b1", 0, 16), ("a2", 16, 3)]
    assert shape(step(scheduler))[-1][:2] == ("a2", 19)  # nothing of a2 was lost


def test_beside_a_short_prompt_that_is_left_only_the_oldest_of_the_others_keeps_a_token() -> None:
    scheduler = begin_two_of_one_owner((8, 40), pages=4, max_sequences=4, max_tokens=40, chunk=16)
    scheduler.add(make_sequence(7, name="b1", owner="b"))
    scheduler.add(make_sequence(16, name="c1", owner="c"))
    # Beside 23 tokens there were 5; those of c1 went, and beside 7 a step of 8 has one left.
    assert shape(step(scheduler)) == [("a1", 8, 1), ("b1", 0, 7)]
    assert shape(step(scheduler)) == [("b1", 7, 1), ("a1", 9, 1), ("a2", 16, 3)]


def test_beside_a_prompt_for_which_an_answer_of_its_owner_gave_way_the_others_get_few() -> None:
    scheduler = make_scheduler(
        pages=14, max_sequences=5, max_tokens=40, chunk=1, prefix_cache=False
    )
    flood = [make_sequence(1, 90, name=name, owner="a") for name in ("a1", "a2", "a3")]
    for each in flood:
        scheduler.add(each)
    step(scheduler)
    prompt = make_sequence(25, 9, name="b1", owner="b")
    answer = make_sequence(1, 90, name="b2", owner="b")
    scheduler.add(prompt)
    scheduler.add(answer)
    while prompt.num_computed_tokens < 16:
        step(scheduler)
    for each in flood:
        each.draft_token_ids[:] = [7] * 8
    # b1 lacks a page for its token; that of b2, which had one already, is none of a prompt's.
    steps = shape(step(scheduler))
    assert answer.num_preemptions == 1
    assert sorted(steps) == [("a1", 17, 1), ("a2", 17, 1), ("a3", 17, 1), ("b1", 16, 1)]


def test_who_gives_way_in_the_step_of_its_admission_has_its_turn_back() -> None:
    scheduler = begin_two_of_one_owner((8, 24), pages=3, max_sequences=5, max_tokens=32, chunk=24)
    b, c = make_sequence(32, name="b1", owner="b"), make_sequence(40, name="c1", owner="c")
    scheduler.add(b)
    scheduler.add(c)
    step(scheduler)
    assert (b.num_preemptions, c.num_preemptions) == (1, 0)
    assert scheduler.waiting == (b, c)


def test_a_fifth_of_a_step_is_left_to_who_has_most() -> None:
    scheduler = make_scheduler(pages=400, max_sequences=8, max_tokens=100, chunk=100)
    for number, length in enumerate((90, 300)):
        scheduler.add(make_sequence(length, 9, name=f"alice{number}", owner="alice"))
    step(scheduler)
    scheduler.add(make_sequence(200, 4, name="bob", owner="bob"))
    counts = {name: count for name, _, count in shape(step(scheduler))}
    assert counts == {"bob": 80, "alice0": 1, "alice1": 19}, "and none of it is lost"


def test_long_prompts_of_one_owner_do_not_keep_anothers_first_token_waiting() -> None:
    scheduler = make_scheduler(pages=400, max_sequences=16, max_tokens=128, chunk=64)
    for number in range(12):
        scheduler.add(make_sequence(250, name=f"long{number}", owner="alice"))
    for _ in range(2):
        step(scheduler)
    bob = make_sequence(60, answer=2, name="bob", owner="bob")
    scheduler.add(bob)
    assert ("bob", 0, 60) in shape(step(scheduler))


def test_a_newcomer_waits_for_a_step_of_few_prompt_tokens() -> None:
    scheduler = make_scheduler(pages=400, max_tokens=512, chunk=100, max_prompt=128)
    for number in range(6):
        scheduler.add(make_sequence(250, name=f"long{number}", owner="alice"))
    assert [count for _, _, count in shape(step(scheduler))] == [100, 28]
    assert [count for _, _, count in shape(step(scheduler))] == [100, 28]
    scheduler.add(make_sequence(60, name="bob", owner="bob"))
    steps = shape(step(scheduler))
    assert ("bob", 0, 60) in steps and sum(count for _, _, count in steps) <= 60 + 16


def crowded() -> Scheduler:
    """Six long prompts of one owner, of which 128 tokens fit a step, or 32 while others come."""
    scheduler = make_scheduler(pages=4000, max_tokens=512, max_prompt=128, shared=32)
    for number in range(6):
        scheduler.add(make_sequence(4000, name=f"long{number}", owner="alice"))
    return scheduler


def num_prompt_tokens(scheduler: Scheduler) -> int:
    return sum(each.count for each in step(scheduler))


def test_while_others_come_the_prompts_of_a_crowd_take_short_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shares, "GUEST_STEPS", 20)
    scheduler = crowded()
    assert [num_prompt_tokens(scheduler) for _ in range(3)] == [128] * 3, "alone they are long"
    bob = make_sequence(100, answer=2, name="bob", owner="bob")
    scheduler.add(bob)
    assert num_prompt_tokens(scheduler) >= 64, "a prompt of who has less is no crowd's"
    while bob.tables is not None:
        step(scheduler)
    assert max(num_prompt_tokens(scheduler) for _ in range(18)) <= 32 + 6
    again = make_sequence(8, answer=1, name="again", owner="bob")
    scheduler.add(again)
    assert num_prompt_tokens(scheduler) <= 8 + share_beside(8)
    assert max(num_prompt_tokens(scheduler) for _ in range(18)) <= 32 + 6
    assert [num_prompt_tokens(scheduler) for _ in range(4)][-1] >= 128, "nobody else for long"


def test_while_others_come_the_answers_of_a_crowd_take_turns_and_leave_room_for_its_prompts() -> (
    None
):
    scheduler = make_scheduler(pages=4000, max_sequences=80, max_tokens=512, shared=32)
    for number in range(64):
        scheduler.add(make_sequence(4, answer=200, name=f"a{number}", owner="alice"))
    for _ in range(3):
        step(scheduler)
    assert len(step(scheduler)) == 64, "alone they are all in a step"
    bob = make_sequence(8, answer=1, name="bob", owner="bob")
    scheduler.add(bob)
    step(scheduler)
    assert bob.num_output_tokens == 1
    long = make_sequence(400, answer=1, name="long", owner="alice")
    scheduler.add(long)
    before = {each: each.num_output_tokens for each in scheduler.running}
    for _ in range(12):
        assert num_prompt_tokens(scheduler) <= 32
    gained = [each.num_output_tokens - num for each, num in before.items()]
    assert min(gained) >= 4 and max(gained) <= 12, "each has its turn"
    assert long.num_computed_tokens >= 8 * 8, "a prompt goes on beside them"


def test_who_has_one_running_and_more_waiting_is_a_crowd_too() -> None:
    """A prompt that takes whole steps, one of an owner's after another: the rest of them wait."""
    scheduler = make_scheduler(pages=4000, max_tokens=512, max_prompt=128, shared=32, chunk=128)
    scheduler.add(make_sequence(8, answer=1, name="bob", owner="bob"))
    step(scheduler)
    for number in range(3):
        scheduler.add(make_sequence(4000, name=f"long{number}", owner="alice"))
    assert [num_prompt_tokens(scheduler) for _ in range(4)] == [32] * 4
    assert scheduler.crowds == {"alice"}
    for each in (*scheduler.waiting, *scheduler.running[1:]):
        scheduler.finish(each)
    assert scheduler.crowds == set() and num_prompt_tokens(scheduler) == 128


def test_a_short_step_is_filled_up_beside_a_prompt_and_a_longer_one_by_a_fifth() -> None:
    counts = [(1, 7), (5, 3), (6, 2), (7, 1), (8, 2), (16, 4), (100, 25)]
    assert [(num, share_beside(num)) for num, _ in counts] == counts


def test_prompts_of_who_has_one_each_keep_long_steps() -> None:
    scheduler = make_scheduler(pages=400, max_tokens=512, max_prompt=128, shared=32)
    for number in range(4):
        scheduler.add(make_sequence(500, name=f"r{number}", owner=f"connection {number}"))
    assert [num_prompt_tokens(scheduler) for _ in range(4)] == [128] * 4


def test_pages_of_who_has_most_give_way_to_a_newcomer() -> None:
    scheduler = make_scheduler(pages=16, max_sequences=16, prefix_cache=False)
    for number in range(4):
        scheduler.add(make_sequence(28, answer=4, name=f"a{number}", owner="alice"))
    step(scheduler)
    bob = make_sequence(20, answer=4, name="bob", owner="bob")
    scheduler.add(bob)
    assert ("bob", 0, 20) in shape(step(scheduler))
    assert scheduler.running[0].request.request_id == "a0"


def test_nobody_gives_way_where_its_pages_only_fill_its_owners_share() -> None:
    scheduler = make_scheduler(pages=12, max_sequences=3)
    run(scheduler, make_sequence(40, 1, name="c1", owner="carol"))
    run(scheduler, make_sequence(32, 1, name="b1", owner="bob"))
    short = [make_sequence(3, 4, name=f"s{i}", owner="bob") for i in range(3)]
    for sequence in short:
        scheduler.add(sequence)
    step(scheduler)
    assert scheduler.cache.allocators[0].owners() == {"carol": 5, "bob": 7}
    # 7 pages: 5 of its own and one that is beyond Bob's share, which it is no more when the page
    # of one of his answers has come back.
    newcomer = make_sequence(49, 1, name="c2", owner="carol")
    scheduler.add(newcomer)
    step(scheduler)
    assert scheduler.num_preemptions == 0 and scheduler.running == tuple(short)
    assert run(scheduler) > 0 and newcomer.num_output_tokens == 1


def test_a_newcomer_takes_nothing_from_anybody_where_slots_and_pages_are_free() -> None:
    scheduler = make_scheduler(pages=60, max_sequences=8)
    prefix = [1] * 16
    run(scheduler, make_sequence([*prefix, 2], 1, name="b", owner="bob"))
    for number in range(4):
        scheduler.add(make_sequence(5, 9, name=f"a{number}", owner="alice"))
    step(scheduler)
    bob = make_sequence([*prefix, 3], 1, name="b2", owner="bob")
    scheduler.add(bob)
    step(scheduler)
    assert bob.num_output_tokens == 1 and bob.num_cached_tokens == 16
    assert scheduler.num_running == 4 and scheduler.num_preemptions == 0
    run(scheduler)
    assert scheduler.cache.stats.used == 0, "what was found for him was held once"


def test_the_oldest_goes_before_who_has_less() -> None:
    scheduler = make_scheduler(pages=400, max_sequences=8, max_tokens=20, chunk=12)
    oldest = make_sequence(300, name="oldest", owner="bob")
    for sequence in (oldest, make_sequence(9, 60, name="bob", owner="bob")):
        scheduler.add(sequence)
    step(scheduler)
    for number in range(3):
        scheduler.add(make_sequence(3, 60, name=f"alice{number}", owner="alice"))
    while scheduler.num_waiting:
        step(scheduler)
    scheduler.add(make_sequence(100, name="carol", owner="carol"))
    step(scheduler)
    counts = {name: count for name, _, count in shape(step(scheduler))}
    assert counts["oldest"] == 12 and counts.get("carol", 0) < 6, counts


def test_a_begun_step_goes_on_without_who_has_left_it() -> None:
    scheduler = make_scheduler()
    stays, left, further, held = (make_sequence(5, 9, name=f"r{number}") for number in range(4))
    for sequence in (stays, left, further, held):
        scheduler.add(sequence)
    step(scheduler)
    begun = (stays, left, further, held)
    starts = [sequence.num_computed_tokens for sequence in begun]
    scheduler.finish(left)
    further.token_ids.append(1)  # it has another token than the one that was begun with
    scheduler.hold(held, is_held=True)
    before = stays.last_step
    (only,) = scheduler.go_on(begun, starts)
    assert only.sequence is stays
    assert (only.start, only.count, only.num_drafts, only.samples) == (5, 1, 0, True)
    assert (stays.last_step, further.last_step) == (before + 1, before)
    scheduler.go_on(begun, starts)
    assert stays.last_step == before + 2, "each is a step of its own"


def test_whoever_is_held_gets_no_step_and_comes_before_all_that_wait() -> None:
    scheduler = make_scheduler(max_sequences=1)
    first, second = (make_sequence(20, 9, name=f"r{number}") for number in range(2))
    scheduler.add(first)
    step(scheduler)
    scheduler.add(second)
    scheduler.hold(first, is_held=False)  # it was not held: nothing is done
    assert scheduler.running == (first,)
    for _ in range(2):
        scheduler.hold(first, is_held=True)  # may be said again
    assert first.tables is None and first.num_computed_tokens == 0
    assert first not in scheduler.waiting and scheduler.num_waiting == 2 and scheduler.has_work
    assert shape(step(scheduler)) == [("r1", 0, 20)]
    scheduler.hold(second, is_held=True)
    assert not scheduler.has_work and scheduler.schedule() == []
    third = make_sequence(20, 9, name="r2")
    scheduler.add(third)
    scheduler.hold(second, is_held=False)
    assert shape(step(scheduler)) == [("r1", 16, 5)], "its full pages were found again"
    scheduler.hold(third, is_held=True)  # it waits
    assert third not in scheduler.waiting and not scheduler.may_admit
    for sequence in (first, second, third):
        scheduler.finish(sequence)
        scheduler.hold(sequence, is_held=True)  # it has ended
        scheduler.finish(sequence)  # may be said again
    assert not scheduler.has_work and scheduler.num_waiting == 0
    assert scheduler.cache.stats.used == 0


def test_whether_somebody_may_start_is_known_ahead() -> None:
    scheduler = make_scheduler(pages=9, max_sequences=2)
    first, second, third = (make_sequence(24, 30, name=f"r{number}") for number in range(3))
    assert not scheduler.may_admit, "nobody waits"
    scheduler.add(first)
    assert scheduler.may_admit
    step(scheduler)
    scheduler.add(second)
    step(scheduler)
    scheduler.add(third)
    assert scheduler.num_running == 2 and not scheduler.may_admit, "there is no slot"
    other = make_sequence(4, name="other", owner="other")
    scheduler.add(other)
    assert scheduler.may_admit, "who has less is given one"
    scheduler.finish(other)
    scheduler.finish(second)
    big = make_sequence(60, 2, name="big")
    scheduler.finish(third)
    scheduler.add(big)
    assert scheduler.may_admit, "it was not asked yet"
    step(scheduler)
    assert big.tables is None and not scheduler.may_admit, "it was told that pages are short"
    scheduler.finish(first)
    assert scheduler.may_admit


def test_two_owners_end_up_with_as_many_slots_and_do_not_drive_each_other_out() -> None:
    scheduler, _ = flooded(pages=400, max_sequences=8, max_tokens=128)
    for number in range(30):
        scheduler.add(make_sequence(8, answer=60, name=f"b{number}", owner="bob"))
    for _ in range(20):
        step(scheduler)
        owners = [each.owner for each in scheduler.running]
    assert sorted(owners) == ["alice"] * 4 + ["bob"] * 4
    assert scheduler.num_preemptions == 4


def test_prefixes_stay_where_they_were_while_another_floods_the_cache() -> None:
    scheduler = make_scheduler(pages=64, max_tokens=512, chunk=512)
    bob = make_sequence(100, answer=1, name="bob", owner="bob")
    run(scheduler, bob)
    flood = [make_sequence(120, answer=20, name=f"a{i}", owner="alice") for i in range(12)]
    run(scheduler, *flood)
    assert scheduler.cache.stats.evictions > 64
    again = make_sequence(100, answer=1, name="bob", owner="bob")
    run(scheduler, again)
    assert again.num_cached_tokens == 96


def test_whoever_runs_alone_may_take_all_that_is_cached() -> None:
    scheduler = make_scheduler(pages=16)
    run(scheduler, make_sequence(40, answer=1, name="bob", owner="bob"))
    alice = make_sequence(90, answer=37, name="alice", owner="alice")
    assert run(scheduler, alice) <= 39 and alice.num_output_tokens == 37


def test_where_anybody_may_ask_connections_share_as_owners_do() -> None:
    request = Request(request_id="r", prompt_token_ids=(1,), params=SamplingParams())
    assert replace(request, connection="7").sharer == "7"
    assert replace(request, owner="key", connection="7").sharer == "key"


# Requests that cannot be served


def test_e09_a_request_that_can_never_fit_is_refused_alone() -> None:
    scheduler = make_scheduler(pages=4)
    with pytest.raises(ContextLengthError) as caught:
        scheduler.add(make_sequence(40, name="huge"))
    assert str(caught.value) == (
        "prompt has 40 tokens and its answer at least 1; the cache holds at most 32 tokens of "
        "one sequence. Shorten the prompt, or give the cache more memory."
    )
    assert caught.value.param == "prompt"
    small = [make_sequence(6, name=name) for name in "abc"]
    run(scheduler, *small)
    assert all(s.num_output_tokens == 4 for s in small)


def test_e09_an_answer_that_cannot_fit_ends_at_capacity() -> None:
    scheduler = make_scheduler(pages=4)
    sequence = make_sequence(31, answer=100)
    other = make_sequence(8, answer=8, name="other")
    run(scheduler, sequence, other)
    assert sequence.num_tokens == 32 == scheduler.capacity_tokens
    assert other.num_output_tokens == 8


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ((0, 8, 8), "max_sequences is 0; it must be at least 1. "
                    "Set EngineConfig.max_sequences, or leave it out."),
        ((1, -1, 8), "max_tokens_per_step is -1; it must be at least 1. "
                     "Set EngineConfig.max_tokens_per_step, or leave it out."),
        ((1, 8, 0), "prefill_chunk is 0; it must be at least 1. "
                    "Set EngineConfig.prefill_chunk, or leave it out."),
        ((9, 8, 8), "max_tokens_per_step is 8; it must be at least max_sequences, 9, so that "
                    "every running sequence can get a token. Raise the one or lower the other."),
    ],
)  # fmt: skip
def test_settings_out_of_range_are_refused(config: tuple[int, int, int], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SchedulerConfig(
            max_sequences=config[0], max_tokens_per_step=config[1], prefill_chunk=config[2]
        )
    assert str(caught.value) == message


# Prefix hits


def test_a_warm_prefix_is_not_computed_again() -> None:
    scheduler = make_scheduler()
    cold, warm = make_sequence(range(20)), make_sequence(range(20))
    run(scheduler, cold)
    scheduler.add(warm)
    assert shape(step(scheduler)) == [("r", 16, 4)]
    assert (cold.num_cached_tokens, warm.num_cached_tokens) == (0, 16)
    run(scheduler)
    assert warm.output_token_ids == cold.output_token_ids


def test_e01_e02_adapters_and_their_reloads_share_no_prefix() -> None:
    scheduler = make_scheduler()
    for adapter in ("x load 1", "y load 2", "", "x load 3"):
        first = make_sequence(range(20), adapter=adapter)
        again = make_sequence(range(20), adapter=adapter)
        run(scheduler, first)
        run(scheduler, again)
        assert (first.num_cached_tokens, again.num_cached_tokens) == (0, 16)


@pytest.mark.parametrize("chunk", [1, 3, 16, 17, 64])
def test_e11_chunks_do_not_change_what_is_sampled(chunk: int) -> None:
    scheduler = make_scheduler(chunk=chunk)
    sequence = make_sequence(17, answer=8)
    scheduler.add(sequence)
    computed = 0
    while not sequence.num_output_tokens:
        (scheduled,) = scheduler.schedule()
        assert scheduled.start == computed and scheduled.count <= chunk
        assert scheduled.samples == (scheduled.start + scheduled.count == 17)
        if scheduled.samples:
            sequence.token_ids.append(answer_token(sequence))
        scheduler.complete(scheduled, scheduled.count)
        computed += scheduled.count
    assert computed == 17
    run(scheduler)
    whole = make_sequence(17, answer=8)
    run(make_scheduler(chunk=17), whole)
    assert sequence.output_token_ids == whole.output_token_ids


def test_e12_prompt_logprobs_are_computed_on_a_warm_prefix() -> None:
    scheduler = make_scheduler()
    run(scheduler, make_sequence(range(20)))
    sequence = make_sequence(range(20), prompt_logprobs=0)
    scheduler.add(sequence)
    assert shape(step(scheduler)) == [("r", 0, 20)]
    assert sequence.num_cached_tokens == 0
    run(scheduler)
    again = make_sequence(range(20))
    run(scheduler, again)
    assert again.num_cached_tokens == 16


# Ends


def test_full_pages_of_an_ended_answer_stay_findable() -> None:
    scheduler = make_scheduler()
    sequence = make_sequence(8, answer=9)
    run(scheduler, sequence)
    again = make_sequence([*sequence.token_ids, 1])
    run(scheduler, again)
    assert again.num_cached_tokens == 16


def test_a_sequence_may_end_wherever_it_stands_and_twice() -> None:
    scheduler = make_scheduler(max_sequences=2)
    choices = [make_sequence(9, name="r", choice=i) for i in range(4)]
    other = make_sequence(9, name="other")
    for each in (*choices[:2], other, *choices[2:]):
        scheduler.add(each)
    step(scheduler)
    for each in (*choices, *choices):
        scheduler.finish(each)
    assert (scheduler.num_running, scheduler.num_waiting) == (0, 1)
    assert scheduler.cache.stats.used == 0
    run(scheduler)
    assert other.num_output_tokens == 4


def test_a_sequence_that_ends_during_the_step_is_not_completed() -> None:
    scheduler = make_scheduler()
    gone, other = make_sequence(20, name="gone"), make_sequence(20, name="other")
    scheduler.add(gone)
    scheduler.add(other)
    steps = scheduler.schedule()
    scheduler.finish(gone)
    for each in steps:
        each.sequence.token_ids.append(1)
        scheduler.complete(each, each.count)
    assert gone.num_computed_tokens == 0
    assert len(scheduler.cache.allocators[0].index) == 2, "only what is complete can be found"
    run(scheduler)
    assert other.num_output_tokens == 4


def test_a_failed_sequence_leaves_nothing_to_find() -> None:
    scheduler = make_scheduler()
    bad, good = make_sequence(20, name="bad"), make_sequence(20, name="good")
    scheduler.add(bad)
    scheduler.add(good)
    step(scheduler)
    assert bad.tables is not None
    pages = set(bad.tables.groups[0].pages)
    scheduler.schedule()
    assert set(scheduler.spoil(bad)[0]) == pages
    scheduler.finish(bad)
    again = make_sequence(20, name="bad")
    scheduler.add(again)
    assert again.num_cached_tokens == 0
    assert good.tables is not None


def test_fairness_a_flood_delays_others_by_a_round_and_a_slot() -> None:
    scheduler = make_scheduler(pages=200, max_sequences=4, max_tokens=64)
    for number in range(1000):
        scheduler.add(make_sequence(8, answer=4, name=f"flood{number}", owner="flood"))
    step(scheduler)
    others = [make_sequence(8, answer=4, name=f"o{i}", owner=f"o{i}") for i in range(9)]
    for each in others:
        scheduler.add(each)
    waited = 0
    while not all(s.num_output_tokens for s in others):
        step(scheduler)
        waited += 1
    # 9 others and as many turns of the flood as rounds begun, 4 slots that turn over in 4 steps.
    assert waited <= 4 * 3 + 1


# Faults


def test_k_th_allocation_failure_all_finish_and_pages_come_back() -> None:
    def workload(fail_at: int) -> tuple[int, list[list[int]]]:
        scheduler = make_scheduler(pages=9, chunk=9, extents=[Full(), Window(12, 1)])
        calls = 0
        for allocator in scheduler.cache.allocators:

            def take(owner: str, honest=allocator.take) -> int | None:
                nonlocal calls
                calls += 1
                return None if calls == fail_at else honest(owner)

            allocator.take = take
        sequences = [make_sequence(10 + 7 * i, answer=12, name=f"r{i}") for i in range(4)]
        run(scheduler, *sequences)
        stats = scheduler.cache.stats
        assert stats.used == 0 and stats.free + stats.cached == 18
        return calls, [s.output_token_ids for s in sequences]

    total, expected = workload(fail_at=0)
    assert total > 20
    for k in range(1, total + 1):
        assert workload(fail_at=k)[1] == expected


def test_our_own_faults_are_assertions() -> None:
    scheduler = make_scheduler()
    sequence = make_sequence(8)
    scheduler.add(sequence)
    with pytest.raises(AssertionError, match="added once"):
        scheduler.add(sequence)
    with pytest.raises(AssertionError, match="only a running sequence"):
        scheduler.spoil(sequence)
    (scheduled,) = scheduler.schedule()
    with pytest.raises(AssertionError, match="no more is valid"):
        scheduler.complete(scheduled, 9)
    scheduler.complete(scheduled, 8)
    with pytest.raises(AssertionError, match="completed once"):
        scheduler.complete(scheduled, 8)
    with pytest.raises(AssertionError, match="append the sampled one"):
        scheduler.schedule()
    sequence.token_ids.append(1)
    sequence.draft_token_ids.append(2)
    (scheduled,) = scheduler.schedule()
    with pytest.raises(AssertionError, match="appended before complete"):
        scheduler.complete(scheduled, 2)


def test_an_allocator_that_gives_nothing_is_our_fault_not_an_endless_loop() -> None:
    scheduler = make_scheduler()
    scheduler.cache.allocators[0].take = lambda owner: None
    scheduler.add(make_sequence(8))
    with pytest.raises(AssertionError, match="moves the oldest"):
        scheduler.schedule()


def test_pages_of_a_prompt_are_told_as_far_as_they_can_be_found() -> None:
    scheduler = make_scheduler(extents=(Full(), Window(8)))
    sequence = make_sequence(20, answer=3)
    assert scheduler.prompt_pages(sequence) == {}, "it was never added"
    scheduler.add(sequence)
    assert scheduler.prompt_pages(sequence) == {0: {}, 1: {}}, "nothing is computed"
    while sequence.num_computed_tokens < 20:
        step(scheduler)
    assert sequence.tables is not None
    keys = scheduler.cache.keys(sequence.cache_root).between(0, 2, sequence.token_ids)
    pages = sequence.tables.groups[0].pages[:2]
    assert scheduler.prompt_pages(sequence)[0] == dict(zip(keys, pages, strict=True))
