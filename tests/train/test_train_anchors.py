"""Learning beside what is to stay: anchors, and adapters beside a packed file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from preference_stages import talks, tuned, write_lines

from cutaway import LLM, SamplingParams
from cutaway.core.errors import ConfigError
from cutaway.host.run_record import read_record
from cutaway.train import sft, speculator
from cutaway.train.data.packing import MicroBatch, ScoredSequence
from cutaway.train.losses.anchored import join
from cutaway.train.losses.likelihood import likelihood
from cutaway.train.model.model_folder import open_model
from cutaway.train.sft import CHAT_TEMPLATE
from cutaway.weights.adapter import read_adapter
from cutaway.weights.files.safetensors import SafetensorsWeights

SIZES = {"embedding_length": 32, "feed_forward_length": 64, "block_count": 2, "context_length": 96}
HEADS = {"head_count": 2, "head_count_kv": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("anchors")
    tuned(path)
    write_lines(path / "talks.jsonl", talks(8))
    others = [
        {"role": "user", "content": "black black black"},
        {"role": "assistant", "content": "green red blue green red"},
    ]
    write_lines(path / "anchors.jsonl", [{"messages": others}])
    write_gguf(path / "base.gguf")
    return path


def write_gguf(path: Path) -> None:
    """A tiny model whose matrices lie in Q8_0, with a byte-level vocabulary and ChatML."""
    package = pytest.importorskip("gguf")
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [each for each in range(256) if each not in visible]
    letters = {each: chr(each) for each in visible}
    letters |= {each: chr(256 + place) for place, each in enumerate(others)}
    tokens = [*(letters[each] for each in range(256)), "re", "<|im_start|>", "<|im_end|>"]
    writer = package.GGUFWriter(path, "llama")
    for name, value in SIZES.items():
        writer.add_uint32(f"llama.{name}", value)
    for name, value in HEADS.items():
        writer.add_uint32(f"llama.attention.{name}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_uint32("llama.rope.dimension_count", 16)
    writer.add_float32("llama.rope.freq_base", 10000.0)
    writer.add_string("tokenizer.ggml.model", "gpt2")
    writer.add_string("tokenizer.ggml.pre", "gpt-2")
    writer.add_array("tokenizer.ggml.tokens", tokens)
    writer.add_array("tokenizer.ggml.token_type", [1] * 257 + [3, 3])
    writer.add_array("tokenizer.ggml.merges", ["r e"])
    writer.add_uint32("tokenizer.ggml.eos_token_id", 258)
    writer.add_string("tokenizer.chat_template", CHAT_TEMPLATE)
    drawn = np.random.default_rng(0)
    q8 = package.GGMLQuantizationType.Q8_0
    shapes = {"attn_q": (32, 32), "attn_k": (16, 32), "attn_v": (16, 32), "attn_output": (32, 32)}
    shapes |= {"ffn_gate": (64, 32), "ffn_up": (64, 32), "ffn_down": (32, 64)}

    def add(name: str, shape: tuple[int, ...], scale: float) -> None:
        matrix = (drawn.standard_normal(shape) * scale).astype(np.float32)
        writer.add_tensor(name, package.quants.quantize(matrix, q8), raw_dtype=q8)

    add("token_embd.weight", (259, 32), 0.2)
    writer.add_tensor("output_norm.weight", np.ones(32, np.float32))
    for layer in range(2):
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(32, np.float32))
        for name, shape in shapes.items():
            add(f"blk.{layer}.{name}.weight", shape, 0.2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def settings(folder: Path, out: str, **changes: Any) -> sft.SftSettings:
    return sft.SftSettings(
        **{
            **{"out": folder / out, "model": str(folder / "tuned"), "device": "cpu"},
            **{"data": (folder / "talks.jsonl",), "updates": 4, "rate": 1e-2, "lora_rank": 2},
            **{"tokens": 400, "context": 96, "save_every": 2, "step_tokens": 100},
            **changes,
        }
    )


def losses(folder: Path, out: str, **changes: Any) -> list[dict[str, Any]]:
    sft.prepare(settings(folder, out, **changes)).run(say=lambda words: None)
    return read_record(folder / out / "record.jsonl")


def sequence(length: int, scored: int) -> ScoredSequence:
    return ScoredSequence((1,) * length, (False,) * (length - scored) + (True,) * scored)


def test_an_update_is_a_mean_of_each_kind_however_it_is_cut() -> None:
    answers = [MicroBatch((sequence(9, 2),)), MicroBatch((sequence(5, 1),))]
    anchors = [MicroBatch((sequence(20, 12),))]
    made = join(answers, anchors, weight=0.5)
    count = sum(batch.count for batch in made)
    assert [batch.is_anchor for batch in made] == [False, False, True]
    assert count == 15
    answers_share = sum(b.factor * b.count for b in made if not b.is_anchor) / count
    anchors_share = sum(b.factor * b.count for b in made if b.is_anchor) / count
    assert (answers_share, anchors_share) == pytest.approx((1.0, 0.5))
    assert [batch.factor for batch in join(answers, [], weight=0.5)] == [1.0, 1.0]


@pytest.mark.parametrize("rank", [0, 2])
def test_anchors_hold_the_model_where_it_was(folder: Path, rank: int) -> None:
    """The KL begins at 0, is in the loss, and stays smaller than without its weight."""
    anchors = {"anchors": (folder / "anchors.jsonl",), "lora_rank": rank, "updates": 12}
    held = losses(folder, f"held-{rank}", anchor_weight=20.0, **anchors)
    free = losses(folder, f"free-{rank}", anchor_weight=0.0, **anchors)
    assert held[0]["figures"]["kl"] == pytest.approx(0.0, abs=1e-6)
    for each in held:
        figures = each["figures"]
        assert each["loss"] == pytest.approx(figures["answers"] + 20 * figures["kl"], rel=1e-4)
    assert free[-1]["loss"] == pytest.approx(free[-1]["figures"]["answers"], rel=1e-5)
    assert 0 < held[-1]["figures"]["kl"] < 0.5 * free[-1]["figures"]["kl"]


def test_a_run_with_anchors_goes_on_to_the_bit(folder: Path) -> None:
    anchors = {"anchors": (folder / "anchors.jsonl",)}
    losses(folder, "whole", **anchors)

    def kill(progress: Any) -> None:
        if progress.updated.update == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sft.prepare(settings(folder, "cut", **anchors)).run(kill, lambda words: None)
    sft.prepare(settings(folder, "cut", **anchors)).run(say=lambda words: None)
    one, other = (SafetensorsWeights(folder / out / "model") for out in ("whole", "cut"))
    assert all(torch.equal(one.part(name), other.part(name)) for name in one.names())
    other_data = {"anchors": (folder / "talks.jsonl",)}
    with pytest.raises(ConfigError, match="data"):
        sft.prepare(settings(folder, "cut", **other_data)).run(say=lambda words: None)


def test_t45_an_adapter_beside_a_gguf_file_is_served_beside_it(folder: Path) -> None:
    """Trained on the file's own numbers, it comes out alone, in 16 bits, and answers as learned."""
    base = str(folder / "base.gguf")
    own = {"model": base, "updates": 60, "rate": 3e-2, "decay": 0.0, "lora_kept": "float16"}
    rows = losses(folder, "beside", lora_rank=4, **{k: v for k, v in own.items()})
    assert rows[-1]["loss"] < 0.5 * rows[0]["loss"]
    made = folder / "beside" / "model"
    assert sorted(each.name for each in made.iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    stored = SafetensorsWeights(made, single="adapter_model.safetensors")
    assert {stored.part(name).dtype for name in stored.names()} == {torch.float16}
    assert json.loads((made / "adapter_config.json").read_bytes())["r"] == 4
    asked, told = talks(1)[0]["messages"]
    greedy = SamplingParams(temperature=0.0, max_tokens=12)
    with LLM(base, dtype="float32", lora=(f"own={made}",), cache_tokens=256) as llm:
        assert llm.chat([asked], greedy).text == told["content"]
        assert llm.chat([asked], greedy, lora="off").text != told["content"]
        ids = [(7 * at) % 250 for at in range(40)]
        params = SamplingParams(temperature=0.0, max_tokens=0, prompt_logprobs=0)
        made_by = {lora: llm.generate([ids], params, lora=lora)[0] for lora in ("own", "off")}
    # What training reads of the file is what is served, without the adapter and with it.
    opened = open_model(base, is_base=True)
    batch = MicroBatch((ScoredSequence.whole(ids),))
    for lora in ("off", "own"):
        if lora == "own":
            read_adapter(made, opened.transformer, opened.architecture.targets("hf"))
        rows = [each.logprob for each in made_by[lora].prompt_logprobs or () if each]
        with torch.no_grad():
            found = likelihood(opened.transformer, batch).log_probs
        assert rows == pytest.approx(found.tolist(), abs=2e-5)


def test_a_gguf_file_is_a_base_alone(folder: Path) -> None:
    base = str(folder / "base.gguf")
    with pytest.raises(ConfigError, match="sft with lora_rank, or a speculator"):
        sft.prepare(settings(folder, "refused", model=base, lora_rank=0))
    opened = open_model(base, is_base=True)
    told = {"hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
    assert told.items() <= opened.config.items() and opened.config["rope_theta"] == 10000.0
    data = (folder / "talks.jsonl",)
    made = speculator.prepare(
        speculator.SpeculatorSettings(
            **{"out": folder / "guesses", "model": base, "data": data, "updates": 2, "rate": 1e-3},
            **{"device": "cpu", "inner": 32, "context": 96, "tokens": 400, "drafted": 40},
        )
    )
    path = made.run(say=lambda words: None)
    greedy = SamplingParams(temperature=0.0, max_tokens=12)
    ask = [{"role": "user", "content": "red blue"}]
    with LLM(base, dtype="float32", cache_tokens=256) as llm:
        plain = llm.chat(ask, greedy).text
    with LLM(base, dtype="float32", draft_speculator=str(path), cache_tokens=256) as llm:
        assert llm.chat(ask, greedy).text == plain
