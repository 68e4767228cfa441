"""Estimates against engines over tiny random models: bytes of the allocator, weights, operations.

Every architecture that the engine knows is held to it, in two configurations.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from cutaway.blocks.linear import Linear
from cutaway.cli.session.shape_at import shape_at
from cutaway.core.estimate import estimate
from cutaway.core.layout import SCRATCH_PAGE
from cutaway.core.request import Request, SamplingParams
from cutaway.core.shapes import ModelShape, seen_pairs, seen_tokens
from cutaway.core.step import LayerCache
from cutaway.core.weight_types import WeightBytes, weights_in
from cutaway.engine.engine import Engine
from cutaway.kernels import capture
from cutaway.kernels.convolution import plain as convolution
from cutaway.kernels.delta import sequences, short_convolution
from cutaway.models import ARCHITECTURES
from cutaway.models.parts.reading import shape_of
from cutaway.service.llm import LLM
from oracles import gemma3_gguf, smollm2_gguf
from published_shapes import CLASSES, tiny

PAGE = 16
WORDS = sorted(set(CLASSES) & set(ARCHITECTURES))


@dataclass(frozen=True)
class Case:
    """A tiny model of an architecture: what is estimated of its shape, and its engine."""

    shape: ModelShape
    weights: WeightBytes
    engine: Engine


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((word, flags), id=f"{word}-{flags}", marks=[pytest.mark.slow] * flags)
        for flags in (False, True)
        for word in WORDS
    ],
)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    word, flags = request.param
    values = tiny(word, flags=flags)[1]
    shape = shape_of(values)
    folder = tmp_path_factory.mktemp("model")
    engine = engine_of(values, folder, page_size=PAGE, prefix_cache=False)
    return Case(shape, weights_in(shape, "float32"), engine)


def engine_of(values: dict[str, object], folder: Path, **settings: Any) -> Engine:
    path = folder / "config.json"
    # The byte tokenizer's ids end at 257; these models have ends of their own.
    values = {**values, "eos_token_id": 257, "bos_token_id": 256, "pad_token_id": None}
    path.write_text(json.dumps(values))
    settings = {"dtype": "float32", "cache_tokens": 1024, **settings}
    return LLM(f"random:{path}", **settings).engine


def prefill(engine: Engine, num_tokens: int) -> None:
    """A first step over a prompt whose tokens all differ; the next step decodes."""
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    prompt = tuple(range(1, num_tokens + 1))
    engine.add(Request(request_id="one", prompt_token_ids=prompt, params=params))
    engine.step()


def layers_with(engine: Engine, *, states: bool) -> list[LayerCache]:
    """Of the pool, those that keep a state, or those that keep something of tokens themselves."""
    specs = engine.model.transformer.cache_specs
    pairs = zip(engine.runner.pool.layers, specs, strict=True)
    return [c for c, spec in pairs if spec.is_state is states and spec.source is None]


def held_bytes(engine: Engine) -> int:
    """What the pages of the one running sequence take in the pool, all layers without a state."""
    (sequence,) = engine.scheduler.running
    assert sequence.tables is not None
    total = 0
    for layer in layers_with(engine, states=False):
        table = sequence.tables.groups[layer.group]
        num_held = sum(page != SCRATCH_PAGE for page in table.pages)
        total += num_held * sum(pages[0].nbytes for pages in layer.fields.values())
    return total


def test_bytes_are_those_of_pool_pages_and_weights(case: Case) -> None:
    shape, weights, engine = case.shape, case.weights, case.engine
    model = engine.model.transformer
    loaded = sum(each.nbytes for each in model.parameters())
    assert loaded == weights.total
    paged, states = (layers_with(engine, states=kept) for kept in (False, True))
    pool_bytes = sum(pages.nbytes for layer in paged for pages in layer.fields.values())
    state_bytes = sum(pages[0].nbytes for layer in states for pages in layer.fields.values())
    for context in (7, 33, 80):  # within the window of 32, on its border, beyond
        made = estimate(shape, weights, context=context, kv_dtype="float32", page_size=PAGE)
        assert made.parameters_total == engine.model.facts.num_parameters
        num_slots = 1024 + PAGE  # the scratch page included
        assert pool_bytes == made.kv_bytes_per_token * num_slots
        assert state_bytes == made.state_bytes
        prefill(engine, context - 1)
        engine.scheduler.schedule()  # reserves the slot of the newest token
        assert held_bytes(engine) == made.kv_bytes_in_pages
        engine.abort("one")
        engine.step()


class Products(TorchDispatchMode):
    """Counts operations of products as FlopCounterMode does, in a third of the time.

    That takes every operation apart each time that it is called. Here a product of matrices is
    counted as a whole, and what was once made of no products is not taken apart again.
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = self.calls = 0
        self._simple: set[Any] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.ops.aten.linear.default, torch.ops.aten.matmul.default):
            made = func(*args, **kwargs)
            self.calls += 1
            self.total += 2 * made.numel() * args[0].shape[-1]
            return made
        if (formula := flop_registry.get(func._overloadpacket)) is not None:
            made = func(*args, **kwargs)
            self.calls += 1
            self.total += formula(*args, **kwargs, out_val=made)
            return made
        if func not in self._simple:
            before = self.calls
            with self:
                made = func.decompose(*args, **kwargs)
            if made is not NotImplemented and self.calls > before:
                return made
            self._simple.add(func)
            if made is not NotImplemented:
                return made
        return func(*args, **kwargs)


