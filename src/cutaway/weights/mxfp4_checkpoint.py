"""Checkpoints whose experts are in MXFP4: two tensors, blocks and scales, for each stack.

A stack has the name and the shape that it would have as plain numbers, inputs first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn

from cutaway.core.errors import ModelFormatError, UnsupportedModelError
from cutaway.core.weight_targets import Target
from cutaway.quantize.mxfp4 import BLOCK, Mxfp4Matrix, Mxfp4Stack, unpack_mxfp4
from cutaway.quantize.scheme import Quantized
from cutaway.weights.files.safetensors import SafetensorsWeights
from cutaway.weights.load import kept_rows

_BLOCKS, _SCALES = "_blocks", "_scales"


class Mxfp4Weights:
    """Tensors of a folder, each pair of blocks and scales as one."""

    def __init__(self, stored: SafetensorsWeights) -> None:
        self._stored = stored
        names = frozenset(stored.names())
        found = (name.removesuffix(_BLOCKS) for name in names if name.endswith(_BLOCKS))
        self._stacks = frozenset(name for name in found if name + _SCALES in names)
        parts = {name + part for name in self._stacks for part in (_BLOCKS, _SCALES)}
        self._names = (names - parts) | self._stacks

    @property
    def file(self) -> str:
        """What messages call it."""
        return self._stored.file

    def names(self) -> Collection[str]:
        """Every tensor's name."""
        return self._names

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape; that of a stack [experts, columns, rows].

        Raises: ModelFormatError where blocks and scales do not fit each other.
        """
        if name not in self._stacks:
            return self._stored.shape(name)
        blocks, scales = self._stored.shape(name + _BLOCKS), self._stored.shape(name + _SCALES)
        if len(blocks) != 4 or blocks != (*scales, BLOCK // 2):
            raise ModelFormatError(
                f"has shape {blocks} and its scales {scales}; blocks are 16 bytes for each scale "
                "of [experts, rows, columns / 32].",
                file=self.file,
                field=name + _BLOCKS,
            )
        count, rows, num_blocks = scales
        return count, num_blocks * BLOCK, rows

    def check(self, name: str) -> None:
        """Raise UnsupportedModelError unless the stored type can be read; that of a stack can."""
        if name not in self._stacks:
            self._stored.check(name)

    def tensor(self, name: str) -> Tensor:
        """A tensor as floating-point numbers; a stack is unpacked, [experts, columns, rows]."""
        if name not in self._stacks:
            return self._stored.tensor(name)
        numbers = unpack_mxfp4(self._part(name, _BLOCKS), self._part(name, _SCALES), torch.float32)
        return numbers.transpose(1, 2)

    def get_quantized(self, name: str) -> Quantized | None:
        """A stack's matrices, one below the other; None for the rest, which are plain numbers."""
        if name not in self._stacks:
            return None
        return Mxfp4Matrix(
            self._part(name, _BLOCKS).flatten(0, 1), self._part(name, _SCALES).flatten(0, 1)
        )

    def release(self, name: str) -> None:
        """Nothing: what was read is the caller's."""
        pass  # what was read is the caller's

    def keep_stacks(
        self, module: nn.Module, targets: Mapping[str, Target], *, device: torch.device | str
    ) -> frozenset[str]:
        """Put stacks as they are stored in the places that targets name; the names that went."""
        for name in self._stacks:
            path = targets[name].parameter.removesuffix(".weight")
            parent, _, attribute = path.rpartition(".")
            parts = [self._part(name, part) for part in (_BLOCKS, _SCALES)]
            kept = targets[name].kept
            if kept is not None:
                parts = [kept_rows(part, kept, axis=1) for part in parts]
            stack = Mxfp4Stack(*parts)
            setattr(module.get_submodule(parent), attribute, stack.to(device))
        return self._stacks

    def _part(self, name: str, part: str) -> Tensor:
        value = self._stored.part(name + part)
        if value.dtype != torch.uint8:
            raise UnsupportedModelError(
                f"{self.file}: tensor {name + part} is stored as {value.dtype}; MXFP4 is uint8."
            )
        return value
