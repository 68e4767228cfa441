"""Instructions that idle taps cost the native call of a captured step, counted by callgrind.

    CUTAWAY_ISA=avx2 python bench/taps_callgrind.py

Runs itself under valgrind, which must be installed with its headers and a C compiler. A decode step
of a random model is recorded as it is served, without any tap in the source, and as for a look,
whose taps nobody reads, or somebody. What is counted lies between the call of cw_program_run and
its return, on one thread: the fewest of four recordings, since where buffers lie decides over two
instructions more or less. The last line is a control: the count moves where work does.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest import mock

# Stands between Python and the native call. Valgrind reads the orders; elsewhere they do nothing.
SHIM = """
#include <valgrind/callgrind.h>
typedef int (*call)(void *program, const void *step);
int counted(call inner, void *program, const void *step, const char *label) {
    CALLGRIND_START_INSTRUMENTATION;
    CALLGRIND_ZERO_STATS;
    int status = inner(program, step);
    CALLGRIND_DUMP_STATS_AT(label);
    CALLGRIND_STOP_INSTRUMENTATION;
    return status;
}
"""
RECORDINGS = 4
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 320,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "bos_token_id": 0,
    "eos_token_id": 1,
}


def main() -> int:
    """Count, print, and say by the exit status whether all are equal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside is not None:
        inside(given.inside)
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
        (folder / "shim.c").write_text(SHIM, encoding="utf-8")
        compiler = [os.environ.get("CC", "cc"), "-shared", "-fPIC", "-O1"]
        subprocess.run([*compiler, "-o", folder / "shim.so", folder / "shim.c"], check=True)
        counts = counted(folder)
    served = counts["served"]
    print(f"instructions in one native call, CUTAWAY_ISA={os.environ.get('CUTAWAY_ISA', 'best')}")
    for label, count in counts.items():
        print(f"{WORDS[label]:<58}{count:>12,}{count - served:>+10,}")
    is_equal = all(counts[label] == served for label in ("removed", "ready", "read"))
    print("idle taps add nothing" if is_equal else "THE COUNTS DIFFER")
    return 0 if is_equal and counts["control"] > served > 0 else 1


WORDS = {
    "served": "as served: taps in the source, nobody reads",
    "removed": "the same model without a tap in its source",
    "ready": "recorded for a look, taps ready, nobody reads",
    "read": "recorded for a look, and every tap read after the call",
    "control": "control: as served, one token more in the context",
}


def counted(folder: Path) -> dict[str, int]:
    """Instructions by label, as valgrind tells them."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    command = [
        *("valgrind", "--tool=callgrind", "--instr-atstart=no"),
        f"--callgrind-out-file={folder}/out.%p",
        *(sys.executable, __file__, "--inside", str(folder)),
    ]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    if ran.returncode:
        sys.exit(f"valgrind ended with {ran.returncode}:\n{ran.stdout}{ran.stderr[-4000:]}")
    counts: dict[str, list[int]] = {}
    for path in folder.glob("out.*"):
        text = path.read_text(encoding="utf-8", errors="replace")
        trigger = re.search(r"^desc: Trigger: Client Request: (\w+)$", text, re.MULTILINE)
        total = re.search(r"^(?:totals|summary): (\d+)", text, re.MULTILINE)
        if trigger and total:
            counts.setdefault(trigger[1], []).append(int(total[1]))
    assert all(len(counts[label]) == RECORDINGS for label in WORDS), "every call was counted"
    return {label: min(counts[label]) for label in WORDS}


def inside(folder: Path) -> None:
    """Under valgrind: record a decode step in every way, and run each between two orders."""
    from cutaway import LLM
    from cutaway.core.request import Request, SamplingParams
    from cutaway.core.step import Step
    from cutaway.engine.native import NativeSteps
    from cutaway.kernels.capture import set_num_threads
    from cutaway.kernels.native.library import library

    shim = ctypes.CDLL(str(folder / "shim.so"))
    native = library()
    inner = ctypes.cast(native.cw_program_run, ctypes.c_void_p)
    engine = LLM(f"random:{folder}/config.json", dtype="auto", cache_tokens=256).engine
    set_num_threads(1)

    def decode_steps(count: int) -> list[Step]:
        """The engine's own steps behind the prompt, as its runner got them."""
        seen: list[Step] = []
        run = engine.runner.run
        with mock.patch.object(
            engine.runner, "run", lambda batch, _: (seen.append(batch.step), run(batch))[1]
        ):
            params = SamplingParams(max_tokens=count + 1, temperature=0.0, ignore_eos=True)
            engine.add(Request(request_id="r", prompt_token_ids=tuple(range(2, 42)), params=params))
            while engine.has_work:
                engine.step()
        return seen[1:]

    def recorded(*, keeps: bool = False) -> NativeSteps:
        pool = engine.runner.pool.layers
        model = engine.model.transformer
        return NativeSteps(model, pool, num_tokens=64, max_length=256, keeps=keeps)

    def count(label: str, run: Callable[[], object]) -> None:
        def through(program: object, step: object) -> int:
            return shim.counted(inner, ctypes.c_void_p(program), step, label.encode())

        run()  # what is done once is done
        with mock.patch.object(native, "cw_program_run", through):
            run()

    step, longer = decode_steps(2)
    values: list[object] = []
    watched = replace(step, sink=lambda name, value, layer: values.append(value))
    kept: list[NativeSteps] = []  # so that no recording lies where another lay
    for _ in range(RECORDINGS):
        served, ready = recorded(), recorded(keeps=True)
        with mock.patch.object(Step, "tap", _value):
            removed = recorded()
        kept += [served, ready, removed]
        count("served", partial(served.run, step))
        count("removed", partial(removed.run, step))
        count("ready", partial(ready.run, step))
        count("read", partial(ready.run, watched))
        count("control", partial(served.run, longer))
    assert values, "the taps were read"


def _value(_: object, name: str, value: object, layer: int | None = None) -> object:
    """In the place of a tap."""
    del name, layer
    return value


if __name__ == "__main__":
    sys.exit(main())
