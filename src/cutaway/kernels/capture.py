"""A forward recorded once and replayed: buffers for the largest step, and what fills them.

What CUDA graphs are to a GPU this is to a CPU; but the number of rows is read at run time, so one
recording serves every step. Native operations that follow one another are one program; what has no
native form runs in torch between two of them, over the same buffers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from cutaway.core.step import LayerCache, Numbers, Step
from cutaway.host.turns import breathe
from cutaway.kernels.gather import gather_columns, gather_rows, receive_rows, send_rows
from cutaway.kernels.given_rows import given_rows
from cutaway.kernels.lowering import Lowered, NativeCall, lower
from cutaway.kernels.native import Chain, NativeStep, Operation, Program, is_available, room
from cutaway.kernels.native.library import (
    num_operations,
    num_threads,
    set_num_threads,
    why_missing,
)
from cutaway.kernels.native.pages import PAGE_DTYPES
from cutaway.kernels.recording import (
    PAGES,
    ROWS,
    SEQUENCES,
    SYMBOLS,
    TOKENS,
    Call,
    Recorded,
    Recording,
    map_leaves,
    tap,
    tell_stream,
)

# What runs in torch and changes no number: taps, streams that are told, and what ranks hand on.
_MOVES = frozenset(
    each.__name__
    for each in (tap, tell_stream, gather_columns, gather_rows, send_rows, receive_rows)
)

__all__ = [
    "PAGE_DTYPES",
    "Tape",
    "is_available",
    "num_operations",
    "num_threads",
    "set_num_threads",
    "why_missing",
]


@dataclass(slots=True)
class _Run:
    """A step while it runs: what torch made of it so far, by place."""

    step: Step
    native: NativeStep
    values: list[Any]
    sizes: dict[int, int]


@dataclass(frozen=True, eq=False)
class _TorchCall:
    """One call of torch: its arguments from the run, its results to places or buffers."""

    name: str
    run: Callable[[_Run], None]


class Tape:
    """A recorded forward.

    num_tokens, num_rows: the most tokens and logit rows of a step.
    max_length: positions are below it.
    keeps:      whether taps are there for a sink. Every value that one reads is made then, and has
                a buffer of its own; otherwise layers share them, which keeps them in a CPU's cache.
    streams:    layers behind which a step's reader of streams is told: when the step is done.
    """

    def __init__(
        self,
        forward: Callable[[Step], Tensor],
        caches: tuple[LayerCache, ...],
        *,
        num_tokens: int,
        num_rows: int,
        max_length: int,
        keeps: bool = False,
        streams: frozenset[int] = frozenset(),
    ) -> None:
        self._sizes = {TOKENS: num_tokens, ROWS: num_rows}
        self._keeps = keeps
        recording = Recording.over(caches, is_tapped=keeps, streams=streams)
        with torch.no_grad():
            result = forward(recording.step)
        assert isinstance(result, Recorded), "a forward's result hangs on its step"
        self._step = recording.step
        calls = lower(recording, result, max_length=max_length)
        told = {  # behind the step: what was lowered is no call of torch
            each.args[1]: each.args[0]
            for each in recording.calls
            if each.function is tell_stream and each not in calls
        }
        given = [each.results for each in recording.calls if each.function is given_rows]
        held = frozenset(value.root for value in (*told.values(), *given))
        self._buffers = _buffers(calls, result, self._sizes, shares=not keeps, held=held)
        self._places: dict[Recorded, int] = {}
        self._parts: list[Program | _TorchCall] = []
        last = _last_readers(calls)
        for call in calls:
            breathe()
            if isinstance(call, NativeCall):
                self._add(call.make(self._room))
            elif not (call.is_view and self._is_in_buffer(call.values[0])):
                freed = [
                    self._place(each)
                    for each in dict.fromkeys(call.reads())
                    if last[each] is call and each.read is None and not self._is_in_buffer(each)
                ]
                self._parts.append(self._torch_call(call, freed))
        self.result = self._room(result)
        # By layer, of the latest step; and what each step's given rows are to be put in.
        self.streams = {layer: self._room(value) for layer, value in told.items()}
        self.given = self._room(given[0]) if given else None
        only = self._parts[0] if len(self._parts) == 1 else None
        self._program = only if isinstance(only, Program) else None

    @property
    def is_native(self) -> bool:
        """Whether all but what computes nothing is native: results are free of the step's shape."""
        return _MOVES.issuperset(self.torch_calls)

    @property
    def takes_numbers(self) -> bool:
        """Whether a step without a sink runs without any tensor of its own."""
        return self._program is not None

    @property
    def num_bytes(self) -> int:
        """Memory of all buffers."""
        return sum({id(each): each.nbytes for each in self._buffers.values()}.values())

    @property
    def torch_calls(self) -> tuple[str, ...]:
        """The names of what runs in torch, in order."""
        return tuple(part.name for part in self._parts if isinstance(part, _TorchCall))

    def run(self, step: Step, is_over: Callable[[], bool] | None = None) -> bool:
        """Replay for one step; returns when all threads are done: whether all was done.

        A sink is told what the taps see when they see it, as by the forward itself.

        is_over: asked now and then; the step is broken off where it says so.
        """
        native = NativeStep.of(step)
        if self._program is not None:
            if not _replay(self._program, native, is_over):
                return False
        else:
            assert step.sink is None or self._keeps, "what a sink reads is kept"
            run = self._begin(step, native)
            with torch.inference_mode():
                for part in self._parts:
                    if isinstance(part, _TorchCall):
                        part.run(run)
                    elif not _replay(part, native, is_over):
                        return False
        for layer, stream in self.streams.items():
            tell_stream(stream[: step.token_ids.shape[0]], layer, step)
        return True

    def run_numbers(self, numbers: Numbers, is_over: Callable[[], bool] | None = None) -> bool:
        """Replay for one step that nobody watches; is_over and what it returns as for run."""
        assert self._program is not None, "what runs in torch reads a step's tensors"
        return _replay(self._program, NativeStep.of_numbers(numbers), is_over)

    def run_rows(self, count: int) -> None:
        """Replay what reads nothing of a step but rows that are given; what it makes is result."""
        assert self._program is not None, "what runs in torch reads a step's tensors"
        self._program.run(NativeStep.of_rows(count))

    def chain(self, token_ids: Tensor, is_last: Tensor, *, page_size: int, most: int) -> Chain:
        """What runs it again on what it said: see Chain. It reads given rows, and tells a stream.

        Shapes: token_ids, is_last [N], for rows [R, N] of results.
        """
        assert self._program is not None and self.given is not None, "all of it is native"
        (made,) = self.streams.values()
        return Chain(
            self._program,
            self.result,
            made=made,
            given=self.given,
            token_ids=token_ids,
            is_last=is_last,
            page_size=page_size,
            most=most,
        )

    def time(self, step: Step) -> dict[str, float]:
        """Replay and give the seconds of each kind of operation."""
        seconds: dict[str, float] = {}
        native = NativeStep.of(step)
        run = self._begin(step, native)
        with torch.inference_mode():
            for part in self._parts:
                if isinstance(part, _TorchCall):
                    began = time.perf_counter()
                    part.run(run)
                    spent = time.perf_counter() - began
                    seconds[part.name] = seconds.get(part.name, 0.0) + spent
                    continue
                for code, nanoseconds in zip(part.codes, part.time(native), strict=True):
                    name = code.name.lower()
                    seconds[name] = seconds.get(name, 0.0) + nanoseconds * 1e-9
        return seconds

    def _begin(self, step: Step, native: NativeStep) -> _Run:
        pages = max((group.page_table.shape[1] for group in step.groups), default=0)
        sizes = {
            TOKENS: step.token_ids.shape[0],
            ROWS: step.logit_rows.shape[0],
            SEQUENCES: step.context_lengths.shape[0],
            PAGES: pages,
        }
        return _Run(step, native, [None] * len(self._places), sizes)

    def _add(self, operations: Iterable[Operation]) -> None:
        if not self._parts or not isinstance(self._parts[-1], Program):
            self._parts.append(Program())
        for operation in operations:
            cast(Program, self._parts[-1]).add(operation)

    def _is_in_buffer(self, value: Recorded) -> bool:
        return value.root in self._buffers

    def _room(self, value: Recorded) -> Tensor:
        """A value's part of its root's buffer, with room for the largest step."""
        buffer = self._buffers[value.root]
        shape = (len(buffer), *value.shape[1:])
        return buffer.as_strided(shape, value.stride(), buffer.storage_offset() + _start(value))

    def _torch_call(self, call: Call, freed: Sequence[int]) -> _TorchCall:
        """freed: places whose values nothing reads after this call."""
        args, kwargs = self._bound(call.args), self._bound(dict(call.kwargs))
        function, keep = call.function, self._kept(call.results)
        if function is tap:

            def tell(run: _Run) -> None:
                name, value, layer = args(run)
                tap(name, value, layer, run.step)

            return _TorchCall(tap.__name__, tell)
        if function is tell_stream:

            def tell_reader(run: _Run) -> None:
                value, layer = args(run)
                tell_stream(value, layer, run.step)

            return _TorchCall(tell_stream.__name__, tell_reader)

        def run_it(run: _Run) -> None:
            keep(run, function(*args(run), **kwargs(run)))
            for place in freed:
                run.values[place] = None

        return _TorchCall(getattr(function, "__name__", "call"), run_it)

    def _kept(self, results: Any) -> Callable[[_Run, Any], None]:
        """What puts results where those who read them look."""
        if isinstance(results, Recorded):
            return self._put(results)
        parts = cast("Sequence[Any]", results if isinstance(results, tuple | list) else ())
        puts = [
            (index, self._put(each))
            for index, each in enumerate(parts)
            if isinstance(each, Recorded)
        ]

        def keep(run: _Run, made: Any) -> None:
            for index, put in puts:
                put(run, made[index])

        return keep

    def _put(self, value: Recorded) -> Callable[[_Run, Tensor], None]:
        if self._is_in_buffer(value):
            narrow = self._narrowed(value)

            def copy(run: _Run, made: Tensor) -> None:
                narrow(run).copy_(made)

            return copy
        place = self._place(value)

        def put(run: _Run, made: Tensor) -> None:
            run.values[place] = made

        return put

    def _place(self, value: Recorded) -> int:
        return self._places.setdefault(value, len(self._places))

    def _bound(self, tree: Any) -> Callable[[_Run], Any]:
        """Nested arguments, to be filled from a run."""
        makers: list[Callable[[_Run], Any]] = []

        def leaf(value: Any) -> Any:
            maker = self._maker(value)
            if maker is None:
                return value
            makers.append(maker)
            return _Hole(len(makers) - 1)

        template = map_leaves(tree, leaf)
        if not makers:
            return lambda _: template

        def fill(run: _Run) -> Any:
            def filled(each: Any) -> Any:
                return makers[each.index](run) if type(each) is _Hole else each

            return map_leaves(template, filled)

        return fill

    def _maker(self, value: Any) -> Callable[[_Run], Any] | None:
        """What gives an argument at run time; None where it is the same for every step."""
        if isinstance(value, Recorded):
            if value.read is not None:
                read = value.read
                return lambda run: read(run.step)
            if self._is_in_buffer(value):
                return self._narrowed(value)
            place = self._place(value)
            return lambda run: run.values[place]
        if value is self._step:
            return lambda run: run.step
        if value is self._step.plan:
            return lambda run: run.step.plan
        if isinstance(value, slice):
            bounds = cast("slice[Any, Any, Any]", value)
            fill = self._bound((bounds.start, bounds.stop, bounds.step))
            return lambda run: slice(*fill(run))
        if type(value) is int and value in SYMBOLS:
            return lambda run: run.sizes[value]
        return None

    def _narrowed(self, value: Recorded) -> Callable[[_Run], Tensor]:
        """A value's rows of the step that runs."""
        buffer, symbol = self._buffers[value.root], value.root.shape[0]
        dimension = list(value.shape).index(symbol)
        shape = [self._sizes[symbol] if i == dimension else n for i, n in enumerate(value.shape)]
        whole = buffer.as_strided(shape, value.stride(), buffer.storage_offset() + _start(value))
        return lambda run: whole.narrow(dimension, 0, run.sizes[symbol])


