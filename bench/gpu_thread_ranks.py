"""Ranks that are threads on one device: the rows that tokens are drawn from, beside one rank's.

    PYTHONPATH=src:tests python bench/gpu_thread_ranks.py [--shape llama3-8b] [--ranks 2 4 8]
    PYTHONPATH=src:tests python bench/gpu_thread_ranks.py --device cpu --shape tiny

Ranks hand one another finished numbers, so N of them have the bits of one wherever a row of a
product and a head of attention are summed alike, however many others there are. A library's
product chooses its order by its shape, which is another one in each rank, and attention shares out
keys by how many heads there are. So the same requests are answered in three ways: *invariant*, the
setting (on a GPU); *fixed*, in which every product is cut into tiles of one shape and attention
shares out keys in one way, which is slow and takes none of our forms for it; and *served*, the
quickest. In the first two every checksum must be that of one rank; in the last it is told how many
are, and ranks must repeat themselves.

Then a step without a group is looked at: captured, it is one launch, and no kernel of it gathers.
Weights are drawn on the device, the same for any number of ranks.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import importlib
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from gpu_shapes import COMMON, SHAPES
from torch import Tensor
from torch.nn import functional

from cutaway.core.request import Request, SamplingParams
from cutaway.engine.build import load_model
from cutaway.engine.config import EngineConfig
from cutaway.engine.engine import Engine
from cutaway.engine.loading.loaded_model import LoadedModel
from cutaway.kernels import dispatch
from cutaway.quantize import dense
from cutaway.weights.find.find import find
from cutaway.weights.random import RandomWeights
from thread_ranks import model_of_ranks

TINY = {
    **{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 2048},
    **{"hidden_size": 256, "num_hidden_layers": 3, "intermediate_size": 512},
    **{"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 16},
    **{"rope_theta": 500000.0, "tie_word_embeddings": False},
}
TILE_TOKENS, TILE_ROWS = 16, 512  # of a fixed product
LENGTHS = (1, 40, 300)  # of prompts, each once greedy and once drawn
Rows = dict[str, list[tuple[int, int]]]  # by request, of each token: its id and its row's checksum


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    options.add_argument("--shape", default="llama3-8b", choices=[*SHAPES, "tiny"])
    options.add_argument("--ranks", type=int, nargs="*", default=[2, 4, 8])
    options.add_argument("--tokens", type=int, default=16, help="of each answer")
    args = options.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, patch.object(RandomWeights, "tensor", _drawn):
        _drawn.device = args.device  # type: ignore[attr-defined]
        values = TINY if args.shape == "tiny" else SHAPES[args.shape]
        (Path(folder) / "config.json").write_text(json.dumps({**COMMON, **values}))
        compare(f"random:{folder}/config.json", args)
    say(seconds=time.monotonic() - began)


def compare(model: str, args: argparse.Namespace) -> None:
    """One rank, and then so many, each in all ways."""
    is_gpu = args.device == "cuda"
    settings = {"device": args.device, "dtype": "auto" if is_gpu else "float32"}
    expected: dict[str, Rows] = {}
    for size in (1, *args.ranks):
        for way in (*(("invariant",) if is_gpu else ()), "fixed", "served"):
            began = time.monotonic()
            ways = {**settings, "invariant": way == "invariant"}
            try:
                with model_of(model, size, ways) as loaded, orders_of(way):
                    loading = time.monotonic() - began
                    found, again = (answer(loaded, args.tokens, way) for _ in range(2))
                    if way != "fixed" and size == 1 and is_gpu:
                        say(**look_at_step(loaded, way))
                del loaded
            except Exception as fault:
                say(way=way, ranks=size, error=f"{fault!r:.400}")
                continue
            finally:
                gc.collect()
                if is_gpu:
                    torch.cuda.empty_cache()
            row = {"way": way, "ranks": size, **equal(found, expected.setdefault(way, found))}
            say(**row, repeats=found == again, loading=loading, seconds=time.monotonic() - began)


@contextmanager
def model_of(model: str, size: int, settings: dict[str, Any]) -> Iterator[LoadedModel]:
    """The model whole, or divided among threads."""
    if size == 1:
        yield load_model(find(model), EngineConfig(**settings))
        return
    with model_of_ranks(model, size, **settings) as divided:
        yield divided


def answer(model: LoadedModel, tokens: int, way: str) -> Rows:
    """All requests at once, in chunks of 128: of each token its id and its row's checksum."""
    engine = _engine(model, way, graphs=False)
    for number, length in enumerate(LENGTHS):
        for temperature in (0.0, 0.9):
            params = SamplingParams(
                temperature=temperature, seed=number, max_tokens=tokens, ignore_eos=True
            )
            prompt = tuple((7 * place + number) % 250 for place in range(length))
            name = f"{length} tokens, temperature {temperature}"
            engine.add(Request(request_id=name, prompt_token_ids=prompt, params=params))
    while engine.has_work:
        engine.step()
    assert engine.ledger is not None
    return {
        each.request.request_id: [(token.token_id, token.checksum) for token in each.tokens]
        for each in engine.ledger.answers
    }


