"""A model of which low-rank pairs alone are trained: small checkpoints, and a free reference.

Checkpoints hold the adapter as peft writes it. The model that comes out has it merged into its
weights, and lies beside it as an adapter of its own.
"""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

from cutaway.blocks.transformer import Transformer
from cutaway.train.model.model_folder import TrainedModel
from cutaway.train.stage_config import option
from cutaway.weights.adapter import (
    adapters,
    merge,
    put_on,
    read_adapter,
    switch_off,
    take_off,
    write_adapter,
)

ADAPTER = "adapter"
KEPT = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, kw_only=True)
class AdapterSettings:
    """What stages are told that may train an adapter in place of all weights."""

    lora_rank: int = option(0, help="rank of an adapter; 0 trains all weights", least=0)
    lora_alpha: float | None = option(None, help="its part counts alpha / rank; else 2", least=0.0)
    lora_modules: str = option("", help="matrices that get one, with commas; else all linear ones")
    lora_kept: str = option(
        "float32", help="the type of its numbers where it comes out", choices=tuple(KEPT)
    )


@dataclass(frozen=True, kw_only=True)
class AdaptedModel(TrainedModel):
    """A model with an adapter on it.

    base_model: the name of what it belongs to.   kept: of the adapter's numbers at the end.
    """

    base_model: str
    kept: torch.dtype = torch.float32

    def write(self, folder: Path) -> None:
        """The adapter alone. Raises: OSError."""
        targets = self.architecture.targets("hf")
        write_adapter(folder, self.transformer, targets, base_model=self.base_model)

    def load(self, folder: Path) -> None:
        """Take up what write() wrote. The parameters stay the same tensors."""
        other = copy.deepcopy(self.transformer)
        take_off(other)
        read_adapter(folder, other, self.architecture.targets("hf"))
        stored = dict(adapters(other))
        with torch.no_grad():
            for path, pair in adapters(self.transformer):
                pair.adapter_down.copy_(stored[path].adapter_down)
                pair.adapter_up.copy_(stored[path].adapter_up)

    def finish(self, folder: Path) -> None:
        """The whole model, the adapter merged into it, and the adapter in a folder of its own.

        Beside a GGUF file it is the adapter alone: packed weights cannot take it up.
        """
        if self.gguf is not None:
            self._write_kept(folder)
            return
        merged = copy.deepcopy(self.transformer)
        merge(merged)
        whole = TrainedModel(
            transformer=merged,
            architecture=self.architecture,
            config=self.config,
            small_files=self.small_files,
        )
        whole.write(folder)
        (folder / ADAPTER).mkdir()
        self._write_kept(folder / ADAPTER)

    def _write_kept(self, folder: Path) -> None:
        write_adapter(
            folder,
            self.transformer,
            self.architecture.targets("hf"),
            base_model=self.base_model,
            dtype=self.kept,
        )


def with_adapter(
    model: TrainedModel, settings: AdapterSettings, *, base: str, seed: int
) -> TrainedModel:
    """A model as settings want it trained: whole, or an adapter on it.

    Raises: ConfigError naming matrices that the model lacks.
    """
    if not settings.lora_rank:
        return model
    names = tuple(name.strip() for name in settings.lora_modules.split(",") if name.strip())
    put_on(
        model.transformer,
        model.architecture.targets("hf"),
        rank=settings.lora_rank,
        alpha=settings.lora_alpha,
        modules=names,
        seed=seed,
    )
    return AdaptedModel(**vars(model), base_model=base, kept=KEPT[settings.lora_kept])


@dataclass(frozen=True)
class Reference:
    """The model as it was at first: its own weights with the adapter off, or a frozen copy."""

    transformer: Transformer
    is_shared: bool

    @classmethod
    def of(cls, model: TrainedModel) -> Reference:
        """The reference of a model that is about to be trained."""
        if isinstance(model, AdaptedModel):
            return cls(model.transformer, is_shared=True)
        return cls(copy.deepcopy(model.transformer).requires_grad_(False), is_shared=False)

    def use(self) -> AbstractContextManager[None]:
        """Around whatever reads the reference's transformer."""
        return switch_off(self.transformer) if self.is_shared else nullcontext()
