"""Answers sampled for training: our engine on the trained tensors, and transformers' generate.

The same folder, the same prompts, one temperature, no cuts; rounds take turns. transformers gets
its prompts padded on the left, as TRL does it.

    python bench/train_rollouts.py --model runs/preferences/sft/model --tasks data/tasks.jsonl
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from cutaway.engine.loading.template_of import compiled_template, folder_template
from cutaway.tokens.files.tokenizer_files import load_folder
from cutaway.train.model.model_folder import open_model
from cutaway.train.rollouts.rewards import read_tasks
from cutaway.train.rollouts.rollouts import Rollouts, RolloutSettings
from cutaway.train.rollouts.rounds import load_trained


def ours(
    folder: Path, prompts: list[tuple[int, ...]], max_tokens: int, device: str
) -> Callable[[int], int]:
    """What samples a round by our engine, and gives its number of tokens."""
    settings = RolloutSettings(temperature=0.7, max_tokens=max_tokens, at_once=len(prompts))
    model = load_trained(open_model(str(folder), device=device), folder)
    rollouts = Rollouts(model, settings, longest=max(map(len, prompts)))
    return lambda round_: sum(
        len(each.answer) for each in rollouts.sample(prompts, seed=0, round_=round_)
    )


def theirs(
    folder: Path, prompts: list[tuple[int, ...]], max_tokens: int, device: str
) -> Callable[[int], int]:
    """The same by transformers' generate."""
    import transformers

    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model = model.to(device).eval()
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts]).to(
        device
    )
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]).to(
        device
    )
    end = int(model.config.eos_token_id)

    def sample(round_: int) -> int:
        torch.manual_seed(round_)
        with torch.no_grad():
            found = model.generate(
                input_ids=ids,
                attention_mask=mask,
                do_sample=True,
                temperature=0.7,
                top_k=0,
                top_p=1.0,
                max_new_tokens=max_tokens,
                eos_token_id=end,
                pad_token_id=end,
            )
        rows = found[:, width:].tolist()
        return sum(row.index(end) + 1 if end in row else len(row) for row in rows)

    return sample


def profile(sample: Callable[[int], int]) -> None:
    """Print where the host's time of a round goes, and how long the device works."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiling

    seen = cProfile.Profile()
    seen.runcall(sample, 99)
    pstats.Stats(seen).sort_stats("tottime").print_stats(25)
    if torch.cuda.is_available():
        with profiling(activities=[ProfilerActivity.CUDA]) as watched:
            began = time.perf_counter()
            sample(100)
            took = time.perf_counter() - began
        averages = watched.key_averages()
        busy = sum(each.self_device_time_total for each in averages) / 1e6
        print(f"the device works {busy:.3f} of {took:.3f} s")
        table = averages.table(sort_by="self_cuda_time_total", row_limit=12)
        print("\n".join(line[:70] + line[-60:] for line in table.splitlines()))


def main() -> None:
    """Take turns, and print tokens per second and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--tasks", type=Path, required=True)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    tokenizer = load_folder(arguments.model)
    template = compiled_template(
        folder_template(arguments.model), name="model", tokenizer=tokenizer
    )
    tasks = read_tasks([arguments.tasks], template, tokenizer).tasks[: arguments.prompts]
    prompts = [task.token_ids for task in tasks]
    sides = {
        "ours": ours(arguments.model, prompts, arguments.max_tokens, arguments.device),
        "transformers": theirs(arguments.model, prompts, arguments.max_tokens, arguments.device),
    }
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for round_ in range(arguments.rounds + 1):
        for name, sample in sides.items():
            began = time.perf_counter()
            count = sample(round_)
            if round_:  # the first warms up
                rates[name].append(count / (time.perf_counter() - began))
    medians = {name: statistics.median(each) for name, each in rates.items()}
    ratios = [a / b for a, b in zip(rates["ours"], rates["transformers"], strict=True)]
    print(f"| {len(prompts)} prompts, at most {arguments.max_tokens} tokens | tokens/s |")
    print("|---|---|")
    for name, rate in medians.items():
        print(f"| {name} | {rate:,.0f} |")
    print(f"| ratio, median of {len(ratios)} rounds | {statistics.median(ratios):.2f} |")
    if arguments.profile:
        profile(sides["ours"])


if __name__ == "__main__":
    main()
