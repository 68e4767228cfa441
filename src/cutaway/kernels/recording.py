"""A forward called once with values that stand for a step's: every call that it makes is noted.

A value that is recorded has a shape and a dtype and no numbers. In the place of a step's number of
tokens it has one that nothing else has, so that what hangs on the step is told from what does not.
Views are told apart from new values by what torch does with the shapes alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, ParamSpec, TypeVar, cast

import torch
from torch import Tensor

from cutaway.core.step import GroupTables, LayerCache, ShapePlan, Step

# In the place of a step's tokens, logit rows, sequences and pages of its longest sequence: primes,
# larger than any other number that a forward hands to torch.
TOKENS: Final = 1_000_003
ROWS: Final = 1_000_033
SEQUENCES: Final = 1_000_037
PAGES: Final = 1_000_039
SYMBOLS: Final = frozenset({TOKENS, ROWS, SEQUENCES, PAGES})
_LEAST_SYMBOL = 1_000_000

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Recorded(Tensor):
    """A value of a step that is not there yet.

    call: what gives it; None for what a step brings, which read gets from it.
    meta: its shape, and how it lies in root: torch's own view of it, without numbers.
    root: the value of which it is a view; itself where it is none.
    """

    recording: Recording
    call: Call | None
    read: Callable[[Step], Tensor | None] | None
    meta: Tensor
    root: Recorded

    @staticmethod
    def of(
        recording: Recording,
        meta: Tensor,
        *,
        call: Call | None,
        root: Recorded | None = None,
        read: Callable[[Step], Tensor | None] | None = None,
    ) -> Recorded:
        """A value of the shape and dtype of meta."""
        made = cast(
            Recorded,
            Tensor._make_wrapper_subclass(  # pyright: ignore
                Recorded, meta.shape, strides=meta.stride(), dtype=meta.dtype, device=_CPU
            ),
        )
        made.recording, made.call, made.read, made.meta = recording, call, read, meta
        made.root = made if root is None else root
        return made

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        if func in _OF_SHAPE or getattr(func, "__name__", "") == "__get__":
            with torch._C.DisableTorchFunctionSubclass():  # pyright: ignore
                return func(*args, **kwargs)
        name = func.__name__
        if (name.endswith("_") and not name.endswith("__")) or name in _IN_PLACE:
            raise AssertionError(
                f"{name} changes a value in place; a recorded forward makes new ones"
            )
        return _recording_of(args, kwargs).note(func, args, kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, *_: Any, **__: Any) -> Any:
        raise AssertionError(f"{func} asks for numbers that are not there while a step is recorded")


_CPU: Final = torch.device("cpu")
_IN_PLACE: Final = frozenset(
    {"__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__iand__", "__ior__"}
)
_OF_SHAPE: Final = frozenset(
    {
        *(Tensor.dim, Tensor.numel, Tensor.size, Tensor.stride, Tensor.is_contiguous),
        *(Tensor.__len__, Tensor.element_size, Tensor.is_floating_point, Tensor.storage_offset),
    }
)


@dataclass(eq=False)
class Call:
    """One call that a forward made.

    results: what it gave, as it gave it: a value, several, or nothing.
    is_view: what it gives lies in what it reads.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    has_effect: bool = False
    is_view: bool = False
    results: Any = None

    def reads(self) -> Iterator[Recorded]:
        """The recorded values among its arguments."""
        return values_in((self.args, self.kwargs))

    @property
    def values(self) -> tuple[Recorded, ...]:
        """The recorded values among its results."""
        return tuple(values_in(self.results))


