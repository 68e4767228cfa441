"""The files that engines are compared on, made once and kept in the user's cache.

Conversions are for speed, not for quality: weights are rounded twice. Needs the `gguf` package,
which writes the files.
"""

# pyright: basic

from __future__ import annotations

import os
from pathlib import Path

import numpy

from cutaway.core.errors import ConfigError
from cutaway.weights.find.find import find
from cutaway.weights.find.package import cache_folder

# Llama-3.2-1B's sizes with SmolLM2's vocabulary.
_LAYERS, _WIDTH, _INNER, _HEADS, _GROUPS, _HEAD_SIZE, _VOCAB = 16, 2048, 8192, 32, 8, 64, 49152
# A small Mixtral of 1B numbers: 16 layers of 8 experts, of which a token uses 2.
EXPERTS, CHOSEN, EXPERT_WIDTH, EXPERT_INNER, EXPERT_LAYERS = 8, 2, 1024, 2304, 16
_EXPERT_HEADS, _EXPERT_GROUPS = 16, 4


def smollm2() -> Path:
    """The default model as shipped: Q4_1, the table Q8_0."""
    return find("smollm2").path


def gemma3() -> Path:
    """Gemma 3 270M as its package has it; its terms are accepted by `cutaway models pull`."""
    return find("gemma3-270m").path


def convert(kind: str) -> Path:
    """SmolLM2 with the matrices of its layers as Q4_0 or Q8_0; the table stays Q8_0."""
    return _made(f"smollm2-{kind}.gguf", lambda path: _convert(path, kind))


def random_1b() -> Path:
    """Random Q4_0 weights of Llama-3.2-1B's shape; the table is Q8_0."""
    return _made("random-1b-Q4_0.gguf", _write_random)


def random_experts() -> Path:
    """Random Q4_0 weights of a small Mixtral: 8 experts, 2 of them active; the table is Q8_0."""
    return _made("random-8-experts-Q4_0.gguf", _write_experts)


def _made(name: str, make) -> Path:
    try:
        import gguf  # noqa: F401
    except ImportError:
        raise ConfigError(
            "`cutaway bench cpu` writes GGUF files and the package gguf is not here; "
            "pip install gguf."
        ) from None
    path = cache_folder() / "bench" / name
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}.part")
        make(part)
        part.replace(path)
    return path


def _convert(path: Path, kind: str) -> None:
    import gguf

    reader, writer = _opened(path)
    wanted = gguf.GGMLQuantizationType[kind]
    for tensor in reader.tensors:
        data, written = tensor.data, tensor.tensor_type
        if written == gguf.GGMLQuantizationType.Q4_1:
            values = gguf.quants.dequantize(data, written)
            data, written = gguf.quants.quantize(values, wanted), wanted
        writer.add_tensor(tensor.name, data, raw_dtype=written)
    _close(writer)


def _write_random(path: Path) -> None:

    _, writer = _opened(
        path,
        {
            "llama.block_count": _LAYERS,
            "llama.embedding_length": _WIDTH,
            "llama.feed_forward_length": _INNER,
            "llama.attention.head_count": _HEADS,
            "llama.attention.head_count_kv": _GROUPS,
            "llama.rope.dimension_count": _HEAD_SIZE,
        },
    )
    random = _Random(writer)
    random.add("token_embd.weight", _VOCAB, _WIDTH, kind="Q8_0")
    for layer in range(_LAYERS):
        at = f"blk.{layer}."
        random.add_attention(at, _WIDTH, heads=_HEADS, groups=_GROUPS)
        random.add(at + "ffn_gate.weight", _INNER, _WIDTH)
        random.add(at + "ffn_up.weight", _INNER, _WIDTH)
        random.add(at + "ffn_down.weight", _WIDTH, _INNER)
    random.add_ones("output_norm.weight", _WIDTH)
    _close(writer)


def _write_experts(path: Path) -> None:
    width, inner = EXPERT_WIDTH, EXPERT_INNER
    _, writer = _opened(
        path,
        {
            "llama.block_count": EXPERT_LAYERS,
            "llama.embedding_length": width,
            "llama.feed_forward_length": inner,
            "llama.attention.head_count": _EXPERT_HEADS,
            "llama.attention.head_count_kv": _EXPERT_GROUPS,
            "llama.rope.dimension_count": _HEAD_SIZE,
        },
    )
    writer.add_uint32("llama.expert_count", EXPERTS)
    writer.add_uint32("llama.expert_used_count", CHOSEN)
    random = _Random(writer)
    random.add("token_embd.weight", _VOCAB, width, kind="Q8_0")
    for layer in range(EXPERT_LAYERS):
        at = f"blk.{layer}."
        random.add_attention(at, width, heads=_EXPERT_HEADS, groups=_EXPERT_GROUPS)
        random.add_floats(at + "ffn_gate_inp.weight", EXPERTS, width)
        random.add(at + "ffn_gate_exps.weight", EXPERTS, inner, width)
        random.add(at + "ffn_up_exps.weight", EXPERTS, inner, width)
        random.add(at + "ffn_down_exps.weight", EXPERTS, width, inner)
    random.add_ones("output_norm.weight", width)
    _close(writer)


class _Random:
    """Random tensors for a writer; scales keep activations near 1."""

    def __init__(self, writer) -> None:
        self.writer, self.random = writer, numpy.random.default_rng(1)

    def add(self, name: str, *shape: int, kind: str = "Q4_0") -> None:
        import gguf

        kinds = gguf.GGMLQuantizationType
        size = gguf.GGML_QUANT_SIZES[kinds[kind]][1]
        blocks = (*shape[:-1], shape[-1] // 32, size)
        data = self.random.integers(0, 256, blocks, dtype=numpy.uint8)
        scale = numpy.float16(0.003 if kind == "Q4_0" else 0.0002)
        data[..., :2] = numpy.frombuffer(scale.tobytes(), numpy.uint8)
        self.writer.add_tensor(name, data.reshape(*shape[:-1], -1), raw_dtype=kinds[kind])

    def add_floats(self, name: str, *shape: int) -> None:
        data = self.random.standard_normal(shape, dtype=numpy.float32) / shape[-1] ** 0.5
        self.writer.add_tensor(name, data)

    def add_ones(self, name: str, width: int) -> None:
        self.writer.add_tensor(name, numpy.ones(width, numpy.float32))

    def add_attention(self, at: str, width: int, *, heads: int, groups: int) -> None:
        """The matrices of one layer's attention, and the norms before it and after."""
        self.add_ones(at + "attn_norm.weight", width)
        self.add(at + "attn_q.weight", heads * _HEAD_SIZE, width)
        self.add(at + "attn_k.weight", groups * _HEAD_SIZE, width)
        self.add(at + "attn_v.weight", groups * _HEAD_SIZE, width)
        self.add(at + "attn_output.weight", width, heads * _HEAD_SIZE)
        self.add_ones(at + "ffn_norm.weight", width)


def _opened(path: Path, changed: dict[str, int] | None = None):
    """SmolLM2's file, and a writer that has its metadata."""
    import gguf

    reader = gguf.GGUFReader(smollm2())
    writer = gguf.GGUFWriter(path, "llama")
    left_out = ("GGUF.", "general.architecture")
    for field in reader.fields.values():
        if field.name.startswith(left_out):
            continue
        inner = field.types[1] if len(field.types) > 1 else None
        value = (changed or {}).get(field.name, field.contents())
        writer.add_key_value(field.name, value, field.types[0], inner)
    return reader, writer


def _close(writer) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
