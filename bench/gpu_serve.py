"""What a server on a GPU costs beside its engine, in one run: streams, arrivals, records, start.

    python bench/gpu_serve.py [--parts streams poisson record start] [--small]

streams: 256 at once by HTTP, tokens a second beside the same requests offline.
poisson: arrivals at 70 % of what 256 streams reached; gaps between tokens.
record:  decode steps of an engine that records and of the same one when it does not, in turn.
start:   a process from its first line to the first token of a model in safetensors files that were
    just written, part by part; once with kernels to compile and once with them kept.

Models are random: Qwen3-0.6B's shape, and Llama-3-8B's to start; --small takes tiny ones, so that
it runs anywhere. Each part prints a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from gpu_shapes import COMMON, SHAPES

PARTS = ("streams", "poisson", "record", "start")
SMALL = {
    **{"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128, "vocab_size": 512},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16},
}
CLI = (sys.executable, "-c", "from cutaway.cli.main import main; main()")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--parts", nargs="*", default=list(PARTS), choices=PARTS)
    options.add_argument("--small", action="store_true")
    options.add_argument("--streams", type=int, default=256)
    options.add_argument("--prompt-tokens", type=int, default=256)
    options.add_argument("--answer-tokens", type=int, default=512)
    options.add_argument("--requests", type=int, default=400, help="of the Poisson part")
    options.add_argument("--rate", type=float, help="arrivals a second that another server took")
    options.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.child:
        kind, folder = args.child
        say(**(first_token(folder) if kind == "start" else recording(folder, args)))
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as room:
        shape = config_in(Path(room) / "shape", "qwen3-0.6b", small=args.small)
        if {"streams", "poisson"} & set(args.parts):
            serve(shape, args)
        if "record" in args.parts:
            child("record", shape, args)
        if "start" in args.parts:
            folder = Path(room) / "files"
            config_in(folder, "llama3-8b", small=args.small)
            began = time.perf_counter()
            size = write_weights(folder)
            say(wrote_gb=size / 1e9, seconds=time.perf_counter() - began)
            kernels = Path(room) / "kernels"  # of Triton, compiled: none at first
            for run in ("kernels compiled", "kernels kept"):
                began = time.perf_counter()
                environment = {"TRITON_CACHE_DIR": str(kernels)}
                child("start", folder, args, run=run, began=began, **environment)


def say(**row: Any) -> None:
    rounded = {k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}
    print(json.dumps(rounded), flush=True)


def config_in(folder: Path, name: str, *, small: bool) -> Path:
    """The folder with a config.json."""
    folder.mkdir(parents=True)
    values = SHAPES[name] | COMMON | (SMALL if small else {})
    (folder / "config.json").write_text(json.dumps(values))
    return folder


def bench(*words: str) -> dict[str, Any]:
    """What a command of cutaway bench prints."""
    done = subprocess.run([*CLI, "bench", *words, "--json"], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def serve(shape: Path, args: argparse.Namespace) -> None:
    """Streams at once and arrivals at random, of one server; the first also offline."""
    from cutaway.bench.serve import ServeLoad, run
    from cutaway.bench.server import start_server

    model = ("--model", f"random:{shape}/config.json", "--no-prefix-cache")
    sizes = {"prompt_tokens": args.prompt_tokens, "answer_tokens": args.answer_tokens}
    offline: dict[str, Any] = {}
    if "streams" in args.parts:
        words = [str(w) for k, v in sizes.items() for w in (f"--{k.replace('_', '-')}", v)]
        words += ["--requests", str(args.streams), "--workload", "fixed", "--repeat", "2"]
        offline = bench("throughput", *model, *words)
    with start_server(model) as server:

        def load(rate: float, requests: int, seed: int) -> dict[str, Any]:
            wanted = ServeLoad(rate=rate, requests=requests, seed=seed, **sizes)
            told = run(server.url, wanted, pids=server.pids).as_dict()
            return {name: told[name] for name in told if name not in _UNTOLD}

        # The first load makes what is made once.
        first, told = (load(1e6, args.streams, seed) for seed in (1, 2))
        say(part="streams, first", **first)
        share = told["tokens_per_second"] / offline.get("tokens_per_second", math.inf)
        say(part="streams", share_of_offline=share, **told)
        say(part="offline", **offline)
        if "poisson" in args.parts:
            own = 0.7 * told["requests_per_second"]
            for rate in (own, args.rate) if args.rate else (own,):
                say(part="poisson", rate=rate, **load(rate, args.requests, 3))


_UNTOLD = ("goodput", "kept", "refused", "whole")


def child(kind: str, folder: Path, args: argparse.Namespace, **settings: Any) -> None:
    """A part in a process of its own, whose line of JSON is completed."""
    run, began = settings.pop("run", ""), settings.pop("began", time.perf_counter())
    words = [sys.executable, __file__, "--child", kind, str(folder)]
    words += ["--small"] * args.small + ["--streams", str(args.streams)]
    done = subprocess.run(
        words, stdout=subprocess.PIPE, check=True, env={**os.environ, **settings}, text=True
    )
    row = json.loads(done.stdout.splitlines()[-1])
    say(part=kind, run=run, process_s=time.perf_counter() - began, **row)


def write_weights(folder: Path) -> int:
    """Random tensors of a folder's config.json, in safetensors files. Returns: their bytes."""
    import torch
    from safetensors.torch import save_file

    from cutaway.models.parts.reading import read_config

    values = json.loads((folder / "config.json").read_text())
    architecture, _, _ = read_config(values, file="shape")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    spare = architecture.optional("hf")
    wanted = {n: t for n, t in architecture.targets("hf").items() if n not in spare}
    names, files, index = list(wanted), max(1, len(wanted) // 64), {}
    for number in range(files):
        own = names[number::files]
        name = f"model-{number + 1:05}-of-{files:05}.safetensors"
        tensors = {}
        for each in own:
            shape = wanted[each].shape
            drawn = torch.randn(shape, device=device, dtype=torch.bfloat16) * shape[-1] ** -0.5
            tensors[each] = (torch.ones_like(drawn) if "norm" in each else drawn).cpu()
        save_file(tensors, folder / name, metadata={"format": "pt"})
        index |= dict.fromkeys(own, name)
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": size}, "weight_map": index})
    )
    tokenizer_in(folder)
    return size


