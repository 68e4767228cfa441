"""Comparisons between the answers of others: a step at a time, within bounds, and alike for all."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

import engines
from cutaway import LLM
from cutaway.compare import trials
from cutaway.compare.compare import compare
from cutaway.compare.lever_cards import levers_of
from cutaway.compare.levers import LEVERS, NOT_SERVED, change_of
from cutaway.core.errors import CutawayError, OverloadedError, ReplayError, RequestError
from cutaway.core.looks import ComparisonRequest, EventBatch, ViewRequest
from cutaway.core.step import Numbers
from cutaway.engine.engine import Engine
from cutaway.engine.runner import Runner
from cutaway.host import turns
from cutaway.kernels import capture
from cutaway.kernels.native import library, program
from cutaway.quantize.packed import Packed
from cutaway.replay.look import PIECE_TOKENS
from cutaway.service import view_queue as lanes
from cutaway.service.view_queue import ViewQueue
from cutaway.trace.records import AnswerRecord
from cutaway.views.parts.payload import as_json
from services import heard, make_model, request, running
from subjects import answered, engine_of

PROMPT = tuple(range(40, 60))
MEASURED = ("recorded", "changed")
Told = list[EventBatch | CutawayError]


def tried(answer: AnswerRecord, change: str, **fields: Any) -> ComparisonRequest:
    given: dict[str, Any] = {
        "request_id": answer.request.request_id,
        "choice": 0,
        "owner": answer.request.owner,
        "change": change,
        "num_runs": 1,
        "price": None,
        "max_tokens": None,
        "max_bytes": 2**28,
        "max_flops": 10**12,
    }
    return ComparisonRequest(**{**given, **fields})


def events_of(told: Told) -> list[dict[str, Any]]:
    """All that was told, which was no error; numbers go up by one."""
    pairs = [pair for each in told if isinstance(each, EventBatch) for pair in each.events]
    assert len(told) == len(pairs) and [number for number, _ in pairs] == [*range(len(pairs))]
    return [msgspec.json.decode(data) for _, data in pairs]


def ended(
    view_queue: ViewQueue, wanted: ComparisonRequest, between: Callable[[], None] = lambda: None
) -> Told:
    """Run one comparison to its end, with something in front of each step."""
    told: Told = []
    view_queue.compare("one", wanted, told.append)
    while view_queue.has_work:
        between()
        view_queue.step()
    return told


def fault_of(engine: Engine, wanted: ComparisonRequest) -> CutawayError:
    (fault,) = ended(ViewQueue(engine), wanted)
    assert isinstance(fault, CutawayError)
    return fault


def without_times(found: dict[str, Any]) -> dict[str, Any]:
    """What is the same whenever and beside whomever it is run."""
    times = {"first_text", "per_token", "seconds", "rate", "money"}
    sides = {
        side: {name: each for name, each in found[side].items() if name not in times}
        for side in MEASURED
    }
    rest = {name: each for name, each in found.items() if name not in ("type", "notes", *MEASURED)}
    return {**rest, **sides}


@pytest.mark.parametrize(
    "change",
    [
        *("temperature=1.5", "top_k=3", "token@2=65", "context=9", "ablate=1.2", "window=6"),
        *("positions=off", "attention=naive", "kv_cache=off", "batch=3", "prefix_cache=off"),
        *("kv_dtype=int8", "page_size=8", "prefill_chunk=4", "draft=ngram", "streaming=off"),
    ],
)
def test_it_finds_what_a_comparison_in_one_go_finds(change: str) -> None:
    engine = engine_of()
    answer = answered(engine, PROMPT, temperature=0.9, seed=5)
    events = events_of(ended(ViewQueue(engine), tried(answer, change)))
    wanted = compare(engine, answer, change_of(change), name="tiny", num_runs=1)
    plain = json.loads(json.dumps(as_json(wanted)))
    assert without_times(events[-1]) == without_times(plain)
    assert events[-1]["type"] == "comparison" and events[-1]["notes"] == plain["notes"]
    assert all(event["type"] == "progress" for event in events[:-1])
    parts = [event["num_done"] for event in events[:-1]]
    assert parts == sorted(parts) and set(parts) >= {0, 1}
    assert all(event["num_done"] < event["num_parts"] for event in events[:-1])


def test_tokens_of_others_come_between_its_steps_and_are_what_they_were() -> None:
    engine, alone = engine_of(), engine_of()
    answer = answered(engine, PROMPT, temperature=0.9, seed=5)
    view_queue, order = ViewQueue(engine), list[str]()
    others = [
        replace(each, request_id=f"other-{each.request_id}") for each in engines.workload(3, 4)
    ]
    served: dict[tuple[str, int], list[int]] = defaultdict(list)
    left = list(others)

    def serve() -> None:
        """One step of the others for each of the comparison; a new request now and then."""
        if left and len(order) % 3 == 0:
            engine.add(left.pop(0))
        if engine.has_work:
            for delta in engine.step():
                served[delta.request_id, delta.choice] += delta.token_ids
            order.append("others")
        order.append("ours")

    told = ended(view_queue, tried(answer, "temperature=1.5", num_runs=4), serve)
    found = events_of(told)[-1]
    changes = sum(one != other for one, other in pairwise(order))
    assert not left and changes > 20, "steps of both took turns"
    assert any("only its own steps" in note for note in found["notes"])
    while engine.has_work:
        for delta in engine.step():
            served[delta.request_id, delta.choice] += delta.token_ids
    assert served == {
        name: list(each.token_ids) for name, each in engines.run(alone, others).items()
    }
    quiet = compare(engine, answer, change_of("temperature=1.5"), name="tiny", num_runs=4)
    plain = json.loads(json.dumps(as_json(quiet)))
    assert without_times(found) == without_times(plain)


@pytest.mark.skipif(not capture.is_available(), reason="the native kernels are not built")
def test_rows_of_others_have_the_same_bits_beside_one(tmp_path: Path) -> None:
    """Matrices are unpacked meanwhile; who is served by native kernels sees none of it."""
    name = make_model(tmp_path, hidden_size=64, intermediate_size=96, head_dim=16)
    engine, alone = (LLM(name, cache_tokens=512).engine for _ in range(2))
    packed = [each for each in engine.model.transformer.modules() if isinstance(each, Packed)]
    answer, most_unpacked = answered(engine, PROMPT), 0
    request_ = replace(engines.workload(4, count=1)[0], request_id="other")
    engine.add(request_)

    def serve() -> None:
        nonlocal most_unpacked
        most_unpacked = max(most_unpacked, sum(each.unpacked is not None for each in packed))
        if engine.has_work:
            engine.step()

    assert events_of(ended(ViewQueue(engine), tried(answer, "ablate=0"), serve))
    while engine.has_work:
        engine.step()
    engines.run(alone, [request_])
    assert engine.ledger is not None and alone.ledger is not None
    ours = engine.ledger.find(request_.request_id)
    theirs = alone.ledger.find(request_.request_id)
    assert ours is not None and theirs is not None
    assert [t.checksum for t in ours.tokens] == [t.checksum for t in theirs.tokens]
    assert packed and most_unpacked == len(packed)
    assert all(each.unpacked is None for each in packed)


@pytest.mark.parametrize("change", ["batch=12", "prefill_chunk=256", "ablate=0"])
def test_a_long_step_is_left_between_its_operations_and_nobody_gets_other_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Counted, not timed: of operations, and of layers in torch, between two turns of others."""
    monkeypatch.setattr(turns, "PIECE_SECONDS", 0.0)
    name = make_model(tmp_path, hidden_size=64, intermediate_size=96, head_dim=16)
    engine, alone = (LLM(name, cache_tokens=2048).engine for _ in range(2))
    answer = answered(engine, range(20, 180))
    done: list[int] = []
    parts: list[int] = []  # tokens times operations of each turn, or a layer
    run, block = library.library().cw_program_run_part, type(engine.model.transformer.blocks[0])
    forward = block.forward

    class Counted:
        def __getattr__(self, name: str) -> Any:
            return run_part if name == "cw_program_run_part" else getattr(library.library(), name)

    def run_part(handle: Any, step: Any, first: int, count: int) -> int:
        done.append(count * step._obj.num_tokens)
        return run(handle, step, first, count)

    def layer(self: Any, *args: Any, **kwargs: Any) -> Any:
        done.append(8 * 32)
        return forward(self, *args, **kwargs)

    if capture.is_available():
        monkeypatch.setattr(program, "library", Counted)
    monkeypatch.setattr(block, "forward", layer)
    request_ = replace(engines.workload(4, count=1)[0], request_id="other")

    def serve() -> None:
        parts.append(sum(done))
        if len(parts) == 40:
            engine.add(request_)
        if engine.has_work:
            engine.step()
        done.clear()

    assert events_of(ended(ViewQueue(engine), tried(answer, change), serve))
    engines.run(alone, [request_])
    assert engine.ledger is not None and alone.ledger is not None
    ours = engine.ledger.find(request_.request_id)
    theirs = alone.ledger.find(request_.request_id)
    assert ours is not None and theirs is not None and ours.finish_reason is not None
    assert [t.checksum for t in ours.tokens] == [t.checksum for t in theirs.tokens]
    assert max(parts) <= 8 * 32 and sum(map(bool, parts)) > 20


