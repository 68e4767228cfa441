"""Rows on one random shape built several ways by --override: heads, a window, experts in use."""

from __future__ import annotations

from collections.abc import Iterator

from cutaway.bench.paper_engine import Driver, fastest, write_model
from cutaway.bench.paper_rows import How, PaperRow, PaperSize
from cutaway.core.estimate import estimate
from cutaway.core.weight_types import weights_in
from cutaway.models.parts.reading import shape_of

_HEADS, _EXPERTS, _WINDOW = 16, 8, 64
_SHAPE: dict[str, object] = {
    "hidden_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": _HEADS,
    "num_key_value_heads": _HEADS,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
    "sliding_window": None,
}


def heads_and_window(size: PaperSize) -> Iterator[PaperRow]:
    """The cache of a running engine, and its decode step: heads shared, or a window set."""
    context = size.contexts[-1]
    config = {**_SHAPE, "architectures": ["MistralForCausalLM"], "intermediate_size": 1024}
    builds = {
        "heads": (),
        "groups": ("num_key_value_heads=4",),
        "window": (f"sliding_window={_WINDOW}",),
    }
    with write_model(config) as model:
        made = {
            name: Driver(model, cache_tokens=2 * context, prefix_cache=False, override=override)
            for name, override in builds.items()
        }
    each = {name: driver.engine.runner.pool.num_bytes for name, driver in made.items()}
    yield _row(
        "cache per token, 16 heads over 4 groups",
        each["heads"],
        each["groups"],
        "allocated",
        4.0,
        "arXiv 2305.13245: heads over groups",
    )
    held = {name: driver.held_pages(context) for name, driver in made.items()}
    yield _row(
        f"pages held after {context:,} tokens, all over a window of {_WINDOW}",
        held["heads"],
        held["window"],
        "allocated",
        None,
        "arXiv 2310.06825, section 2: length over window",
    )
    times = {name: driver.decode(context, 1, size.steps) for name, driver in made.items()}
    for name in ("groups", "window"):
        yield _row(
            f"decode step at {context:,} tokens, all heads and tokens over {name}",
            times["heads"],
            times[name],
            "measured",
            None,
            "no figure: a model of this size is none's",
        )


def experts(size: PaperSize) -> Iterator[PaperRow]:
    """Bytes and time of a decode step with all experts over those with two."""
    inner = 64 if size.steps < 8 else 1024
    config = {
        **_SHAPE,
        "architectures": ["MixtralForCausalLM"],
        "intermediate_size": inner,
        "num_local_experts": _EXPERTS,
    }
    read: dict[int, int] = {}
    times: dict[int, float] = {}
    with write_model(config) as model:
        for used in (_EXPERTS, 2):
            override = (f"num_experts_per_tok={used}",)
            driver = Driver(model, dtype="float32", cache_tokens=1024, override=override)
            times[used] = fastest([driver.decode(32, 1, size.steps) for _ in range(size.rounds)])
            made = shape_of({**config, "num_experts_per_tok": used})
            weights = weights_in(made, "float32")
            read[used] = estimate(made, weights, context=32, kv_dtype="float32").bytes_decode
    yield _row(
        "bytes read by a decode step, all 8 experts over 2",
        read[_EXPERTS],
        read[2],
        "computed",
        None,
        "no figure: a model of this size is none's",
    )
    yield _row(
        "decode step, all 8 experts over 2",
        times[_EXPERTS],
        times[2],
        "measured",
        None,
        "arXiv 2401.04088: time follows the active parameters",
    )


def rows(size: PaperSize) -> Iterator[PaperRow]:
    """All levers."""
    yield from heads_and_window(size)
    yield from experts(size)


def _row(
    name: str, before: float, after: float, how: How, published: float | None, source: str
) -> PaperRow:
    return PaperRow(
        section="levers",
        name=name,
        value=before / after,
        unit="x",
        how=how,
        model="random, 4 layers of 512",
        formula="before / after",
        terms={"before": before, "after": after},
        published=published,
        source=source,
    )
