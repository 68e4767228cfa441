"""Rows that follow from shapes: keys and values by kind of attention, fewer bits, windows, experts.

Cache bytes are read off the engine's own pool and page tables, at the full shape of each model.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from cutaway.bench.paper_rows import PaperRow, PaperSize
from cutaway.bench.paper_shapes import shape
from cutaway.cache.paged import PagedCache
from cutaway.cache.pool import Pool
from cutaway.core.estimate import estimate
from cutaway.core.layout import group_layers
from cutaway.core.shapes import ModelShape
from cutaway.core.weight_types import weights_in

_PAGE = 16
_CPU = torch.device("cpu")


def pool_bytes_per_token(made: ModelShape) -> float:
    """Bytes of a pool over bfloat16, by the tokens that it has room for."""
    groups = group_layers(made.cache_specs)
    pool = Pool(
        groups, num_pages=[2] * len(groups), page_size=_PAGE, dtype=torch.bfloat16, device=_CPU
    )
    return pool.num_bytes / (2 * _PAGE)


def count_sharing(size: PaperSize) -> Iterator[PaperRow]:
    """Query heads that share keys and values."""
    per_heads = {
        groups: pool_bytes_per_token(shape("Llama-3-8B", num_key_value_heads=groups))
        for groups in (32, 8, 1)
    }
    for groups, published in ((8, 4.0), (1, 32.0)):
        yield PaperRow(
            section="gqa",
            name=f"32 key-value heads over {groups}: cache per token",
            value=per_heads[32] / per_heads[groups],
            unit="x",
            how="allocated",
            model="Llama-3-8B, bfloat16",
            formula="all_heads / groups",
            terms={"all_heads": per_heads[32], "groups": per_heads[groups]},
            published=published,
            source="heads over groups: arXiv 2305.13245; 32 and 8: arXiv 2407.21783, table 3",
        )


def latent(size: PaperSize) -> Iterator[PaperRow]:
    """One compressed row for all heads, against each base that its saving is told from."""
    ours, old = shape("DeepSeek-V3"), shape("DeepSeek-67B")
    per_token = pool_bytes_per_token(ours)
    yield PaperRow(
        section="mla",
        name="cache per token",
        value=per_token / 1000,
        unit="kB",
        how="allocated",
        model="DeepSeek-V3, bfloat16",
        formula="bytes / 1000",
        terms={"bytes": per_token},
        published=70.272,
        source="DeepSeek, arXiv 2505.09343, table 1",
    )
    base = "bfloat16 on both sides"
    for name, heads, published, source in (
        ("128 heads of 128", 128, 1 - 576 / 32768, "n_h, d_h of arXiv 2405.04434, table 1"),
        ("8 groups of 128", 8, None, "no paper states this one"),
    ):
        expanded = {"hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128}
        bytes_there = pool_bytes_per_token(
            shape("Llama-3-8B", **expanded, num_key_value_heads=heads, head_dim=128)
        )
        yield _saving(name, "DeepSeek-V3", per_token, bytes_there, published, source, base)
    yield PaperRow(
        section="mla",
        name="groups of 128 that would take the same",
        value=576 / (2 * 128),
        unit="groups",
        how="computed",
        model="DeepSeek-V2",
        formula="row / (2 * head_size)",
        terms={"row": 576, "head_size": 128},
        published=2.25,
        source="arXiv 2405.04434, section 2.1.4",
    )
    v2, dense = pool_bytes_per_token(shape("DeepSeek-V2")), pool_bytes_per_token(old)
    yield _saving(
        "DeepSeek-67B (8 groups, 95 layers)", "DeepSeek-V2", v2, dense, None, "as below", base
    )
    base = "6 bits an element against 16: how the 93.3 % comes about"
    source = "93.3 %: arXiv 2405.04434, abstract; 6 bits: its section 3.2.3"
    yield _saving(
        "DeepSeek-67B, as deployed", "DeepSeek-V2", v2 * 6 / 16, dense, 0.933, source, base
    )


def _saving(
    name: str,
    model: str,
    ours: float,
    theirs: float,
    published: float | None,
    source: str,
    note: str,
) -> PaperRow:
    return PaperRow(
        section="mla",
        name=f"less than {name}",
        value=100 * (1 - ours / theirs),
        unit="%",
        how="allocated",
        model=model,
        formula="100 * (1 - latent / base)",
        terms={"latent": ours, "base": theirs},
        published=None if published is None else 100 * published,
        source=source,
        note=note,
    )


def fewer_bits(size: PaperSize) -> Iterator[PaperRow]:
    """Bits a weight and bytes of a whole model, scales included."""
    made = shape("Llama-3-8B")
    full = weights_in(made, "bfloat16")
    ggml = "block sizes of ggml-common.h, llama.cpp"
    for name, published, source in (
        ("Q8_0", 8.5, ggml),
        ("Q4_K", 4.5, ggml),
        ("Q4_1", 5.0, ggml),
        ("Q4_0", 4.5, ggml),
        ("int8", None, "ours: docs/quantize.md"),
        ("int4-sym", None, "ours: docs/quantize.md"),
        ("gptq-g128", 4.15, "arXiv 2210.17323, section 4: groups of 128 take about 0.15 bits"),
    ):
        one = _bits(made, name)
        yield PaperRow(
            section="quantization",
            name=f"{name}: bits a weight of the layers",
            value=one[0] * 8 / one[1],
            unit="bits",
            how="computed",
            model="Llama-3-8B",
            formula="bytes * 8 / values",
            terms={"bytes": one[0], "values": one[1]},
            published=published,
            source=source,
        )
        weights = weights_in(made, name)
        yield PaperRow(
            section="quantization",
            name=f"{name}: whole model against bfloat16",
            value=full.total / weights.total,
            unit="x",
            how="computed",
            model="Llama-3-8B",
            formula="bfloat16 / quantized",
            terms={"bfloat16": full.total, "quantized": weights.total},
            published=2.0 if "8" in name else 4.0,
            source="the common claim, 16 bits over those of the name: no scales, tables or norms",
        )


def _bits(made: ModelShape, name: str) -> tuple[float, float]:
    """Bytes and numbers of the matrices in the layers."""
    from dataclasses import replace

    empty = replace(made, layers=())
    whole, outside = weights_in(made, name), weights_in(empty, name)
    vectors = (made.vectors() - empty.vectors()) * (4 if name.startswith("Q") else 2)
    numbers = whole.values - outside.values - (made.vectors() - empty.vectors())
    return float(whole.total - outside.total - vectors), float(numbers)


def window(size: PaperSize) -> Iterator[PaperRow]:
    """A sequence grown through the page tables, with and without a window."""
    made, width = shape("Mistral-7B"), 4096
    context = size.window_context
    held = {
        name: _grown(shape("Mistral-7B", sliding_window=given), context)
        for name, given in (("window", width), ("all", None))
    }
    yield PaperRow(
        section="window",
        name=f"pages held after {context:,} tokens, all over window",
        value=held["all"] / held["window"],
        unit="x",
        how="allocated",
        model="Mistral-7B",
        formula="all / window",
        terms={"all": held["all"], "window": held["window"]},
        published=8.0 if context == 32_768 else context / width,
        source="arXiv 2310.06825, section 2",
        note="between two steps; a chunk of a prompt holds its own tokens beside them",
    )
    reach = len(made.layers) * width
    yield PaperRow(
        section="window",
        name="tokens that information can pass through all layers",
        value=float(reach),
        unit="tokens",
        how="computed",
        model="Mistral-7B",
        formula="layers * width",
        terms={"layers": len(made.layers), "width": width},
        published=131_000.0,
        source="arXiv 2310.06825, section 2; one token less per layer when the own one counts",
    )


def _grown(made: ModelShape, context: int) -> float:
    """Pages per layer group that one sequence holds after it grew to a context in chunks."""
    groups = group_layers(made.cache_specs)
    num_pages = [context // _PAGE + 2] * len(groups)
    cache = PagedCache(groups, num_pages=num_pages, page_size=_PAGE, prefix_cache=False)
    token_ids = range(context)
    admitted = cache.admit(token_ids[:1], cache.keys(b"paper"))
    assert admitted is not None, "an empty cache has room for one token"
    tables, done = admitted[0], 0
    while done < context:
        stop = min(context, done + 512)
        assert cache.reserve(tables, stop), "the cache was made for this context"
        cache.commit(tables, token_ids[:stop], stop)
        done = stop
    return float(cache.stats.used)


def experts(size: PaperSize) -> Iterator[PaperRow]:
    """Parameters in all, and those that one token uses."""
    for name, total, active, source in (
        ("Mixtral-8x7B", 46.7, 12.9, "arXiv 2401.04088: 47B, 13B; 46.7 and 12.9 in its release"),
        ("DeepSeek-V2", 236.0, 21.0, "arXiv 2405.04434, abstract"),
        ("DeepSeek-V3", 671.0, 37.0, "arXiv 2412.19437, abstract"),
        ("gpt-oss-120b", 116.83, 5.13, "arXiv 2508.10925, table 1: active without the embedding"),
        ("Qwen3-Next-80B-A3B", 80.0, 3.0, "its model card"),
    ):
        made = shape(name)
        found = estimate(made, weights_in(made, "bfloat16"), context=1)
        lookup = made.vocab_size * made.width if name == "gpt-oss-120b" else 0
        numbers = found.parameters_total, found.parameters_active - lookup
        for what, count, published in zip(
            ("in all", "active"), numbers, (total, active), strict=True
        ):
            yield PaperRow(
                section="moe",
                name=f"parameters {what}",
                value=count / 1e9,
                unit="billion",
                how="computed",
                model=name,
                formula="parameters / 1e9",
                terms={"parameters": count},
                published=published,
                source=source,
                note="without the embedding" if lookup and what == "active" else "",
            )
