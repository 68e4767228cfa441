"""Hugging Face transformers, float32, eager.

run_transformers.py MODEL THREADS
"""

# pyright: basic

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

import torch
import transformers
from question_loop import answers, serve, token_ids


class Transformers:
    def __init__(self, model: str, threads: int) -> None:
        torch.set_num_threads(threads)
        transformers.logging.set_verbosity_error()
        path = Path(model)
        self._model = transformers.AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=torch.float32
        ).eval()
        self._prompts: dict[tuple[int, int], tuple[object, torch.Tensor]] = {}
        self.versions = f"transformers {transformers.__version__}, torch {torch.__version__}"

    @torch.inference_mode()
    def prefill(self, tokens: int) -> float:
        """Seconds to compute a prompt and the logits of its last token."""
        ids = torch.tensor([token_ids(tokens)])
        began = time.perf_counter()
        self._model(ids, use_cache=True, logits_to_keep=1)
        return time.perf_counter() - began

    @torch.inference_mode()
    def decode(self, context: int, sequences: int, steps: int) -> float:
        """Median seconds per step, the most likely token fed back."""
        cache = transformers.DynamicCache()
        ids = torch.tensor([token_ids(context, seed=-1 - i) for i in range(sequences)])
        token = self._model(ids, past_key_values=cache, logits_to_keep=1).logits[:, -1:].argmax(-1)
        times = []
        for _ in range(steps):
            began = time.perf_counter()
            token = self._model(token, past_key_values=cache).logits[:, -1:].argmax(-1)
            times.append(time.perf_counter() - began)
        return statistics.median(times)


if __name__ == "__main__":
    kept = answers()
    serve(Transformers(sys.argv[1], int(sys.argv[2])), kept)
