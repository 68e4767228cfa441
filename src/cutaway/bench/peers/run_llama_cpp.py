"""llama.cpp through llama-cpp-python's low-level API.

    run_llama_cpp.py MODEL THREADS fa|nofa

The third argument says whether flash attention is on. Sampling is not in the time. Contexts keep
their prompts between rounds.
"""

# pyright: basic

from __future__ import annotations

import statistics
import sys
import time

import llama_cpp as api
from question_loop import answers, serve, token_ids


class LlamaCpp:
    def __init__(self, model: str, threads: int, has_flash: bool) -> None:
        self._quiet = api.llama_log_callback(lambda *_: None)
        api.llama_log_set(self._quiet, None)
        api.llama_backend_init()
        params = api.llama_model_default_params()
        self._model = api.llama_model_load_from_file(model.encode(), params)
        if not self._model:
            raise SystemExit(f"llama.cpp cannot load {model}")
        self._threads, self._has_flash = threads, has_flash
        self._contexts: dict[tuple[int, int], object] = {}
        flash = "on" if has_flash else "off"
        self.versions = f"llama-cpp-python {api.__version__}, flash attention {flash}"

    def prefill(self, tokens: int) -> float:
        """Seconds to compute a prompt in an empty context."""
        context = self._context(tokens + 8, 1)
        api.llama_memory_clear(api.llama_get_memory(context), True)
        return self._compute(
            context, token_ids(tokens), list(range(tokens)), [0] * tokens, {tokens - 1}
        )

    def decode(self, context: int, sequences: int, steps: int) -> float:
        """Median seconds per step of the decoding sequences."""
        return statistics.median(self._steps(context, sequences, steps))

    def stretch(self, context: int, sequences: int, steps: int) -> float:
        """Mean seconds per step of the decoding sequences, stalls among them."""
        return statistics.fmean(self._steps(context, sequences, steps))

    def _steps(self, context: int, sequences: int, steps: int) -> list[float]:
        length = context + max(64, steps)
        is_new = (length, sequences) not in self._contexts
        made = self._context(length, sequences)
        for sequence in range(sequences):
            if is_new:
                ids = token_ids(context, seed=-1 - sequence)
                self._compute(made, ids, list(range(context)), [sequence] * context, {context - 1})
            else:
                api.llama_memory_seq_rm(api.llama_get_memory(made), sequence, context, -1)
        rows = list(range(sequences))
        times = []
        for step in range(steps):
            ids, positions = token_ids(sequences, seed=step), [context + step] * sequences
            times.append(self._compute(made, ids, positions, rows, set(rows)))
        return times

    def _context(self, length: int, sequences: int):
        key = (length, sequences)
        if key not in self._contexts:
            params = api.llama_context_default_params()
            params.n_ctx, params.n_seq_max = length * sequences, sequences
            params.n_batch, params.n_ubatch = 2048, 512
            params.n_threads = params.n_threads_batch = self._threads
            params.kv_unified = False
            # LLAMA_FLASH_ATTN_TYPE_DISABLED is 0, ENABLED is 1.
            params.flash_attn_type = int(self._has_flash)
            self._contexts[key] = api.llama_init_from_model(self._model, params)
        return self._contexts[key]

    def _compute(self, context, ids, positions, sequences, wanted) -> float:
        batch = api.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token_id in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token_id, positions[i], 1
            batch.seq_id[i][0], batch.logits[i] = sequences[i], i in wanted
        began = time.perf_counter()
        status = api.llama_decode(context, batch)
        api.llama_synchronize(context)
        seconds = time.perf_counter() - began
        api.llama_batch_free(batch)
        assert status == 0, f"llama_decode gave {status}"
        return seconds


if __name__ == "__main__":
    kept = answers()
    serve(LlamaCpp(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "fa"), kept)
