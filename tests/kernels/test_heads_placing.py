"""Heads go to attention in one way: what one kernel does at once is what its parts do in turn."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from cutaway.blocks.norm import RMSNorm
from cutaway.kernels.heads import placing, plain
from cutaway.kernels.heads.placing import HeadNorms, HeadPages, ProductHeads, place

HEADS, GROUPS, SIZE, TOKENS = 4, 2, 6, 5


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def product(*, is_whole: bool = True) -> ProductHeads:
    whole = drawn(TOKENS, HEADS + 2 * GROUPS, SIZE, seed=1)
    query, key, value = whole.split((HEADS, GROUPS, GROUPS), dim=1)
    return ProductHeads(query, key, value, whole if is_whole else None)


def norms() -> HeadNorms:
    made = HeadNorms(RMSNorm(SIZE, 1e-6).double(), RMSNorm(SIZE, 1e-6).double())
    with torch.no_grad():
        for seed, norm in enumerate((made.query, made.key)):
            assert isinstance(norm, RMSNorm)
            norm.weight.copy_(drawn(SIZE, seed=2 + seed))
    return made


def run(
    heads: ProductHeads, tap: Callable[[str, Tensor], Tensor], *, is_tapped: bool
) -> tuple[Tensor, ...]:
    pages = [torch.zeros(3, 8, GROUPS, SIZE, dtype=torch.float64) for _ in range(2)]
    kept = HeadPages(*pages, None, None, torch.tensor([9, 2, 17, 20, 4]))
    angle = drawn(TOKENS, SIZE // 2, seed=7)
    rotation = (angle.cos(), angle.sin())
    with torch.no_grad():
        query = place(heads, norms(), rotation, kept, tap=tap, is_tapped=is_tapped)
    return query, *pages


@pytest.fixture
def one_kernel(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The kernel's definition in its place, as on a GPU; counts its calls."""
    calls: list[int] = []

    def counted(*arguments: Tensor, **named: object) -> Tensor:
        calls.append(1)
        return plain.turn_and_store(*arguments, **named)  # pyright: ignore

    monkeypatch.setattr(placing.one_kernel, "is_fused", lambda *_: True)
    monkeypatch.setattr(placing.one_kernel, "turn_and_store", counted)
    return calls


@pytest.mark.parametrize("is_tapped", [False, True])
def test_one_kernel_does_what_its_parts_do(one_kernel: list[int], is_tapped: bool) -> None:
    seen: list[dict[str, Tensor]] = [{}, {}]

    def tap(which: int) -> Callable[[str, Tensor], Tensor]:
        return lambda name, value: seen[which].setdefault(name, value)

    parts = run(product(is_whole=False), tap(0), is_tapped=is_tapped)
    assert not one_kernel, "the product holds other rows"
    at_once = run(product(), tap(1), is_tapped=is_tapped)
    assert one_kernel
    for one, other in zip(parts, at_once, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-14)
    assert seen[0].keys() == {"query", "key", "value"}
    assert seen[1].keys() == (seen[0].keys() if is_tapped else {"query"})
    for name, value in seen[1].items():
        torch.testing.assert_close(seen[0][name], value, rtol=0, atol=1e-14)


def test_what_a_tap_puts_in_the_place_of_keys_and_values_is_stored(one_kernel: list[int]) -> None:
    def replace(name: str, value: Tensor) -> Tensor:
        return value * {"query": 2.0, "key": 3.0, "value": 5.0}[name]

    parts = run(product(is_whole=False), replace, is_tapped=True)
    at_once = run(product(), replace, is_tapped=True)
    assert one_kernel
    for one, other in zip(parts, at_once, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-14)
