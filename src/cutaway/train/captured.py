"""A micro-batch's forward and backward as one launch, where tokens in the same lengths come again.

A GPU is done with a small model's kernels sooner than Python has launched them. Pretraining has
the same lengths in every update: once they have come a few times the kernels of a forward and a
backward are captured as a CUDA graph, over inputs that stay where they are, and replayed from then
on. They are the kernels of plain launches in their order, so the bits are the same.

A graph has memory of its own, for which that of plain launches is given back; only one layout has
one, and it is let go where the memory that is left would not do for another layout beside it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from cutaway.core.step import Step
from cutaway.host.garbage import stop_collecting
from cutaway.train.data.packing import MicroBatch
from cutaway.train.loop import Batch, pull_back
from cutaway.train.losses.losses import Loss

CAPTURES_ON = frozenset({"cuda"})  # devices; a test with a capturer of its own has another
# A layout comes so often by plain launches first: libraries and kernels are set up by then.
TIMES = 2
_LATEST = 16  # layouts among which one comes again: an update may have several
_ALIGNED = 16  # entries: kernels are compiled for aligned addresses


class CapturedLoss(NamedTuple):
    """What a capturer made of a call.

    replay: does it again, with what its inputs hold then.   loss: where its result is then.
    """

    replay: Callable[[], None]
    loss: Loss


class Capturer(Protocol):
    """Makes one launch of the kernels of a call. Calls are replayed in turn, never at once."""

    def capture(self, call: Callable[[], Loss]) -> CapturedLoss:
        """Note what a call launches, without running it.

        Raises: torch.OutOfMemoryError, and then nothing is kept.
        """
        ...

    @property
    def has_room(self) -> bool:
        """Whether plain launches find as much memory as the captured ones have."""
        ...


class CudaCapturer:
    """Captures CUDA graphs that share memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)
        self._num_bytes = 0
        self._has_room = True

    def capture(self, call: Callable[[], Loss]) -> CapturedLoss:
        """See Capturer."""
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()  # what plain launches had is what the graph gets
        before = torch.cuda.memory_reserved(self._device)
        graph = torch.cuda.CUDAGraph()
        capture = torch.cuda.graph(
            # The backward runs in a thread of torch's, whose calls belong to the capture too.
            *(graph, self._pool, self._stream),
            capture_error_mode="thread_local",
        )
        # Graphs that nobody has any more must not be freed meanwhile: that would end the capture.
        with torch.cuda.device(self._device), stop_collecting(), capture:
            loss = call()
        self._num_bytes += torch.cuda.memory_reserved(self._device) - before
        free, _ = torch.cuda.mem_get_info(self._device)
        self._has_room = free > self._num_bytes
        return CapturedLoss(graph.replay, loss)

    @property
    def has_room(self) -> bool:
        """See Capturer."""
        return self._has_room


class Layout(NamedTuple):
    """What the kernels of a micro-batch follow from, beside its numbers.

    lengths: of its sequences.   num_scored: rows of the unembedding.
    divisor: of the loss.
    """

    lengths: tuple[int, ...]
    num_scored: int
    divisor: int

    @staticmethod
    def of(batch: MicroBatch, count: int) -> Layout:
        """The layout of a micro-batch in an update of so many scored tokens."""
        return Layout(tuple(len(each.token_ids) for each in batch.sequences), batch.count, count)

    @property
    def is_even(self) -> bool:
        """Whether all lengths are one: attention of others is told of them by the host."""
        return len(set(self.lengths)) == 1


