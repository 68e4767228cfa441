"""A speculator that is trained for a model, in and out of folders in the layout of speculators."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from cutaway.blocks.guessing_layer import Speculator
from cutaway.blocks.transformer import Transformer
from cutaway.core.weight_targets import Target
from cutaway.engine.loading.speculator_folder import (
    HEAD,
    KIND,
    OFFSETS,
    SpeculatorShape,
    TargetShape,
    default_layers,
    read_shape,
)
from cutaway.quantize.dense import DenseWeight
from cutaway.train.model.adapted_model import KEPT
from cutaway.train.model.model_folder import TrainedModel
from cutaway.weights.files.safetensors import SafetensorsWeights
from cutaway.weights.files.safetensors_index import SINGLE
from cutaway.weights.files.safetensors_writer import write_safetensors
from cutaway.weights.find.folder import CONFIG

INT8 = "int8"
KINDS_KEPT = ("float32", "float16", INT8)
_GROUP = 32  # columns of one scale
# As compressed-tensors tells integers with a scale for each group of columns.
_IN_8_BITS: Mapping[str, object] = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": [],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {
                **{"num_bits": 8, "type": "int", "symmetric": True},
                **{"strategy": "group", "group_size": _GROUP},
            },
        }
    },
}


def in_8_bits(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Matrices rounded to integers of 8 bits with a 16-bit scale for each 32 columns.

    What does not divide so, and norms, stay in float16.
    Shapes: [N, K] -> weight [N, K] int8 and weight_scale [N, K / 32].
    """
    made: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.ndim < 2 or tensor.shape[1] % _GROUP:
            made[name] = tensor.to(torch.float16)
            continue
        groups = tensor.float().view(len(tensor), -1, _GROUP)
        scales = (groups.abs().amax(-1) / 127).to(torch.float16)
        steps = groups / scales.float().clamp_min(1e-12)[..., None]
        made[name] = steps.round().clamp(-127, 127).to(torch.int8).view(tensor.shape)
        made[f"{name}_scale"] = scales
    return made


@dataclass(frozen=True, kw_only=True)
class SpeculatorModel(TrainedModel):
    """A model as it is, and a speculator that learns to guess for it.

    drafted: the ids that it guesses, ascending [drafted] int64.   told: its config.json.
    learns_head: whether it has rows of the vocabulary of its own.
    kept: of KINDS_KEPT, how what comes out is stored.
    """

    speculator: Speculator
    shape: SpeculatorShape
    target: TargetShape
    drafted: Tensor
    told: Mapping[str, object]
    learns_head: bool = True
    kept: str = "float32"

    def write(self, folder: Path) -> None:
        """Write the speculator alone: whoever loads it shares the model's embedding."""
        self._write(folder, "float32")

    def finish(self, folder: Path) -> None:
        """Write what comes out of a run, in the dtype that was asked for."""
        self._write(folder, self.kept)

    def _write(self, folder: Path, kept: str) -> None:
        told = {**self.told, **({"quantization_config": _IN_8_BITS} if kept == INT8 else {})}
        text = json.dumps(told, indent=2) + "\n"
        (folder / CONFIG).write_text(text, encoding="utf-8")
        parameters = dict(self.speculator.named_parameters())
        tensors = {
            name: parameters[target.parameter].detach().contiguous().cpu()
            for name, target in self._targets().items()
        }
        if kept == INT8:
            tensors = in_8_bits(tensors)
        else:
            tensors = {name: each.to(KEPT[kept]) for name, each in tensors.items()}
        offsets = self.drafted.cpu() - torch.arange(len(self.drafted))
        write_safetensors(folder / SINGLE, {**tensors, OFFSETS: offsets})

    def load(self, folder: Path) -> None:
        """Take up what write() wrote. The parameters stay the same tensors."""
        source, parameters = SafetensorsWeights(folder), dict(self.speculator.named_parameters())
        with torch.no_grad():
            for name, target in self._targets().items():
                parameters[target.parameter].copy_(source.tensor(name))

    def _targets(self) -> dict[str, Target]:
        targets = self.shape.targets(self.target)
        return targets if self.learns_head else {n: t for n, t in targets.items() if n != HEAD}


def with_speculator(
    model: TrainedModel,
    drafted: Tensor,
    *,
    name: str,
    inner: int,
    seed: int,
    learns_head: bool = True,
    kept: str = "float32",
) -> SpeculatorModel:
    """A model and a fresh speculator of its width; the model is trained no more.

    drafted: ids that it can guess, ascending [drafted].   inner: width of its feed-forward.
    name: of the model, as the folder will tell it.   learns_head: else its rows of the vocabulary
    stay the model's and are not written.   kept: of KINDS_KEPT, how what comes out is stored.
    """
    facts, transformer = model.architecture.facts, model.transformer.requires_grad_(False)
    target = TargetShape(name, transformer.embedding.width, facts.num_layers, facts.vocab_size)
    told = _config(model, target, num_drafted=len(drafted), inner=inner)
    shape = read_shape(told, target, file="speculator")
    device = next(transformer.parameters()).device
    speculator = shape.build(target).to(device)
    _fill(speculator, transformer, drafted.to(device), seed=seed)
    speculator.head.requires_grad_(learns_head)
    return SpeculatorModel(
        **vars(model),
        speculator=speculator,
        shape=shape,
        target=target,
        drafted=drafted.to(device),
        told=told,
        learns_head=learns_head,
        kept=kept,
    )


def _config(
    model: TrainedModel, target: TargetShape, *, num_drafted: int, inner: int
) -> dict[str, object]:
    own = model.config
    heads = own.get("num_attention_heads")
    layer = {
        "model_type": "llama",
        "hidden_size": target.width,
        "intermediate_size": inner,
        "num_hidden_layers": 1,
        "num_attention_heads": heads,
        "num_key_value_heads": own.get("num_key_value_heads", heads),
        "head_dim": own.get("head_dim") or target.width // int(str(heads)),
        "hidden_act": "silu",
        "max_position_embeddings": model.architecture.facts.max_length,
        "rms_norm_eps": own.get("rms_norm_eps", 1e-6),
        "rope_theta": own.get("rope_theta", 10_000.0),
        "vocab_size": target.vocab_size,
        "attention_bias": False,
        "mlp_bias": False,
    }
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": KIND,
        "draft_vocab_size": num_drafted,
        "norm_before_residual": False,
        "target_hidden_size": None,
        # The layout counts a stream by the layer that reads it.
        "eagle_aux_hidden_state_layer_ids": [n + 1 for n in default_layers(target.num_layers)],
        "speculators_config": {
            "algorithm": KIND,
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
            "verifier": {"name_or_path": target.name, "architectures": own.get("architectures")},
        },
        "transformer_layer_config": layer,
    }


def _fill(module: Speculator, transformer: Transformer, drafted: Tensor, *, seed: int) -> None:
    """Random maps; the last norm and the map to the vocabulary begin as the model's own."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim < 2:
                parameter.fill_(1.0)
                continue
            drawn = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(drawn / math.sqrt(parameter.shape[-1]))
        cast(DenseWeight, module.head).weight.copy_(transformer.unembedding.table.rows(drafted))
        norm = transformer.unembedding.norm
        if isinstance(norm, nn.Module) and hasattr(norm, "weight"):
            module.last_norm.weight.copy_(norm.weight)  # pyright: ignore[reportArgumentType]