def tokenizer_in(folder: Path) -> None:
    """A tokenizer of bytes and an end, as a folder of Hugging Face has it."""
    from cutaway.tokens.files.write_json import tokenizer_config, tokenizer_json
    from cutaway.tokens.learn_vocabulary import BPELearner

    learner = BPELearner(["bytes alone"])
    for name, values in (
        ("tokenizer.json", tokenizer_json(learner, ("<end>",))),
        ("tokenizer_config.json", tokenizer_config("<end>", "<end>")),
    ):
        (folder / name).write_text(json.dumps(values))


def first_token(folder: str) -> dict[str, Any]:
    """Seconds of each part from this process's first line on, to the first token."""
    started = time.perf_counter()
    spent: dict[str, float] = {}

    def timed(owner: Any, name: str, part: str) -> None:
        inner = getattr(owner, name)

        def run(*given: Any, **named: Any) -> Any:
            before = time.perf_counter()
            result = inner(*given, **named)
            spent[part] = spent.get(part, 0.0) + time.perf_counter() - before
            return result

        setattr(owner, name, run)

    import torch

    from cutaway import LLM, SamplingParams
    from cutaway.engine import build, engine, runner

    spent["imports"] = time.perf_counter() - started
    if torch.cuda.is_available():
        torch.zeros(1, device="cuda")
    spent["device"] = time.perf_counter() - started - spent["imports"]
    timed(build, "load_model", "load")
    timed(build, "profile", "profile")
    timed(runner.Runner, "prepare", "capture")
    timed(engine, "fingerprints", "fingerprints")
    llm = LLM(folder)
    ready = time.perf_counter()
    answer = llm.generate([list(range(1, 101))], SamplingParams(max_tokens=1, ignore_eos=True))
    ended = time.perf_counter()
    assert len(answer[0].token_ids) == 1, "one token was asked for"
    # What is profiled makes an engine of its own, whose parts are counted in both.
    return {
        "first_token_s": ended - started,
        "ready_s": ready - started,
        "answer_s": ended - ready,
        **{f"{name}_s": seconds for name, seconds in spent.items()},
    }


