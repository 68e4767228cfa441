"""Inner values of an answer that was served: from native buffers and modules, proven by rows."""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import tiny
from cutaway import LLM
from cutaway.blocks.weighed import model_work
from cutaway.core.errors import ReplayError
from cutaway.core.request import Request, SamplingParams
from cutaway.core.step import Numbers
from cutaway.core.work import Matrices, ModelWork, Work
from cutaway.engine.engine import Engine
from cutaway.engine.runner import Runner
from cutaway.kernels import capture
from cutaway.replay import spare_runners
from cutaway.replay.look import Look
from cutaway.replay.plan import Run
from cutaway.replay.recorded_answers import plan_answer, replay_answer
from cutaway.replay.spare_runners import SpareRunners
from cutaway.replay.view_cost import (
    TimePredictor,
    ViewCost,
    WorkLine,
    pace_of,
    seconds_a_number,
    time_steps,
)
from cutaway.trace.cost import Rates, work_of
from cutaway.trace.records import AnswerRecord, Part, StepRecord
from cutaway.views import VIEWS, view_of
from cutaway.views.parts.query import Query
from cutaway.views.parts.replay_values import ReplayValues, Wanted
from cutaway.views.parts.view import WALKED
from engines import run

NATIVE = pytest.param(
    "auto",
    marks=pytest.mark.skipif(not capture.is_available(), reason="the native kernels are not built"),
)
DTYPES = ["float32", NATIVE]
TAPS = frozenset(
    {
        "embedding.hidden",
        *(f"blocks.attention.{name}" for name in ("query", "key", "value", "mixed", "update")),
        *(f"blocks.{name}" for name in ("mlp.product", "mlp.update", "hidden")),
    }
)
LAYERS = frozenset({0, 1})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("look")
    sizes = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}
    config = tiny.config(vocab_size=320, num_hidden_layers=2, **sizes)
    (path / "config.json").write_text(json.dumps(config))
    return path


def opened(folder: Path, dtype: str, **settings: object) -> Engine:
    given = {"cache_tokens": 512, "page_size": 8, "prefill_chunk": 16, "dtype": dtype, **settings}
    return LLM(f"random:{folder}/config.json", **given).engine


def answered(engine: Engine, prompt: range, name: str = "one") -> AnswerRecord:
    params = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)
    run(engine, [Request(request_id=name, prompt_token_ids=tuple(prompt), params=params)])
    assert engine.ledger is not None
    found = engine.ledger.find(name)
    assert found is not None
    return found


def work_of_model(engine: Engine) -> ModelWork:
    dtype = str(engine.model.cache_dtype).removeprefix("torch.")
    return model_work(engine.model.transformer, engine.model.facts, dtype)


def everything(answer: AnswerRecord) -> Wanted:
    count = answer.num_prompt_tokens + len(answer.tokens) - 1
    rows = frozenset(range(len(answer.tokens)))
    return Wanted(taps=TAPS, layers=LAYERS, end=count, stored=LAYERS, rows=rows)


