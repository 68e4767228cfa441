"""Trained speculators: their files, guesses beside a recomputation, and the same answers."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from operator import mul
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny
from cutaway import LLM
from cutaway.core.errors import ConfigError, ModelFormatError
from cutaway.core.grammar import Grammar
from cutaway.core.request import Request, SamplingParams
from cutaway.core.step import Step
from cutaway.engine.config import EngineConfig
from cutaway.engine.drafters import Draft, GuessSource, Wish
from cutaway.engine.drafters.draft_models import trained_drafter
from cutaway.engine.drafters.streams import Streams
from cutaway.engine.drafters.trained_drafter import TrainedDrafter
from cutaway.engine.drafting import Drafting
from cutaway.engine.engine import Engine
from cutaway.engine.loading.loaded_model import LoadedModel
from cutaway.engine.loading.speculator_folder import TargetShape, load_speculator, read_shape
from cutaway.kernels import capture
from cutaway.kernels.native import Chain, RowRoom
from cutaway.quantize.packed import ServingPacked
from cutaway.train.losses.speculator_passes import passes_over
from cutaway.weights.files.safetensors_writer import write_safetensors
from engines import engine, loaded, run, workload

DRAFTED = torch.tensor([each for each in range(320) if each % 3])
TARGET = TargetShape("tiny", 48, 2, 320)
GRAMMAR = Grammar.regex("(ab|cd){3,9}")
needs_chains = pytest.mark.skipif(
    not (capture.is_available() and Chain.is_available()),
    reason="the native kernels are not built, or were before they made chains of guesses",
)


def config(**changes: Any) -> dict[str, Any]:
    """As speculators writes it."""
    layer = {
        "model_type": "llama",
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 12,
        "hidden_act": "silu",
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "vocab_size": 320,
    }
    inner = changes.pop("layer", {})
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.3.0",
        "draft_vocab_size": len(DRAFTED),
        "norm_before_residual": False,
        "target_hidden_size": None,
        "eagle_aux_hidden_state_layer_ids": [1, 2, 2],
        "transformer_layer_config": {**layer, **inner},
        **changes,
    }


def write(folder: Path, told: dict[str, Any], *, seed: int = 0, has_table: bool = False) -> Path:
    """A folder of random weights in the layout."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(told))
    generator = torch.Generator().manual_seed(seed)
    shape = read_shape(told, TARGET, file="config.json")
    tensors = {
        name: torch.ones(target.shape)
        if len(target.shape) == 1
        else torch.randn(target.shape, generator=generator) * target.shape[1] ** -0.5
        for name, target in shape.targets(TARGET).items()
    }
    tensors["lm_head.weight"] *= 3
    tensors["d2t"] = DRAFTED - torch.arange(len(DRAFTED))
    if has_table:
        tensors["embed_tokens.weight"] = torch.randn(320, 48, generator=generator)
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("speculator") / "it", config())


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return loaded(dtype=torch.float32)


def made(model: LoadedModel, folder: Path, *, num_pages: int = 200) -> TrainedDrafter:
    return trained_drafter(folder, model, EngineConfig(page_size=8), num_pages=num_pages)


def speculating(model: LoadedModel, folder: Path, **settings: Any) -> Engine:
    given = {"page_size": 8, "prefill_chunk": 512, **settings}
    num_pages = given.pop("num_pages", 200)
    config = EngineConfig(**given, draft_speculator=str(folder))
    drafter = made(model, folder, num_pages=num_pages)
    drafting = Drafting(  # without a controller: all guesses are taken
        {"trained": GuessSource(drafter)}, default="trained", streams=Streams(drafter.layers)
    )
    return Engine(model, config, num_pages=num_pages, drafting=drafting)


def streams_of(model: LoadedModel, token_ids: Sequence[int], layers: tuple[int, ...]) -> Any:
    reader = Streams(layers)
    step = replace(Step.without_cache([token_ids]), streams=reader)
    with torch.inference_mode():
        model.transformer(step)
    return reader.take()


