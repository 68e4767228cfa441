"""LoRA adapters: what they add, how they go on and off, and peft's files."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tiny
from cutaway.blocks.transformer import Transformer
from cutaway.core.errors import ConfigError, ModelFormatError
from cutaway.core.step import Step
from cutaway.models.parts.grouped_decoder import IN_GGUF, GroupedDecoder
from cutaway.quantize.adapted import Adapted
from cutaway.weights.adapter import (
    adapters,
    merge,
    places,
    put_on,
    read_adapter,
    read_pairs,
    switch_off,
    take_off,
    write_adapter,
)
from cutaway.weights.files.safetensors import SafetensorsWeights
from cutaway.weights.files.safetensors_writer import write_safetensors
from cutaway.weights.load import load_weights

SEQUENCES = [[1, 2, 3, 4, 5], [9, 8, 7]]


def made(seed: int = 0) -> tuple[GroupedDecoder, Transformer]:
    return tiny.random_model(seed=seed, dtype=torch.float32)


def logits(model: Transformer) -> Tensor:
    with torch.no_grad():
        return model(Step.without_cache(SEQUENCES))


def disturb(model: nn.Module) -> None:
    """Give every pair something to say."""
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for _, pair in adapters(model):
            pair.adapter_up.copy_(0.1 * torch.randn(pair.adapter_up.shape, generator=generator))


def test_every_linear_map_of_a_block_has_a_place_named_as_the_hub_does() -> None:
    architecture, _ = made()
    own = [place.module for place in places(architecture.targets("hf")) if ".0." in place.module]
    assert sorted(own) == [
        *(f"model.layers.0.mlp.{word}_proj" for word in ("down", "gate", "up")),
        *(f"model.layers.0.self_attn.{word}_proj" for word in "koqv"),
    ]


def test_a_fresh_pair_adds_nothing_and_alone_is_trained() -> None:
    architecture, model = made()
    before = logits(model)
    pairs = put_on(model, architecture.targets("hf"), rank=4)
    assert torch.equal(logits(model), before)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert len(pairs) == 14
    assert len(trained) == 28
    assert all("adapter_" in name for name in trained)
    bound = pairs[0].adapter_down.shape[1] ** -0.5
    assert float(pairs[0].adapter_down.detach().abs().max()) <= bound
    assert not any(torch.equal(pairs[0].adapter_down, each.adapter_down) for each in pairs[1:3])


def test_a_pair_adds_its_product() -> None:
    architecture, model = made()
    (pair,) = put_on(model, architecture.targets("hf"), rank=2, alpha=6, modules=("q_proj",))[:1]
    disturb(model)
    x = torch.randn(3, 48, generator=torch.Generator().manual_seed(1))
    matrix = pair.base.weight + 3.0 * pair.adapter_up @ pair.adapter_down
    torch.testing.assert_close(pair.multiply(x), x @ matrix.T, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(pair.dense(), matrix)


def test_off_is_the_model_without_to_the_bit() -> None:
    architecture, model = made()
    before = logits(model)
    put_on(model, architecture.targets("hf"), rank=4)
    disturb(model)
    assert not torch.allclose(logits(model), before, atol=1e-2)
    with switch_off(model):
        assert torch.equal(logits(model), before)
    assert not torch.allclose(logits(model), before, atol=1e-2)


def test_taking_off_is_exact_and_merging_is_near() -> None:
    architecture, model = made()
    before = logits(model)
    put_on(model, architecture.targets("hf"), rank=4)
    disturb(model)
    adapted = logits(model)
    merge(model)
    assert not list(adapters(model))
    torch.testing.assert_close(logits(model), adapted, atol=1e-4, rtol=1e-4)
    architecture, model = made()
    put_on(model, architecture.targets("hf"), rank=4)
    disturb(model)
    take_off(model)
    assert torch.equal(logits(model), before)


def test_gradients_reach_the_pair_and_nothing_else() -> None:
    architecture, model = made()
    put_on(model, architecture.targets("hf"), rank=2)
    disturb(model)
    model(Step.without_cache(SEQUENCES)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert (parameter.grad is not None) == ("adapter_" in name), name


def test_written_and_read_again_it_is_the_same(tmp_path: Path) -> None:
    architecture, model = made()
    put_on(model, architecture.targets("hf"), rank=4)
    disturb(model)
    write_adapter(tmp_path, model, architecture.targets("hf"), base_model="base")
    _, other = made()
    read_adapter(tmp_path, other, architecture.targets("hf"))
    assert torch.equal(logits(other), logits(model))
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["peft_type"]) == (4, 8, "LORA")
    assert config["target_modules"] == [
        *("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj")
    ]


def write_by_hand(folder: Path, **changes: Any) -> dict[str, Tensor]:
    """What peft writes for one layer's q_proj and down_proj."""
    generator = torch.Generator().manual_seed(3)
    shapes = {"self_attn.q_proj": (48, 48), "mlp.down_proj": (48, 96)}
    tensors: dict[str, Tensor] = {}
    for module, (rows, columns) in shapes.items():
        front = f"base_model.model.model.layers.1.{module}"
        tensors[f"{front}.lora_A.weight"] = torch.randn(3, columns, generator=generator)
        tensors[f"{front}.lora_B.weight"] = torch.randn(rows, 3, generator=generator)
    config = {"peft_type": "LORA", "r": 3, "lora_alpha": 6, "bias": "none", **changes}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    write_safetensors(folder / "adapter_model.safetensors", tensors)
    return tensors