def _replay(program: Program, step: NativeStep, is_over: Callable[[], bool] | None) -> bool:
    if is_over is not None:
        return program.run_until(step, is_over)
    program.run(step)
    return True


@dataclass(frozen=True)
class _Hole:
    index: int


def _start(value: Recorded) -> int:
    return int(value.meta.storage_offset())


def _buffers(
    calls: Sequence[Lowered],
    result: Recorded,
    sizes: Mapping[int, int],
    *,
    shares: bool,
    held: frozenset[Recorded],
) -> dict[Recorded, Tensor]:
    """Buffers of the values that native operations read and write, by their roots.

    shares: one that nothing reads any more takes the next value of its size.
    held:   those that no other value takes, before or behind.
    """
    native: set[Recorded] = {result.root, *held}
    last: dict[Recorded, int] = {}
    for index, call in enumerate(calls):
        if isinstance(call, NativeCall):
            native.update(each.root for each in (*call.reads, *call.writes))
        for each in _touched(call):
            last[each.root] = index
    last[result.root] = len(calls)
    buffers = {root: _new_room(root, sizes) for root in held}
    free: dict[tuple[int, int, torch.dtype], list[Tensor]] = {}
    for index, call in enumerate(calls):
        roots = dict.fromkeys(each.root for each in _touched(call) if each.root in native)
        for root in roots:
            if root not in buffers:
                rooms = free.get(_kind(root))
                buffers[root] = rooms.pop() if rooms else _new_room(root, sizes)
        for root in roots:
            if shares and last[root] == index and root not in held:
                free.setdefault(_kind(root), []).append(buffers[root])
    return buffers


def _kind(root: Recorded) -> tuple[int, int, torch.dtype]:
    """What buffers have in common that may take each other's place: rows, width, dtype."""
    return root.shape[0], root.shape[1:].numel(), root.dtype


def _new_room(root: Recorded, sizes: Mapping[int, int]) -> Tensor:
    symbol, width, dtype = _kind(root)
    if dtype == torch.float32:
        return room(sizes[symbol], width)
    return torch.zeros(sizes[symbol], width, dtype=dtype)


def _last_readers(calls: Sequence[Lowered]) -> dict[Recorded, Lowered]:
    return {each: call for call in calls if isinstance(call, Call) for each in call.reads()}


def _touched(call: Lowered) -> tuple[Recorded, ...]:
    if isinstance(call, NativeCall):
        return (*call.reads, *call.writes)
    return (*call.reads(), *call.values)