@pytest.mark.parametrize("keeps_normed", [False, True])
@pytest.mark.parametrize("has_table", [False, True])
def test_guesses_are_those_of_the_training_passes(
    model: LoadedModel, tmp_path: Path, keeps_normed: bool, has_table: bool
) -> None:
    """T50: what serves is what was trained, guess by guess, after any number that stood."""
    told = config(norm_before_residual=keeps_normed)
    drafter = made(model, write(tmp_path / "it", told, has_table=has_table))
    loaded_, text, most = drafter._speculator, [7 * i % 256 for i in range(21)], 4
    module, table = loaded_.module, loaded_.embedding.table
    assert (table is not model.transformer.embedding.table) == has_table
    known, last = 9, 0
    while known < len(text):
        streams = streams_of(model, text[: known - 1], loaded_.layers)
        start = 0 if known == 9 else known - 1 - last
        drafter.observe(0, start, streams[start:])
        (draft,) = drafter.propose([Wish(0, text[:known], most)])
        guesses: list[int] = []
        for number in range(most):
            tokens = torch.tensor([*text[1:known], *guesses])
            whole = torch.cat((streams, torch.zeros(number, streams.shape[1])))
            with torch.inference_mode():
                given = passes_over(module, whole, table.rows(tokens), num_passes=1 + number)
                row = module.read(given[number][-1:])[0]
            guesses.append(int(loaded_.drafted[row.argmax()]))
        assert draft.token_ids == guesses and len(draft.chances) == most
        assert {each % 3 for each in guesses} <= {1, 2}, "only drafted ids are guessed"
        last = known % 3 + 1
        known += last
    drafter.finish(0)
    assert drafter.cache_stats.used == 0


@pytest.mark.parametrize("seed", range(3))
def test_a_speculator_changes_no_answer(model: LoadedModel, folder: Path, seed: int) -> None:
    """Stops, caps, penalties, choices, logprobs, a grammar, and pages that run out."""
    requests = workload(seed, count=5)
    requests[0] = replace(requests[0], params=replace(requests[0].params, grammar=GRAMMAR, stop=()))
    settings = {"num_pages": (14, 20, 200)[seed], "prefill_chunk": (4, 16, 512)[seed]}
    expected = {key: each.essence for key, each in run(engine(model, **settings), requests).items()}
    target = speculating(model, folder, **settings)
    assert {key: each.essence for key, each in run(target, requests).items()} == expected
    assert target.drafting is not None and target.config.draft == "trained"
    drafter = target.drafting.drafter("trained")
    assert isinstance(drafter, TrainedDrafter)
    assert target.num_drafted > 0
    assert target.cache_stats.used == 0 and drafter.cache_stats.used == 0 and not drafter._seen


def test_what_was_found_in_the_cache_is_guessed_behind(model: LoadedModel, folder: Path) -> None:
    target = speculating(model, folder)
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    prompt = tuple(range(40))
    for name in ("cold", "warm"):
        answer = run(target, [Request(request_id=name, prompt_token_ids=prompt, params=params)])
        assert answer[name, 0].last.timings.drafted > 0
    assert target.cache_stats.hit_tokens >= 32


def both_forms(model: LoadedModel, folder: Path) -> tuple[TrainedDrafter, TrainedDrafter]:
    """A packed speculator's drafter by native kernels, and by its modules."""
    made: list[TrainedDrafter] = []
    table = ServingPacked.of(torch.randn(320, 48), row_order=None, widens=False)
    embedding = copy.copy(model.transformer.embedding)
    embedding.table = table
    for _ in range(2):
        found = load_speculator(folder, TARGET, embedding, table)
        config = EngineConfig(page_size=8)
        given: dict[str, Any] = {"num_pages": 40, "vocab_size": 320, "max_length": 128}
        ends = frozenset({int(DRAFTED[7])})
        made.append(TrainedDrafter(found, config, **given, end_token_ids=ends))
    assert made[0]._recorded is not None and made[0]._recorded.is_whole
    made[1]._recorded = None
    return made[0], made[1]


