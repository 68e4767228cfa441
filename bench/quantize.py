"""Measures what each scheme changes: perplexity and divergence from the unrounded model.

    python bench/quantize.py [--model smollm2] [--chunks 8] [--scheme int4 ...] [--calibrate]

Each scheme is judged in float32, so that rounded weights are all that differs, on the beginning of
Austen's novels (`make oracles` fetches them), cut into chunks of 512 tokens. With --calibrate the
integers are also rounded by what the end of that text is like (GPTQ), and read from a new file.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from cutaway.bench.quality import CHUNK, Judged, PromptLogits
from cutaway.engine.loading.requantize import requantize
from cutaway.quantize.schemes import scheme_of
from cutaway.weights.find.find import find

SCHEMES = ("int8", "int4", "int4-sym", "int4-g64", "int4-sym-g64", "fp8")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--model", default="smollm2")
    options.add_argument("--chunks", type=int, default=8)
    options.add_argument("--scheme", nargs="*", default=SCHEMES)
    options.add_argument("--calibrate", action="store_true")
    options.add_argument("--text", type=Path, help="another text, UTF-8")
    args = options.parse_args()
    text = args.text.read_text(encoding="utf-8") if args.text else _austen()
    truth = PromptLogits(args.model, dtype="float32")
    chunks = truth.chunks(text, args.chunks * CHUNK)
    calibration = truth.chunks(text[-128 * CHUNK :], 16 * CHUNK)
    sides = {name: Judged() for name in ("unrounded", *args.scheme)}
    with tempfile.TemporaryDirectory() as folder:
        made = {name: PromptLogits(args.model, dtype="float32", quant=name) for name in args.scheme}
        if args.calibrate:
            for name in args.scheme:
                out = Path(folder) / f"{name}.gguf"
                requantize(find(args.model), scheme_of(name), out, calibration=calibration)
                made[f"{name}, calibrated"] = PromptLogits(str(out), dtype="float32")
                sides[f"{name}, calibrated"] = Judged()
        for chunk in chunks:
            exact = truth.of(chunk)
            sides["unrounded"].add(exact, exact, chunk)
            for name, model in made.items():
                sides[name].add(model.of(chunk), exact, chunk)
    print(f"{args.model}, {sides['unrounded'].count:,} tokens, baseline: the same in float32")
    for name, judged in sides.items():
        print(f"{name:22} {judged}", flush=True)


def _austen() -> str:
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    from oracles import prose

    return prose("austen")


if __name__ == "__main__":
    main()
