"""How a weight matrix is stored, and how it multiplies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cutaway.quantize.scheme import CheckpointFormat

# The checkpoint's word (quantization_config.quant_method): module and class in this folder.
CHECKPOINTS: Mapping[str, str] = {
    "gptq": "gptq:Gptq",
    "awq": "awq:Awq",
    "compressed-tensors": "compressed:CompressedTensors",
    "fp8": "fp8:Fp8",
}


def checkpoint_reader(settings: Mapping[str, object], *, file: str) -> CheckpointFormat:
    """What reads the matrices of a checkpoint with this quantization_config.

    Raises: UnsupportedModelError listing the known methods, or naming a setting that cannot be
    read; ModelFormatError naming a setting that is missing or wrong.
    """
    import importlib

    from cutaway.core.errors import UnsupportedModelError
    from cutaway.core.limits import quote
    from cutaway.quantize.checkpoints.quantization_config import Settings

    read = Settings(settings, file=file)
    word = read.text("quant_method")
    entry = CHECKPOINTS.get(word)
    if entry is None:
        raise UnsupportedModelError(
            f"{file}: quant_method is {quote(word)}; known are {', '.join(sorted(CHECKPOINTS))}. "
            "Take the model in one of these, or without quantization."
        )
    module, name = entry.split(":")
    return getattr(importlib.import_module(f"cutaway.quantize.checkpoints.{module}"), name).of(read)
