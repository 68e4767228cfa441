"""Milliseconds to sample a step, by vocabulary, rows and settings; and the accuracy of the weights.

Logits fall with the 1.7th power of the rank, in random order: the top token has about half of the
mass and 90 % lie in 30 tokens, as in a model that knows its text. "flat" has normal logits of
deviation 1, where top_p keeps most of the vocabulary.

    python bench/sampling.py [--device cuda] [--plain]
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time

import torch
from torch import Tensor

from cutaway.core.request import SamplingParams
from cutaway.host import processor
from cutaway.sampling.candidates import Candidates, SamplerRow
from cutaway.sampling.integer_weights import (
    LEAST_EXPONENT,
    LOG2_E,
    exponential,
    log_of_total,
    total_exponential,
)
from cutaway.sampling.sampler import Sampler, sample_plain

SETTINGS: dict[str, SamplingParams] = {
    "greedy": SamplingParams(temperature=0.0),
    "plain": SamplingParams(),
    "temperature": SamplingParams(temperature=0.7),
    "min_p": SamplingParams(temperature=0.7, min_p=0.05),
    "top_k": SamplingParams(temperature=0.7, top_k=50),
    "top_p": SamplingParams(temperature=0.7, top_p=0.9),
    "top_k and top_p": SamplingParams(temperature=0.7, top_k=50, top_p=0.9),
    "top_p, flat": SamplingParams(top_p=0.9),
    "penalties": SamplingParams(temperature=0.0, repetition_penalty=1.1, frequency_penalty=0.1),
    "20 logprobs": SamplingParams(temperature=0.0, logprobs=20),
}
VOCAB_SIZES = (49_152, 128_256)
NUM_ROWS = (1, 32)
PROMPT, OUTPUT = range(4096), range(512)  # what the penalties look at


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--plain", action="store_true", help="the stages in torch, on a CPU too")
    arguments = parser.parse_args()
    print(f"{device_name(arguments.device)}, torch {torch.__version__}")
    name = "sample_plain" if arguments.plain else "Sampler.sample"
    print(f"median (least) milliseconds of {name}, logits in float32 on the device\n")
    columns = [(size, rows) for size in VOCAB_SIZES for rows in NUM_ROWS]
    print("| settings | " + " | ".join(f"V={size} R={rows}" for size, rows in columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for name in SETTINGS:
        cells = [
            measured(name, size, rows, arguments.device, is_plain=arguments.plain)
            for size, rows in columns
        ]
        print(f"| {name} | " + " | ".join(cells) + " |")
    print()
    print_accuracy()


def device_name(device: str) -> str:
    if device != "cpu":
        return torch.cuda.get_device_name(device)
    return processor.model_name() or platform.machine()


def measured(name: str, vocab_size: int, num_rows: int, device: str, *, is_plain: bool) -> str:
    logits = (flat if name.endswith("flat") else peaked)(num_rows, vocab_size).to(device)
    params = SETTINGS[name]
    rows = [
        SamplerRow(
            params=params,
            seed=i,
            position=len(PROMPT) + len(OUTPUT),
            prompt_token_ids=PROMPT,
            output_token_ids=OUTPUT,
            num_logprobs=params.logprobs,
        )
        for i in range(num_rows)
    ]
    sample = sample_plain if is_plain else Sampler(vocab_size).sample
    times: list[float] = []
    until = time.perf_counter() + 0.4
    while len(times) < 8 or time.perf_counter() < until:
        start = time.perf_counter()
        sample(logits, rows)  # ends with a transfer, so it waits for the device
        times.append(1000 * (time.perf_counter() - start))
    return f"{statistics.median(times[3:]):.2f} ({min(times[3:]):.2f})"


def peaked(num_rows: int, vocab_size: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    by_rank = -1.7 * torch.arange(1, vocab_size + 1).log()
    orders = [torch.randperm(vocab_size, generator=generator) for _ in range(num_rows)]
    return torch.stack([by_rank[order] for order in orders])


def flat(num_rows: int, vocab_size: int) -> Tensor:
    return torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(0))


def print_accuracy() -> None:
    """Largest errors against float64."""
    exponents = torch.linspace(-60, 0, 4_000_001)[None]
    result = exponential(exponents, torch.zeros(1, 1)).double()
    product = (exponents * LOG2_E).double().clamp(min=LEAST_EXPONENT)
    polynomial = (result / product.exp2() - 1).abs()
    print(f"polynomial: relative error at most {polynomial.max():.2e}")
    relative = (result / exponents.double().exp() - 1).abs()
    for least in (-1, -10, -20):
        error = relative[exponents >= least].max()
        print(f"exponential down to e^{least}: relative error at most {error:.2e}")
    for name, logits in (("peaked", peaked(50, 128_256)), ("flat", flat(50, 128_256))):
        total = total_exponential(Candidates(logits).exponentials).tolist()
        got = torch.tensor([log_of_total(each) for each in total], dtype=torch.float64)
        expected = (logits - logits.amax(-1, keepdim=True)).double().logsumexp(-1)
        error = (got - expected).abs().max()
        print(f"logsumexp - peak, {name}, V=128256: error at most {error:.2e}")


if __name__ == "__main__":
    main()
