"""Latent attention against its expanded form, and over pages against a sequence alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cutaway.blocks.attention.latent import LatentAttention
from cutaway.blocks.positions import Plain, angles
from cutaway.core.layout import latent_cache_spec
from cutaway.core.step import GroupTables, LayerCache, ShapePlan, Step
from cutaway.kernels.attention import SEGMENT, attention
from cutaway.kernels.rotary import rotate, rotate_neighbours

HEADS, PLAIN, ROTARY, RANK, VALUE, WIDTH, PAGE = 3, 8, 4, 10, 6, 20, 8


def module(query_rank: int | None = None) -> LatentAttention:
    made = LatentAttention(
        WIDTH,
        num_heads=HEADS,
        query_rank=query_rank,
        rank=RANK,
        plain_size=PLAIN,
        rotary_size=ROTARY,
        value_size=VALUE,
        softmax_scale=0.3,
        frequencies=Plain(ROTARY, 100.0),
        pairs="neighbours",
        has_bias=True,
    ).double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
    return made


def hidden_of(count: int) -> Tensor:
    return torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(1)).double()


def rotation(step: Step) -> tuple[Tensor, Tensor]:
    return angles(Plain(ROTARY, 100.0), step.positions, step.declared_lengths, torch.float64)


def expanded(made: LatentAttention, hidden: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    """The paper's form: a key and a value for every head, made from the compressed row."""
    query = hidden
    if made.query_down is not None and made.query_norm is not None:
        query = made.query_norm(made.query_down(hidden))
    query = made.query(query).view(len(hidden), HEADS, -1)
    query = torch.cat((query[..., :PLAIN], rotate_neighbours(query[..., PLAIN:], *turns)), -1)
    down = made.down(hidden)
    rows = made.up.multiply(made.latent_norm(down[:, :RANK])).view(len(hidden), HEADS, -1)
    shared = rotate_neighbours(down[:, None, RANK:], *turns).expand(-1, HEADS, -1)
    key = torch.cat((rows[..., :PLAIN], shared), -1)
    plan = ShapePlan((len(hidden),), (len(hidden),))
    mixed = attention(query, key, rows[..., PLAIN:], plan=plan, softmax_scale=0.3)
    return made.output(mixed.flatten(1))


@pytest.mark.parametrize("query_rank", [None, 7])
@torch.no_grad()
def test_j05_absorbed_equals_expanded(query_rank: int | None) -> None:
    made, step, hidden = module(query_rank), Step.without_cache([[0] * 30]), hidden_of(30)
    ours = made(hidden, rotation(step), step, 0)
    assert torch.allclose(ours, expanded(made, hidden, rotation(step)), atol=1e-11)


def paged_step(lengths: tuple[int, ...], contexts: tuple[int, ...], cache: LayerCache) -> Step:
    """New tokens at the end of each context; sequence s has pages 1 + s, 1 + s + B and so on."""
    widest = -(-max(contexts) // PAGE)
    table = torch.tensor(
        [[1 + row + len(lengths) * n for n in range(widest)] for row in range(len(lengths))]
    )
    positions = torch.cat([torch.arange(c - n, c) for n, c in zip(lengths, contexts, strict=True)])
    rows = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    slots = table[rows, positions // PAGE] * PAGE + positions % PAGE
    count = len(positions)
    return Step(
        token_ids=torch.zeros(count, dtype=torch.int64),
        positions=positions,
        declared_lengths=torch.ones(count, dtype=torch.int64),
        query_starts=torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()]),
        context_lengths=torch.tensor(contexts),
        logit_rows=torch.arange(count),
        plan=ShapePlan(lengths, contexts),
        groups=(GroupTables(table, slots),),
        caches=(cache,),
    )


def pages(count: int, fill: float) -> LayerCache:
    spec = latent_cache_spec(RANK, ROTARY)
    fields = {f.name: torch.full((count, PAGE, *f.shape), fill).double() for f in spec.fields}
    return LayerCache(fields, 0, PAGE)


@torch.no_grad()
def test_pages_chunks_and_batches_equal_a_sequence_alone() -> None:
    made, length = module(7), SEGMENT + 30  # past a border between segments
    hidden = hidden_of(2 * length)
    halves = hidden.split(length)
    alone = Step.without_cache([[0] * length])
    expected = [made(half, rotation(alone), alone, 0) for half in halves]
    cache = pages(2 * (-(-length // PAGE)) + 1, torch.nan)  # what was never written is not read
    done = [0, 0]
    found: list[list[Tensor]] = [[], []]
    for counts in ((100, 1), (1, 200), (1, 1), (1, 1), (length - 103, length - 203)):
        contexts = tuple(d + n for d, n in zip(done, counts, strict=True))
        step = paged_step(counts, contexts, cache)
        rows = [half[d : d + n] for half, d, n in zip(halves, done, counts, strict=True)]
        made_rows = made(torch.cat(rows), rotation(step), step, 0).split(counts)
        for each, part in zip(found, made_rows, strict=True):
            each.append(part)
        done = list(contexts)
    for each, whole in zip(found, expected, strict=True):
        assert torch.allclose(torch.cat(each), whole, atol=1e-11)


def test_deepseek_v3_keeps_70272_bytes_per_token() -> None:
    assert 61 * latent_cache_spec(512, 64).bytes_per_token("bfloat16") == 70_272


def test_pairs_of_neighbours_turn_as_pairs_in_halves() -> None:
    x = torch.randn(5, 2, 6, generator=torch.Generator().manual_seed(2)).double()
    turns = torch.arange(15.0).view(5, 3).double()
    order = [0, 2, 4, 1, 3, 5]
    expected = rotate(x[..., order], turns.cos(), turns.sin())
    assert torch.equal(rotate_neighbours(x, turns.cos(), turns.sin()), expected)
    turn = torch.polar(torch.ones_like(turns), turns)[:, None]
    expected = torch.view_as_real(torch.view_as_complex(x.view(5, 2, 3, 2)) * turn)
    ours = rotate_neighbours(x, turns.cos(), turns.sin())
    assert torch.allclose(ours, expected.transpose(-1, -2).flatten(-2))
