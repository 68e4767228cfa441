"""Taps of layers that other ranks have: what they see is handed to rank 0, whose sink answers.

Each value goes behind a head that says which it is; a head of length 0 ends a rank's step.
"""

from __future__ import annotations

from typing import Protocol, cast

import msgspec
import torch
from torch import Tensor

from cutaway.core.step import Sink


class _Wire(Protocol):
    """What hands values between two ranks."""

    def send(self, x: Tensor, to: int) -> None: ...

    def receive(self, like: Tensor, source: int) -> Tensor: ...


class _Head(msgspec.Struct, array_like=True):
    name: str
    layer: int | None
    dtype: str
    shape: tuple[int, ...]


_ENCODER, _HEADS = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(_Head)


def tell(wire: _Wire, name: str, value: Tensor, layer: int | None) -> Tensor | None:
    """A follower's sink: rank 0's own sees the value; what that puts in its place, if anything."""
    dtype = str(value.dtype).removeprefix("torch.")
    head = torch.frombuffer(
        bytearray(_ENCODER.encode(_Head(name, layer, dtype, tuple(value.shape)))), dtype=torch.uint8
    )
    wire.send(torch.tensor([len(head)]), 0)
    wire.send(head, 0)
    wire.send(value.contiguous(), 0)
    is_replaced = bool(wire.receive(torch.zeros(1, dtype=torch.int64), 0))
    return wire.receive(torch.empty_like(value).contiguous(), 0) if is_replaced else None


def finish(wire: _Wire) -> None:
    """Say that a follower's taps of this step are over."""
    wire.send(torch.tensor([0]), 0)


def answer(wire: _Wire, sink: Sink, source: int) -> None:
    """Let a sink see what a follower tells, until its taps of this step are over."""
    while length := int(wire.receive(torch.zeros(1, dtype=torch.int64), source)):
        head = wire.receive(torch.empty(length, dtype=torch.uint8), source)
        told = _HEADS.decode(bytes(cast("list[int]", head.tolist())))
        dtype = cast(torch.dtype, getattr(torch, told.dtype))
        value = wire.receive(torch.empty(told.shape, dtype=dtype), source)
        replaced = sink(told.name, value, told.layer)
        wire.send(torch.tensor([int(replaced is not None)]), source)
        if replaced is not None:
            wire.send(replaced.contiguous(), source)
