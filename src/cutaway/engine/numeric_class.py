"""Which engines give the same numbers, as far as can be known."""

from __future__ import annotations

import torch

from cutaway.cache.prefix import KeyField, root_key
from cutaway.engine.config import EngineConfig
from cutaway.engine.loading.fingerprints import fingerprints
from cutaway.engine.loading.loaded_model import LoadedModel
from cutaway.engine.runner import Runner


def weights_of(model: LoadedModel, known: dict[str, int]) -> list[KeyField]:
    """Each stored matrix with its fingerprint. known: where they were taken already."""
    weights = known or fingerprints(model.transformer)
    return [f"{name}={value}" for name, value in sorted(weights.items())]


def form_of(model: LoadedModel, config: EngineConfig) -> list[KeyField]:
    """In what equal weights have equal numbers: dtypes and rounding."""
    fields: list[KeyField] = [str(model.dtype), str(model.cache_dtype)]
    fields += [config.quant, config.override]
    if config.invariant and model.device.type == "cuda":
        fields.append("invariant")
    return fields


def numeric_class_of(
    model: LoadedModel, runner: Runner, weights: list[KeyField], form: list[KeyField]
) -> bytes:
    """Equal for engines of which each gives the other's rows to the bit.

    Weights as they are stored, in what they are computed and kept; and where the order of sums is
    a library's, its version and the device. What native kernels give depends on no instruction set.
    """
    fields = [*weights, *form]
    device = model.device
    if not runner.is_invariant or device.type == "cuda":
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
        fields += [torch.__version__, name, str(torch.get_num_threads())]
    return root_key(*fields)