@pytest.mark.skipif(not capture.is_available(), reason="the native kernels are not built")
@pytest.mark.parametrize("change", ["batch=40", "token@2=65", "kv_cache=off", "ablate=0"])
def test_no_more_than_a_piece_goes_through_the_model_at_once_beside_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Prompts, copies and forced rows alike; what is found is what whole steps find."""
    name = make_model(tmp_path, hidden_size=64, intermediate_size=96, head_dim=16)
    engine = LLM(name, cache_tokens=2048).engine
    assert engine.runner.is_invariant
    answer = answered(engine, range(20, 180), temperature=0.9, seed=5)
    sizes: list[tuple[int, int]] = []  # tokens and rows of each forward of the comparison
    forward = Runner.forward

    def counted(self: Runner, numbers: Numbers, *rest: Any) -> Any:
        if self is not engine.runner:
            sizes.append((len(numbers.token_ids), len(numbers.logit_rows)))
        return forward(self, numbers, *rest)

    monkeypatch.setattr(Runner, "forward", counted)
    engine.add(replace(engines.workload(4, count=1)[0], request_id="other"))
    told = ended(
        ViewQueue(engine), tried(answer, change), lambda: engine.step() if engine.has_work else None
    )
    found = events_of(told)[-1]
    assert max(num_tokens for num_tokens, _ in sizes) == PIECE_TOKENS
    assert max(num_rows for _, num_rows in sizes) <= PIECE_TOKENS
    assert any("32 tokens went through the model at once" in note for note in found["notes"])
    plain = compare(engine, answer, change_of(change), name="tiny", num_runs=1)
    wanted = json.loads(json.dumps(as_json(plain)))
    same = ["first_difference", "recorded_token_ids", "changed_token_ids", "num_equal_rows"]
    if change != "ablate=0":  # by modules, whose products are the library's
        same += ["divergence"]
    assert [found[each] for each in same] == [wanted[each] for each in same]
    assert found["recorded"]["num_computed"] == wanted["recorded"]["num_computed"]


@pytest.mark.skipif(not capture.is_available(), reason="the native kernels are not built")
def test_an_engine_beside_is_made_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recording SmolLM2 took 0.1 s behind its last layer."""
    monkeypatch.setattr(turns, "PIECE_SECONDS", 0.0)
    name = make_model(tmp_path, hidden_size=64, intermediate_size=96, head_dim=16)
    engine = LLM(name, cache_tokens=512).engine
    assert engine.runner._native is not None
    (program_,) = engine.runner._native._tape._parts
    assert isinstance(program_, program.Program)
    making = turns.in_turns(partial(Engine, engine.model, engine.config, num_pages=20))
    # Each operation is lowered, and written down.
    assert sum(1 for _ in making) >= 2 * len(program_.operations) > 20


