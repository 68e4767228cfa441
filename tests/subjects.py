"""A tiny engine with a recorded answer, and its model computed again in NumPy from weights alone.

The recomputation shares no code with the engine: it is what views are held against.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

import engines
import tiny
from cutaway.core.request import Request, SamplingParams
from cutaway.engine.engine import Engine
from cutaway.quantize.packed import Packed
from cutaway.trace.records import AnswerRecord

Numbers = np.ndarray[Any, np.dtype[np.float64]]


def engine_of(*, seed: int = 0, **changes: Any) -> Engine:
    """In float64, so that what differs from a recomputation is a fault and no rounding."""
    return engines.engine(engines.loaded(seed=seed, dtype=torch.float64, **changes))


def answered(engine: Engine, prompt: Sequence[int], **params: Any) -> AnswerRecord:
    given = {"max_tokens": 6, "temperature": 0.0, "ignore_eos": True, **params}
    request = Request(
        request_id=f"r{engine.num_steps}",
        prompt_token_ids=tuple(prompt),
        params=SamplingParams(**given),
    )
    engines.run(engine, [request])
    assert engine.ledger is not None
    found = engine.ledger.find(request.request_id)
    assert found is not None
    return found


def weights(engine: Engine) -> dict[str, Numbers]:
    """Every stored matrix and vector by its parameter's name, unpacked where it is packed.

    In float64 for a tiny model; SmolLM2's stay in float32, and products with float64 widen them.
    """
    model = engine.model.transformer
    named = model.named_parameters(remove_duplicate=False)
    stored = {name: value.detach().numpy() for name, value in named}
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, Packed):
            stored[f"{name}.weight"] = module.dense().numpy()
    return stored


def stacked(part: dict[str, Numbers], name: str) -> Numbers:
    """The matrices of a linear map's segments, one below the other."""
    names = sorted(each for each in part if each.startswith(f"{name}.segments."))
    return np.concatenate([part[each] for each in names])


@dataclass
class Inner:
    """Every inner value of a Llama forward over whole sequences.

    Shapes: streams [L + 1, T, D], the embedding first; query, mixed [L, T, H, C]; key, value
    [L, T, G, C]; scores (scaled, unmasked), weights [L, H, T, T]; attention, mlp (updates)
    [L, T, D]; gate (before its activation), up, product [L, T, F]; logits [T, V].
    """

    streams: list[Numbers] = field(default_factory=list)
    query: list[Numbers] = field(default_factory=list)
    key: list[Numbers] = field(default_factory=list)
    value: list[Numbers] = field(default_factory=list)
    scores: list[Numbers] = field(default_factory=list)
    weights: list[Numbers] = field(default_factory=list)
    mixed: list[Numbers] = field(default_factory=list)
    attention: list[Numbers] = field(default_factory=list)
    mlp: list[Numbers] = field(default_factory=list)
    gate: list[Numbers] = field(default_factory=list)
    up: list[Numbers] = field(default_factory=list)
    product: list[Numbers] = field(default_factory=list)
    logits: Numbers = field(default_factory=lambda: np.zeros(0))


def recomputed(
    engine: Engine,
    token_ids: Sequence[int],
    *,
    silent: Collection[tuple[int, int | str]] = (),
    is_turned: bool = True,
    window: int | None = None,
    base: float = tiny.BASE["rope_theta"],
) -> Inner:
    """The forward of tiny.BASE's kind of model: RMS norms, rotary halves, grouped heads, SwiGLU.

    SmolLM2 is of that kind, with another base of its rotary angles.

    silent: what adds nothing: (layer, head), (layer, "attention") or (layer, "mlp").
    """
    facts, stored, inner = engine.model.facts, weights(engine), Inner()
    heads, groups, size = facts.num_heads, facts.num_groups, facts.head_size
    hidden = stored["embedding.table.weight"][list(token_ids)].astype(np.float64)
    count = len(token_ids)
    inner.streams.append(hidden)
    for layer in range(facts.num_layers):
        part = {
            name.removeprefix(f"blocks.{layer}."): each
            for name, each in stored.items()
            if name.startswith(f"blocks.{layer}.")
        }
        normed = rms_norm(hidden, part["attention_norm.weight"])
        qkv = (normed @ stacked(part, "attention.qkv").T).reshape(count, -1, size)
        query, key, value = np.split(qkv, [heads, heads + groups], axis=1)
        query, key = (rotated(query, base), rotated(key, base)) if is_turned else (query, key)
        shared = heads // groups
        keys, values = np.repeat(key, shared, axis=1), np.repeat(value, shared, axis=1)
        scores = np.einsum("qhc,khc->hqk", query, keys) / math.sqrt(size)
        seen = np.tril(np.ones((count, count), bool))
        if window is not None:
            seen &= ~np.tril(np.ones((count, count), bool), -window)
        masked = np.where(seen, scores, -np.inf)
        shares = softmax(masked)
        mixed = np.einsum("hqk,khc->qhc", shares, values)
        for head in range(heads):
            mixed[:, head] *= (layer, head) not in silent
        attention = mixed.reshape(count, -1) @ stacked(part, "attention.output").T
        attention *= (layer, "attention") not in silent
        hidden = hidden + attention
        normed = rms_norm(hidden, part["mlp_norm.weight"])
        gate, up = np.split(normed @ stacked(part, "mlp.gate_up").T, 2, axis=1)
        product = gate / (1 + np.exp(-gate)) * up
        mlp = product @ stacked(part, "mlp.down").T
        mlp *= (layer, "mlp") not in silent
        hidden = hidden + mlp
        for name, each in (
            *(("query", query), ("key", key), ("value", value), ("scores", scores)),
            *(("weights", shares), ("mixed", mixed), ("attention", attention), ("mlp", mlp)),
            *(("gate", gate), ("up", up), ("product", product), ("streams", hidden)),
        ):
            getattr(inner, name).append(each)
    normed = rms_norm(hidden, stored["unembedding.norm.weight"])
    inner.logits = normed @ stored["unembedding.table.weight"].T
    return inner


def rms_norm(x: Numbers, weight: Numbers, epsilon: float = tiny.BASE["rms_norm_eps"]) -> Numbers:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * weight


def rotated(heads: Numbers, base: float = tiny.BASE["rope_theta"]) -> Numbers:
    """Shapes: [T, heads, C], positions from 0."""
    half = heads.shape[-1] // 2
    turns = np.arange(len(heads))[:, None] * base ** (-np.arange(half) / half)
    cos, sin = np.cos(turns)[:, None], np.sin(turns)[:, None]
    left, right = heads[..., :half], heads[..., half:]
    return np.concatenate((left * cos - right * sin, right * cos + left * sin), axis=-1)


def softmax(scores: Numbers) -> Numbers:
    raised = np.exp(scores - scores.max(-1, keepdims=True))
    return raised / raised.sum(-1, keepdims=True)