@pytest.mark.parametrize("word", ["DeepseekV3ForCausalLM", "GptOssForCausalLM"])
def test_products_are_counted_as_torch_counts_them(word: str, tmp_path: Path) -> None:
    engine = engine_of(tiny(word, flags=True)[1], tmp_path, page_size=PAGE, prefix_cache=False)
    with FlopCounterMode(display=False) as theirs:
        prefill(engine, 20)
        engine.step()
    engine.abort("one")
    engine.step()
    with Products() as ours:
        prefill(engine, 20)
        engine.step()
    assert ours.total == theirs.get_total_flops() > 0


def test_operations_are_those_that_are_counted(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sides count products alone; the plain path also multiplies what the mask hides."""
    monkeypatch.setattr("cutaway.kernels.experts.plain.TILE", 1)  # no rows that fill up a tile
    taps = [0]  # operations of short convolutions, which are no products of torch's

    def counted(inputs: Tensor, weight: Tensor) -> Tensor:
        mixed = short_convolution(inputs, weight)
        taps[0] += 2 * len(mixed) * weight.numel()
        return mixed

    def counted_alone(row: int, inputs: Tensor, weight: Tensor, *rest: Any, **named: Any) -> Tensor:
        gates = 2 * len(weight)  # the one before and the one behind
        taps[0] += 2 * len(inputs) * (weight.numel() + gates)
        return one_sequence(row, inputs, weight, *rest, **named)

    one_sequence = convolution._sequence
    monkeypatch.setattr(sequences, "short_convolution", counted)
    monkeypatch.setattr(convolution, "_sequence", counted_alone)
    shape, engine = case.shape, case.engine
    context = 3 * PAGE  # whole pages, or the plain decode multiplies the padding of the last
    made = estimate(shape, case.weights, context=context, kv_dtype="float32")
    with torch.no_grad(), Products() as first:
        prefill(engine, context)
    # Latent attention stays absorbed in a prefill, where the estimate takes the lesser form.
    masked = 2 * sum(
        context**2 * each.decode_values - seen_pairs(each.extent, context) * each.prefill_values
        for each in (layer.attention for layer in shape.layers)
    )
    assert first.total + taps[0] == made.flops_prefill + masked
    engine.abort("one")
    engine.step()
    prefill(engine, context - 1)
    taps[0] = 0
    with torch.no_grad(), Products() as second:
        engine.step()
    engine.abort("one")
    engine.step()
    masked = 2 * sum(
        (context - seen_tokens(each.extent, context)) * each.decode_values
        for each in (layer.attention for layer in shape.layers)
    )
    assert second.total + taps[0] == made.flops_decode + masked


def test_every_architecture_of_the_engine_has_an_estimate():
    assert set(ARCHITECTURES) <= set(ARCHITECTURES)


@pytest.mark.parametrize("kv_dtype", ["float16", "int8", "float8_e4m3fn"])
def test_bytes_of_a_cache_of_fewer_bits(kv_dtype, tmp_path):
    values = tiny("LlamaForCausalLM", flags=False)[1]
    shape = shape_of(values)
    engine = engine_of(values, tmp_path, page_size=PAGE, kv_dtype=kv_dtype, prefix_cache=False)
    made = estimate(
        shape, weights_in(shape, "float32"), context=40, kv_dtype=kv_dtype, page_size=PAGE
    )
    assert engine.runner.pool.num_bytes == made.kv_bytes_per_token * (1024 + PAGE)
    prefill(engine, 39)
    engine.scheduler.schedule()
    assert held_bytes(engine) == made.kv_bytes_in_pages


@pytest.mark.parametrize("quant", ["int8", "int4", "int4-sym"])
def test_bytes_of_weights_that_are_rounded_at_load(quant, tmp_path):
    """The maps inside layers, as the native kernels keep them."""
    if not capture.is_available():
        pytest.skip("the native kernels are not built")
    values = tiny("LlamaForCausalLM", flags=False)[1]
    engine = engine_of(values, tmp_path, dtype="auto", quant=quant)
    packed = (each for each in engine.model.transformer.modules() if isinstance(each, Linear))
    loaded = sum(part.num_bytes for each in packed for part in each.segments)
    shape = shape_of(values)
    outside = replace(shape, layers=())
    vectors = 2 * (shape.vectors() - outside.vectors())
    estimated = weights_in(shape, quant).total - weights_in(outside, quant).total - vectors
    assert loaded == estimated


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_real_files_take_what_their_headers_say(name):
    """Gemma 3 270M: 15 layers see 512 tokens, 3 all; loaded weights are packed as in the file."""
    if not capture.is_available():
        pytest.skip("the native kernels are not built")
    path = smollm2_gguf() if name == "smollm2" else gemma3_gguf()
    shape, weights, _ = shape_at(str(path))
    engine = LLM(str(path), cache_tokens=1024, page_size=PAGE, prefix_cache=False).engine
    context = 705 if name == "gemma3" else 300
    kv_dtype = str(engine.model.cache_dtype).removeprefix("torch.")
    made = estimate(shape, weights, context=context, kv_dtype=kv_dtype, page_size=PAGE)
    assert made.parameters_total == engine.model.facts.num_parameters == weights.values
    assert engine.runner.pool.num_bytes == made.kv_bytes_per_token * (1024 + PAGE)
    prefill(engine, context - 1)
    while engine.scheduler.running[0].num_computed_tokens < context - 1:
        engine.step()
    engine.scheduler.schedule()
    assert held_bytes(engine) == made.kv_bytes_in_pages
    if name == "gemma3":
        assert made.kv_bytes_at_context < made.kv_bytes_per_token * context
