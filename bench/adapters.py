"""What an adapter costs of decode: the same engine with and without it, in turn.

    python bench/adapters.py [--model smollm2] [--rank 8] [--tokens 48] [--rounds 12]

A random adapter on every linear map of the blocks, in float16, as files have it. Each round decodes
the same prompts without and with it; printed are medians and quartiles of the rounds' ratios. One
thread computes, and its own time is counted, so that other work on the machine counts little.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from statistics import median, quantiles
from time import thread_time

import torch

from cutaway import LLM
from cutaway.bench.form import form_of
from cutaway.core.request import Request, SamplingParams
from cutaway.engine.loading.text_side import Opening
from cutaway.engine.loading.unloaded_model import open_gguf
from cutaway.kernels import capture
from cutaway.weights.adapter import CONFIG, TENSORS, places
from cutaway.weights.files.safetensors_writer import write_safetensors
from cutaway.weights.find.find import find


def write_random(folder: Path, model: str, rank: int) -> None:
    """A folder in peft's layout."""
    opening = Opening(find(model))
    targets = open_gguf(opening.file()).architecture.targets("hf")
    generator = torch.Generator().manual_seed(0)
    tensors: dict[str, torch.Tensor] = {}
    for place in places(targets):
        rows, columns = targets[f"{place.module}.weight"].shape
        front = f"base_model.model.{place.module}"
        for part, shape in (("A", (rank, columns)), ("B", (rows, rank))):
            drawn = torch.randn(*shape, generator=generator) * 0.01
            tensors[f"{front}.lora_{part}.weight"] = drawn.half()
    write_safetensors(folder / TENSORS, tensors)
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank}
    (folder / CONFIG).write_text(json.dumps(config))


def seconds(llm: LLM, count: int, tokens: int, lora: str) -> float:
    """Of decode steps: from the step after the last first token to the end."""
    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    engine = llm.engine
    for number in range(count):
        prompt = tuple(range(40 + number, 60 + number))
        engine.add(
            Request(request_id=f"{number}", prompt_token_ids=prompt, params=params, lora=lora)
        )
    started: set[str] = set()
    while len(started) < count:
        started.update(delta.request_id for delta in engine.step() if delta.token_ids)
    began = thread_time()
    while engine.has_work:
        engine.step()
    return thread_time() - began


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--model", default="smollm2")
    options.add_argument("--rank", type=int, default=8)
    options.add_argument("--tokens", type=int, default=48)
    options.add_argument("--rounds", type=int, default=12)
    args = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_random(Path(folder), args.model, args.rank)
        llm = LLM(args.model, lora=(f"random={folder}",), cache_tokens=16384)
    capture.set_num_threads(1)
    print(f"{args.model}, rank {args.rank}, load {os.getloadavg()[0]:.1f}, {form_of(llm.engine)}")
    print("| answers at once | ratio with / without, median | quartiles | ms a step without |")
    print("|---|---|---|---|")
    for count in (1, 8):
        ratios: list[float] = []
        bare: list[float] = []
        for number in range(args.rounds):
            pair = {}
            for lora in ("off", "random") if number % 2 else ("random", "off"):
                pair[lora] = seconds(llm, count, args.tokens, lora)
            ratios.append(pair["random"] / pair["off"])
            bare.append(pair["off"] / (args.tokens - 1))
        low, _, high = quantiles(ratios)
        ms = median(bare) * 1000
        print(
            f"| {count} | {median(ratios):.3f} | {low:.3f} to {high:.3f} | {ms:.1f} |", flush=True
        )


if __name__ == "__main__":
    main()
