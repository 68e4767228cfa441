"""One model over several devices: its tokens beside those of one, and its speed.

    python bench/gpu_ranks.py [--device cuda] [--ranks 2] [--shape llama3-8b] [--seconds 140]
    python bench/gpu_ranks.py --device cpu --shape tiny     # the same over gloo

First a small model in float32 answers eight prompts, greedy and drawn, with one rank, with rows
and with layers divided: every token must be that of one; with rows also on the devices in the
other order and with other ways of the library, where every row must be that of the first such run.
Then a large one, whose weights are drawn
on the device and written to a folder, decodes and reads a prompt in each way. Every way is
processes of its own; one that takes too long is ended, and the others are told.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from gpu_shapes import COMMON, SHAPES

from cutaway.core.request import Request, SamplingParams
from cutaway.engine.build import build_engine
from cutaway.engine.config import EngineConfig
from cutaway.engine.engine import Engine
from cutaway.models.parts.reading import read_config

SMALL: dict[str, Any] = {
    **{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 2048},
    **{"hidden_size": 512, "num_hidden_layers": 6, "intermediate_size": 1536},
    **{"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64},
    **{"rope_theta": 500000.0, "tie_word_embeddings": False},
}
TINY = {**SMALL, "hidden_size": 256, "num_hidden_layers": 2, "intermediate_size": 512}
PROMPT, DECODED = 8192, 64  # tokens of the prompt that is timed, and decode steps after 1,024


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    options.add_argument("--ranks", type=int, default=2)
    options.add_argument("--shape", default="llama3-8b", choices=[*SHAPES, "tiny"])
    options.add_argument("--seconds", type=float, default=140.0, help="after which nothing begins")
    options.add_argument("--way", help=argparse.SUPPRESS)
    options.add_argument("--model", help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.way is not None:
        answer_way(args)
        return
    if args.device == "cuda" and torch.cuda.device_count() < args.ranks:
        sys.exit(f"this takes {args.ranks} GPUs; torch sees {torch.cuda.device_count()} here.")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=_memory_folder()) as folder:
        compare_tokens(args, Path(folder) / "small")
        say(seconds=round(time.monotonic() - began, 1))
        measure(args, Path(folder) / "large", end=began + args.seconds)
    say(seconds=round(time.monotonic() - began, 1))


def ways(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Settings of each way, by its name."""
    several = {
        "one": {},
        "tensor": {"tensor": args.ranks},
        "pipeline": {"pipeline": args.ranks},
        "tensor eager": {"tensor": args.ranks, "graphs": False},
    }
    if args.ranks % 2 == 0 and args.ranks > 2:
        several["two stages"] = {"tensor": args.ranks // 2, "pipeline": 2}
    return (
        several
        if args.device == "cuda"
        else {n: v for n, v in several.items() if "graphs" not in v}
    )


def permutations(args: argparse.Namespace) -> dict[str, dict[str, str]]:
    """Environments in which the library moves the same numbers by other ways, by their names."""
    found = {
        "tensor, one ring": {
            "NCCL_ALGO": "Ring",
            "NCCL_PROTO": "Simple",
            "NCCL_MAX_NCHANNELS": "1",
        },
        "tensor, small messages": {"NCCL_PROTO": "LL", "NCCL_MIN_NCHANNELS": "8"},
        "tensor, no peers": {"NCCL_P2P_DISABLE": "1"},
    }
    if args.device == "cuda":
        given = os.environ.get("CUDA_VISIBLE_DEVICES")
        names = given.split(",") if given else [str(i) for i in range(torch.cuda.device_count())]
        order = ",".join(reversed(names[: args.ranks]))
        found["tensor, devices in the other order"] = {"CUDA_VISIBLE_DEVICES": order}
    return found


def compare_tokens(args: argparse.Namespace, folder: Path) -> None:
    """All ways over a small model: every token of every answer is that of one rank."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**COMMON, **SMALL}), encoding="utf-8")
    model = f"random:{folder}/config.json"
    running = {name: _start(args, f"tokens {name}", model) for name in ways(args)}
    told = {name: _result(process, 90) for name, process in running.items()}
    others = {
        name: _start(args, "tokens tensor", model, environment)
        for name, environment in permutations(args).items()
    }
    permuted = {name: _result(process, 90) for name, process in others.items()}
    rows = told["tensor"].get("rows")
    for name, found in permuted.items():
        say(rows=name, equal=bool(rows) and found.get("rows") == rows, error=found.get("error"))
    one = told["one"].get("answers")
    for name, found in told.items():
        answers = found.get("answers")
        equal = (
            None
            if not one or not answers
            else sum(a == b for a, b in zip(one, answers, strict=True))
        )
        say(tokens=name, equal=equal, of=len(one or []), error=found.get("error"))


def measure(args: argparse.Namespace, folder: Path, *, end: float) -> None:
    """Each way alone over the large model."""
    folder.mkdir()
    write_model(folder, {**COMMON, **(TINY if args.shape == "tiny" else SHAPES[args.shape])}, args)
    one: dict[str, Any] = {}
    for name in ways(args):
        left = end - time.monotonic()
        if left < 5:
            say(speed=name, error="not begun: no time was left")
            continue
        found = _result(_start(args, f"speed {name}", str(folder)), min(left, 60))
        one = one or found
        ratios = {
            f"{key} to one": round(found[key] / one[key], 3)
            for key in ("decode_tokens_per_second", "prefill_tokens_per_second")
            if found.get(key) and one.get(key)
        }
        say(speed=name, **found, **ratios)


def answer_way(args: argparse.Namespace) -> None:
    """One way, in a process of its own; what it found is one line of JSON."""
    kind, name = args.way.split(" ", 1)
    try:
        found = run_tokens(args, name) if kind == "tokens" else run_speed(args, name)
    except Exception as fault:
        found = {"error": f"{type(fault).__name__}: {str(fault)[:600]}"}
    print(json.dumps(found), flush=True)
    os._exit(0)  # ranks end with this process


def run_tokens(args: argparse.Namespace, name: str) -> dict[str, Any]:
    """Eight answers, four greedy and four drawn, in one crowd and in chunks."""
    settings = {"dtype": "float32", "cache_tokens": 4096, "max_sequences": 8, "prefill_chunk": 64}
    engine = _engine(args, name, settings)
    chance = random.Random(1)
    for number in range(8):
        params = SamplingParams(
            temperature=0.0 if number % 2 else 0.9, seed=number, max_tokens=48, ignore_eos=True
        )
        prompt = tuple(chance.randrange(2000) for _ in range(chance.randint(9, 200)))
        engine.add(Request(request_id=f"{number}", prompt_token_ids=prompt, params=params))
    answers: dict[str, list[int]] = {f"{number}": [] for number in range(8)}
    while engine.has_work:
        for delta in engine.step():
            answers[delta.request_id] += delta.token_ids
    assert engine.ledger is not None
    rows = {
        each.request.request_id: [t.checksum for t in each.tokens] for each in engine.ledger.answers
    }
    return {"answers": list(answers.values()), "rows": rows}


def run_speed(args: argparse.Namespace, name: str) -> dict[str, Any]:
    """Decoding of one answer after 1,024 tokens, and a prompt of 8,192, each once to warm up."""
    began = time.perf_counter()
    most = 256 if args.device == "cpu" else PROMPT
    settings = {
        **{"cache_tokens": 4 * most, "max_sequences": 4, "prefill_chunk": most},
        **{"max_tokens_per_step": most, "prefix_cache": False, "ledger_bytes": 0},
    }
    engine = _engine(args, name, settings)
    loaded = time.perf_counter() - began
    decoded = [_decode(engine, most // 8, number) for number in range(2)][1]
    seconds = [_decode(engine, most - 2, number + 2, max_tokens=1)[0] for number in range(3)]
    return {
        "decode_tokens_per_second": round(1 / statistics.median(decoded[1:]), 1),
        "step_ms": round(1e3 * statistics.median(decoded[1:]), 3),
        "prefill_tokens_per_second": round((most - 2) / min(seconds[1:]), 1),
        "kernel": engine.runner.kernel,
        "load_seconds": round(loaded, 1),
    }


def _engine(args: argparse.Namespace, name: str, settings: dict[str, Any]) -> Engine:
    return build_engine(
        args.model, EngineConfig.of({"device": args.device, **settings, **ways(args)[name]})
    )


def _decode(engine: Engine, length: int, number: int, max_tokens: int = DECODED) -> list[float]:
    """Seconds of each step of one answer, the prompt's first."""
    prompt = tuple((7 * place + number) % 1000 for place in range(length))
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    engine.add(Request(request_id=f"s{number}", prompt_token_ids=prompt, params=params))
    seconds: list[float] = []
    while engine.has_work:
        began = time.perf_counter()
        engine.step()
        seconds.append(time.perf_counter() - began)
    return seconds


def write_model(folder: Path, values: dict[str, Any], args: argparse.Namespace) -> None:
    """Weights in bfloat16, drawn on the device, with a tokenizer of bytes."""
    (folder / "config.json").write_text(json.dumps(values), encoding="utf-8")
    (folder / "tokenizer.json").write_text(json.dumps(_byte_tokenizer()), encoding="utf-8")
    architecture = read_config(values, file="config.json").architecture
    optional = architecture.optional("hf")
    shapes = {n: t.shape for n, t in architecture.targets("hf").items() if n not in optional}
    header: dict[str, Any] = {}
    place = 0
    for name, shape in shapes.items():
        end = place + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [place, end]}
        place = end
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    generator = torch.Generator(args.device).manual_seed(0)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        for shape in shapes.values():
            if len(shape) == 1:
                drawn = torch.ones(shape)
            else:
                drawn = torch.randn(shape, generator=generator, device=args.device)
                drawn *= shape[-1] ** -0.5
            file.write(drawn.to(torch.bfloat16).cpu().view(torch.uint8).numpy().tobytes())


