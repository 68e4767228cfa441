"""What the pool holds for each dtype, and how many bytes that is."""

from __future__ import annotations

import pytest
import torch

from cutaway.cache.pool import Pool
from cutaway.core.layout import CacheField, CacheSpec, group_layers, latent_cache_spec

SPEC = CacheSpec((CacheField("key", (3, 64), is_columns=True), CacheField("value", (3, 64))))


def pool(dtype: torch.dtype, *, is_native: bool = False) -> Pool:
    return Pool(
        group_layers([SPEC, SPEC]),
        num_pages=[5],
        page_size=4,
        dtype=dtype,
        device=torch.device("cpu"),
        is_native=is_native,
    )


@pytest.mark.parametrize(
    ("dtype", "num_bytes"),
    [("float32", 1536), ("bfloat16", 768), ("int8", 384 + 24), ("float8_e4m3fn", 384 + 24)],
)
def test_bytes_of_a_token_count_the_scales(dtype: str, num_bytes: int) -> None:
    """Two fields of 3 x 64 numbers; in eight bits a float32 per head beside them."""
    assert SPEC.bytes_per_token(dtype) == num_bytes
    assert pool(getattr(torch, dtype)).num_bytes == 2 * 5 * 4 * num_bytes


def test_numbers_of_eight_bits_come_with_scales() -> None:
    layer = pool(torch.int8).layers[1]
    assert layer.fields["key"].shape == (5, 4, 3, 64) and layer.fields["key"].dtype == torch.int8
    scales = layer.scales("key")
    assert scales is not None and scales.shape == (5, 4, 3) and scales.dtype == torch.float32
    assert pool(torch.float16).layers[0].scales("key") is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.int8, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("is_native", [False, True])
def test_cleared_pages_hold_zeros_and_others_what_they_held(
    dtype: torch.dtype, is_native: bool
) -> None:
    made = pool(dtype, is_native=is_native)
    for layer in made.layers:
        for field in layer.fields.values():
            field.copy_(torch.ones(field.shape))
    made.clear([[1, 3]])
    for layer in made.layers:
        for field in layer.fields.values():
            held = field.float().flatten(1)
            assert (held[[1, 3]] == 0).all() and (held[[0, 2, 4]] == 1).all()


def test_pages_for_native_kernels_have_the_same_shapes_and_another_order() -> None:
    fields = pool(torch.int8, is_native=True).layers[0].fields
    assert fields["key"].shape == fields["value"].shape == (5, 4, 3, 64)
    assert fields["key"].permute(0, 2, 3, 1).is_contiguous()
    assert fields["value"].permute(0, 2, 1, 3).is_contiguous()
    assert fields["key.scale"].permute(0, 2, 1).is_contiguous()


def test_latents_and_states_lie_whole_for_native_kernels() -> None:
    latent = latent_cache_spec(12, 4)
    fields = (CacheField("state", (3, 8, 16), "float32"), CacheField("inputs", (3, 40), "float32"))
    state = CacheSpec(fields, is_state=True)
    made = Pool(
        group_layers([latent, state]),
        num_pages=[5, 6],
        page_size=4,
        dtype=torch.int8,
        device=torch.device("cpu"),
        is_native=True,
    )
    held = [field for layer in made.layers for field in layer.fields.values()]
    assert len(held) == 6 and all(field.is_contiguous() for field in held)


def test_a_layer_with_a_source_reads_its_pages_and_takes_none() -> None:
    (group,) = groups = group_layers([SPEC, SPEC, CacheSpec((), source=0)])
    assert group.layers == (0, 1) and group.readers == ((2, 0),)
    device = torch.device("cpu")
    made = Pool(groups, num_pages=[5], page_size=4, dtype=torch.float32, device=device)
    assert made.layers[2] is made.layers[0] and made.num_bytes == pool(torch.float32).num_bytes