@needs_chains
@pytest.mark.parametrize(("temperature", "count"), [(0.0, 1), (0.0, 3), (0.8, 1), (0.8, 3)])
def test_a_packed_layer_is_replayed_as_its_modules_compute(
    model: LoadedModel, folder: Path, temperature: float, count: int
) -> None:
    """Guess by guess, over borders of pages, for one answer and for several, as these grow."""
    forms = both_forms(model, folder)
    params = SamplingParams(temperature=temperature, seed=3)
    texts = {"one": list(range(5, 25)), "two": list(range(40, 47)), "six": list(range(60, 69))}
    texts = dict(list(texts.items())[:count])
    streams = {key: torch.randn(60, 3 * 48) for key in texts}
    told = dict.fromkeys(texts, 0)
    for turn in range(4):
        drafts: list[list[Draft]] = []
        wishes = [
            Wish(key, text, 1 + place + turn, params=params)
            for place, (key, text) in enumerate(texts.items())
        ]
        for drafter in forms:
            for key, text in texts.items():
                drafter.observe(key, told[key], streams[key][told[key] : len(text) - 1])
            drafts.append(drafter.propose(wishes))
        for ours, theirs in zip(*drafts, strict=True):
            assert ours.token_ids == theirs.token_ids and ours.token_ids
            assert ours.chances == pytest.approx(theirs.chances, rel=1e-3)
        for place, (key, text) in enumerate(texts.items()):
            told[key] = len(text) - 1
            text += [*drafts[0][place].token_ids[: turn % 3], 9]
    for drafter in forms:
        for key in texts:
            drafter.finish(key)
        assert drafter.cache_stats.used == 0


@pytest.mark.skipif(not capture.is_available(), reason="the native kernels are not built")
def test_streams_are_copied_by_address_as_by_torch() -> None:
    """Few rows and many, from any on, to any place; and told in the midst of a step."""
    layers = (4, 1, 4)
    left = {layer: torch.randn(20, 6) for layer in set(layers)}
    native, told = Streams(layers), Streams(layers)
    native.leave(left, 17)
    for layer in (1, 2, 4):
        told(left.get(layer, torch.zeros(20, 6))[:17], layer)
    whole = torch.cat([left[layer] for layer in layers], dim=1)
    for first, count, place in ((0, 1, 0), (15, 2, 3), (3, 8, 1), (2, 15, 0), (0, 17, 2)):
        for streams in (native, told):
            room = streams.room(20)
            room.tensor.zero_()
            streams.put(first, count, room, place)
            expected = torch.zeros(20, 18)
            expected[place : place + count] = whole[first : first + count]
            assert torch.equal(room.tensor, expected)
    for streams in (native, told):
        assert streams.are_there
        taken = streams.take()
        assert taken is not None and torch.equal(taken, whole[:17])
        assert not streams.are_there and streams.take() is None
    with pytest.raises(AssertionError, match="room"):
        room.put_side_by_side([RowRoom(left[1])], 0, 20)


@needs_chains
def test_a_draft_ends_where_its_chances_fall(model: LoadedModel, folder: Path) -> None:
    """Alike in native calls and module by module."""
    text = list(range(5, 25))
    streams = torch.randn(len(text) - 1, 3 * 48)
    for drafter in both_forms(model, folder):
        drafter.observe(0, 0, streams)
        (whole,) = drafter.propose([Wish(0, text, 6)])
        assert len(whole.token_ids) == 6
        odds = list(accumulate(whole.chances, mul))
        between = (odds[2] * odds[3]) ** 0.5
        (kept,) = drafter.propose([Wish(0, text, 6, least_kept=between)])
        assert kept.token_ids == whole.token_ids[:3]
        (followed,) = drafter.propose([Wish(0, text, 6, least_followed=between)])
        assert followed.token_ids == whole.token_ids[:4]
        (none,) = drafter.propose([Wish(0, text, 6, least_kept=1.01)])
        assert none.token_ids == none.chances == []


