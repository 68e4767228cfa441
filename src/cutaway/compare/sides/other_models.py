"""Levers that load a second model: the same in other bits, or another one."""

from __future__ import annotations

from dataclasses import replace

from cutaway.compare.levers import Change
from cutaway.compare.side import Side
from cutaway.compare.sides.beside import second_engine
from cutaway.compare.sides.inputs import ask_of
from cutaway.compare.sides.pair import Pair, Source
from cutaway.core.work import weight_bytes
from cutaway.engine.build import load_model
from cutaway.quantize.schemes import scheme_of
from cutaway.weights.find.find import Found, find

_DTYPE_BITS = {"float32": 32, "float64": 64, "bfloat16": 16, "float16": 16}


def change_model(source: Source, change: Change, base: Side) -> Pair:
    """Both sides where the other model is loaded beside: another name, dtype or quantization.

    Raises: RequestError where the second model would take too much memory.
    """
    engine, name = source.engine, source.name
    config = engine.config
    if change.lever == "model":
        name = change.value
        config = replace(config, override=(), quant="off")
    else:
        config = replace(config, **{change.lever: change.value})
    found = find(name)
    needed = _needed(source, change, found)
    source.allowance.take(
        needed, f"a second model beside: about {needed / 2**20:,.0f} MiB of weights"
    )
    model = load_model(found, config)
    prompt = ask_of(source, model) if change.lever == "model" else source.prompt
    other = replace(base, engine=second_engine(source, model, config), prompt=prompt)
    is_same = model.tokenizer.fingerprint == engine.model.tokenizer.fingerprint
    if is_same and model.facts.vocab_size == engine.model.facts.vocab_size:
        return Pair(base, other, forced=source.token_ids)
    note = "the models have other tokens: their chances cannot be set against one another."
    return Pair(base, other, of="model", forced=None, notes=(note,))


def _needed(source: Source, change: Change, found: Found) -> int:
    """Bytes of the weights of a second model, as far as they are known before it is loaded."""
    facts = source.engine.model.facts
    mode = source.engine.config.dtype if change.lever == "quant" else change.value
    if change.lever == "quant" and mode == "auto" and change.value != "off":
        scheme = scheme_of(change.value)  # other modes round, and keep what was rounded as floats
        scale_bits = 16 / scheme.group_size if scheme.group_size else 0
        return weight_bytes(facts, (scheme.bits + scale_bits) / 8)
    if change.lever != "model" and mode in _DTYPE_BITS:
        return weight_bytes(facts, _DTYPE_BITS[mode] / 8)
    if found.path.is_dir():
        return sum(each.stat().st_size for each in found.path.glob("*.safetensors"))
    return found.path.stat().st_size if found.path.suffix == ".gguf" else weight_bytes(facts, 4)
