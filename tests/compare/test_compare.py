"""One thing changed of a recorded answer: what differs is told, and held against NumPy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import engines
import tiny
from cutaway import LLM
from cutaway.compare.compare import compare
from cutaway.compare.comparison import Comparison, Divergence
from cutaway.compare.levers import LEVERS, change_of
from cutaway.compare.variant import with_naive_attention
from cutaway.core.errors import RequestError
from cutaway.core.request import Request, SamplingParams
from cutaway.engine.engine import Engine
from cutaway.kernels import capture
from cutaway.kernels.native import PackedWeight
from cutaway.quantize.packed import Packed
from cutaway.replay.teacher_forcing import force_tokens
from opened_models import engine_of_case
from subjects import Numbers, answered, engine_of, recomputed, softmax

PROMPT = tuple(range(40, 60))


@pytest.fixture(scope="module")
def engine() -> Engine:
    return engine_of()


def compared(engine: Engine, change: str, *, num_runs: int = 1, **params: Any) -> Comparison:
    answer = answered(engine, PROMPT, **params)
    return compare(engine, answer, change_of(change), name="tiny", num_runs=num_runs)


def moved(found: Comparison) -> Divergence:
    assert found.divergence is not None
    return found.divergence


def kl_of(one: Numbers, other: Numbers) -> Numbers:
    """Of rows of logits, in nats."""
    before, after = softmax(one), softmax(other)
    return (before * (np.log(before) - np.log(after))).sum(-1)


def rows_of(engine: Engine, found: Comparison, **changes: Any) -> Numbers:
    """Rows of the recorded answer in a changed model."""
    token_ids = (*PROMPT, *found.recorded_token_ids[:-1])
    return recomputed(engine, token_ids, **changes).logits[len(PROMPT) - 1 :]


@pytest.mark.parametrize(
    "change",
    [
        *("temperature=0.8", "top_k=0", "top_p=1", "seed=7", "prefix_cache=on", "streaming=on"),
        *("batch=1", "kv_dtype=auto", "page_size=8", "context=20", "window=4096"),
        "attention=fused",
    ],
)
def test_a_change_to_what_it_was_gives_the_very_answer(engine: Engine, change: str) -> None:
    found = compared(engine, change, temperature=0.8, seed=7)
    assert found.first_difference is None and found.is_as_served and found.is_repeatable
    assert found.num_equal_rows == found.num_rows == 6
    if found.divergence is not None:
        assert not found.divergence.distance.any() and found.divergence.num_same_top == 6


def test_l8_temperature_zero_takes_the_likeliest(engine: Engine) -> None:
    found = compared(engine, "temperature=0", temperature=3.0, seed=5)
    greedy = answered(engine, PROMPT)
    assert found.changed_token_ids == greedy.token_ids[len(PROMPT) :]
    assert found.first_difference is not None
    rows = rows_of(engine, found)
    shares = softmax(rows / 3.0)
    np.testing.assert_allclose(moved(found).distance, 1 - shares.max(-1), rtol=1e-4)


def test_the_chances_of_a_draw_move_as_the_settings_say(engine: Engine) -> None:
    found = compared(engine, "temperature=2", temperature=1.0, seed=5)
    rows = rows_of(engine, found)
    np.testing.assert_allclose(moved(found).kl, kl_of(rows, rows / 2), rtol=1e-4)
    assert moved(found).of == "draw"
    cut = moved(compared(engine, "top_k=1", temperature=1.0, seed=5))
    assert np.isinf(cut.kl).all() and cut.num_same_top == 6
    assert not moved(compared(engine, "seed=6", temperature=1.0, seed=5)).distance.any()


def test_m8_a_token_in_anothers_place_leads_elsewhere(engine: Engine) -> None:
    found = compared(engine, "token@2=65", temperature=0.7, seed=5)
    recorded = found.recorded_token_ids
    assert found.first_difference == 2 and found.changed_token_ids[:3] == (*recorded[:2], 65)
    again = compared(engine, f"token@2={recorded[2]}", temperature=0.7, seed=5)
    assert again.first_difference is None and again.changed_token_ids == recorded
    other = (*PROMPT, *recorded[:2], 65, *recorded[3:-1])
    rows = recomputed(engine, other).logits[len(PROMPT) - 1 :]
    np.testing.assert_allclose(
        moved(found).kl, kl_of(rows_of(engine, found), rows), rtol=1e-4, atol=1e-7
    )
    assert compared(engine, "token@2=A", temperature=0.7, seed=5).changed_token_ids[2] == 65


def test_a_cut_context_is_the_same_answer_to_fewer_tokens(engine: Engine) -> None:
    found = compared(engine, "context=5")
    short = answered(engine, PROMPT[-5:])
    assert found.changed_token_ids == short.token_ids[5:]
    assert found.changed.num_computed == 10 and found.recorded.num_computed == 25


def test_another_question_is_answered_as_if_it_was_asked(engine: Engine) -> None:
    found = compared(engine, "prompt=hello")
    assert found.changed_token_ids == answered(engine, b"hello").token_ids[5:]


@pytest.mark.parametrize(
    ("change", "changes"),
    [
        ("ablate=1.2", {"silent": {(1, 2)}}),
        ("ablate=0.attention", {"silent": {(0, "attention")}}),
        ("ablate=1.mlp", {"silent": {(1, "mlp")}}),
        ("ablate=0", {"silent": {(0, "attention"), (0, "mlp")}}),
        ("positions=off", {"is_turned": False}),
        ("window=6", {"window": 6}),
    ],
)
def test_a_changed_model_is_that_model_in_numpy(
    engine: Engine, change: str, changes: dict[str, Any]
) -> None:
    found = compared(engine, change)
    assert found.is_as_served
    wanted = kl_of(rows_of(engine, found), rows_of(engine, found, **changes))
    np.testing.assert_allclose(moved(found).kl, wanted, rtol=1e-3, atol=1e-7)
    assert moved(found).kl.max() > 1e-4
    said = list(PROMPT)
    for _ in range(6):
        said.append(int(recomputed(engine, said, **changes).logits[-1].argmax()))
    assert list(found.changed_token_ids) == said[len(PROMPT) :]


def test_f2_without_positions_the_order_before_the_last_layer_does_not_count() -> None:
    """One layer sees keys as a set: any order of the earlier tokens gives the same row."""
    single = engine_of(num_hidden_layers=1)
    answer = answered(single, PROMPT)
    found = compare(single, answer, change_of("positions=off"), name="tiny", num_runs=1)
    swapped = answered(single, (*PROMPT[:5][::-1], *PROMPT[5:]))
    other = compare(single, swapped, change_of("positions=off"), name="tiny", num_runs=1)
    assert found.changed_token_ids == other.changed_token_ids
    assert found.recorded_token_ids != other.recorded_token_ids


def test_a_patched_position_carries_anothers_vector(engine: Engine) -> None:
    """Behind the last layer only the row of that position can tell, and it tells of the other."""
    last = len(PROMPT) - 1
    found = compared(engine, f"patch=1@{last}:3")
    other = int(recomputed(engine, PROMPT).logits[3].argmax())
    assert found.changed_token_ids[0] == other
    rows = rows_of(engine, found)
    patched = rows.copy()
    patched[0] = recomputed(engine, PROMPT).logits[3]
    np.testing.assert_allclose(moved(found).kl, kl_of(rows, patched), rtol=1e-3, atol=1e-9)
    assert not moved(found).distance[1:].any()
    blank = compared(engine, f"patch=1@{last}:zero")
    assert blank.changed_token_ids[0] == 0  # all logits are 0, and the smallest id comes first


def folder_of(path: Path, **changes: Any) -> str:
    """A model of random weights, the same ones for the same shapes."""
    path.mkdir()
    (path / "config.json").write_text(json.dumps(tiny.config(**changes)))
    return f"random:{path}/config.json"


EXPERTS = {
    **{"architectures": ["MixtralForCausalLM"], "model_type": "mixtral"},
    **{"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
}


def test_g8_fewer_experts_are_the_model_that_was_configured_so(tmp_path: Path) -> None:
    name = folder_of(tmp_path / "experts", **EXPERTS)
    settings = {"dtype": "float64", "cache_tokens": 512}
    engine = LLM(name, **settings).engine
    fewer = LLM(name, **settings, override=("num_experts_per_tok=1",)).engine
    answer = answered(engine, PROMPT)
    found = compare(engine, answer, change_of("experts_per_token=1"), name=name, num_runs=1)
    assert found.changed_token_ids == answered(fewer, PROMPT).token_ids[len(PROMPT) :]
    assert found.changed.flops < found.recorded.flops and moved(found).distance.max() > 0
    same = compare(engine, answer, change_of("experts_per_token=2"), name=name, num_runs=1)
    assert same.first_difference is None and not moved(same).distance.any()


SIZES = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}


@pytest.mark.skipif(not capture.is_available(), reason="the native kernels are not built")
def test_n11_weights_in_fewer_bits_take_less_and_move_little(tmp_path: Path) -> None:
    name = folder_of(tmp_path / "one", **SIZES)
    engine = LLM(name, cache_tokens=512).engine
    answer, told = answered(engine, PROMPT), list[str]()
    change = change_of("quant=int8")
    found = compare(engine, answer, change, name=name, num_runs=1, tell=told.append)
    tables = 2 * 320 * 64 * 4  # embedding and unembedding stay as they are
    rounded, whole = found.changed.weight_bytes - tables, found.recorded.weight_bytes - tables
    assert whole / 4 < rounded < whole / 3  # 8 bits for 32, and scales
    assert 0 < moved(found).distance.max() < 0.2
    assert told[0].startswith("a second model beside: about ") and "second pool" in told[1]


@pytest.mark.skipif(not capture.is_available(), reason="the native kernels are not built")
def test_where_native_kernels_served_both_sides_run_as_modules(tmp_path: Path) -> None:
    """Else the arithmetic of the two would differ beside the change."""
    name = folder_of(tmp_path / "one", **SIZES)
    engine = LLM(name, cache_tokens=512).engine
    answer = answered(engine, PROMPT)
    for change in ("patch=0@3:3", "window=4096"):
        found = compare(engine, answer, change_of(change), name=name, num_runs=1)
        assert found.first_difference is None and found.num_equal_rows == found.num_rows == 6
        assert not moved(found).distance.any()
    assert moved(compare(engine, answer, change_of("ablate=0"), name=name)).distance.max() > 0.01


@pytest.mark.skipif(not capture.is_available(), reason="the native kernels are not built")
def test_modules_over_packed_weights_unpack_them_once_and_forget_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = folder_of(tmp_path / "one", **SIZES)
    engine = LLM(name, cache_tokens=512).engine
    answer, change = answered(engine, PROMPT), change_of("ablate=1")
    packed = [p for p in engine.model.transformer.modules() if isinstance(p, Packed)]
    calls, dense = list[PackedWeight](), PackedWeight.dense

    def counted(part: PackedWeight, out: torch.Tensor | None = None) -> torch.Tensor:
        if out is not None:  # else rows of an embedding
            calls.append(part)
        return dense(part, out)

    monkeypatch.setattr(PackedWeight, "dense", counted)
    found = compare(engine, answer, change, name=name, num_runs=1)
    assert moved(found).distance.max() > 0.01
    # One run of each side, and the two together for their chances.
    assert packed and len(calls) == 3 * len(packed)
    assert all(part.unpacked is None for part in packed)


def test_n1_naive_attention_gives_the_same_to_rounding() -> None:
    """Over more keys than the paged form reduces at once, and against NumPy."""
    engine = engine_of(max_position_embeddings=512)
    prompt = tuple(40 + number % 200 for number in range(300))
    answer = answered(engine, prompt)
    told: list[str] = []
    change = change_of("attention=naive")
    found = compare(engine, answer, change, name="tiny", num_runs=1, tell=told.append)
    assert found.first_difference is None and found.is_as_served
    assert 0 < moved(found).distance.max() < 1e-12, "another order of sums, and no more"
    assert "a second pool beside" in told[0]
    assert found.notes[0].startswith("naive keeps up to 360,000 scores of a layer at once")
    naive = engines.engine(with_naive_attention(engine.model))
    rows = force_tokens(naive, answer, prompt=prompt, output=found.recorded_token_ids)
    ours = np.stack([row.double().numpy() for _, row in rows])
    token_ids = (*prompt, *found.recorded_token_ids[:-1])
    theirs = recomputed(engine, token_ids).logits[len(prompt) - 1 :]
    np.testing.assert_allclose(ours, theirs, atol=1e-9)


@pytest.mark.skipif(not capture.is_available(), reason="the native kernels are not built")
def test_naive_attention_is_no_native_kernel(tmp_path: Path) -> None:
    name = folder_of(tmp_path / "one", **SIZES)
    engine = LLM(name, cache_tokens=512).engine
    steps = Engine(with_naive_attention(engine.model), engine.config, num_pages=40).runner._native
    assert not engine.runner._native.torch_calls
    assert "naive_paged_attention" in steps.torch_calls
    answer = answered(engine, PROMPT)
    found = compare(engine, answer, change_of("attention=naive"), name=name, num_runs=1)
    # Keys are kept in float16, where the last bit of a float32 may decide over one of theirs.
    assert found.first_difference is None and moved(found).distance.max() < 1e-3


@pytest.mark.parametrize("case", ["deepseek-v2", "gpt-oss"])
def test_naive_attention_of_other_architectures(tmp_path: Path, case: str) -> None:
    """Latent heads have one form; windows and sinks have both."""
    engine = engine_of_case(tmp_path, case)
    if case == "deepseek-v2":
        with pytest.raises(RequestError, match="has layers with one form: their heads share one"):
            with_naive_attention(engine.model)
        return
    answer = answered(engine, PROMPT)
    found = compare(engine, answer, change_of("attention=naive"), name=case, num_runs=1)
    assert found.first_difference is None and moved(found).distance.max() < 1e-3


def test_another_model_gives_its_own_answer(tmp_path: Path) -> None:
    name = folder_of(tmp_path / "one")
    other = folder_of(tmp_path / "other", num_hidden_layers=3)
    settings = {"dtype": "float64", "cache_tokens": 512}
    engine = LLM(name, **settings).engine
    answer = answered(engine, PROMPT)
    found = compare(engine, answer, change_of(f"model={other}"), name=name, num_runs=1)
    theirs = answered(LLM(other, **settings).engine, PROMPT)
    assert found.changed_token_ids == theirs.token_ids[len(PROMPT) :]
    assert found.changed.weight_bytes > found.recorded.weight_bytes


@pytest.mark.parametrize("change", ["kv_cache=off", "prefix_cache=off", "batch=3"])
def test_m5_how_it_is_run_changes_what_it_costs_and_no_bit(engine: Engine, change: str) -> None:
    found = compared(engine, change, temperature=0.8, seed=7)
    assert found.first_difference is None and found.num_equal_rows == found.num_rows == 6
    if change == "kv_cache=off":
        assert (
            found.changed.num_computed == sum(range(20, 26)) and found.recorded.num_computed == 25
        )
        assert found.changed.flops > found.recorded.flops
    if change == "prefix_cache=off":
        assert found.recorded.num_computed == 25 - 16  # two full pages of the prompt were there
        assert found.changed.num_computed == 25
    if change == "batch=3":
        assert found.changed.num_bytes < found.recorded.num_bytes


def test_without_a_cache_an_answer_ends_where_it_ended(engine: Engine) -> None:
    given = {"temperature": 5.0, "ignore_eos": False, "min_tokens": 4, "max_tokens": 30}
    ends = {"logit_bias": {engines.END: 25.0}, "stop": ("zz",)}
    for seed in range(3):
        found = compared(engine, "kv_cache=off", seed=seed, **given, **ends)
        assert found.first_difference is None and found.is_as_served
        assert 4 < len(found.recorded_token_ids) < 30


def test_keys_in_fewer_bits_take_less_and_move_little(engine: Engine) -> None:
    told: list[str] = []
    answer = answered(engine, PROMPT)
    change = change_of("kv_dtype=int8")
    found = compare(engine, answer, change, name="tiny", num_runs=1, tell=told.append)
    assert told == ["a second pool beside: 0.0 MiB of keys and values"]
    assert found.changed.cache_bytes < found.recorded.cache_bytes / 4
    assert 0 < moved(found).distance.max() < 0.1


def test_measurements_have_a_spread_and_money_a_price(engine: Engine) -> None:
    answer = answered(engine, PROMPT)
    found = compare(engine, answer, change_of("seed=1"), name="tiny", num_runs=3, price=3600.0)
    for each in (found.recorded, found.changed):
        assert each.seconds.least <= each.seconds.median <= each.seconds.most
        assert each.money == pytest.approx(each.seconds.median)
    assert found.num_runs == 3


def test_a_sink_of_the_engine_is_left_as_it_was() -> None:
    seen: list[str] = []
    engine = engine_of()
    engine.sink = sink = lambda name, value, layer: seen.append(name)
    compared(engine, "ablate=0")
    assert engine.sink is sink


def test_what_cannot_be_changed_is_told_with_what_can(engine: Engine) -> None:
    cases = {
        "temperature": "it must be FIELD=VALUE",
        "temprature=1": "did you mean temperature",
        "token=5": "a token is changed by its step",
        "temperature@3=1": "a token is changed by its step",
        "token@99=5": "its steps are 0 to 5",
        "token@1=320": "it must be a whole number from 0 to 319",
        "token@5=1": "leaves nothing to be drawn",
        "top_k=many": 'top_k is "many"; it must be an integer',
        "temperature=9": "temperature is 9.0",
        "system=x": "this answer has none. Add --chat",
        "context=21": "it must be a whole number from 1 to 20",
        "ablate=2": "layers from 0 to 1",
        "ablate=1.4": "a head must be from 0 to 3",
        "patch=1@4:5": "another position that is not behind it",
        "positions=on": "it must be off",
        "attention=flash": "it must be naive or fused",
        "experts_per_token=1": "has no experts",
        "kv_cache=on": "it must be off",
        "batch=0": "it must be a whole number from 1",
        "kv_dtype=int3": 'kv_dtype is "int3"; it must be one of',
    }
    for change, words in cases.items():
        with pytest.raises(Exception, match=words):
            compared(engine, change)
    with pytest.raises(RequestError, match="nothing to compare"):
        empty = answered(engine, PROMPT, max_tokens=0, prompt_logprobs=1)
        compare(engine, empty, change_of("seed=1"), name="tiny")
    request = Request(
        request_id="p",
        prompt_token_ids=PROMPT,
        params=SamplingParams(max_tokens=4, temperature=0.0, presence_penalty=1.0),
    )
    engines.run(engine, [request])
    assert engine.ledger is not None
    answer = engine.ledger.find("p")
    assert answer is not None
    with pytest.raises(RequestError, match="Ask without them"):
        compare(engine, answer, change_of("token@1=5"), name="tiny")


@pytest.mark.parametrize("change", ["temperature=2", "token@2=65", "kv_cache=off", "seed=6"])
def test_the_picture_fits_and_names_what_differs(engine: Engine, change: str) -> None:
    found = compared(engine, change, temperature=1.0, seed=5)
    lines = found.draw().text().splitlines()
    assert max(map(len, lines)) <= 100 and lines[0] == f"{change}, and nothing else"
    at = found.first_difference
    words = "the very same 6 tokens" if at is None else f"the first token that differs: {at}, of 6"
    assert lines[1] == words


def test_every_lever_is_told_in_the_help() -> None:
    from cutaway.cli.compare import compare as command

    assert command.__doc__ is not None
    assert all(f"{name}: {meaning}" in command.__doc__ for name, meaning in LEVERS.items())