@pytest.mark.skipif(not capture.is_available(), reason="the native kernels are not built")
def test_native_steps_leave_their_streams(tmp_path: Path) -> None:
    """The same answers with streams read and without, and guesses made of them."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}
    (tmp_path / "config.json").write_text(json.dumps(tiny.config(vocab_size=320, **sizes)))
    told = config(layer={"hidden_size": 64, "head_dim": 16})
    target = TargetShape("tiny", 64, 2, 320)
    shape = read_shape(told, target, file="config.json")
    tensors = {
        name: torch.ones(each.shape)
        if len(each.shape) == 1
        else torch.randn(each.shape) * each.shape[1] ** -0.5
        for name, each in shape.targets(target).items()
    }
    out = tmp_path / "speculator"
    out.mkdir()
    (out / "config.json").write_text(json.dumps(told))
    offsets = DRAFTED - torch.arange(len(DRAFTED))
    write_safetensors(out / "model.safetensors", {**tensors, "d2t": offsets})
    given = {"cache_tokens": 2048, "page_size": 8, "dtype": "auto"}
    plain = LLM(f"random:{tmp_path}/config.json", **given).engine
    read = LLM(f"random:{tmp_path}/config.json", **given, draft_speculator=str(out)).engine
    assert read.runner.is_invariant, "readers of streams are no torch"
    assert read.runner.torch_calls == () and read.drafting is not None
    drafter = read.drafting.drafter("trained")
    assert drafter is not None
    source = GuessSource(drafter)  # without a controller: guesses at random are taken too
    read.drafting = Drafting({"trained": source}, default="trained", streams=read.drafting.streams)
    requests = workload(3, count=4)
    said = [{k: v.essence for k, v in run(e, requests).items()} for e in (plain, read)]
    assert said[0] == said[1] and read.num_drafted > 0


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"speculators_model_type": "eagle"}, 'is of type "eagle"; it must be eagle3'),
        ({"layer": {"num_hidden_layers": 2}}, "does not fit tiny: it has 2 layers; allowed is 1"),
        ({"layer": {"vocab_size": 400}}, "its vocabulary has 400 entries; allowed is 320"),
        ({"target_hidden_size": 64}, "it reads streams of width 64; allowed is 48"),
        ({"draft_vocab_size": 321}, "it guesses 321 entries; allowed is at most 320"),
        ({"norm_before_fc": True}, "it norms streams before it joins them"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}, "before layers 1, 2, 3; allowed is 3 of"),
        (
            {"eagle_aux_hidden_state_layer_ids": [1, 2]},
            "before layers 1, 2; allowed is 3 of",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        read_shape(config(**changes), TARGET, file="config.json")


def test_files_at_fault_are_named(model: LoadedModel, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json cannot be read"):
        made(model, tmp_path)
    folder = write(tmp_path / "it", config())
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelFormatError, match="is not JSON"):
        made(model, folder)
    (folder / "config.json").write_text(json.dumps(config(draft_vocab_size=100)))
    with pytest.raises(ModelFormatError, match=r"lm_head\.weight.*has shape \(213, 48\)"):
        made(model, folder)
    with pytest.raises(ModelFormatError, match="must be a list of 3"):
        read_shape(config(eagle_aux_hidden_state_layer_ids="2"), TARGET, file="config.json")


@pytest.mark.parametrize(
    ("offsets", "told"),
    [(None, "it has no d2t"), (torch.full((213,), 400), "outside the vocabulary or twice")],
)
def test_ids_that_cannot_be_are_refused(
    model: LoadedModel, tmp_path: Path, offsets: torch.Tensor | None, told: str
) -> None:
    shape = read_shape(config(), TARGET, file="config.json")
    tensors = {name: torch.ones(each.shape) for name, each in shape.targets(TARGET).items()}
    if offsets is not None:
        tensors["d2t"] = offsets
    (tmp_path / "config.json").write_text(json.dumps(config()))
    write_safetensors(tmp_path / "model.safetensors", tensors)
    with pytest.raises(ConfigError, match=told):
        made(model, tmp_path)