def equal(found: Rows, one: Rows) -> dict[str, Any]:
    """How many tokens and rows are those of one rank; a row counts up to the first other token."""
    tokens = rows = of = 0
    for name, expected in one.items():
        of += len(expected)
        for mine, theirs in zip(found[name], expected, strict=True):
            rows += mine == theirs
            if mine[0] != theirs[0]:
                break
            tokens += 1
    return {"equal_tokens": tokens, "equal_checksums": rows, "of": of}


def look_at_step(model: LoadedModel, way: str) -> dict[str, Any]:
    """A captured decode step of one answer of a model that nobody divides."""
    engine = _engine(model, way, graphs=True)
    engine.runner.prepare()
    params = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True)
    engine.add(Request(request_id="step", prompt_token_ids=(1,) * 100, params=params))
    for _ in range(8):
        engine.step()
    seconds: list[float] = []
    for _ in range(32):
        began = time.perf_counter()
        engine.step()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiled:
        engine.step()
        torch.cuda.synchronize()
    names = [each.name for each in profiled.events() if each.device_type.name == "CUDA"]
    gathers = [name for name in names if "allgather" in name.lower() or "nccl" in name.lower()]
    return {
        "step": f"captured, without a group, {way}",
        "kernel": engine.runner.kernel,
        "step_ms": 1e3 * statistics.median(seconds),
        "kernels": len(names),
        "gathers": len(gathers),
    }


def _engine(model: LoadedModel, way: str, *, graphs: bool) -> Engine:
    config = EngineConfig(
        device=model.device.type,
        graphs=graphs,
        invariant=way == "invariant",
        cache_tokens=4096,
        max_sequences=8,
        max_tokens_per_step=256,
        prefill_chunk=128,
        prefix_cache=False,
    )
    return Engine(model, config, num_pages=4096 // config.page_size)


@contextmanager
def orders_of(way: str) -> Iterator[None]:
    """fixed: sum a row of a product and a head of attention alike, whatever is beside them."""
    with ExitStack() as stack:
        if way == "fixed":
            stack.enter_context(patch.object(dense, "linear", multiply_in_tiles))
        if way == "fixed" and dispatch.has_triton():
            attention: Any = importlib.import_module("cutaway.kernels.attention.triton")
            stack.enter_context(patch.object(attention, "_share_keys", _share_alike))
            stack.enter_context(patch.object(attention.gathered, "takes", lambda *_: False))
        yield


def multiply_in_tiles(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """See kernels.linear.linear: by products of one shape alone. Shapes: x [..., K] -> [..., N]."""
    assert bias is None
    rows = x.reshape(-1, x.shape[-1])
    count, num_rows = len(rows), len(weight)
    rows = functional.pad(rows, (0, 0, 0, -count % TILE_TOKENS))
    out = rows.new_empty(len(rows), num_rows)
    for first in range(0, num_rows, TILE_ROWS):
        part = weight[first : first + TILE_ROWS]
        kept = len(part)
        part = functional.pad(part, (0, 0, 0, TILE_ROWS - kept)) if kept < TILE_ROWS else part
        for token in range(0, len(rows), TILE_TOKENS):
            tile = functional.linear(rows[token : token + TILE_TOKENS], part)
            out[token : token + TILE_TOKENS, first : first + kept] = tile[:, :kept]
    return out[:count].reshape(*x.shape[:-1], num_rows)


def _share_alike(*shape: Any, **more: Any) -> tuple[int, int, int]:
    """Keys at once, warps and splits: the same for any number of heads."""
    del shape, more
    return 64, 4, 4


def _drawn(self: RandomWeights, name: str) -> Tensor:
    """As RandomWeights.tensor, drawn on the device."""
    shape = self.shape(name)
    device = _drawn.device  # type: ignore[attr-defined]
    if len(shape) == 1:
        return torch.ones(shape, device=device)
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "little")
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(shape, generator=generator, device=device).mul_(shape[-1] ** -0.5)


def say(**row: Any) -> None:
    """One line of JSON, at once."""
    print(
        json.dumps({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()}),
        flush=True,
    )


if __name__ == "__main__":
    main()
