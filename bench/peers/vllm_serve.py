"""vLLM's server under the loads of bench/gpu_serve.py, by the same client.

    python bench/peers/vllm_serve.py [--rate 46.6] [--answer-tokens 400]

Two loads of so many streams at once, then Poisson arrivals at 70 % of what the second reached and,
with --rate, at another's. Weights are dummies; prefix cache off, otherwise as `vllm serve` stands.
A tokenizer of words as many as the model has ids is written for it, so that each token is a text.
It runs where vLLM is installed, with PYTHONPATH=src for the client. A line of JSON each.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from string import ascii_lowercase
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from gpu_shapes import COMMON, SHAPES

from cutaway.bench.serve import ServeLoad, run
from cutaway.bench.server import children

READY_SECONDS = 300
UNTOLD = ("goodput", "kept", "refused", "whole")
SETTINGS = {
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--shape", choices=list(SHAPES), default="qwen3-0.6b")
    options.add_argument("--streams", type=int, default=256)
    options.add_argument("--prompt-tokens", type=int, default=256)
    options.add_argument("--answer-tokens", type=int, default=512)
    options.add_argument("--requests", type=int, default=400, help="of the arrivals")
    options.add_argument("--rate", type=float, help="requests a second that another took")
    args = options.parse_args()
    vocab_size = SHAPES[args.shape]["vocab_size"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_model(folder, args.shape, vocab_size)
        process, url = started(folder, args.streams)
        try:
            seconds = wait_ready(process, url)
            say(peer="vllm", start_seconds=seconds)
            pids = {"client": os.getpid(), "server": process.pid}
            pids |= {f"engine {i}": pid for i, pid in enumerate(children(process.pid))}

            def load(rate: float, requests: int, seed: int) -> dict[str, Any]:
                sizes = {"prompt_tokens": args.prompt_tokens, "answer_tokens": args.answer_tokens}
                wanted = ServeLoad(rate=rate, requests=requests, seed=seed, **sizes)
                told = run(url, wanted, pids=pids, model=("peer", vocab_size)).as_dict()
                return {name: told[name] for name in told if name not in UNTOLD}

            say(part="streams, first", **load(1e6, args.streams, 1))
            told = load(1e6, args.streams, 2)
            say(part="streams", **told)
            own = 0.7 * told["requests_per_second"]
            for rate in (own, args.rate) if args.rate else (own,):
                say(part="poisson", rate=rate, **load(rate, args.requests, 3))
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()


def say(**row: Any) -> None:
    rounded = {k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}
    print(json.dumps(rounded), flush=True)


def write_model(folder: Path, shape: str, vocab_size: int) -> None:
    """A config.json, and a tokenizer whose ids are words of letters."""
    config = SHAPES[shape] | COMMON | {"torch_dtype": "bfloat16"}
    # Beyond the ids that a model draws: no answer ends by itself, and none is left out as special.
    config |= {"bos_token_id": 0, "eos_token_id": vocab_size - 1}
    (folder / "config.json").write_text(json.dumps(config))
    letters = ascii_lowercase
    vocab = {word(number, letters): number for number in range(vocab_size)}
    model = {"type": "BPE", "vocab": vocab, "merges": []}
    kind = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    tokenizer = {"version": "1.0", "added_tokens": [], "model": model}
    tokenizer |= {"pre_tokenizer": kind, "decoder": kind}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"})
    )


def word(number: int, letters: str) -> str:
    """The number's name: no two share one, and a single letter is the first of them."""
    name = ""
    while True:
        number, place = divmod(number, len(letters))
        name = letters[place] + name
        if not number:
            return name
        number -= 1


def started(folder: Path, streams: int) -> tuple[subprocess.Popen[bytes], str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["--model", str(folder), "--served-model-name", "peer", "--load-format", "dummy"]
    words += ["--dtype", "bfloat16", "--max-model-len", "4096", "--max-num-seqs", str(streams)]
    words += ["--gpu-memory-utilization", "0.85", "--no-enable-prefix-caching"]
    words += ["--host", "127.0.0.1", "--port", str(port)]
    words += ["--disable-uvicorn-access-log", "--uvicorn-log-level", "warning"]
    program = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    environment = {**os.environ, **SETTINGS}
    process = subprocess.Popen([*program, *words], env=environment, stdout=sys.stderr)
    return process, f"http://127.0.0.1:{port}"


def wait_ready(process: subprocess.Popen[bytes], url: str) -> float:
    """Seconds until it answers. Raises: RuntimeError where it ends before, or never does."""
    began = time.perf_counter()
    while time.perf_counter() - began < READY_SECONDS and process.poll() is None:
        with suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            if answer.status == 200:
                return time.perf_counter() - began
        time.sleep(0.25)
    raise RuntimeError("vLLM's server was not ready: its last words stand in the standard error.")


if __name__ == "__main__":
    main()
