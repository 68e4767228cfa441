"""OpenVINO GenAI reading the GGUF file.

    run_openvino.py MODEL THREADS

One sequence: its own measure of the time per token. Many: a continuous batching pipeline, as the
difference of a long and a short run, with its prefix cache on.
"""

# pyright: basic

from __future__ import annotations

import sys
import time

import numpy as np
import openvino as ov
import openvino_genai as api
from question_loop import answers, serve, token_ids


class OpenVino:
    def __init__(self, model: str, threads: int) -> None:
        self._options = {"INFERENCE_NUM_THREADS": threads}
        self._model = model
        self._single = api.LLMPipeline(model, "CPU", **self._options)
        self._many = None
        self._num_prompts = 0
        self.versions = f"openvino-genai {api.__version__}"

    def prefill(self, tokens: int) -> float:
        """Seconds to compute a new prompt and its first token."""
        self._num_prompts += 1  # never the same one twice: it would be found in a cache
        prompt = _tensor(tokens, self._num_prompts)
        began = time.perf_counter()
        self._single.generate(prompt, _config(1))
        return time.perf_counter() - began

    def decode(self, context: int, sequences: int, steps: int) -> float:
        """Mean seconds per step, from the pipeline itself or from two runs of different length."""
        if sequences == 1:
            done = self._single.generate(_tensor(context, 0), _config(steps + 1))
            return done.perf_metrics.get_tpot().mean / 1e3
        if self._many is None:
            scheduler = api.SchedulerConfig()
            scheduler.cache_size, scheduler.max_num_batched_tokens = 2, 8192
            scheduler.max_num_seqs, scheduler.enable_prefix_caching = 64, True
            self._many = api.ContinuousBatchingPipeline(
                self._model, scheduler, "CPU", self._options
            )
        short, long = (self._run_many(context, sequences, n) for n in (1, steps + 1))
        return (long - short) / steps

    def _run_many(self, context: int, sequences: int, new_tokens: int) -> float:
        prompts = [_tensor(context, i) for i in range(sequences)]
        began = time.perf_counter()
        self._many.generate(prompts, [_config(new_tokens)] * sequences)
        return time.perf_counter() - began


def _tensor(count: int, seed: int):
    return ov.Tensor(np.array([token_ids(count, seed)], dtype=np.int64))


def _config(new_tokens: int):
    config = api.GenerationConfig()
    config.max_new_tokens = config.min_new_tokens = new_tokens
    config.do_sample, config.ignore_eos = False, True
    return config


if __name__ == "__main__":
    kept = answers()
    serve(OpenVino(sys.argv[1], int(sys.argv[2])), kept)
