"""Feed-forward: which units fire at one position, and which tokens each of them pushes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from cutaway.blocks.activations import name_of
from cutaway.blocks.block import Block
from cutaway.blocks.mlp import GatedMLP, PlainMLP
from cutaway.blocks.moe import MixtureOfExperts
from cutaway.core.errors import RequestError
from cutaway.host.turns import breathe
from cutaway.views.parts.drawing import Drawing, Span, bar, cut
from cutaway.views.parts.payload import Array
from cutaway.views.parts.query import Query
from cutaway.views.parts.replay_values import ReplayValues, Wanted
from cutaway.views.parts.subject import Subject
from cutaway.views.parts.view import View

MOST_NUMBERS = 2**19  # logits held at once, about 20 ms of work
NUM_PUSHED = 5  # tokens told of each unit
NEAR_ZERO = 0.01  # of the largest product
_CURVE = torch.linspace(-4, 4, 33)
_EMBEDDING, _HIDDEN = "embedding.hidden", "blocks.hidden"
_UPDATE, _PRODUCT, _IDS = "blocks.attention.update", "blocks.mlp.product", "blocks.experts.ids"


@dataclass(frozen=True)
class FeedForwardUnits:
    """One position through one layer's feed-forward. Letters: M units shown, D width, F inner.

    kind:      gated, plain or experts; expert: which of num_experts, in a layer that has them.
    units:     [M], those that add most.   gate, up, product: [M] of each: product is
               activation(gate) * up; a plain layer has no gate, its product is activation(up).
    added:     [M], norm of what the unit adds.   columns: [M, 8], the first numbers of what it adds
               for a product of 1, its value in memory's terms.
    pushed, pushed_ids: tokens that what it adds raises most, by final norm and unembedding.
    curve:     [33], the activation from -4 to 4.
    near_zero: share of units with a product below 1 % of the largest.
    half:      how many units make up half of the sum of squares of all products.
    difference: largest one between products told and recomputed, as a share of the largest. Gates
               and ups are recomputed in float32; 8-bit arithmetic served others, nearly equal.
    """

    layer: int
    position: int
    text: str
    kind: str
    activation: str
    width: int
    inner: int
    expert: int | None
    num_experts: int
    units: Array
    gate: Array
    up: Array
    product: Array
    added: Array
    columns: Array
    pushed: tuple[tuple[str, ...], ...]
    pushed_ids: Array
    curve: Array
    near_zero: float
    half: int
    difference: float

    def draw(self) -> Drawing:
        """The picture: the activation's curve, and a row for each unit that adds most."""
        drawing = Drawing()
        which = "" if self.expert is None else f", expert {self.expert} of {self.num_experts}"
        drawing.line(
            f"layer {self.layer}{which}: ",
            Span(self.text, "strong"),
            f" at {self.position}, alone, through {self.inner:,} units "
            f"({self.inner / self.width:.2f} times the width)",
        )
        name = self.activation
        formula = f"{name}(up)" if self.kind == "plain" else f"{name}(gate) * up"
        drawing.line(Span(f"product = {formula}", "dim"))
        drawing.line(Span(f"{name} from -4 to 4: ", "dim"), _marks(self.curve.tolist()))
        has_gate = self.kind != "plain"
        top = max(float(self.added.max()), 1e-30)
        rows = [
            (
                str(unit),
                *((f"{self.gate[row]:.2f}",) if has_gate else ()),
                f"{self.up[row]:.2f}",
                f"{self.product[row]:.2f}",
                f"{self.added[row]:.2f}",
                bar(float(self.added[row]) / top, 8),
                cut(" ".join(self.pushed[row]), 38),
            )
            for row, unit in enumerate(self.units.tolist())
        ]
        gate = ("gate",) if has_gate else ()
        header = ("unit", *gate, "up", "product", "adds", "", "pushes up")
        drawing.table(header, rows, sides="r" * (len(header) - 2) + "ll")
        drawing.line(
            f"{self.near_zero:.0%} of units are near zero (below 1 % of the largest); "
            f"{self.half:,} make up half of all"
        )
        if self.difference > 1e-4:
            drawing.line(
                Span(
                    "gates and ups are recomputed in float32; products so made differ by "
                    f"{self.difference:.1%} of the largest at most",
                    "dim",
                )
            )
        drawing.line(Span(f"not shown: {self.inner - len(rows):,} other units", "dim"))
        return drawing


@dataclass(frozen=True)
class _FeedForward:
    """A feed-forward as a view needs it, whatever its kind."""

    kind: str
    activation: str
    curve: Tensor
    gate: Tensor  # [F]
    up: Tensor
    product: Tensor
    columns: Callable[[], Tensor]
    expert: int | None = None
    num_experts: int = 0


def wants(subject: Subject, query: Query) -> Wanted:
    """The stream, the attention's update and the product, at one position of one layer."""
    layer, position = _layer_of(subject, query), _position_of(subject, query)
    return Wanted(
        taps=frozenset({_EMBEDDING, _HIDDEN, _UPDATE, _PRODUCT, _IDS}),
        layers=frozenset({max(0, layer - 1), layer}),
        start=position,
        end=position + 1,
    )