def _byte_tokenizer() -> dict[str, Any]:
    """tokenizer.json of 256 bytes without merges, in GPT-2's letters for them."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    letters = {byte: chr(byte) for byte in plain}
    letters |= {byte: chr(256 + index) for index, byte in enumerate(others)}
    level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    return {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": level,
        "decoder": level,
        "model": {
            "type": "BPE",
            "vocab": {letters[byte]: byte for byte in range(256)},
            "merges": [],
        },
    }


def _start(
    args: argparse.Namespace, way: str, model: str, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    given = ["--device", args.device, "--ranks", str(args.ranks), "--way", way, "--model", model]
    return subprocess.Popen(
        [sys.executable, __file__, *given],
        stdout=subprocess.PIPE,
        text=True,
        cwd=os.getcwd(),
        env={**os.environ, **(environment or {})},
    )


def _result(process: subprocess.Popen[str], seconds: float) -> dict[str, Any]:
    try:
        said, _ = process.communicate(timeout=seconds)
        return json.loads(said.strip().splitlines()[-1])
    except subprocess.TimeoutExpired:
        process.kill()
        return {"error": f"it took more than {seconds:.0f} s"}
    except (IndexError, ValueError):
        return {"error": f"it ended with {process.returncode} and said nothing"}


def _memory_folder() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def say(**told: Any) -> None:
    """One line of JSON, at once."""
    print(
        json.dumps({name: value for name, value in told.items() if value is not None}), flush=True
    )


if __name__ == "__main__":
    main()