@dataclass(eq=False)
class Recording:
    """What a forward did with a step that stands for any: its calls, in order.

    step: the one to hand to the forward.
    """

    calls: list[Call] = field(default_factory=list[Call])
    step: Step = field(init=False)

    _NONE: ClassVar[Mapping[str, Any]] = {}

    @staticmethod
    def over(
        caches: tuple[LayerCache, ...], *, is_tapped: bool, streams: frozenset[int] = frozenset()
    ) -> Recording:
        """A recording of steps over these pages; taps are noted too where they are wanted.

        streams: layers behind which the stream is read.
        """
        made = Recording()

        groups = 1 + max((cache.group for cache in caches), default=-1)

        def tables(group: int) -> GroupTables:
            return GroupTables(
                made.brought((SEQUENCES, PAGES), lambda step: step.groups[group].page_table),
                made.brought((TOKENS,), lambda step: step.groups[group].slots),
            )

        made.step = Step(
            token_ids=made.brought((TOKENS,), lambda step: step.token_ids),
            positions=made.brought((TOKENS,), lambda step: step.positions),
            declared_lengths=made.brought((TOKENS,), lambda step: step.declared_lengths),
            query_starts=made.brought((SEQUENCES + 1,), lambda step: step.query_starts),
            context_lengths=made.brought((SEQUENCES,), lambda step: step.context_lengths),
            logit_rows=made.brought((ROWS,), lambda step: step.logit_rows),
            adapters=made.brought((TOKENS,), lambda step: step.adapters),
            plan=ShapePlan((TOKENS,), (TOKENS,)),
            groups=tuple(map(tables, range(groups))),
            caches=caches,
            sink=made._note_tap if is_tapped else None,
            streams=_StreamNotes(streams, made.calls) if streams else None,
        )
        return made

    def brought(self, shape: tuple[int, ...], read: Callable[[Step], Tensor | None]) -> Recorded:
        """What a step brings, if anything: int64 of a shape."""
        meta = torch.empty(shape, dtype=torch.int64, device="meta")
        return Recorded.of(self, meta, call=None, read=read)

    def note(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        shape_of: Callable[..., Any] | None = None,
        has_effect: bool = False,
    ) -> Any:
        """Append a call; gives values that stand for its results.

        shape_of: gives results without numbers from arguments without numbers, where the function
        itself cannot.
        """
        _check_numbers((args, kwargs))
        is_own = shape_of is not None  # its own arguments: a matrix stays as it is
        without = functools.partial(_without_numbers, keeps_real=is_own)
        with torch.no_grad():
            given, named = map_leaves(args, without), map_leaves(dict(kwargs), without)
            key = None if has_effect else _key_of((given, named))
            known = None if key is None else _NEW_VALUES.get((function, key))
            if known is None:
                results = (shape_of or function)(*given, **named)
            else:
                results = map_leaves(known, _NewValue.make)
        call = Call(function, args, kwargs, has_effect=has_effect)
        roots = {
            each.root.meta.untyped_storage()._cdata: each.root  # pyright: ignore
            for each in call.reads()
        }
        num_views = 0

        def value(meta: Any) -> Any:
            nonlocal num_views
            if not isinstance(meta, Tensor):
                return meta
            root = roots.get(meta.untyped_storage()._cdata)  # pyright: ignore
            num_views += root is not None
            return Recorded.of(self, meta, call=call, root=root)

        call.results = map_leaves(results, value)
        call.is_view = num_views > 0
        assert num_views in (0, len(call.values)), "all results are views, or none is"
        if key is not None and known is None and not num_views:
            _remember((function, key), results)
        self.calls.append(call)
        return call.results

    def _note_tap(self, name: str, value: Tensor, layer: int | None) -> None:
        assert isinstance(value, Recorded), f"{name} is not a value of the step"
        self.calls.append(Call(tap, (name, value, layer), self._NONE, has_effect=True))


@dataclass(frozen=True)
class _StreamNotes:
    """Notes who is told which stream. layers: behind which any is read."""

    layers: frozenset[int]
    calls: list[Call]

    def __call__(self, stream: Tensor, layer: int) -> None:
        if layer in self.layers:
            assert isinstance(stream, Recorded), "a stream is a value of the step"
            call = Call(tell_stream, (stream, layer), {}, has_effect=True)
            self.calls.append(call)


def tap(name: str, value: Tensor, layer: int | None, step: Step) -> None:
    """Hand a value to the sink of the step that runs; what the sink gives is put in its place."""
    replaced = step.tap(name, value, layer)
    if replaced is not value:
        value.copy_(replaced)


def tell_stream(value: Tensor, layer: int, step: Step) -> None:
    """Hand the stream behind a layer to whoever reads it in the step that runs."""
    if step.streams is not None:
        step.streams(value, layer)


