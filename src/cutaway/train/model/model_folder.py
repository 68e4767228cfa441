"""Models in and out of training: a folder in the hub's layout, float32, every weight trainable."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import torch
from torch import Tensor, nn

from cutaway.blocks.positions import Plain
from cutaway.blocks.transformer import Transformer
from cutaway.core.errors import ConfigError
from cutaway.core.limits import quote, similar
from cutaway.core.weight_targets import Target
from cutaway.engine.loading.template_of import template_source_of
from cutaway.engine.loading.tokenizer_of import tokenizer_of
from cutaway.engine.loading.unloaded_model import open_gguf, open_hf
from cutaway.host import gguf_file
from cutaway.models.parts.architecture import Architecture
from cutaway.models.parts.grouped_decoder import GroupedDecoder
from cutaway.models.parts.reading import read_config
from cutaway.tokens.files.tokenizer_files import load_folder
from cutaway.tokens.tokenizer import Tokenizer
from cutaway.weights.files.safetensors_index import SINGLE
from cutaway.weights.files.safetensors_writer import write_safetensors
from cutaway.weights.find.find import Found, find
from cutaway.weights.find.folder import CONFIG
from cutaway.weights.load import in_stored_order, load_weights
from cutaway.weights.source import WeightSource

_TABLE_SPREAD = 0.02  # of embeddings: the first loss is ln V to a few hundredths
# The files of a model's folder that are copied as they are.
SMALL_FILES = (
    *("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json"),
    *("added_tokens.json", "generation_config.json", "chat_template.jinja"),
)


@dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """A model that is trained, and what its folder needs beside the weights.

    config: of config.json.   small_files: by name, what lies beside it.
    gguf: the file that the weights are from, where it was no folder: it stays the base.
    """

    transformer: Transformer
    architecture: Architecture
    config: Mapping[str, object]
    small_files: Mapping[str, bytes]
    gguf: Path | None = None

    def write(self, folder: Path) -> None:
        """Write all files of the model into a folder that is there. Raises: OSError."""
        for name, data in self.small_files.items():
            (folder / name).write_bytes(data)
        config = in_float32(self.config)
        text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
        (folder / CONFIG).write_text(text, encoding="utf-8")
        write_safetensors(folder / SINGLE, stored_tensors(self.transformer, self.architecture))

    def finish(self, folder: Path) -> None:
        """Write what comes out of a run, which chat and serve open. Raises: OSError."""
        self.write(folder)

    def load(self, folder: Path) -> None:
        """Take up the weights that write() wrote. The parameters stay the same tensors."""
        take_up(self.transformer, self.architecture, open_hf(find(str(folder))).source)


def in_float32(config: Mapping[str, object]) -> dict[str, object]:
    """A config.json of the same model that says float32, by the older name and no other."""
    told = {name: value for name, value in config.items() if name != "dtype"}
    return {**told, "torch_dtype": "float32"}


def take_up(transformer: Transformer, architecture: Architecture, source: WeightSource) -> None:
    """Copy stored weights into a model's parameters, which stay the same tensors."""
    parameters = dict(transformer.named_parameters())
    with torch.no_grad():
        for name, target in architecture.targets("hf").items():
            if name in source.names():
                value = source.tensor(name)
                value = value.transpose(-1, -2) if target.is_transposed else value
                parameters[target.parameter][target.part].copy_(value + target.shift)


def open_model(
    path: str, *, device: torch.device | str = "cpu", is_base: bool = False
) -> TrainedModel:
    """The model of a folder, its weights in float32.

    is_base: whether it stays as it is and something beside it is trained. Then it may be a GGUF
        file or a known name too, and its weights are the very numbers that the file holds.

    Raises: ModelError and its kinds; ConfigError for what cannot be trained.
    """
    found = find(path)
    if found.kind == "gguf" and is_base:
        return _open_gguf(found.path, device=device)
    if found.kind != "folder":
        raise ConfigError(
            f"model is {quote(path)}, which is a {found.kind} model; it must be a folder with "
            f"{CONFIG} and {SINGLE}, whose weights are floats. Beside a GGUF model an adapter "
            "can be trained: sft with lora_rank, or a speculator."
        )
    opened = open_hf(found)
    config = cast("dict[str, object]", json.loads((found.path / CONFIG).read_bytes()))
    if "quantization_config" in config or opened.is_part:
        raise ConfigError(f"model is {quote(path)}; it must be a text model that is not quantized.")
    with torch.device("meta"):
        transformer = opened.architecture.build()
    architecture = opened.architecture
    load_weights(
        transformer,
        opened.source,
        architecture.targets("hf"),
        dtype=torch.float32,
        device=device,
        optional=architecture.optional("hf"),
    )
    return TrainedModel(
        transformer=transformer,
        architecture=architecture,
        config=config,
        small_files=small_files(found.path),
    )


def _open_gguf(path: Path, *, device: torch.device | str) -> TrainedModel:
    file = gguf_file.read(path)
    opened = open_gguf(file)
    architecture = opened.architecture
    with torch.device("meta"):
        transformer = architecture.build()
    load_weights(
        transformer,
        opened.source,
        architecture.targets(opened.layout),
        dtype=torch.float32,
        device=device,
        optional=architecture.optional(opened.layout),
    )
    return TrainedModel(
        transformer=transformer,
        architecture=architecture,
        config=_hub_config(architecture),
        small_files={},
        gguf=path,
    )