def test_looks_go_first_and_comparisons_in_their_order() -> None:
    engine = engine_of()
    answer = answered(engine, PROMPT)
    view_queue, order = ViewQueue(engine), list[str]()

    def ending(name: str) -> Callable[[EventBatch | CutawayError], None]:
        return lambda told: (
            order.append(name) if isinstance(told, EventBatch) and told.is_last else None
        )

    for name in ("one", "two"):
        view_queue.compare(name, tried(answer, "seed=1"), ending(name))
    view_queue.step()
    view_queue.add(0, look_of(answer), lambda frame: order.append("look"))
    while view_queue.has_work:
        view_queue.step()
    assert order == ["look", "one", "two"]


def test_a_look_that_nobody_waits_for_is_not_computed() -> None:
    engine = engine_of()
    answer = answered(engine, PROMPT)
    view_queue, told = ViewQueue(engine), list[object]()
    for number in range(lanes.MOST_WAITING):
        view_queue.add(number, look_of(answer), told.append)
    view_queue.add("one more", look_of(answer), told.append)
    (fault,) = told
    assert isinstance(fault, OverloadedError) and "64 looks wait already" in str(fault)
    view_queue.step()  # the first is begun
    for number in range(lanes.MOST_WAITING - 1):
        view_queue.leave(number)
    view_queue.leave(0)  # may be said again
    view_queue.add("next", look_of(answer), told.append)
    while view_queue.has_work:
        view_queue.step()
    assert len(told) == 3 and told[1] == told[2] and isinstance(told[1], bytes)
    assert engine.sink is None and not engine.has_work


