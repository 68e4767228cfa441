"""What a trace of a long answer takes: bytes of the file, and seconds to open it without a model.

python bench/trace.py [--model smollm2] [--tokens 2000] [--views tokens,timeline,pages,cost]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from time import perf_counter, process_time

from cutaway import LLM
from cutaway.bench.form import form_of
from cutaway.core.request import SamplingParams
from cutaway.replay.look import Look
from cutaway.replay.trace_file import save_trace
from cutaway.views import VIEWS, view_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--views", help="all, unless some are named")
    given = parser.parse_args()
    llm = LLM(given.model)
    print(form_of(llm.engine))
    params = SamplingParams(max_tokens=given.tokens, ignore_eos=True, seed=0)
    llm.generate("Once upon a time", params)
    ledger = llm.engine.ledger
    assert ledger is not None
    answer = list(ledger.answers)[-1]
    views = VIEWS if given.views is None else tuple(map(view_of, given.views.split(",")))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "long.cutaway"
        began, worked = perf_counter(), process_time()
        trace = save_trace(Look(llm.engine, answer), path, views)
        took = f"{perf_counter() - began:.1f} s, {process_time() - worked:.1f} s of computing"
        num_places = sum(1 + len(view.places) for view in trace.views)
        print(f"saved in {took}: {len(trace.views)} views at {num_places:,} places")
        print(f"{len(answer.tokens)} tokens: {path.stat().st_size / 1e6:.2f} MB", flush=True)
        with zipfile.ZipFile(path) as opened:
            for entry in sorted(opened.infolist(), key=lambda each: -each.compress_size)[:8]:
                print(f"{entry.compress_size:9,} of {entry.file_size:10,}  {entry.filename}")
        program = "from cutaway.cli.main import main; main()"
        began = perf_counter()
        subprocess.run(
            [sys.executable, "-c", program, "trace", "open", str(path), "--view", "cost"],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        print(f"opened by a new process in {perf_counter() - began:.2f} s")


if __name__ == "__main__":
    main()
