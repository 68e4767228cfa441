"""`cutaway models estimate`: bytes, operations and the least time of a model, from its shape."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated

import typer

from cutaway.cli.settings.options import AsJson
from cutaway.cli.terminal.terminal import print_data, print_json
from cutaway.core.devices import DEVICES, Device
from cutaway.core.errors import ConfigError
from cutaway.core.estimate import KV_DTYPES, Estimate, Roofline
from cutaway.core.limits import quote
from cutaway.core.weight_types import WEIGHT_TYPES
from cutaway.engine.config import MOST_RANKS


def estimate(
    model: Annotated[
        str, typer.Argument(help="a config.json, a folder that has one, or as for --model")
    ],
    *,
    context: Annotated[
        int | None,
        typer.Option(
            min=1,
            show_default=False,
            help="tokens that each sequence holds; default: all that the model was made for",
        ),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="sequences in one step")] = 1,
    card: Annotated[
        str,
        typer.Option(
            "--device",
            help=f"{', '.join(DEVICES)}, or cpu: measured here; default: what this machine has",
            show_default=False,
        ),
    ] = "",
    kept_in: Annotated[
        str,
        typer.Option("--quant", help=f"file (as a GGUF file has them), {', '.join(WEIGHT_TYPES)}"),
    ] = "",
    cache: Annotated[
        str, typer.Option("--kv-dtype", help=f"of the cache: {', '.join(KV_DTYPES)}")
    ] = "bfloat16",
    replaced: Annotated[
        list[str] | None,
        typer.Option(
            "--override",
            help="replace a field of config.json, as in head_dim=64; may be given several times",
        ),
    ] = None,
    training_tokens: Annotated[
        int, typer.Option(min=0, help="D of the training cost 6ND; 0 leaves it out")
    ] = 0,
    ranks: Annotated[
        int, typer.Option("--tensor", min=1, max=MOST_RANKS, help="ranks that share the model")
    ] = 1,
    stages: Annotated[
        int, typer.Option("--pipeline", min=1, max=MOST_RANKS, help="ranks that have its layers")
    ] = 1,
    json: AsJson = False,
) -> None:
    """Compute bytes and operations from a config.json or a GGUF header; no weight is read.

    Weights count as bfloat16, or as a GGUF file has them, unless --quant says otherwise.
    """
    from cutaway.cli.session.shape_at import shape_at
    from cutaway.core import estimate as arithmetic
    from cutaway.core.rank_shares import rank_share
    from cutaway.core.weight_types import weights_in

    _check("device", card or "cpu", (*DEVICES, "cpu"))
    _check("kv-dtype", cache, KV_DTYPES)
    _check("quant", kept_in or "file", ("file", *WEIGHT_TYPES))
    shape, stored, longest = shape_at(model, replaced or ())
    if kept_in in ("", "file") and stored is not None:
        kept_in, weights = "file", stored
    elif kept_in == "file":
        raise ConfigError(f'quant is "file", and {model} is no GGUF file; name a type.')
    else:
        kept_in = kept_in or "bfloat16"
        weights = weights_in(shape, kept_in)
    if context is None:
        context = longest
    made = arithmetic.estimate(shape, weights, context=context, batch=batch, kv_dtype=cache)
    device = _device(card) if card else _here()
    line = arithmetic.roofline(made, weights, device, batch=batch)
    training = made.flops_training_per_token * training_tokens
    asked = {"architecture": shape.architecture, "quant": kept_in, "kv_dtype": cache}
    asked |= {"context": context, "batch": batch}
    if ranks > 1 or stages > 1:
        share = rank_share(
            shape,
            tensor=ranks,
            pipeline=stages,
            weight_bytes=made.weight_bytes,
            kv_dtype=cache,
        )
        asked |= {f"rank_{name}": n for name, n in asdict(share).items() if name != "ranks"}
        asked |= {word: n for word, n in (("tensor", ranks), ("pipeline", stages)) if n > 1}
    if json:
        numbers: dict[str, object] = {**asked, **asdict(made), "roofline": asdict(line)}
        if training_tokens:
            numbers["flops_training"] = training
        print_json({**numbers, **({"measured": dict(device.facts)} if device.facts else {})})
        return
    print_data(_drawn(asked, made, line, training))


def _device(name: str) -> Device:
    if name in DEVICES:
        return DEVICES[name]
    from cutaway.bench.machine import measure

    return measure()


def _here() -> Device:
    """What this machine computes with: a card that is known by its name, or its processor."""
    import torch

    if torch.cuda.is_available():
        name = torch.cuda.get_device_name()
        for card in DEVICES:
            if re.search(rf"\b{card.replace('-', ' ')}\b", name):
                return DEVICES[card]
    return _device("cpu")


def _check(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name} is {quote(value)}; it must be one of {', '.join(allowed)}.")


def _drawn(asked: Mapping[str, object], made: Estimate, line: Roofline, flops_training: int) -> str:
    rows = {n: f"{v:,}" if n.startswith("rank_") else str(v) for n, v in asked.items()}
    rows |= {
        name: f"{value:,}" if isinstance(value, int) else f"{value:.2f}"
        for name, value in asdict(made).items()
    }
    if flops_training:
        rows["flops_training"] = f"{flops_training:.3e}"
    rows["device"] = (
        f"{line.device} ({line.source}): {line.peak_flops / 1e12:,.2f} TFLOP/s in "
        f"{line.computes}, {line.bandwidth / 1e9:,.1f} GB/s"
    )
    rows["decode at least"] = (
        f"{line.decode_seconds * 1e3:.3f} ms a step, {line.decode_tokens_per_second:,.1f} "
        f"tokens/s, bound by {line.bound}"
    )
    rows["prefill at least"] = f"{line.prefill_seconds * 1e3:.3f} ms, bound by {line.prefill_bound}"
    share = line.needed_bytes / line.memory_bytes
    rows["memory"] = f"{line.needed_bytes:,} bytes needed, {share:.0%} of {line.device}'s" + (
        "" if line.fits else ": does not fit"
    )
    return "\n".join(f"{name:<24} {value}" for name, value in rows.items())
