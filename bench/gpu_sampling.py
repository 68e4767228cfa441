"""Draws of a step on a GPU by what its rows ask for: our kernels beside the stages in torch.

    python bench/gpu_sampling.py [--rows 1 64 256] [--vocab 128256]

Milliseconds by the device's clock, and the host's for handing over. Both give the same tokens,
which is checked. Logits are those of a flat distribution and of one with few likely tokens.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any
from unittest import mock

import torch
from gpu_decode import device_seconds

from cutaway.core.request import SamplingParams
from cutaway.sampling import sampler
from cutaway.sampling.candidates import SamplerRow

SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.8},
    "top_k": {"temperature": 0.8, "top_k": 40},
    "top_p": {"temperature": 0.8, "top_p": 0.95},
    "both": {"temperature": 0.8, "top_k": 40, "top_p": 0.95},
}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--rows", nargs="*", type=int, default=[1, 64, 256])
    options.add_argument("--vocab", type=int, default=128_256)
    args = options.parse_args()
    if not torch.cuda.is_available():
        sys.exit("gpu_sampling needs an NVIDIA GPU; torch sees none here.")
    for count in args.rows:
        flat = torch.randn(count, args.vocab, device="cuda", dtype=torch.bfloat16)
        for spread, logits in (("flat", flat), ("peaked", flat * 5)):
            for name, settings in SETTINGS.items():
                params = SamplingParams(**settings)
                rows = [SamplerRow(params=params, seed=i, position=9) for i in range(count)]
                ours = measure(logits, rows)
                with mock.patch.object(sampler, "takes", lambda logits: False):
                    plain = measure(logits, rows)
                assert ours.pop("drawn") == plain.pop("drawn"), "other tokens"
                row = {"rows": count, "logits": spread, "asks": name}
                row |= ours | {f"torch_{key}": value for key, value in plain.items()}
                print(json.dumps(row), flush=True)


def measure(logits: torch.Tensor, rows: list[SamplerRow]) -> dict[str, Any]:
    drawn = sampler.sample_plain(logits, rows)
    device = device_seconds(lambda: sampler.begin_plain(logits, rows), 10)
    began = time.perf_counter()
    sampler.begin_plain(logits, rows)
    handed = time.perf_counter() - began
    torch.cuda.synchronize()
    return {"ms": round(device * 1e3, 3), "host_ms": round(handed * 1e3, 3), "drawn": drawn}


if __name__ == "__main__":
    main()
