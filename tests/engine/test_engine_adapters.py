"""Answers with adapters: together as alone, cached as uncached, and refused when unloaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny
from cutaway.core.errors import ConfigError, ModelFormatError, ReplayError, RequestError
from cutaway.core.request import Request, SamplingParams
from cutaway.engine.build import load_model
from cutaway.engine.config import EngineConfig
from cutaway.engine.engine import Engine
from cutaway.kernels import capture
from cutaway.models.parts.reading import read_config
from cutaway.replay.recorded_answers import verify_answer
from cutaway.weights.adapter import merge, put_on, read_adapter, write_adapter
from cutaway.weights.find.find import find
from engines import engine, run

DTYPES = ["float32", "auto"] if capture.is_available() else ["float32"]
CONFIG = {
    **tiny.BASE,
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
}
PROMPTS = [tuple((11 * i + 5 * n) % 256 for i in range(n)) for n in (3, 21, 40, 40, 70)]


def config_file(folder: Path) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(CONFIG))
    return path


def adapter(
    folder: Path,
    *,
    rank: int,
    seed: int,
    modules: tuple[str, ...] = (),
    config: Mapping[str, Any] = CONFIG,
) -> Path:
    """An adapter strong enough to change answers."""
    architecture = read_config(config).architecture
    model, targets = architecture.build(), architecture.targets("hf")
    generator = torch.Generator().manual_seed(seed)
    for pair in put_on(model, targets, rank=rank, modules=modules, seed=seed):
        up = pair.adapter_up
        up.data = torch.randn(up.shape, generator=generator) * 0.3
    folder.mkdir()
    write_adapter(folder, model, targets, base_model="tiny")
    return folder


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters")
    config_file(folder)
    adapter(folder / "first", rank=4, seed=1)
    adapter(folder / "second", rank=7, seed=2, modules=("q_proj", "v_proj", "down_proj"))
    return folder


def opened(files: Path, *names: str, dtype: str = "float32", **settings: Any) -> Engine:
    lora = tuple(f"{name}={files / name}" for name in names)
    config = EngineConfig(device="cpu", dtype=dtype, lora=lora)
    return engine(load_model(find(f"random:{files / 'config.json'}"), config), **settings)


def request(number: int, lora: str, **params: Any) -> Request:
    chosen = SamplingParams(**{"temperature": 0.0, "max_tokens": 8, "ignore_eos": True, **params})
    return Request(
        request_id=f"{number}-{lora}", prompt_token_ids=PROMPTS[number], params=chosen, lora=lora
    )


def alone(target: Engine, asked: Request) -> list[int]:
    return run(target, [asked])[asked.request_id, 0].token_ids


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_one_step_have_what_they_have_alone(files: Path, dtype: str) -> None:
    names = ("", "first", "second")
    asked = [
        request(n, lora, logprobs=2, prompt_logprobs=0)
        for n in range(len(PROMPTS))
        for lora in names
    ]
    together = run(opened(files, "first", "second", dtype=dtype), asked, list(range(len(asked))))
    bare = opened(files, dtype=dtype, prefix_cache=False)
    differ = 0
    for each in asked:
        single = opened(files, *[each.lora] if each.lora else [], dtype=dtype, prefix_cache=False)
        one = run(single, [each])[each.request_id, 0]
        both = together[each.request_id, 0]
        assert both.token_ids == one.token_ids
        for ours, theirs in zip(both.logprobs, one.logprobs, strict=True):
            assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-5)
            assert dtype != "auto" or ours.logprob == theirs.logprob
        if each.lora:
            differ += one.token_ids != alone(bare, replace(each, lora=""))
    assert differ >= 8, "the adapters change what is said"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("word", ["NanoChatForCausalLM", "OlmoForCausalLM"])
def test_a_model_whose_norms_have_no_weight_takes_one(
    tmp_path: Path, word: str, dtype: str
) -> None:
    """Packed matrices are no parameters, so such a model has none at all."""
    config = {**CONFIG, "architectures": [word], "num_key_value_heads": 4}
    (tmp_path / "config.json").write_text(json.dumps(config))
    adapter(tmp_path / "first", rank=4, seed=1, config=config)
    tuned, bare = opened(tmp_path, "first", dtype=dtype), opened(tmp_path, dtype=dtype)
    pairs = [(alone(tuned, request(n, "first")), alone(bare, request(n, ""))) for n in range(4)]
    assert any(one != other for one, other in pairs)


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_adapter_serves_as_if_it_were_merged(files: Path, dtype: str) -> None:
    """T44: what was trained is what is served, beside weights that stay as they are."""
    target = opened(files, "first", dtype="float32")
    architecture = read_config(CONFIG).architecture
    merged = load_model(
        find(f"random:{files / 'config.json'}"), EngineConfig(device="cpu", dtype="float32")
    )
    plain = architecture.build()
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            if ".segments." not in name:
                parameter.copy_(merged.transformer.get_parameter(name))
                continue
            linear, _, rest = name.partition(".segments.")
            joined: Any = merged.transformer.get_submodule(linear)
            start = sum(joined.rows[: int(rest.split(".")[0])])
            parameter.copy_(joined.dense()[start : start + len(parameter)])
    read_adapter(files / "first", plain, architecture.targets("hf"))
    merge(plain)
    plain.join_segments()
    theirs = engine(replace(merged, transformer=plain))
    ours = run(opened(files, "first", dtype=dtype), [request(3, "first", logprobs=1)])
    wanted = run(theirs, [request(3, "", logprobs=1)])["3-", 0]
    found = ours["3-first", 0]
    if dtype == "float32":
        assert found.token_ids == wanted.token_ids
    bound = 1e-4 if dtype == "float32" else 0.3  # auto rounds activations to 8 bits
    assert found.logprobs[0].logprob == pytest.approx(wanted.logprobs[0].logprob, abs=bound)
    del target


@pytest.mark.parametrize("dtype", DTYPES)
def test_pages_of_different_adapters_never_meet(files: Path, dtype: str) -> None:
    target = opened(files, "first", "second", dtype=dtype)
    for lora in ("first", "", "second"):
        run(target, [request(4, lora)])
        assert target.cache_stats.hit_tokens == 0, "another's pages hold other keys"
    before = target.cache_stats.hit_tokens
    again = run(target, [replace(request(4, "first"), request_id="again")])["again", 0]
    assert target.cache_stats.hit_tokens > before
    cold = opened(files, "first", dtype=dtype, prefix_cache=False)
    assert again.token_ids == alone(cold, request(4, "first"))


@pytest.mark.parametrize("dtype", DTYPES)
def test_loaded_and_unloaded_while_answers_run(files: Path, dtype: str) -> None:
    target = opened(files, "first", dtype=dtype)
    long = request(2, "first", max_tokens=30)
    wanted = alone(opened(files, "first", dtype=dtype), long)
    target.add(replace(long, request_id="long"))
    said: list[int] = []
    for number in range(40):
        if number == 5:
            target.load_adapter("second", str(files / "second"))
        if number == 9:
            target.unload_adapter("first")
            with pytest.raises(RequestError, match='lora is "first"; loaded are: second'):
                target.add(request(1, "first"))
            assert target.model.adapters.has_ended, "an answer still has it"
        if number == 12:
            target.load_adapter("first", str(files / "second"))  # another of that name
        for delta in target.step():
            said += delta.token_ids
    assert said == wanted
    assert not target.model.adapters.has_ended
    fresh = alone(opened(files, "second", dtype=dtype), request(1, "second"))
    assert alone(target, request(1, "first")) == fresh == alone(target, request(1, "second"))


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_answer_with_an_adapter_is_run_again_to_the_bit(files: Path, dtype: str) -> None:
    target = opened(files, "first", "second", dtype=dtype)
    run(target, [request(n, lora) for n in (1, 4) for lora in ("", "second")], [0, 1, 2, 3])
    assert target.ledger is not None
    for record in target.ledger.answers:
        verdict = verify_answer(target, record)
        assert verdict.is_exact, (record.request.request_id, verdict)
    record = target.ledger.find("4-second")
    assert record is not None
    target.unload_adapter("second")
    with pytest.raises(ReplayError, match='"second", which was unloaded'):
        verify_answer(target, record)


def test_faults_are_named(files: Path, tmp_path: Path) -> None:
    target = opened(files, "first")
    with pytest.raises(ConfigError, match='"first" is loaded already'):
        target.load_adapter("first", str(files / "first"))
    with pytest.raises(ConfigError, match='"third" is not loaded; loaded are: first'):
        target.unload_adapter("third")
    with pytest.raises(ConfigError, match='is not "off"'):
        target.load_adapter("off", str(files / "first"))
    with pytest.raises(ModelFormatError, match=r"adapter_config\.json"):
        target.load_adapter("absent", str(tmp_path / "absent"))
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (tmp_path / name).write_bytes((files / "first" / name).read_bytes())
    other = Path(tmp_path / "other")
    other.mkdir()
    (other / "config.json").write_text(json.dumps({**CONFIG, "hidden_size": 32, "head_dim": 8}))
    config = EngineConfig(device="cpu", dtype="float32", lora=(f"first={files / 'first'}",))
    with pytest.raises(ModelFormatError, match=r"pairs of shapes .*; the model's .*tiny"):
        load_model(find(f"random:{other / 'config.json'}"), config)
    with pytest.raises(ConfigError, match="must be NAME=FOLDER"):
        load_model(
            find(f"random:{files / 'config.json'}"), EngineConfig(device="cpu", lora=("first",))
        )
    assert [each.name for each in target.model.adapters.loaded] == ["first"]