def operation(
    *, shape_of: Callable[..., Any] | None = None, has_effect: bool = False
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """A function of kernels/ that is recorded as one call, and not by what it does inside.

    shape_of: see Recording.note.   has_effect: it changes what it is given, as pages are.
    """

    def wrap(function: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(function)
        def called(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            for each in args:
                if type(each) is Recorded:
                    note = each.recording.note
                    return note(called, args, kwargs, shape_of=shape_of, has_effect=has_effect)
            return function(*args, **kwargs)

        return called

    return wrap


def values_in(tree: Any) -> Iterator[Recorded]:
    """Recorded values in nested sequences and mappings, in order."""
    if isinstance(tree, Recorded):
        yield tree
    elif isinstance(tree, tuple | list):
        for each in cast("list[Any]", tree):
            yield from values_in(each)
    elif isinstance(tree, Mapping):
        for each in cast("Mapping[Any, Any]", tree).values():
            yield from values_in(each)


def map_leaves(tree: Any, function: Callable[[Any], Any]) -> Any:
    """The same nesting with other leaves; torch's named results stay what they are."""
    if isinstance(tree, tuple | list):
        parts = [map_leaves(each, function) for each in cast("list[Any]", tree)]
        if isinstance(tree, list):
            return parts
        kind = cast("type[Any]", type(cast(Any, tree)))
        if kind is tuple or kind is torch.Size:
            return tuple(parts)
        return kind(*parts) if hasattr(kind, "_fields") else kind(parts)
    if isinstance(tree, dict):
        entries = cast("dict[Any, Any]", tree).items()
        return {key: map_leaves(each, function) for key, each in entries}
    return function(tree)


def _recording_of(*trees: Any) -> Recording:
    return next(values_in(trees)).recording


def _without_numbers(leaf: Any, *, keeps_real: bool) -> Any:
    if isinstance(leaf, Recorded):
        return leaf.meta
    if isinstance(leaf, Tensor) and not keeps_real:
        return leaf.detach().to("meta")
    return leaf


@dataclass(frozen=True)
class _NewValue:
    """What a call gave that is no view of what it was given, without numbers."""

    shape: torch.Size
    dtype: torch.dtype

    def make(self) -> Tensor:
        return torch.empty(self.shape, dtype=self.dtype, device="meta")


# Results by function and arguments. torch finds a shape in Python, of each operation that a plain
# form is made of, and layers are alike: a second recording takes a third of the time of the first.
_NEW_VALUES: Final[dict[Hashable, Any]] = {}
_MOST_KEPT: Final = 4096
_CONSTANTS: Final = (int, float, str, torch.dtype, torch.device, type(None), type(...))


def _remember(key: Hashable, results: Any) -> None:
    values: list[Any] = []
    map_leaves(results, values.append)
    is_plain = all(
        isinstance(each, Tensor) and each.is_contiguous() and not each.storage_offset()
        for each in values
    )
    if is_plain:
        if len(_NEW_VALUES) >= _MOST_KEPT:
            _NEW_VALUES.clear()
        _NEW_VALUES[key] = map_leaves(results, lambda value: _NewValue(value.shape, value.dtype))


def _key_of(tree: Any) -> Hashable:
    """What stands for a call's arguments; None where one has numbers, or may change."""
    if isinstance(tree, Tensor):
        if tree.device.type != "meta":
            return None
        return tree.shape, tree.stride(), tree.storage_offset(), tree.dtype
    if isinstance(tree, _CONSTANTS):
        return type(tree), tree
    if isinstance(tree, slice):
        bounds = cast("slice[Any, Any, Any]", tree)
        parts = _key_of((bounds.start, bounds.stop, bounds.step))
        return None if parts is None else (slice, parts)
    if isinstance(tree, dict):
        entries = cast("dict[Any, Any]", tree)
        return _key_of(list(entries.items()))
    if isinstance(tree, tuple | list):
        parts = [_key_of(each) for each in cast("list[Any]", tree)]
        kind = cast("type[Any]", type(cast(Any, tree)))
        return None if None in parts else (kind, *parts)
    return None


def _check_numbers(tree: Any) -> None:
    def check(leaf: Any) -> None:
        if isinstance(leaf, slice):
            bounds = cast("slice[Any, Any, Any]", leaf)
            for each in (bounds.start, bounds.stop, bounds.step):
                check(each)
        if isinstance(leaf, int) and leaf >= _LEAST_SYMBOL and leaf not in SYMBOLS:
            raise AssertionError(
                f"{leaf} is computed from the number of rows of the step that is recorded; "
                "write -1 for it, or a shape without it"
            )

    map_leaves(tree, check)