def look_of(answer: AnswerRecord) -> ViewRequest:
    return ViewRequest(
        request_id=answer.request.request_id,
        choice=0,
        owner=answer.request.owner,
        view="residual",
        places={},
        is_json=True,
        is_cost=False,
        max_bytes=2**28,
        max_flops=10**12,
    )


@pytest.mark.parametrize("change", ["ablate=0", "temperature=1", "kv_cache=off"])
def test_one_that_nobody_waits_for_leaves_nothing(change: str) -> None:
    engine = engine_of()
    answer = answered(engine, PROMPT)
    stats, view_queue = engine.cache_stats, ViewQueue(engine)
    told: Told = []
    view_queue.compare("one", tried(answer, change), told.append)
    for _ in range(5):
        view_queue.step()
    view_queue.leave("one")
    view_queue.leave("one")  # may be said again
    assert not view_queue.has_work and not any(b.is_last for b in told if isinstance(b, EventBatch))
    assert engine.sink is None and engine.cache_stats == stats and not engine.has_work
    assert events_of(ended(view_queue, tried(answer, change)))[-1]["type"] == "comparison"


def test_so_many_wait_and_no_more() -> None:
    engine = engine_of()
    answer = answered(engine, PROMPT)
    view_queue, told = ViewQueue(engine), list[EventBatch | CutawayError]()
    for number in range(trials.MOST_OF_OWNER):
        view_queue.compare(number, tried(answer, "seed=1"), told.append)
    assert not told
    view_queue.compare("more", tried(answer, "seed=1"), told.append)
    (fault,) = told
    assert isinstance(fault, OverloadedError) and "4 of one owner" in str(fault)
    others = [replace(request(f"own-{n}"), owner=f"own-{n}") for n in range(trials.MOST_WAITING)]
    engines.run(engine, others)
    for number in range(trials.MOST_OF_OWNER, trials.MOST_WAITING):
        owned = {"request_id": f"own-{number}", "owner": f"own-{number}"}
        view_queue.compare(number, tried(answer, "seed=1", **owned), told.append)
    assert len(told) == 1
    owned = {"request_id": "own-0", "owner": "own-0"}
    view_queue.compare("most", tried(answer, "seed=1", **owned), told.append)
    assert len(told) == 2 and isinstance(told[1], OverloadedError)
    for number in range(trials.MOST_WAITING):
        view_queue.leave(number)
    assert not view_queue.has_work


