"""Rows of a parameter that a rank keeps, seen from the tensors that fill it."""

from __future__ import annotations

import pytest
import torch

from cutaway.core.weight_targets import KeptRows, Target

E, F, D = 3, 10, 4
WHOLE = torch.arange(E * 2 * F * D).view(E, 2 * F, D)
OWN = range(3, 7)


@pytest.mark.parametrize("order", ["halves", "neighbours"])
@pytest.mark.parametrize("parts", ["one", "each", "sides", "each and sides"])
def test_tensors_that_are_parts_of_a_stack_fill_a_ranks_rows(order: str, parts: str) -> None:
    """However many tensors make up gate and value, each expert alone or all of them."""
    if order == "halves":
        kept = (OWN, range(OWN.start + F, OWN.stop + F))
        sides = (slice(0, F), slice(F, 2 * F))
    else:
        kept = (range(2 * OWN.start, 2 * OWN.stop),)
        sides = (slice(0, None, 2), slice(1, None, 2))
    experts: list[int | slice] = [slice(None)] if "each" not in parts else [*range(E)]
    rows = sides if "sides" in parts else (slice(None),)
    wanted = torch.cat([WHOLE[:, each.start : each.stop] for each in kept], dim=1)
    found = torch.full_like(wanted, -1)
    for expert in experts:
        for each in rows:
            part = (expert, each) if "sides" in parts else (expert,) if "each" in parts else ()
            stored = WHOLE[part]
            target = Target("up.weight", tuple(stored.shape), part=part)
            own = target.narrow(KeptRows(kept, axis=1, total=2 * F))
            assert own.kept is not None
            taken = [stored.narrow(own.kept_axis, r.start, len(r)) for r in own.kept]
            value = torch.cat(taken, dim=own.kept_axis)
            assert tuple(value.shape) == own.final_shape
            found[own.part] = value
    assert torch.equal(found, wanted)


def test_a_target_that_keeps_all_is_itself() -> None:
    target = Target("x.weight", (8, 4))
    assert target.narrow(None) is target
    assert target.narrow(KeptRows((range(2, 5),))).final_shape == (3, 4)
