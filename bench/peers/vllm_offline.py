"""vLLM on the requests of bench/gpu_decode.py: nano-vllm's set, decode steps, prompts.

    python bench/peers/vllm_offline.py --shape qwen3-0.6b [--set] [--batches 1 64 256] [--fp8]

Weights are dummies; prefix cache off, no tokenizer, its own sampler in torch, in this process. A
decode step is the difference of two runs that differ by so many tokens, over them. It runs where
vLLM is installed, on the GPU and in the environment that the figures of Cutaway come from.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")

sys.path.insert(0, str(Path(__file__).parents[1]))
from gpu_shapes import COMMON, SHAPES, nano_requests


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--shape", choices=list(SHAPES), default="qwen3-0.6b")
    options.add_argument("--set", action="store_true", help="nano-vllm's 256 requests, twice")
    options.add_argument("--batches", nargs="*", type=int, default=[])
    options.add_argument("--prompts", action="store_true", help="1 x 4088 and 16 x 1024")
    options.add_argument("--context", type=int, default=1024)
    options.add_argument("--new", type=int, default=64)
    options.add_argument("--fp8", action="store_true", help="weights and keys and values in fp8")
    options.add_argument("--invariant", action="store_true", help="its own batch-invariant mode")
    args = options.parse_args()
    if args.invariant:
        os.environ["VLLM_BATCH_INVARIANT"] = "1"
    import torch
    import vllm

    llm, seconds = _started(args.shape, is_fp8=args.fp8)
    head = {
        "peer": f"vllm {vllm.__version__}",
        "card": torch.cuda.get_device_name(0),
        "shape": args.shape,
        "fp8": args.fp8,
        "invariant": args.invariant,
    }
    say(**head, start_seconds=seconds)
    run(llm, [[1] * 16] * 4, [8] * 4)
    if args.set:
        prompts, lengths = nano_requests()
        for name in ("first", "set"):
            seconds = run(llm, prompts, lengths)
            say(**head, run=name, seconds=seconds, tokens_s=sum(lengths) / seconds)
    chance = random.Random(1)
    if args.prompts:
        for count, length in ((1, 4088), (16, 1024)):
            drawn = [_ids(chance, length) for _ in range(count)]
            best = min(run(llm, drawn, [1] * count) for _ in range(3))
            say(**head, prompts=[count, length], prefill_tokens_s=count * length / best)
    for batch in args.batches:
        drawn = [_ids(chance, args.context - args.new // 2) for _ in range(batch)]
        short = min(run(llm, drawn, [2] * batch) for _ in range(2))
        long = min(run(llm, drawn, [2 + args.new] * batch) for _ in range(2))
        say(**head, batch=batch, context=args.context, step_ms=(long - short) / args.new * 1e3)


def _started(shape: str, *, is_fp8: bool) -> tuple[Any, float]:
    from vllm import LLM

    folder = Path(tempfile.mkdtemp())
    config = SHAPES[shape] | COMMON | {"torch_dtype": "bfloat16", "bos_token_id": 1}
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": 2}))
    began = time.perf_counter()
    llm = LLM(
        model=str(folder),
        load_format="dummy",
        skip_tokenizer_init=True,
        dtype="bfloat16",
        max_model_len=4096,
        max_num_seqs=256,
        gpu_memory_utilization=0.85,
        enable_prefix_caching=False,
        quantization="fp8" if is_fp8 else None,
        kv_cache_dtype="fp8" if is_fp8 else "auto",
        seed=0,
    )
    return llm, time.perf_counter() - began


def run(llm: Any, prompts: list[list[int]], lengths: list[int]) -> float:
    """Seconds of the requests together, greedy, each of exactly so many tokens."""
    from vllm import SamplingParams

    settings = [
        SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=length, detokenize=False)
        for length in lengths
    ]
    began = time.perf_counter()
    answers = llm.generate([{"prompt_token_ids": ids} for ids in prompts], settings, use_tqdm=False)
    seconds = time.perf_counter() - began
    assert [len(each.outputs[0].token_ids) for each in answers] == lengths, "an answer is short"
    return seconds


def _ids(chance: random.Random, count: int) -> list[int]:
    return [chance.randint(10, 10000) for _ in range(count)]


def say(**row: Any) -> None:
    print(json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
    os._exit(0)  # its threads do not all end