def check_sums(taken: ReplayValues) -> None:
    """The stream is the embedding and every update, added up."""
    hidden = taken.value("embedding.hidden")
    for layer in sorted(LAYERS):
        hidden = hidden + taken.value("blocks.attention.update", layer)
        hidden = hidden + taken.value("blocks.mlp.update", layer)
        torch.testing.assert_close(hidden, taken.value("blocks.hidden", layer))
        for name in ("key", "value"):
            stored = taken.stored[layer][name]
            tapped = taken.value(f"blocks.attention.{name}", layer)
            torch.testing.assert_close(stored, tapped, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_are_those_of_the_rows_that_were_served(folder: Path, dtype: str) -> None:
    engine = opened(folder, dtype)
    answer = answered(engine, range(40))
    taken = Look(engine, answer).take(everything(answer))
    assert taken.proof.is_exact and str(taken.proof) == "exact (shape-faithful, 6 rows)"
    check_sums(taken)
    for index, token in enumerate(answer.tokens):
        row = taken.rows[index]
        assert int(row.argmax()) == token.token_id
        assert float(row[token.token_id]) == token.logit


@NATIVE.marks[0]
def test_native_values_are_those_of_the_modules(folder: Path) -> None:
    """The modules are another arithmetic, so nearly equal is all there is."""
    engine = opened(folder, "auto")
    answer = answered(engine, range(40))
    wanted = everything(answer)
    native = Look(engine, answer).take(wanted)
    seen: dict[tuple[str, int | None], torch.Tensor] = {}

    def keep(name: str, value: torch.Tensor, layer: int | None) -> None:
        seen[name, layer] = value

    replay = replay_answer(engine, answer, sink_of=lambda run: keep, intervenes=True)
    next(iter(replay.steps()))
    chunk = engine.config.prefill_chunk
    for key, value in native.values.items():
        torch.testing.assert_close(value[:chunk], seen[key].float(), rtol=0.05, atol=0.02)


@pytest.mark.parametrize("dtype", DTYPES)
def test_positions_of_a_prefix_are_those_of_the_answer_that_wrote_it(
    folder: Path, dtype: str
) -> None:
    engine = opened(folder, dtype)
    alone = Look(engine, first := answered(engine, range(40), "first")).take(everything(first))
    second = answered(engine, range(48), "second")
    assert second.admissions[0].num_hit == 40
    taken = Look(engine, second).take(everything(second))
    assert taken.proof.is_exact
    check_sums(taken)
    for key, value in alone.values.items():
        assert torch.equal(taken.values[key][:40], value[:40])


def test_it_stops_where_nothing_more_is_wanted_and_runs_nothing_twice(folder: Path) -> None:
    engine = opened(folder, "float32")
    answer = answered(engine, range(40))
    look = Look(engine, answer)
    some = Wanted(taps=frozenset({"blocks.hidden"}), layers=LAYERS, start=3, end=5)
    assert look.cost(some).num_tokens == 40  # up to the prompt's end, where a row is proof
    taken = look.take(some)
    assert taken.value("blocks.hidden", 1).shape == (2, 64) and taken.proof.num_rows == 1
    fewer = Wanted(taps=frozenset({"blocks.hidden"}), layers=frozenset({1}), start=4, end=5)
    assert look.cost(fewer).num_tokens == 0 and look.take(fewer) is taken
    assert torch.equal(
        taken.value("blocks.hidden", 1, start=4), taken.value("blocks.hidden", 1)[1:]
    )
    assert look.cost(everything(answer)).num_tokens == 45


def test_one_replay_serves_several_views_and_keeps_no_more_than_they_want(folder: Path) -> None:
    engine = opened(folder, "float32")
    look = Look(engine, answered(engine, range(40)))
    views = [view_of(name) for name in ("lens", "residual", "sampling", "drift")]
    query = Query()
    look.prepare(views, query)
    wants = [view.wants(look.subject, query) for view in views]
    assert all(look.cost(wanted).num_tokens > 0 for wanted in wants), "nothing is run before"
    first, *others = (look.take(wanted) for wanted in wants)
    assert {id(taken.proof) for taken in others} == {id(first.proof)}, "one replay, one proof"
    assert first.value("blocks.hidden", 1).shape == (4, 64)
    assert others[0].value("blocks.hidden", 1).shape == (1, 64)
    assert others[1].rows.keys() == {0} and not others[1].values


def test_what_is_too_much_together_is_run_in_parts_and_the_oldest_is_dropped(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = opened(folder, "float32")
    look = Look(engine, answered(engine, range(40)))
    views, query = [view_of(name) for name in ("lens", "residual")], Query()
    wants = [view.wants(look.subject, query) for view in views]
    monkeypatch.setattr("cutaway.replay.look.MOST_TOGETHER", look.cost(wants[0]).num_bytes)
    look.prepare(views, query)
    look.take(wants[0])
    assert look.cost(wants[1]).num_tokens > 0
    look.take(wants[1])
    assert look.cost(wants[0]).num_tokens > 0 and look.cost(wants[1]).num_tokens == 0


def test_a_look_that_costs_too_much_is_refused_before_it_runs(folder: Path) -> None:
    engine = opened(folder, "float32")
    answer = answered(engine, range(40))
    with pytest.raises(ReplayError, match=r"bytes; allowed are 1,000\. Ask for fewer"):
        Look(engine, answer, max_bytes=1000).take(everything(answer))
    with pytest.raises(ReplayError, match="FLOPs; allowed are 1,000"):
        Look(engine, answer, max_flops=1000).take(everything(answer))


def test_values_of_another_model_are_not_called_exact(folder: Path) -> None:
    engine = opened(folder, "float32")
    answer = answered(engine, range(40))
    with torch.no_grad():
        next(engine.model.transformer.parameters())[0, 0] += 1
    proof = Look(engine, answer).take(everything(answer)).proof
    assert not proof.is_exact and str(proof).startswith("not exact (shape-faithful): ")


def test_what_a_look_costs_is_known_in_seconds_before_it_runs(folder: Path) -> None:
    engine = opened(folder, "float32")
    answer = answered(engine, range(40))
    look = Look(engine, answer)
    assert engine.ledger is not None
    lens, query = view_of("lens"), Query(position=41)
    cost, wanted = look.predict_cost(lens, query), look.cost(lens.wants(look.subject, query))
    runs, model = plan_answer(engine, answer).runs, work_of_model(engine)
    until = [work_of(run.step, model) for run in runs if run.part.start <= 41]
    assert wanted.num_tokens == 42
    pace = pace_of(runs, model)
    seconds = sum(map(pace.predict_seconds, until))
    assert wanted.seconds == pytest.approx(seconds) and not wanted.is_fresh
    own = 2 * 64 * 320  # of one layer at one position
    assert cost.flops - wanted.flops == own == lens.flops(look.subject, query)
    assert cost.own_work == own + WALKED * lens.walks(look.subject, query)
    products = pace.predict_seconds(Work(matrix_flops=own))
    walked = lens.walks(look.subject, query) * seconds_a_number(engine.model.device)
    assert 0 < walked and cost.own_seconds == pytest.approx(products + walked)
    assert cost.seconds == wanted.seconds
    look.take(lens.wants(look.subject, query))
    assert look.predict_cost(lens, query).num_tokens == 0, "what is there costs its products alone"
    assert look.predict_cost(view_of("tokens"), Query()) == ViewCost(0, 0, 0)


def test_numbers_that_a_view_goes_through_are_foretold_where_it_multiplies_nothing(
    folder: Path,
) -> None:
    engine = opened(folder, "float32")
    look = Look(engine, answered(engine, range(40)))
    vocab = 320
    for name, walked in (("logits", 8 * vocab), ("sampling", 110 * vocab), ("tokens", 0)):
        cost = look.predict_cost(view_of(name), Query())
        assert cost.own_work == WALKED * walked, name
        assert (cost.own_seconds > 0) == (walked > 0), name
    cost = look.predict_cost(view_of("embeddings"), Query())
    assert cost.own_work == (6 + 2 * WALKED) * 64 * vocab


VIEWS_THAT_RUN = ("probabilities", "positions", "attention", "arithmetic", "residual", "lens")


@pytest.mark.parametrize("dtype", DTYPES)
def test_operations_that_are_foretold_are_those_of_the_steps_that_are_run(
    folder: Path, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = opened(folder, dtype)
    answer, model = answered(engine, range(40)), work_of_model(engine)
    forward, done = Runner.forward, list[Work]()

    def counted(runner: Runner, numbers: Numbers, *rest: object) -> torch.Tensor:
        first, num_rows = numbers.positions[0], len(numbers.logit_rows)
        done.append(model.alone(first, first + len(numbers.positions), num_rows))
        return forward(runner, numbers, *rest)

    monkeypatch.setattr(Runner, "forward", counted)
    spares = SpareRunners()
    for name in VIEWS_THAT_RUN:
        look, view = Look(engine, answer, spares=spares), view_of(name)
        wanted = view.wants(look.subject, Query())
        cost = look.cost(wanted)
        done.clear()
        look.take(wanted)
        assert cost.flops == round(sum(work.flops for work in done)) > 0, name


class Written(TorchDispatchMode):
    """Counts what operations write beside products, in numbers of 4 bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0.0

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        del types
        made = func(*args, **(kwargs or {}))
        for each in made if isinstance(made, tuple | list) else (made,):
            if isinstance(each, torch.Tensor) and not func.is_view:
                self.count += each.numel() * each.element_size() / 4
        return made


@NATIVE.marks[0]
def test_no_view_writes_more_numbers_than_it_says(tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 1024, "head_dim": 16}
    config = tiny.config(vocab_size=4096, num_hidden_layers=2, **sizes)
    (tmp_path / "config.json").write_text(json.dumps(config))
    engine = opened(tmp_path, "auto")
    look = Look(engine, answered(engine, range(40)))
    for view in VIEWS:
        taken = look.take(view.wants(look.subject, Query()))
        with Written() as written:
            view.payload(look.subject, Query(), taken)
        foretold = view.walks(look.subject, Query())
        assert written.count <= 1.25 * foretold + 50_000, view.name
        if view.name in ("embeddings", "attention", "feedforward"):
            assert written.count >= 0.75 * foretold, view.name


def test_steps_are_timed_and_what_is_between_them_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 3.0, 10.0, 13.0, 20.0, 22.0])  # in a step, outside, in a step, outside
    monkeypatch.setattr("cutaway.replay.view_cost.perf_counter", lambda: next(clock))

    def steps() -> Generator[None, None, str]:
        yield
        yield
        return "found"

    def whole() -> Generator[None, None, tuple[str, float]]:
        return (yield from time_steps(steps()))

    walk = whole()
    assert next(walk) is None and next(walk) is None
    with pytest.raises(StopIteration) as ended:
        next(walk)
    assert ended.value.value == ("found", 8.0)


@NATIVE.marks[0]
def test_looks_hand_on_the_recording_of_the_model_and_nothing_else(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, made = opened(folder, "auto"), list[int]()
    begin = capture.Tape.__init__
    monkeypatch.setattr(
        capture.Tape, "__init__", lambda *args, **named: (made.append(1), begin(*args, **named))[1]
    )
    answers = [answered(engine, range(40), "one"), answered(engine, range(60, 100), "two")]
    spares = SpareRunners()
    for answer in answers:
        wanted = everything(answer)
        alone = Look(engine, answer).take(wanted)
        made.clear()
        shared = Look(engine, answer, spares=spares).take(wanted)
        assert len(made) == (answer is answers[0]), "the second answer records nothing"
        assert shared.proof.is_exact
        for key, value in alone.values.items():
            assert torch.equal(value, shared.values[key]), key
        for layer, fields in alone.stored.items():
            for name, value in fields.items():
                assert torch.equal(value, shared.stored[layer][name]), (layer, name)
    # A look that was left half way gives back what it took, too.
    made.clear()
    steps = Look(engine, answers[0], spares=spares).take_in_steps(everything(answers[0]))
    next(steps)
    assert spares.take(num_pages=1, max_tokens=1, keeps=True) is None, "it is in use"
    steps.close()
    found = spares.take(num_pages=1, max_tokens=1, keeps=True)
    assert found is not None and not made
    assert not any(field.any() for each in found.pool.layers for field in each.fields.values())
    monkeypatch.setattr(spare_runners, "MOST_BYTES", found.num_bytes - 1)
    spares.give_back(found)
    assert spares.take(num_pages=1, max_tokens=1, keeps=True) is None, "it was too large to wait"


def test_the_pace_is_found_again_however_many_steps_were_of_one_size() -> None:
    model = ModelWork(0.0, Matrices(), Matrices(10**8, 10**8), Matrices(10**7, 10**7), ())
    planted = Rates((1e-10, 0.0, 5e-12, 0.0))

    def taken(number: int, count: int, factor: float = 1.0) -> Run:
        part = Part(0, 0, count, (), 1)
        step = StepRecord(number, (part,), "native", 0.0, 0.0, 0.0)
        seconds = factor * planted.predict_seconds(work_of(step, model))
        made = Mock(step=step._replace(computed=seconds, ended=2 * seconds))
        return made

    many = [taken(1, 500), *(taken(number, 1) for number in range(2, 1000))]
    many[77] = taken(77, 1, 40.0)  # somebody else was at work
    step = StepRecord(0, (Part(0, 0, 32, (), 31),), "native", 0.0, 0.0, 0.0)
    known = planted.predict_seconds(work_of(step, model))
    assert pace_of(many, model).predict_seconds(work_of(step, model)) == pytest.approx(
        known, rel=0.1
    )


def test_the_pace_of_looks_is_learned_from_most_of_them_and_not_from_short_ones() -> None:
    predictor, cost = TimePredictor(), ViewCost(1, 1, 1, seconds=2.0)
    told = [predictor.seconds(cost)]
    for _ in range(2):
        predictor.learn_replay(cost, 8.0)
        told.append(predictor.seconds(cost))
    assert told == [2.0, 5.0, 8.0]
    predictor.learn_replay(cost, 80.0)
    assert predictor.seconds(cost) == 8.0, "one may be slow because somebody else is at work"
    for _ in range(10):
        predictor.learn_replay(replace(cost, seconds=0.001), 1.0)
    assert predictor.seconds(cost) == 8.0


def test_a_recording_is_foretold_by_the_engines_own_and_is_no_part_of_the_pace() -> None:
    predictor, cost = TimePredictor(0.5), ViewCost(1, 1, 1, seconds=2.0)
    fresh = replace(cost, is_fresh=True)
    assert [predictor.seconds(each) for each in (fresh, cost)] == [2.5, 2.0]
    predictor.learn_replay(fresh, 4.7, recording=0.7)
    assert [predictor.seconds(each) for each in (fresh, cost)] == pytest.approx([3.6, 3.0])


def test_a_views_own_work_is_priced_by_what_it_took_before() -> None:
    predictor, cost = (
        TimePredictor(),
        ViewCost(1, 1, 1, seconds=2.0, own_work=100, own_seconds=0.5),
    )
    assert predictor.seconds(cost, "lens") == 2.5, "at the rate of steps, until one was seen"
    predictor.learn_view(cost, "lens", 3.0)
    assert predictor.seconds(cost, "lens") == 5.0
    assert predictor.seconds(cost, "tokens") == pytest.approx(2.0 + 0.5 * 3.5), "as others came out"
    predictor.learn_view(ViewCost(0, 0, 0), "tokens", 0.04)
    assert predictor.seconds(ViewCost(0, 0, 0), "tokens") == pytest.approx(0.04)


def test_what_only_a_first_look_takes_is_told_apart_from_what_each_takes() -> None:
    predictor, cost = TimePredictor(), ViewCost(0, 0, 0, own_work=100, own_seconds=0.5)
    views = ("lens", "embeddings", "feedforward")
    for view in views:
        predictor.learn_view(cost, view, 1.5)
    assert predictor.seconds(cost, "attention") == pytest.approx(1.5), "new ones as new ones"
    predictor.learn_view(cost, "lens", 0.5)
    assert predictor.seconds(cost, "lens") == 0.5, "the first one is out of it"
    predictor.learn_view(cost, "embeddings", 0.5)
    told = predictor.seconds(cost, "feedforward")
    assert told == pytest.approx(0.5), "a second look takes so much less as those of others did"
    assert predictor.seconds(cost, "attention") == pytest.approx(1.5)
    predictor.learn_view(cost, "feedforward", 40.0)  # a slow one makes no first look cheap
    assert predictor.seconds(cost, "lens") == 0.5


def test_what_a_first_look_takes_besides_its_work_is_no_rate_of_work() -> None:
    predictor, small = TimePredictor(), ViewCost(0, 0, 0, own_work=1, own_seconds=0.01)
    large = ViewCost(0, 0, 0, own_work=20, own_seconds=0.2)
    assert predictor.seconds(large, "embeddings") == 0.2
    for view in ("probabilities", "template", "merges"):
        predictor.learn_view(small, view, 0.04)
    assert predictor.seconds(large, "embeddings") == pytest.approx(0.23), "so much more, not times"
    assert predictor.seconds(small, "logits") == pytest.approx(0.04)


def test_work_costs_what_is_always_there_and_what_grows_with_it() -> None:
    line = WorkLine(100, 1.0)
    assert line.seconds(400) == pytest.approx(2.0), "of one size nobody knows: halfway"
    line.learn(110, 1.0)
    assert line.seconds(420) == pytest.approx(2.0), "two alike are one size"
    line.learn(300, 2.0)
    assert line.seconds(500) == pytest.approx(3.0, rel=0.06)
    line.learn(300, 9.0)
    line.learn(500, 3.0)
    assert line.seconds(700) == pytest.approx(4.0, rel=0.1), "one slow look changes nothing"
    assert WorkLine(0, 0.04).seconds(0) == 0.04


def test_one_head_without_work_of_its_own_says_nothing_of_the_price_of_all() -> None:
    predictor, all_heads = TimePredictor(), ViewCost(1, 1, 1, own_work=10**9, own_seconds=0.1)
    for view in ("template", "merges"):
        predictor.learn_view(ViewCost(1, 1, 1), view, 0.001)
    predictor.learn_view(ViewCost(1, 1, 1), "attention", 0.3)
    assert predictor.seconds(all_heads, "attention") == pytest.approx(0.1, abs=0.01)
    assert predictor.seconds(ViewCost(1, 1, 1), "attention") == pytest.approx(0.3)