@pytest.mark.parametrize(("changes", "scale"), [({}, 2.0), ({"use_rslora": True}, 6 / 3**0.5)])
def test_a_folder_that_was_written_by_hand(
    changes: dict[str, Any], scale: float, tmp_path: Path
) -> None:
    architecture, model = made()
    tensors = write_by_hand(tmp_path, **changes)
    before = dict(model.named_parameters())["blocks.1.attention.qkv.segments.0.weight"]
    read_adapter(tmp_path, model, architecture.targets("hf"))
    pair = model.get_submodule("blocks.1.attention.qkv.segments.0")
    front = "base_model.model.model.layers.1.self_attn.q_proj"
    added = tensors[f"{front}.lora_B.weight"] @ tensors[f"{front}.lora_A.weight"]
    assert isinstance(pair, Adapted)
    torch.testing.assert_close(pair.dense(), before + scale * added)
    assert len(list(adapters(model))) == 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"peft_type": "IA3"}, 'peft_type: is "IA3"; only plain LoRA is read'),
        ({"use_dora": True}, "use_dora: is true; only plain LoRA is read"),
        ({"bias": "all"}, 'bias: is "all"; only plain LoRA is read'),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save: is"),
        ({"alora_invocation_tokens": [1, 2]}, "alora_invocation_tokens: is"),
        ({"use_qalora": True}, "use_qalora: is true; only plain LoRA is read"),
        ({"layer_replication": [[0, 1], [0, 1]]}, "layer_replication: is"),
        ({"target_parameters": ["x"]}, "target_parameters: is"),
        ({"task_type": "SEQ_CLS"}, 'task_type: is "SEQ_CLS"; only plain LoRA is read'),
        ({"lora_alpha": "8"}, 'lora_alpha: is "8"; it must be a number of at most 1000000'),
        ({"lora_alpha": True}, "lora_alpha: is true; it must be a number"),
        ({"lora_alpha": math.nan}, "lora_alpha: is nan; it must be a number"),
        ({"lora_alpha": 10**400}, "lora_alpha: is 1000000000.*; it must be a number"),
    ],
)
def test_what_is_not_plain_lora_is_refused(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    architecture, model = made()
    write_by_hand(tmp_path, **changes)
    with pytest.raises(ModelFormatError, match=said):
        read_adapter(tmp_path, model, architecture.targets("hf"))


def test_an_adapter_of_another_model_is_refused(tmp_path: Path) -> None:
    write_by_hand(tmp_path)
    architecture, model = tiny.random_model(tiny.config(intermediate_size=64), dtype=torch.float32)
    said = r"down_proj: has pairs of shapes \(48, 3\) and \(3, 96\); the model's matrix has"
    with pytest.raises(ModelFormatError, match=said):
        read_adapter(tmp_path, model, architecture.targets("hf"))
    architecture, model = tiny.random_model(tiny.config(num_hidden_layers=1), dtype=torch.float32)
    with pytest.raises(ModelFormatError, match="is for no linear map"):
        read_adapter(tmp_path, model, architecture.targets("hf"))


@pytest.mark.parametrize(
    ("down", "up", "said"),
    [
        ((0, 48), (48, 0), "has rank 0; it must be from 1 to 4096"),
        ((4097, 48), (48, 4097), "has rank 4097; it must be from 1 to 4096"),
        ((), (48, 3), r"has pairs of shapes \(48, 3\) and \(\)"),
        ((3, 48, 1), (48, 3), r"has pairs of shapes \(48, 3\) and \(3, 48, 1\)"),
        ((3, 48), (48,), r"has pairs of shapes \(48,\) and \(3, 48\)"),
    ],
    ids=str,
)
def test_pairs_of_odd_shapes_are_named(
    down: tuple[int, ...], up: tuple[int, ...], said: str, tmp_path: Path
) -> None:
    """A rank above what native kernels keep once broke every answer, the model's own too."""
    tensors = write_by_hand(tmp_path)
    front = "base_model.model.model.layers.1.self_attn.q_proj"
    for name, shape in (("lora_A", down), ("lora_B", up)):
        tensors[f"{front}.{name}.weight"] = torch.zeros(shape)
    write_safetensors(tmp_path / "adapter_model.safetensors", tensors)
    architecture, model = made()
    with pytest.raises(ModelFormatError, match=said):
        read_pairs(tmp_path, model, architecture.targets("hf"))


@pytest.mark.parametrize("name", ["lora_A", "lora_B"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_pairs_that_are_no_numbers_are_refused(name: str, value: float, tmp_path: Path) -> None:
    tensors = write_by_hand(tmp_path)
    tensors[f"base_model.model.model.layers.1.self_attn.q_proj.{name}.weight"][0, 0] = value
    write_safetensors(tmp_path / "adapter_model.safetensors", tensors)
    architecture, model = made()
    with pytest.raises(ModelFormatError, match="has entries that are no numbers"):
        read_pairs(tmp_path, model, architecture.targets("hf"))


# T46: an adapter on one of two tied matrices. Heads and embeddings have none.
def test_t46_heads_and_embeddings_take_no_adapter() -> None:
    architecture, model = tiny.random_model(tiny.config(tie_word_embeddings=True))
    with pytest.raises(ConfigError, match="modules names lm_head; the model has linear maps"):
        put_on(model, architecture.targets("hf"), rank=2, modules=("lm_head",))
    assert not any("embed" in place.module for place in places(architecture.targets("hf")))


def test_a_second_adapter_on_one_matrix_is_refused() -> None:
    architecture, model = made()
    put_on(model, architecture.targets("hf"), rank=2)
    with pytest.raises(ConfigError, match="has an adapter already"):
        put_on(model, architecture.targets("hf"), rank=2)


# T44: an adapter merged into fewer bits loses what it learned.
def test_t44_merging_into_fewer_bits_is_refused() -> None:
    architecture, model = made()
    (pair,) = put_on(model, architecture.targets("hf"), rank=2, modules=("q_proj",))[:1]

    class Rounded(nn.Module):
        def dense(self) -> Tensor:
            return torch.zeros(48, 48)

    pair.base = Rounded()
    with pytest.raises(ConfigError, match="is kept in fewer bits"):
        merge(model)


class Interleaved:
    """The weights of a model as a GGUF file names and orders them."""

    file = "model.gguf"

    def __init__(self, architecture: GroupedDecoder, model: Transformer) -> None:
        named = dict(model.named_parameters())
        self._tensors: dict[str, Tensor] = {}
        for name, target in architecture.targets("gguf").items():
            value = named[target.parameter].detach()
            if target.pairs is not None:
                pairs = value.reshape(target.pairs.heads, 2, -1, *value.shape[1:])
                value = pairs.transpose(1, 2).reshape(value.shape)
            self._tensors[name] = value

    def names(self) -> Any:
        return self._tensors.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._tensors[name].shape)

    def check(self, name: str) -> None:
        pass

    def tensor(self, name: str) -> Tensor:
        return self._tensors[name]

    def release(self, name: str) -> None:
        pass


# T47: an adapter with the row order of a GGUF file.
def test_t47_an_adapter_fits_a_model_whose_file_orders_rows_otherwise(tmp_path: Path) -> None:
    architecture, model = made()
    interleaved = replace(architecture, interleaved=IN_GGUF)  # what a GGUF file's metadata gives
    source: Any = Interleaved(interleaved, model)
    query = "blk.0.attn_q.weight"
    own = model.get_submodule("blocks.0.attention.qkv.segments.0").weight
    assert not torch.equal(source.tensor(query), own)  # the file has another order
    other = architecture.build()
    load_weights(other, source, interleaved.targets("gguf"), dtype=torch.float32)
    put_on(model, architecture.targets("hf"), rank=4)
    disturb(model)
    write_adapter(tmp_path, model, architecture.targets("hf"))
    read_adapter(tmp_path, other, interleaved.targets("hf"))
    assert torch.equal(logits(other), logits(model))


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of transformers, about peft's own calls
def test_peft_reads_ours_and_we_read_pefts(tmp_path: Path) -> None:
    """Against the library itself."""
    import peft  # takes seconds

    transformers = pytest.importorskip("transformers")
    architecture, model = made()
    config = transformers.LlamaConfig(
        **{k: v for k, v in tiny.config().items() if k != "architectures"}, attention_bias=False
    )
    theirs = transformers.LlamaForCausalLM(config).eval()
    named = dict(model.named_parameters())
    state = {n: named[t.parameter].detach() for n, t in architecture.targets("hf").items()}
    theirs.load_state_dict(state, strict=True)
    put_on(model, architecture.targets("hf"), rank=4)
    disturb(model)
    (tmp_path / "ours").mkdir()
    write_adapter(tmp_path / "ours", model, architecture.targets("hf"))
    wrapped = peft.PeftModel.from_pretrained(theirs, tmp_path / "ours").eval()
    ids = torch.tensor([SEQUENCES[0]])
    with torch.no_grad():
        torch.testing.assert_close(wrapped(ids).logits[0], logits(model)[:5], atol=1e-4, rtol=1e-4)
        wrapped.save_pretrained(tmp_path / "theirs")
        _, again = made()
        read_adapter(tmp_path / "theirs", again, architecture.targets("hf"))
        assert torch.equal(logits(again), logits(model))
    ours, back = (
        SafetensorsWeights(tmp_path / who, single="adapter_model.safetensors")
        for who in ("ours", "theirs")
    )
    assert set(ours.names()) == set(back.names())
    assert all(torch.equal(ours.tensor(name), back.tensor(name)) for name in ours.names())
