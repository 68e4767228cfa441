"""KL divergence and perplexity of auto and of llama.cpp against float32, on one file and text.

    python bench/quality.py [--model smollm2] [--chunks 20] [--llama-python PATH]
    python bench/quality.py --kv-dtype int8 --kv-dtype bfloat16

The text is the beginning of Austen's novels (`make oracles` fetches them), cut into chunks of 512
tokens, each read from an empty cache; every token but a chunk's first counts. llama.cpp runs with
its defaults in an interpreter that has llama-cpp-python; without one it is left out. Each
--kv-dtype adds auto over a cache of that dtype.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy
import torch
from torch import Tensor

from cutaway.bench.quality import CHUNK, Judged, PromptLogits
from cutaway.weights.find.find import find


def llama_logits(python: str, path: Path, chunks: list[list[int]]) -> Iterator[Tensor]:
    """The same of llama.cpp, a chunk at a time."""
    with tempfile.NamedTemporaryFile() as file:
        script = str(Path(__file__).with_name("quality_llama_cpp.py"))
        process = subprocess.Popen(
            [python, script, str(path), file.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdin and process.stdout
        for chunk in chunks:
            process.stdin.write(" ".join(map(str, chunk)) + "\n")
            process.stdin.flush()
            vocab_size = int(process.stdout.readline())
            rows = numpy.fromfile(file.name, numpy.float32).reshape(len(chunk), vocab_size)
            yield torch.from_numpy(rows)
        process.communicate()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--model", default="smollm2")
    options.add_argument("--chunks", type=int, default=20)
    options.add_argument("--llama-python", default=sys.executable)
    options.add_argument("--kv-dtype", action="append", default=[], help="of a further cache")
    options.add_argument("--text", type=Path, help="another text, UTF-8")
    args = options.parse_args()
    text = args.text.read_text(encoding="utf-8") if args.text else _austen()
    fastest, truth = PromptLogits(args.model), PromptLogits(args.model, dtype="float32")
    chunks = fastest.chunks(text, args.chunks * CHUNK)
    has_llama = not subprocess.run(
        [args.llama_python, "-c", "import llama_cpp"], capture_output=True, check=False
    ).returncode
    llama = llama_logits(args.llama_python, find(args.model).path, chunks) if has_llama else None
    narrow = {f"auto, {each}": PromptLogits(args.model, kv_dtype=each) for each in args.kv_dtype}
    engines = {"auto": fastest, **narrow}
    names = ("float32", *engines, *(["llama.cpp"] if llama else []))
    sides = {name: Judged() for name in names}
    for chunk in chunks:
        exact = truth.of(chunk)
        sides["float32"].add(exact, exact, chunk)
        for name, engine in engines.items():
            sides[name].add(engine.of(chunk), exact, chunk)
        if llama:
            sides["llama.cpp"].add(next(llama), exact, chunk)
    print(f"{args.model}, {sides['auto'].count:,} tokens")
    for name, judged in sides.items():
        print(f"{name:15} {judged}")
    if llama:
        next(llama, None)
        ratio = sides["auto"].kl / sides["llama.cpp"].kl
        print(f"KL of auto is {ratio:.2f} of llama.cpp's")


def _austen() -> str:
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    from oracles import prose

    return prose("austen")


if __name__ == "__main__":
    main()
