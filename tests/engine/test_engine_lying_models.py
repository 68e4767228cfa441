"""Models whose configuration lies: the whole load ends in a model or in an error that names it.

bench/reliability.py changes 10,000 configurations and 10,000 GGUF headers: row 1 of its plan.
"""

from __future__ import annotations

import copy
import json
import random
import resource
import shutil
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import architectures
import gguf_bytes
from cutaway.core.claims import MAX_EXPERTS, MAX_LAYERS
from cutaway.core.errors import ModelError, ModelFormatError, UnsupportedModelError
from cutaway.engine.build import build_engine
from cutaway.engine.config import EngineConfig
from cutaway.models.parts.reading import shape_of
from trials import ran, seed, trials

pytest.importorskip("transformers")

NUM_MUTANTS = trials(400)
CONFIGS = ("llama-flags", "qwen2-flags", "qwen3-moe", "gemma3-flags", "gemma4-all", "gpt2")
CONFIGS += ("gpt-oss", "mixtral", "deepseek-v3", "qwen3-next", "qwen3.5")
SPARE_BYTES = 2**30  # that a load of a model of a few kilobytes may take
HOSTILE: tuple[Any, ...] = (
    *(0, 1, -1, 2, 3, 7, 17, 48, 97, 1_000, 20_000, 10**6, 2**24, 2**31, 2**40 - 1, 2**63),
    *(0.5, -1.0, 1e-300, 1e300, float("inf"), float("nan"), True, False, None, "", "yes", "x" * 99),
    *([], [1], [0.0], [1] * 2_000, ["full_attention"] * 3, {}, {"rope_type": "yarn"}),
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A saved model of each case."""
    root, made = tmp_path_factory.mktemp("lying"), dict[str, Path]()
    for case in CONFIGS:
        if case in architectures.CASES:
            made[case] = root / case
            architectures.save(architectures.reference(case), made[case])
    return made


@contextmanager
def bounded_memory() -> Iterator[None]:
    """No more address space than now, and some to spare: a lie that is believed is a fault."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + SPARE_BYTES, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def outcome(path: Path, dtype: str) -> str:
    """What becomes of a load; anything but a model or an error that names the file is a fault."""
    config = EngineConfig(dtype=dtype, device="cpu", cache_tokens=64, page_size=16)
    try:
        with bounded_memory():
            build_engine(str(path), config)
    except ModelFormatError as error:
        assert error.file and error.field, "what is malformed has a place"
        return "refused"
    except UnsupportedModelError as error:
        assert len(str(error)) < 2_000
        return "unsupported"
    except ModelError:
        return "refused"
    return "loads"


def places(values: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place inside a JSON value."""
    items = values.items() if isinstance(values, dict) else enumerate(values)
    for key, value in items:
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from places(value, (*path, key))


def changed(values: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """A configuration with one to three fields that lie, or that are gone."""
    made = copy.deepcopy(values)
    for _ in range(chance.randint(1, 3)):
        *path, last = chance.choice(list(places(made)))
        inside = made
        for key in path:
            inside = inside[key]
        if chance.random() < 0.1 and isinstance(inside, dict):
            del inside[last]
        elif isinstance(inside[last], int) and chance.random() < 0.3:
            inside[last] = inside[last] + chance.choice((-1, 1, 2)) * chance.choice((1, 16))
        else:
            inside[last] = copy.deepcopy(chance.choice(HOSTILE))
    return made


def test_changed_configurations_load_or_say_what_is_wrong(folders: dict[str, Path]) -> None:
    chance, seen = random.Random(seed(3)), Counter[str]()
    originals = {
        case: json.loads((at / "config.json").read_bytes()) for case, at in folders.items()
    }
    for number in range(NUM_MUTANTS):
        case = chance.choice(sorted(folders))
        values = changed(originals[case], chance)
        (folders[case] / "config.json").write_text(json.dumps(values), encoding="utf-8")
        try:
            seen[outcome(folders[case], chance.choice(("float32", "auto")))] += 1
        except Exception as error:
            raise AssertionError(f"mutant {number} of {case}: {values}") from error
    for case, values in originals.items():
        (folders[case] / "config.json").write_text(json.dumps(values), encoding="utf-8")
    assert seen["loads"] >= NUM_MUTANTS // 10 and seen["refused"] >= NUM_MUTANTS // 4, seen
    ran(NUM_MUTANTS, total_loaded=seen["loads"])


def whole_gguf(word: str = "llama") -> bytes:
    """A tiny model with its vocabulary, built byte by byte."""
    b, width, inner, vocab, layers = gguf_bytes, 32, 64, 64, 2
    shapes = {"token_embd.weight": (width, vocab), "output_norm.weight": (width,)}
    shapes["output.weight"] = (width, vocab)
    for layer in range(layers):
        at = f"blk.{layer}."
        shapes |= {at + name: (width,) for name in ("attn_norm.weight", "ffn_norm.weight")}
        shapes |= {at + f"attn_{x}.weight": (width, width) for x in ("q", "k", "v", "output")}
        shapes |= {at + f"ffn_{x}.weight": (width, inner) for x in ("gate", "up")}
        shapes[at + "ffn_down.weight"] = (inner, width)
    integers = {"block_count": layers, "context_length": 128, "embedding_length": width}
    integers |= {"feed_forward_length": inner, "attention.head_count": 4, "vocab_size": vocab}
    integers |= {"attention.head_count_kv": 4, "rope.dimension_count": 8}
    tokens = [f"<0x{byte:02X}>".encode() for byte in range(vocab)]
    epsilon = struct.pack("<f", 1e-5)
    keys = [b.key("general.architecture", b.STRING, b.string(word))]
    keys += [b.key(f"{word}.{name}", b.UINT32, b.u32(n)) for name, n in integers.items()]
    keys += [b.key(f"{word}.attention.layer_norm_rms_epsilon", b.FLOAT32, epsilon)]
    keys += [b.key(f"{word}.rope.freq_base", b.FLOAT32, struct.pack("<f", 1e4))]
    keys += [b.key("tokenizer.ggml.model", b.STRING, b.string("gpt2"))]
    keys += [b.key("tokenizer.ggml.pre", b.STRING, b.string("gpt-2"))]
    strings = b"".join(map(b.string, tokens))
    keys += [b.key("tokenizer.ggml.tokens", b.ARRAY, b.array(b.STRING, vocab, strings))]
    kinds = b"".join(b.u32(6) for _ in tokens)
    keys += [b.key("tokenizer.ggml.token_type", b.ARRAY, b.array(5, vocab, kinds))]
    keys += [b.key("tokenizer.ggml.merges", b.ARRAY, b.array(b.STRING, 0, b""))]
    directory, data, chance = [], b"", random.Random(1)
    for name, dims in shapes.items():
        directory.append(b.tensor(name, dims, offset=len(data)))
        count = dims[0] * (dims[1] if len(dims) > 1 else 1)
        data += struct.pack(f"<{count}f", *(chance.uniform(-0.5, 0.5) for _ in range(count)))
    return b.gguf(keys, directory, data)


def test_changed_gguf_headers_load_or_say_what_is_wrong(tmp_path: Path) -> None:
    chance, seen, whole = random.Random(seed(5)), Counter[str](), whole_gguf()
    end = whole.index(b"blk.1.ffn_down.weight") + 60
    names = [b"llama.block_count", b"llama.context_length", b"llama.embedding_length"]
    names += [b"llama.feed_forward_length", b"llama.attention.head_count", b"llama.vocab_size"]
    names += [b"llama.attention.head_count_kv", b"llama.rope.dimension_count"]
    names += [b"llama.attention.layer_norm_rms_epsilon", b"llama.rope.freq_base"]
    values = [whole.index(gguf_bytes.string(name)) + 8 + len(name) + 4 for name in names]
    path = tmp_path / "m.gguf"
    path.write_bytes(whole)
    assert outcome(path, "float32") == "loads"
    for number in range(NUM_MUTANTS):
        raw = bytearray(whole)
        for _ in range(chance.randint(1, 3)):
            if chance.random() < 0.6:  # a value, else any byte of the header
                at = chance.choice(values)
                value = chance.choice((0, 1, 2, 3, 5, 9, 16, 33, 64, 999, 10**6, 2**31, 2**32 - 1))
                raw[at : at + 4] = struct.pack("<I", value)
            else:
                at = chance.randrange(end)
                raw[at] = chance.choice((0, 1, 255, raw[at] ^ (1 << chance.randrange(8))))
        path.write_bytes(raw)
        try:
            seen[outcome(path, chance.choice(("float32", "auto")))] += 1
        except Exception as error:
            changes = [(at, raw[at]) for at in range(end) if raw[at] != whole[at]]
            raise AssertionError(f"mutant {number}: {changes}") from error
    assert seen["loads"] >= NUM_MUTANTS // 20 and seen["refused"] >= NUM_MUTANTS // 4, seen
    ran(NUM_MUTANTS, total_loaded=seen["loads"])


@pytest.mark.parametrize("count", [MAX_LAYERS + 1, 20_000, 10**6, 2**63])
@pytest.mark.parametrize("name", ["num_hidden_layers", "num_experts"])
def test_a_claim_without_tensors_is_refused_at_once(name: str, count: int, tmp_path: Path) -> None:
    count = count if name == "num_hidden_layers" else count + MAX_EXPERTS
    values = {**architectures.COMMON, "architectures": ["Qwen3MoeForCausalLM"], name: count}
    config = tmp_path / "config.json"
    config.write_text(json.dumps(values), encoding="utf-8")
    words = f"config.json: {name}: is {count}; it must be at most"
    with bounded_memory():
        with pytest.raises(ModelFormatError, match=words):
            shape_of(values)
        with pytest.raises(ModelFormatError, match=words):
            build_engine(f"random:{config}", EngineConfig(device="cpu"))


def test_a_claim_is_held_against_the_tensors(folders: dict[str, Path], tmp_path: Path) -> None:
    whole = whole_gguf()
    at = whole.index(b"llama.block_count") + len(b"llama.block_count") + 4
    path = tmp_path / "m.gguf"
    path.write_bytes(whole[:at] + struct.pack("<I", 999) + whole[at + 4 :])
    words = "llama.block_count: is 999; it must be at most 21, as there are 21 tensors"
    with pytest.raises(ModelFormatError, match=words):
        build_engine(str(path), EngineConfig(device="cpu"))
    folder = tmp_path / "folder"
    shutil.copytree(folders["llama-flags"], folder)
    values = json.loads((folder / "config.json").read_bytes())
    (folder / "config.json").write_text(json.dumps({**values, "num_hidden_layers": 999}))
    with pytest.raises(ModelFormatError, match="num_hidden_layers: is 999; it must be at most"):
        build_engine(str(folder), EngineConfig(device="cpu"))


@pytest.mark.parametrize(
    ("rope", "words"),
    [
        ({"partial_rotary_factor": 1.5}, "lets 18 numbers of a head turn; they must be even"),
        (
            {"partial_rotary_factor": 0.6},
            "numbers of a head turn; they must be even and at most 12",
        ),
        ({"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 1}, "from 2 to"),
    ],
)
def test_turns_that_a_head_cannot_make_are_refused(
    folders: dict[str, Path], tmp_path: Path, rope: dict[str, Any], words: str
) -> None:
    folder = tmp_path / "folder"
    shutil.copytree(folders["gpt2"].with_name("qwen2-flags"), folder)
    values = json.loads((folder / "config.json").read_bytes())
    values["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e4, **rope}
    (folder / "config.json").write_text(json.dumps(values))
    for dtype in ("float32", "auto"):
        with pytest.raises(ModelFormatError, match=words):
            config = EngineConfig(device="cpu", dtype=dtype, cache_tokens=64)
            build_engine(str(folder), config)
