"""What a layer keeps per token, as data: fields, extent and the group that shares pages.

Free of torch: dtypes are names. A layer declares one CacheSpec; layers with equal specs form a
group; pages, page tables and free lists are per group.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

SCRATCH_PAGE = 0  # never handed out: padded rows of a captured step write here

DTYPE_BYTES = {
    **{"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "int8": 1},
    "float8_e4m3fn": 1,
}
# Numbers of eight bits stand for themselves times a scale: one per token and head.
SCALED_DTYPES = frozenset({"int8", "float8_e4m3fn"})
SCALE_DTYPE = "float32"  # float16 would save 1.5 % of the cache and overflow where values are large


@dataclass(frozen=True)
class CacheField:
    """One tensor that a layer keeps: its shape per token, for instance (G, C) for keys.

    dtype: its own, whatever the cache's is; None takes the cache's.
    is_columns: entries of a page's tokens are read side by side, as a CPU reads keys.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str | None = None
    is_columns: bool = False


@dataclass(frozen=True)
class StoredField:
    """A tensor of the pool: a field in the cache's dtype, or the scales of one."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    is_columns: bool = False

    @property
    def num_bytes(self) -> int:
        """Bytes that one token takes in it, or one page of states."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


def scale_name(field: str) -> str:
    """What the scales of a field are called."""
    return f"{field}.scale"


@dataclass(frozen=True)
class Full:
    """Every earlier token stays visible."""


@dataclass(frozen=True)
class Window:
    """Only the last width tokens, the query's own included, and the first sinks stay visible."""

    width: int
    sinks: int = 0

    def __post_init__(self) -> None:
        assert self.width > 0 and self.sinks >= 0, "a window has a width above 0 and sinks from 0"


Extent = Full | Window

FULL = Full()


@dataclass(frozen=True)
class CacheSpec:
    """What one layer keeps: fields per token, or a state for each page.

    is_state: fields are what is known after the page's last token so far. Only the newest is
    needed to go on, and each full page's is a snapshot from which a prefix hit goes on.
    source: an earlier layer whose fields this one reads; it has none of its own.
    """

    fields: tuple[CacheField, ...]
    extent: Extent = FULL
    is_state: bool = False
    source: int | None = None

    @property
    def can_roll_back(self) -> bool:
        """Whether tokens can be taken back: a state does not know how it was before them."""
        return not self.is_state

    def list_fields(self, dtype: str) -> tuple[StoredField, ...]:
        """The tensors that keep the fields in a dtype, their scales included."""
        fields = [
            StoredField(field.name, field.shape, field.dtype or dtype, field.is_columns)
            for field in self.fields
        ]
        if dtype in SCALED_DTYPES:
            fields += [
                StoredField(scale_name(field.name), field.shape[:-1], SCALE_DTYPE)
                for field in self.fields
                if field.dtype is None
            ]
        return tuple(fields)

    def bytes_per_token(self, dtype: str) -> int:
        """Bytes that one token takes in one layer; a state takes none."""
        return 0 if self.is_state else sum(field.num_bytes for field in self.list_fields(dtype))


@dataclass(frozen=True)
class CacheGroup:
    """Layers that share page tables because they keep the same thing.

    readers: pairs of a later layer, which keeps nothing, and the one whose fields it reads.
    """

    index: int
    spec: CacheSpec
    layers: tuple[int, ...]
    readers: tuple[tuple[int, int], ...] = ()


def grouped_cache_spec(num_groups: int, head_size: int, extent: Extent = FULL) -> CacheSpec:
    """A key and a value per group and token."""
    shape = (num_groups, head_size)
    fields = (CacheField("key", shape, is_columns=True), CacheField("value", shape))
    return CacheSpec(fields, extent)


def latent_cache_spec(rank: int, rotary_size: int) -> CacheSpec:
    """A compressed row and a rotary key per token, for all heads together."""
    return CacheSpec((CacheField("latent", (rank,)), CacheField("rotary", (rotary_size,))))


def group_layers(specs: Sequence[CacheSpec]) -> tuple[CacheGroup, ...]:
    """Groups in the order in which their first layer appears; a layer with a source has none."""
    layers: dict[CacheSpec, list[int]] = {}
    for layer, spec in enumerate(specs):
        if spec.source is None:
            layers.setdefault(spec, []).append(layer)
    sources = [(layer, spec.source) for layer, spec in enumerate(specs)]
    readers = [(layer, source) for layer, source in sources if source is not None]
    return tuple(
        CacheGroup(index, spec, tuple(members), tuple(r for r in readers if r[1] in members))
        for index, (spec, members) in enumerate(layers.items())
    )
