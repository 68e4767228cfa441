"""Runs steps on a device: the model, its pages, and captured steps where the device has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from time import perf_counter

import torch
from torch import Tensor

from cutaway.blocks.invariant import DTYPES, parts_without, set_invariant
from cutaway.blocks.linear import division_error
from cutaway.blocks.transformer import Transformer
from cutaway.cache.pool import Pool, copy_pages, move_pages
from cutaway.cache.stores import PageMoves
from cutaway.core.errors import ConfigError
from cutaway.core.step import Numbers, Sink, Step
from cutaway.engine.adapters import Adapters
from cutaway.engine.batch import Batch
from cutaway.engine.breaks import EngineLostError
from cutaway.engine.captured.graphs import DecodeGraphs
from cutaway.engine.config import EngineConfig
from cutaway.engine.drafters.streams import Streams
from cutaway.engine.loading.loaded_model import LoadedModel
from cutaway.engine.native import NativeSteps, is_recorded
from cutaway.engine.ranks.leader import HeldSink, Lead
from cutaway.host.pulse import PULSE
from cutaway.host.turns import pause
from cutaway.sampling.captured_draws import CapturedDraws


class Runner:
    """One forward at a time. Holds the only references to weights and pages."""

    def __init__(
        self,
        model: Transformer,
        pool: Pool,
        *,
        device: torch.device,
        graphs: DecodeGraphs | None = None,
        record: Callable[[], NativeSteps] | None = None,
        adapters: Adapters | None = None,
        lead: Lead | None = None,
        streams: Streams | None = None,
        is_invariant: bool = False,
    ) -> None:
        """record: makes the native steps, once more whenever adapters have come or gone.

        lead: of the ranks that compute each step too, where the model is divided and this is
        rank 0.
        streams: told of every step.
        is_invariant: whether the model's own forms hold to one order of summation.
        """
        self.model = model
        self.pool = pool
        self.device = device
        self._graphs = graphs
        self._record, self._adapters, self._lead = record, adapters, lead
        self._streams, self._is_invariant = streams, is_invariant
        self._version = 0 if adapters is None else adapters.version
        if record is not None:  # torch imports much for its first shape without numbers
            torch.empty(0, device="meta").neg()
        began = perf_counter()
        self._native = None if record is None else record()
        self.recording_seconds = perf_counter() - began  # what a look's own would take, too
        self.moves: PageMoves | None = None  # of stores behind the pages
        self.kernel = "plain"  # what ran the latest step
        # Whether others' steps may be run in the midst of one: not where they would be run here.
        self.gives_turns = False

    @property
    def num_bytes(self) -> int:
        """Room that recorded steps hold besides the pages."""
        return 0 if self._native is None else self._native.num_bytes

    def prepare(self) -> None:
        """Do now what would else be done in live traffic: compile and capture."""
        if self._graphs is None:
            return
        with nullcontext() if self._lead is None else self._lead.prepare():
            self._graphs.prepare()

    def run(self, batch: Batch, is_over: Callable[[], bool] | None = None) -> Tensor:
        """What forward gives for the batch's step.

        Shapes: [R, V], valid until the next one.
        """
        PULSE.beat()
        return self.forward(batch.numbers, batch.sink, is_over)

    @property
    def is_invariant(self) -> bool:
        """Whether a row is the same bits in any company and cut: all of it runs in own kernels.

        Adapters' products on a GPU are the library's.
        """
        if self._native is not None:
            return self._native.kernel == "native"
        return self._is_invariant and not (self._adapters is not None and self._adapters.loaded)

    @property
    def torch_calls(self) -> tuple[str, ...]:
        """Operations of recorded steps that have no native form, in order."""
        return () if self._native is None else self._native.torch_calls

    @property
    def runs_ahead(self) -> bool:
        """Whether decode steps can be begun before their tokens are known on the host."""
        if self._lead is not None:
            return False  # the others are told of a step when its tokens are known
        return self._graphs is not None and self._graphs.runs_ahead

    def bucket(self, count: int) -> int | None:
        """Sequences of the shape in which so many are decoded ahead; None where they are not."""
        return None if self._graphs is None else self._graphs.bucket(count)

    def captures(self, counts: Sequence[int]) -> bool:
        """Whether a step of sequences with so many tokens is captured, if all logits are wanted."""
        return self._graphs is not None and self._graphs.holds(counts)

    @property
    def num_captured(self) -> int:
        """Captured steps that there are: one that is made in the midst of a step takes its time."""
        return 0 if self._graphs is None else self._graphs.num_captured

    def draws(self, bucket: int) -> CapturedDraws | None:
        """What draws from the logits of a captured step; None where nothing is captured for it."""
        return None if self._graphs is None else self._graphs.draws(bucket)

    @torch.inference_mode()
    def run_ahead(self, numbers: Numbers, token_ids: Tensor) -> Tensor:
        """Begin a decode step whose token ids are known to the device alone.

        Shapes: token_ids [B] -> [B, V], valid until the next one.
        """
        assert self._graphs is not None, "steps are begun ahead where they are captured"
        self.settle()
        return self._graphs.run(numbers, token_ids=token_ids)

    def forward(
        self,
        numbers: Numbers,
        sink: Sink | None = None,
        is_over: Callable[[], bool] | None = None,
    ) -> Tensor:
        """Logits of the rows that the step wants; keys and values go into the pages.

        Shapes: [R, V], valid until the next forward.

        is_over: asked now and then by native steps without a sink.
        Raises: BrokenOffError where it says so. Some layers' keys and values are written then.
        EngineLostError where another rank is gone.
        """
        self.settle()
        if self._lead is None:
            return self._forward(numbers, sink, is_over)
        held = None if sink is None else HeldSink(sink)
        with self._lead.step(numbers, sink=held):
            logits = self._forward(numbers, held, None)  # ranks break no step off
        if held is not None:
            held.settle()
        return logits

    def _forward(
        self, numbers: Numbers, sink: Sink | None, is_over: Callable[[], bool] | None
    ) -> Tensor:
        if self._adapters is not None and self._adapters.version != self._version:
            self._record_again(self._adapters.version)
        if self.gives_turns:
            is_over = pause  # nobody comes to it
        if self._native is not None and sink is None:
            self.kernel = self._native.kernel  # most are one call: entering a mode would cost more
            if self._native.takes_numbers:
                logits = self._native.run_numbers(numbers, is_over)
                if self._streams is not None:
                    self._streams.leave(self._native.streams, len(numbers.token_ids))
                return logits
            return self._native.run(self._step(numbers), is_over)
        return self._forward_with_torch(numbers, sink)

    def _record_again(self, version: int) -> None:
        if self._record is not None:
            self._native = None  # its buffers go before those of the next come
            self._native = self._record()
        self._version = version

    @torch.inference_mode()
    def _forward_with_torch(self, numbers: Numbers, sink: Sink | None) -> Tensor:
        if self._native is not None and self._native.keeps:
            self.kernel = self._native.kernel
            return self._native.run(self._step(numbers, sink), pause if self.gives_turns else None)
        if self._graphs is not None and self._graphs.fits(numbers):
            self.kernel = "graph"
            return self._graphs.run(numbers, sink)
        self.kernel = "plain"
        return self.model(self._step(numbers, sink))

    def _step(self, numbers: Numbers, sink: Sink | None = None) -> Step:
        return Step.of(
            numbers, self.pool.layers, device=self.device, sink=sink, streams=self._streams
        )

    def settle(self) -> None:
        """Move pages to and from stores, before anything is written to any.

        Raises: EngineLostError where that raises: somebody's pages hold nothing then.
        """
        if self.moves is None or not self.moves:
            return
        try:
            with torch.inference_mode():
                move_pages(self.pool, self.moves.take())
        except Exception as fault:
            raise EngineLostError("pages cannot be moved to or from where they are kept") from fault

    def clear(self, pages: Sequence[Sequence[int]]) -> None:
        """Zero some pages of each group, in every rank."""
        self.settle()
        if self._lead is not None:
            self._lead.clear(pages)
        self.pool.clear(pages)

    def copy(self, copies: Sequence[tuple[int, int] | None]) -> None:
        """Copy of each group a page to another, in every rank."""
        self.settle()
        if self._lead is not None:
            self._lead.copy(copies)
        copy_pages(self.pool, copies)


def runner_of(
    model: LoadedModel,
    pool: Pool,
    *,
    config: EngineConfig,
    max_length: int,
    max_tokens: int | None = None,
    keeps: bool = False,
    is_plain: bool = False,
    streams: Streams | None = None,
) -> Runner:
    """Steps of a model over a pool, by the fastest means that its device has.

    max_tokens: of a step; None takes the configured bound.
    keeps:      whether a sink may read inner values of native steps.
    is_plain:   runs modules whatever there is, so that a sink may change values.
    streams:    read in every step; captured steps have none, so none are captured.
    Raises: ConfigError where rows are to be the same in any company and cannot be.
    """
    is_gpu = model.device.type == "cuda"
    if is_gpu:
        if config.invariant:
            _check_invariant(model)
        set_invariant(model.transformer, is_on=config.invariant)
    record = None
    if is_recorded(model) and not is_plain:

        def record_steps() -> NativeSteps:
            with model.transformer.step_of_ranks():
                return NativeSteps(
                    model.transformer,
                    pool.layers,
                    num_tokens=max_tokens or config.max_tokens_per_step,
                    max_length=max_length,
                    keeps=keeps,
                    streams=frozenset(() if streams is None else streams.layers),
                )

        record = record_steps
    graphs = None
    by_layers = model.transformer.stage is not None  # hands rows on in the midst of a step
    is_watched = is_plain or by_layers or streams is not None
    if config.graphs and not is_watched and model.device.type == "cuda":
        graphs = DecodeGraphs(
            model.transformer,
            pool.layers,
            device=model.device,
            dtype=model.dtype,
            max_sequences=config.max_sequences,
            max_tokens=config.max_tokens_per_step,
            max_pages=-(-max_length // config.page_size),
            drafts=config.draft != "off",
        )
    lead = None
    if model.ranks is not None:
        if is_plain:  # another value in one rank alone would make a step of no model
            raise division_error(model.ranks.size)
        lead = model.ranks.open(
            pool.num_pages,
            page_size=config.page_size,
            max_length=max_length,
            max_tokens=max_tokens,
            keeps=keeps,
            is_plain=is_plain,
            graphs=graphs is not None,
        )
    runner = Runner(
        model.transformer,
        pool,
        device=model.device,
        graphs=graphs,
        record=record,
        adapters=model.adapters,
        lead=lead,
        streams=streams,
        is_invariant=is_gpu and config.invariant,
    )
    if config.invariant and not (is_gpu or is_plain or runner.is_invariant):
        calls = ", ".join(sorted(set(runner.torch_calls))) or "all of it"
        raise ConfigError(
            f"invariant is true, but here torch computes some of {model.name} ({calls}). On a CPU "
            "the native kernels with dtype auto do it. Leave invariant out otherwise."
        )
    return runner


def _check_invariant(model: LoadedModel) -> None:
    """Raise ConfigError where a model has no form with one order of summation on a GPU."""
    parts = parts_without(model.transformer)
    if parts:
        raise ConfigError(
            f"invariant is true, but {model.name} has {', '.join(parts)}, whose sums follow the "
            "step on a GPU. Dense weights and grouped attention have a form that does not. Leave "
            "invariant out, or quant where it is set."
        )
    if model.dtype not in DTYPES:
        raise ConfigError(
            f"invariant is true and dtype is {str(model.dtype).removeprefix('torch.')}; on a GPU "
            "it must be bfloat16, which auto is, or float16."
        )