def _hub_config(architecture: Architecture) -> dict[str, object]:
    """What config.json would say of a model's shape, as far as what is trained beside it asks."""
    facts = architecture.facts
    config: dict[str, object] = {"vocab_size": facts.vocab_size, "hidden_size": facts.width}
    if isinstance(architecture, GroupedDecoder):
        sizes, frequencies = architecture.sizes, architecture.frequencies[0]
        config |= {
            "num_attention_heads": sizes.num_heads,
            "num_key_value_heads": sizes.num_groups,
            "head_dim": sizes.head_size,
            "rms_norm_eps": sizes.epsilon,
        }
        if isinstance(frequencies, Plain):
            config["rope_theta"] = frequencies.base
    return config


def new_model(
    config: Mapping[str, object],
    vocabulary: Path,
    tokenizer: Tokenizer,
    *,
    seed: int,
    device: torch.device | str = "cpu",
) -> TrainedModel:
    """A model of random weights.

    config: fields of config.json; those that the tokenizer decides may be left out.
    vocabulary: the folder of the tokenizer.

    Raises: ModelFormatError naming a field, UnsupportedModelError; ConfigError where the
    vocabulary is larger than the model's.
    """
    ends = sorted(tokenizer.eos_token_ids)
    told = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": tokenizer.vocab_size,
        **({"bos_token_id": tokenizer.bos_token_id} if tokenizer.bos_token_id is not None else {}),
        **({"eos_token_id": ends[0] if len(ends) == 1 else ends} if ends else {}),
        **config,
    }
    read = read_config(told, file="model")
    architecture = read.architecture
    _check_known(config, read.asked)
    if tokenizer.vocab_size > architecture.facts.vocab_size:
        raise ConfigError(
            f"model.vocab_size is {architecture.facts.vocab_size}, and the vocabulary has "
            f"{tokenizer.vocab_size} tokens; leave vocab_size out, or take a larger one."
        )
    with torch.device("meta"):
        transformer = architecture.build()
    transformer.to_empty(device=device)
    fill(transformer, architecture, seed=seed)
    return TrainedModel(
        transformer=transformer,
        architecture=architecture,
        config=told,
        small_files=small_files(vocabulary),
    )


def _check_known(config: Mapping[str, object], asked: frozenset[str]) -> None:
    """Raise ConfigError for a field that nothing reads and that looks like one that is read."""
    for name in config:
        near = similar(name, asked - set(config), cutoff=0.8)
        if name not in asked and near:
            raise ConfigError(
                f"model.{name} is no field that this architecture reads; did you mean {near[0]}?"
            )


def fill(transformer: nn.Module, architecture: Architecture, *, seed: int) -> None:
    """Random weights: the same for a seed and a name, whatever else the model has.

    Matrices have variance 1 / columns, so that nothing grows or vanishes on its way; what adds to
    the stream is smaller by the root of how often that happens, as in GPT-2. Norms are at rest,
    biases 0.
    """
    rests = {target.parameter: target.rest for target in architecture.targets("hf").values()}
    num_blocks = len(cast(Transformer, transformer).blocks)
    with torch.no_grad():
        for name, parameter in transformer.named_parameters():
            if parameter.ndim < 2:
                is_bias = "bias" in name or "sinks" in name
                parameter.fill_(0.0 if is_bias else rests.get(name, 1.0))
                continue
            digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little"))
            drawn = torch.randn(parameter.shape, generator=generator)
            spread = 1 / math.sqrt(parameter.shape[-1])
            if ".output." in name or ".down." in name:
                spread /= math.sqrt(2 * num_blocks)
            is_table = not name.startswith("blocks.")
            parameter.copy_(drawn * (_TABLE_SPREAD if is_table else spread))


def stored_tensors(transformer: nn.Module, architecture: Architecture) -> dict[str, Tensor]:
    """Every tensor of the model as its files name and lay it; a tied head once."""
    parameters = dict(transformer.named_parameters(remove_duplicate=False))
    optional = architecture.optional("hf")
    return {
        name: _stored(parameters[target.parameter].detach(), target)
        for name, target in architecture.targets("hf").items()
        if name not in optional
    }


def _stored(value: Tensor, target: Target) -> Tensor:
    value = value[target.part] if target.part else value
    value = value - target.shift if target.shift else value
    if target.pairs is not None:
        value = in_stored_order(value, target.pairs)
    return (value.transpose(-1, -2) if target.is_transposed else value).contiguous().cpu()


def small_files(folder: Path) -> dict[str, bytes]:
    """The tokenizer's and template's files of a folder."""
    return {n: (folder / n).read_bytes() for n in SMALL_FILES if (folder / n).is_file()}


def text_side(path: str) -> tuple[Tokenizer, str | None]:
    """A model's tokenizer and the source of its template. Raises: ModelError and its kinds."""
    found = find(path)
    return tokenizer_of(found), template_source_of(found)


def tokenizer_of_model(model: TrainedModel) -> Tokenizer:
    """The tokenizer whose files lie beside a model, or in its file."""
    if model.gguf is not None:
        return tokenizer_of(Found(kind="gguf", path=model.gguf, name=model.gguf.stem))
    with TemporaryDirectory() as name:
        for file, data in model.small_files.items():
            Path(name, file).write_bytes(data)
        return load_folder(Path(name))