@dataclass(frozen=True)
class PlacedBatch(MicroBatch):
    """A micro-batch whose numbers lie in one place of a device, and are exchanged there.

    sequences: of the first that was put there.   placed: the step over what is there.
    """

    placed: Step
    numbers: Tensor  # on the device: token ids, then rows [T' + R]
    sent: Tensor  # the same on the host
    copied: torch.cuda.Event | None

    @staticmethod
    def like(batch: MicroBatch, device: torch.device) -> PlacedBatch:
        """Room for micro-batches of one layout, with this one in it."""
        first = -(-batch.num_tokens // _ALIGNED) * _ALIGNED
        sent = torch.zeros(first + batch.count, dtype=torch.int64)
        is_gpu = device.type == "cuda"
        if is_gpu:
            sent = sent.pin_memory()
        numbers = torch.zeros_like(sent, device=device)
        placed = replace(
            batch.step(device, is_whole=True),
            token_ids=numbers[: batch.num_tokens],
            logit_rows=numbers[first:],
        )
        copied = torch.cuda.Event() if is_gpu else None
        made = PlacedBatch(batch.sequences, placed, numbers, sent, copied)
        made.fill(batch)
        return made

    def fill(self, batch: MicroBatch) -> None:
        """Put another micro-batch of the layout there. The device is not waited for."""
        if self.copied is not None:
            self.copied.synchronize()  # of the one before, which has long been copied
        # By one thread: torch's are others' as well, and waiting for them took up to 12 ms.
        sent = self.sent.numpy()
        np.concatenate([each.ids.numpy() for each in batch.sequences], out=sent[: batch.num_tokens])
        sent[len(sent) - batch.count :] = batch.rows.numpy()
        self.numbers.copy_(self.sent, non_blocking=True)
        if self.copied is not None:
            self.copied.record(torch.cuda.current_stream(self.numbers.device))

    def step(self, device: torch.device | str = "cpu", *, is_whole: bool = False) -> Step:
        """See MicroBatch.step; over what is there, wherever it is asked for."""
        return replace(self.placed, left={})

    def targets(self, device: torch.device | str = "cpu") -> Tensor:
        """See MicroBatch.targets."""
        return self.placed.token_ids[self.placed.logit_rows + 1]

    def owners(self, device: torch.device | str = "cpu") -> Tensor:
        """Not known: which sequence a row belongs to is told by the host."""
        raise AssertionError("a captured objective asks for no owners")


@dataclass
class _Held:
    """What is captured of a layout: an update's first micro-batch, and those that add to it.

    grads: of each parameter, as the first one leaves them.
    """

    objective: Callable[[Any], Loss]
    layout: Layout
    batch: PlacedBatch
    capturer: Capturer
    losses: dict[bool, CapturedLoss] = field(default_factory=dict[bool, CapturedLoss])
    grads: list[Tensor | None] = field(default_factory=list[Tensor | None])


class CapturedPull:
    """Takes the place of loop.pull_back, to the bit, and captures what comes again.

    parameters: all whose gradients are wanted.
    make_capturer: of a layout's losses on a device.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        make_capturer: Callable[[torch.device], Capturer] = CudaCapturer,
    ) -> None:
        self._parameters, self._make_capturer = list(parameters), make_capturer
        self._latest: deque[Layout] = deque(maxlen=_LATEST)
        self._held: _Held | None = None
        self._is_off = False

    def __call__(self, objective: Callable[[Batch], Loss], batch: Batch, count: int) -> Loss:
        """See loop.pull_back. The loss is there until the next call."""
        assert isinstance(batch, MicroBatch), "what is captured reads a micro-batch's step alone"
        loss = self._captured(objective, batch, count)
        if loss is not None:
            return loss
        self.make_room()
        return pull_back(objective, batch, count)

    def make_room(self) -> None:
        """Let what is captured go where something else beside them would not find enough memory."""
        if self._held is not None and not self._held.capturer.has_room:
            self._let_go()

    def _let_go(self) -> None:
        """Gradients that are still wanted stay: their memory is theirs until they go."""
        self._held = None
        self._latest.clear()

    def _captured(
        self, objective: Callable[[Any], Loss], batch: MicroBatch, count: int
    ) -> Loss | None:
        """The loss by what is captured; None where plain launches are to be made."""
        layout = Layout.of(batch, count)
        comes_again = self._latest.count(layout) >= TIMES
        self._latest.append(layout)
        if self._held is not None and self._held.layout not in self._latest:
            self._let_go()
        is_first = all(each.grad is None for each in self._parameters)
        may_hold = comes_again and is_first and layout.is_even and not self._is_off
        if self._held is None and may_hold:
            self._held = self._hold(objective, layout, batch)
        held = self._held
        if held is None or held.layout != layout or held.objective is not objective:
            return None
        if not is_first and not self._has_gradients_of(held):
            return None
        if is_first not in held.losses and not self._capture(held, is_first=is_first):
            return None
        held.batch.fill(batch)
        held.losses[is_first].replay()
        for parameter, grad in zip(self._parameters, held.grads, strict=True):
            parameter.grad = grad
        return held.losses[is_first].loss

    def _hold(self, objective: Callable[[Any], Loss], layout: Layout, batch: MicroBatch) -> _Held:
        device = self._parameters[0].device
        placed = PlacedBatch.like(batch, device)
        return _Held(objective, layout, placed, self._make_capturer(device))

    def _has_gradients_of(self, held: _Held) -> bool:
        """Whether gradients lie where the captured loss that adds to them has them."""
        pairs = zip(self._parameters, held.grads, strict=False)
        return bool(held.grads) and all(each.grad is grad for each, grad in pairs)

    def _capture(self, held: _Held, *, is_first: bool) -> bool:
        """Capture one of the two; whether there was memory for it."""

        def call() -> Loss:
            return pull_back(held.objective, held.batch, held.layout.divisor)

        try:
            found = held.capturer.capture(call)
        except torch.OutOfMemoryError:
            for parameter in self._parameters if is_first else ():
                parameter.grad = None
            self._is_off = True
            self._let_go()
            return False
        figures = found.loss.figures.values()
        assert all(isinstance(each.total, Tensor) for each in figures), "numbers would stay"
        held.losses[is_first] = found
        if is_first:
            held.grads = [each.grad for each in self._parameters]
        return True
