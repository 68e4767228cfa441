"""What the layers of a grouped decoder may have in place of Llama's parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from cutaway.core.layout import CacheSpec
from cutaway.core.shapes import AttentionShape, Mlp
from cutaway.models.parts.architecture import Layout
from cutaway.models.parts.tensor_names import Targets

if TYPE_CHECKING:
    from cutaway.blocks.slots import Attention, FeedForward

# Norms by root mean square: cast before the weight or behind it, or times 1 + w, or unit: without a
# weight; or by mean and deviation without a bias, and bare: without a weight either. Those of heads
# by mean have a weight for each number of all heads.
NormKind = Literal["rms", "wide", "offset", "unit", "mean", "bare"]


@dataclass(frozen=True, kw_only=True)
class AttentionForm:
    """What differs from Llama's attention; the parameters of blocks/attention/grouped.py.

    is_joined:     one stored matrix holds queries, keys and values.
    norms_rows:    head norms are of all query heads together, and of all key heads.
    clip:          queries, keys and values are cut off at -clip and clip.
    softmax_scale: None for head_size ** -0.5.   cap: of the scores.
    """

    has_bias: bool = False  # on queries, keys and values
    has_output_bias: bool = False
    is_joined: bool = False
    has_head_norms: bool = False
    norms_rows: bool = False
    clip: float | None = None
    has_sinks: bool = False
    softmax_scale: float | None = None
    cap: float | None = None


class Sparse(Protocol):
    """Experts in place of the dense layer."""

    @property
    def shape(self) -> Mlp:
        """Their sizes, as estimates take them."""
        ...

    def targets(self, layout: Layout, at: str, to: str, width: int) -> Targets:
        """Where the tensors of a stored layer, at, go in the model's feed-forward, to."""
        ...

    def build(self, width: int) -> FeedForward:
        """The module with unset weights."""
        ...


class Mixer(Protocol):
    """What mixes a sequence's tokens in place of attention."""

    @property
    def shape(self) -> AttentionShape:
        """Its sizes, as estimates take them."""
        ...

    @property
    def cache_spec(self) -> CacheSpec:
        """What it keeps."""
        ...

    def targets(self, layout: Layout, at: str, to: str, width: int) -> Targets:
        """Where the tensors of a stored layer, at, go in the model's layer, to."""
        ...

    def build(self, width: int) -> Attention:
        """The module with unset weights."""
        ...