def test_what_cannot_be_is_told_and_the_next_goes_on() -> None:
    engine = engine_of()
    answer = answered(engine, PROMPT)
    cases: list[tuple[dict[str, Any], type[CutawayError], str]] = [
        ({"change": "temperature=9"}, RequestError, "temperature is 9.0"),
        ({"change": "hotness=9"}, RequestError, "nothing to change"),
        ({"change": "kv_dtype=int3"}, RequestError, 'kv_dtype is "int3"; it must be one of'),
        ({"change": "batch=256", "max_bytes": 2**20}, RequestError, "raise max_bytes"),
        ({"change": "batch=257"}, RequestError, "from 1 to 256. run `cutaway compare"),
        ({"change": "page_size=1048576", "max_bytes": 2**20}, RequestError, "raise max_bytes"),
        ({"max_flops": 1000}, RequestError, "allowed are 1,000"),
        ({"change": "model=smollm2"}, RequestError, "run `cutaway compare"),
        ({"owner": "somebody"}, ReplayError, "no record of answer"),
        ({"request_id": "none"}, ReplayError, "no record of answer"),
    ]
    for fields, kind, words in cases:
        fault = fault_of(engine, tried(answer, **{"change": "seed=1", **fields}))
        assert isinstance(fault, kind) and words.lower() in str(fault).lower(), str(fault)
    assert len(ended(ViewQueue(engine), tried(answer, "seed=1"))) > 1


@pytest.mark.parametrize("lever", NOT_SERVED)
def test_a_lever_that_a_server_lacks_names_the_command(lever: str) -> None:
    engine = engine_of()
    fault = fault_of(engine, tried(answered(engine, PROMPT), f"{lever}=x"))
    assert f'{lever} is "x"; ' in str(fault) and f"--change {lever}=" in str(fault)


def test_a_shorter_comparison_is_the_beginning_of_a_longer_one() -> None:
    engine = engine_of()
    answer = answered(engine, PROMPT, temperature=0.9, seed=5)
    whole, short = (
        events_of(ended(ViewQueue(engine), tried(answer, "temperature=1.5", max_tokens=count)))[-1]
        for count in (None, 4)
    )
    assert short["changed_token_ids"] == whole["changed_token_ids"][:4]
    assert short["divergence"]["kl"] == whole["divergence"]["kl"][:4] and short["is_as_served"]


def test_cards_tell_every_lever_with_its_range_in_this_model() -> None:
    cards = {card.name: card for card in levers_of(engine_of())}
    assert list(cards) == list(LEVERS)
    temperature, penalty = cards["temperature"], cards["repetition_penalty"]
    assert (temperature.kind, temperature.least, temperature.most) == ("number", 0, 5)
    assert penalty.is_open and (cards["ablate"].most, cards["ablate"].num_heads) == (1, 4)
    assert cards["patch"].num_heads is None and cards["token"].most == 319
    assert cards["attention"].choices == ("naive", "fused") and not cards["attention"].refused
    assert "has no experts" in str(cards["experts_per_token"].refused)
    assert cards["page_size"].now == "8" and cards["quant"].refused == NOT_SERVED["quant"]


def test_a_process_tells_of_it_and_forgets_it_when_nobody_waits(tmp_path: Path) -> None:
    model = make_model(tmp_path)

    async def body() -> None:
        async with running(model) as service:
            sent = request("one")
            await heard(service, sent)
            wanted = ComparisonRequest(
                request_id="one",
                choice=0,
                owner=sent.owner,
                change="temperature=2",
                num_runs=1,
                price=3.6,
                max_tokens=None,
                max_bytes=2**28,
                max_flops=10**12,
            )
            batches = [batch async for batch in service.compare(wanted)]
            found = events_of(list(batches))[-1]
            assert len(found["recorded_token_ids"]) == 12 and found["changed"]["money"] > 0
            for _ in range(2 * trials.MOST_OF_OWNER):  # each is left, or the fifth were refused
                async with aclosing(service.compare(wanted)) as left:
                    await anext(left)
            with pytest.raises(ReplayError, match="no record"):
                await anext(service.compare(replace(wanted, request_id="two")))
            assert service.model.levers[0].name == "temperature"

    asyncio.run(body())