def recording(folder: str, args: argparse.Namespace) -> dict[str, Any]:
    """Decode steps that are recorded beside such that are not, of one engine, block by block.

    Two engines differ by more than recording costs, be it by where their pages and graphs lie, and
    steps grow with their contexts: so both kinds are one engine's, four blocks with, without,
    without, with are one figure, and several engines give several of them.
    """
    from cutaway.engine.build import load_model
    from cutaway.engine.config import EngineConfig
    from cutaway.engine.engine import Engine
    from cutaway.weights.find.find import find

    config = EngineConfig(prefix_cache=False, max_sequences=args.streams)
    model = load_model(find(f"random:{folder}/config.json"), config)
    pages = 2 + args.streams * ((_PROMPT + _STEPS) // 16 + 2)
    steps = _Steps()
    for _ in range(4):
        steps.measure(Engine(model, config, num_pages=pages), args.streams)
    least, middle, most = statistics.quantiles(steps.costs, n=4)
    return {
        "sequences": args.streams,
        "step_with_ms": statistics.median(steps.times[True]) * 1e3,
        "step_without_ms": statistics.median(steps.times[False]) * 1e3,
        "costs": middle,
        "costs_quartiles": (round(least, 4), round(most, 4)),
        "figures": len(steps.costs),
        # By the recorder's own clock.
        "inside_ms": steps.inside / len(steps.times[True]) * 1e3,
    }


_PROMPT, _STEPS = 128, 300
_BLOCK, _SKIPPED = 12, 2  # steps; the first note anew who is in a step, which few others do


class _Steps:
    """Seconds of decode steps by whether they were recorded, and in the recorder; what it costs."""

    def __init__(self) -> None:
        self.times: dict[bool, list[float]] = {True: [], False: []}
        self.costs: list[float] = []  # of four blocks each
        self.inside = 0.0

    def measure(self, engine: Any, count: int) -> None:
        """Add those of one engine, with so many answers."""
        from cutaway.core.request import Request, SamplingParams

        params = SamplingParams(temperature=0.0, max_tokens=_STEPS, ignore_eos=True)
        for number in range(count):
            ids = tuple(range(1, 1 + _PROMPT))
            engine.add(Request(request_id=str(number), prompt_token_ids=ids, params=params))
        running, recorder = lambda: engine.scheduler.running, engine.recorder
        while engine.scheduler.num_waiting or not all(s.num_output_tokens > 2 for s in running()):
            engine.step()
        left = min(_STEPS - s.num_output_tokens for s in running())
        for _ in range((left - 1) // (4 * _BLOCK)):
            first, *without, last = (
                statistics.mean(self._block(engine, recorder, is_on=is_on))
                for is_on in (True, False, False, True)
            )
            self.costs.append((first + last) / sum(without) - 1)

    def _block(self, engine: Any, recorder: Any, *, is_on: bool) -> list[float]:
        if is_on and engine.recorder is None:
            recorder.ledger._drop_steps(before=engine.num_steps)  # numbers follow one another
        engine.recorder = recorder if is_on else None
        for _ in range(_SKIPPED):
            engine.step()
        times: list[float] = []
        before = recorder.seconds
        for _ in range(_BLOCK - _SKIPPED):
            began = time.perf_counter()
            engine.step()
            times.append(time.perf_counter() - began)
        self.inside += recorder.seconds - before
        self.times[is_on] += times
        return times


if __name__ == "__main__":
    main()