def probe(subject: Subject, query: Query, taken: ReplayValues) -> FeedForwardUnits:
    """The units that add most at one position, with the tokens that each of them raises."""
    layer, position = _layer_of(subject, query), _position_of(subject, query)

    def row(name: str, layer: int | None = None) -> Tensor:
        return taken.value(name, layer, start=position, end=position + 1)

    block = cast(Block, subject.transformer.blocks[layer])
    before = row(_EMBEDDING) if layer == 0 else row(_HIDDEN, layer - 1)
    dtype = _dtype_of(subject)
    normed = block.read_by_mlp(before.to(dtype), row(_UPDATE, layer).to(dtype))
    found = _opened(block, normed, row, query, layer)
    told = found.product
    if found.expert is None:
        told = row(_PRODUCT, layer)[0]
    difference = float((told - found.product).abs().max() / told.abs().max().clamp_min(1e-30))
    squares = told.double().square().sort(descending=True).values.cumsum(0)
    breathe()
    every = found.columns().to(told.dtype)  # what each unit adds for one of it [F, D]
    added = told.abs() * every.square().sum(dim=-1).sqrt()
    units = added.topk(min(query.top, len(told))).indices
    pushed = _pushed(subject, told[units].sign()[:, None] * every[units])
    return FeedForwardUnits(
        layer=layer,
        position=position,
        text=subject.text(subject.answer.token_ids[position]),
        kind=found.kind,
        activation=found.activation,
        width=subject.facts.width,
        inner=len(told),
        expert=found.expert,
        num_experts=found.num_experts,
        units=units.cpu().numpy(),
        gate=_array(found.gate[units]),
        up=_array(found.up[units]),
        product=_array(told[units]),
        added=_array(added[units]),
        columns=_array(every[units, :8]),
        pushed=tuple(tuple(subject.text(int(each)) for each in one) for one in pushed),
        pushed_ids=pushed.cpu().numpy(),
        curve=_array(found.curve),
        near_zero=float((told.abs() < NEAR_ZERO * told.abs().max()).double().mean()),
        half=int((squares < squares[-1] / 2).sum()) + 1,
        difference=difference,
    )


def flops(subject: Subject, query: Query) -> int:
    """Of the units' directions through the unembedding, and of the layer once more."""
    facts = subject.facts
    return 2 * facts.width * (facts.vocab_size * min(query.top, facts.inner) + 3 * facts.inner)


def walks(subject: Subject, query: Query) -> int:
    """What goes down, unpacked and squared, and the rows of logits of the units that are shown."""
    facts = subject.facts
    return 4 * facts.width * facts.inner + facts.vocab_size * min(query.top, facts.inner)


def _opened(
    block: Block, normed: Tensor, row: Callable[..., Tensor], query: Query, layer: int
) -> _FeedForward:
    """The layer's inner values of one position. Shapes: normed [1, D]."""
    mlp = block.mlp
    if isinstance(mlp, PlainMLP):
        up, none = mlp.up(normed)[0], normed.new_zeros(mlp.up.rows[0])
        curve, product = mlp.activation(_CURVE), mlp.activation(up)
        return _FeedForward("plain", name_of(mlp.activation), curve, none, up, product, mlp.columns)
    if isinstance(mlp, GatedMLP):
        gate, up = (each[0] for each in mlp.sides(normed))
        curve, name = mlp.gate(_CURVE, torch.ones_like(_CURVE)), name_of(mlp.gate)
        return _FeedForward("gated", name, curve, gate, up, mlp.gate(gate, up), mlp.columns)
    assert isinstance(mlp, MixtureOfExperts), f"a feed-forward is a {type(mlp)}"
    experts = mlp.experts
    expert = int(row(_IDS, layer)[0, 0]) if query.expert is None else query.expert
    if expert >= experts.num_experts:
        raise RequestError(
            f"expert is {expert}; layer {layer} has experts 0 to {experts.num_experts - 1}.",
            param="expert",
        )
    gate, up = (each[0] for each in experts.sides(mlp.experts_norm(normed), expert))
    return _FeedForward(
        "experts",
        name_of(experts.gate),
        experts.gate(_CURVE, torch.ones_like(_CURVE)),
        gate,
        up,
        experts.gate(gate, up),
        lambda: experts.columns(expert),
        expert,
        experts.num_experts,
    )


def _pushed(subject: Subject, directions: Tensor) -> Tensor:
    """Tokens that directions of the stream raise most. Shapes: [M, D] -> [M, tokens]."""
    subject.transformer.check_whole()
    unembedding = subject.transformer.unembedding
    normed = unembedding.norm(directions.to(_dtype_of(subject)))
    parts: list[Tensor] = []
    size = max(1, MOST_NUMBERS // subject.facts.vocab_size)
    for some in cast("tuple[Tensor, ...]", normed.split(size)):
        breathe()
        logits = unembedding.products(some).float()
        parts.append(logits.topk(NUM_PUSHED, dim=-1).indices)
    return torch.cat(parts)


def _dtype_of(subject: Subject) -> torch.dtype:
    """In which the model's own weights meet what taps gave in float32."""
    return cast(torch.dtype, getattr(torch, subject.build.dtype))


def _layer_of(subject: Subject, query: Query) -> int:
    return subject.facts.num_layers // 2 if query.layer is None else query.layer


def _position_of(subject: Subject, query: Query) -> int:
    return subject.num_positions - 1 if query.position is None else query.position


def _marks(values: list[float]) -> str:
    """One character per value, the lowest to the highest."""
    least, most = min(values), max(values)
    levels = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
    return "".join(levels[round((each - least) / max(most - least, 1e-30) * 7)] for each in values)


def _array(values: Tensor) -> Array:
    return values.float().cpu().numpy()


VIEW = View(
    "feedforward",
    "blocks",
    "Which units fire, and what do they push the answer towards?",
    probe,
    takes=("position", "layer", "expert", "top"),
    wants=wants,
    flops=flops,
    walks=walks,
)
