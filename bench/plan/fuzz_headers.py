"""Coverage-guided mutants of GGUF and safetensors headers: read, or refused by name, nothing else.

    pip install atheris==3.0.0        no part of Cutaway's own tools: its wheels end at Python 3.11
    python bench/plan/fuzz_headers.py gguf|safetensors --runs 1000000

An exception that is not documented, an input that takes longer than a second, or memory above 512
MiB ends it with status 1, and the input is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

# Words that mutants are made with, beside bytes: libFuzzer finds the rest by the numbers compared.
WORDS = {
    "gguf": [b"general.alignment", *(bytes([n, 0, 0, 0]) for n in range(13)), b"\xff" * 8],
    "safetensors": [
        *(b'"dtype":', b'"shape":', b'"data_offsets":', b'"__metadata__":', b'"F32"', b'"I8"'),
        *(b'"F4"', b'"BOOL"', b'"k":', b"[]", b"{}", b"[0,4]", b"[4,8]", b"[1,2]", b"null", b"1e3"),
        *(b"true", b"-1", b"18446744073709551616", b'"\\u0000"', b'"\\ud800"', b",", b"[0,0]"),
    ],
}
ROOT = Path(__file__).resolve().parents[2]
MOST_BYTES = 4096
MODULES = {
    "gguf": ["cutaway.host.gguf_file", "cutaway.host.gguf_header", "cutaway.core.gguf_types"],
    "safetensors": ["cutaway.weights.files.safetensors_header"],
}


def seeds(kind: str, folder: Path) -> None:
    """Sound files and those that the tests know to lie, as what mutants are made of."""
    sys.path.insert(0, str(ROOT / "tests"))
    if kind == "gguf":
        sys.path.insert(0, str(ROOT / "tests" / "core"))
        from test_core_gguf import LIES

        import gguf_bytes

        files = [gguf_bytes.small_valid(), *(raw for raw, _, _ in LIES.values())]
    else:
        sys.path.insert(0, str(ROOT / "tests" / "weights"))
        from test_weights_safetensors import LIES, SMALL

        whole = [SMALL, *(raw for raw, _, _ in LIES.values())]
        texts = [raw[8:].partition(b"}}")[0] + b"}}" for raw in whole if b"}}" in raw]
        files = [b"\0" + raw for raw in whole] + [bytes([33]) + text for text in texts]
    for number, raw in enumerate(each for each in files if len(each) <= MOST_BYTES):
        (folder / f"{number:04d}").write_bytes(raw)


def file_of(kind: str, raw: bytes) -> bytes:
    """The file that an input stands for.

    A header that lies about its length is refused before it is read, and few mutants do not lie. So
    the first byte of a safetensors input, where it is not 0, says how many bytes of data follow a
    header whose length is made to be right.
    """
    if kind == "gguf" or not raw or raw[0] == 0:
        return raw if kind == "gguf" else raw[1:]
    return struct.pack("<Q", len(raw) - 1) + raw[1:] + bytes(raw[0] - 1)


def fuzz(kind: str, words: list[str]) -> None:
    """Run libFuzzer in this process; it ends the process."""
    import atheris

    with atheris.instrument_imports(include=MODULES[kind]):
        from cutaway.core.errors import ModelFormatError, UnsupportedModelError
        from cutaway.host import gguf_file
        from cutaway.weights.files import safetensors_header

    shared = Path("/dev/shm")
    path = (shared if shared.is_dir() else Path(tempfile.gettempdir())) / f"plan-{os.getpid()}"

    def one(raw: bytes) -> None:
        path.unlink(missing_ok=True)  # a file that is overwritten is flushed to disk
        whole = file_of(kind, raw)
        path.write_bytes(whole)
        try:
            if kind == "gguf":
                file = gguf_file.read(path)
                assert all(len(file.data(n)) == t.num_bytes for n, t in file.tensors.items())
            else:
                tensors = safetensors_header.read_header(path).values()
                assert all(t.offset + t.num_bytes <= len(whole) for t in tensors)
        except ModelFormatError as error:
            assert error.file, "an error without the file's name"
        except UnsupportedModelError:
            pass

    atheris.Setup([sys.argv[0], *words], one)
    atheris.Fuzz()


def run(kind: str, num_runs: int, seed: int) -> int:
    """Fuzz in a process of its own, whose last words tell how many runs there were."""
    with tempfile.TemporaryDirectory(prefix="cutaway-plan-") as folder:
        corpus = Path(folder) / "corpus"
        corpus.mkdir()
        seeds(kind, corpus)
        escaped = ("".join(f"\\x{byte:02x}" for byte in word) for word in WORDS[kind])
        (Path(folder) / "words").write_text("".join(f'"{word}"\n' for word in escaped))
        words = [f"-runs={num_runs}", f"-seed={seed}", "-timeout=1", "-rss_limit_mb=512"]
        words += [f"-max_len={MOST_BYTES}", "-print_final_stats=1", "-dict=words"]
        words += ["-use_value_profile=1", str(corpus)]
        done = subprocess.run(
            [sys.executable, __file__, kind, "--inside", *words],
            cwd=folder, capture_output=True, text=True, errors="replace", check=False,
        )  # fmt: skip
        num_inputs = len(list(corpus.iterdir()))
    found = re.search(r"stat::number_of_executed_units:\s*(\d+)", done.stderr)
    memory = re.search(r"stat::peak_rss_mb:\s*(\d+)", done.stderr)
    if done.returncode or not found or not memory:
        print(done.stdout[-2000:], done.stderr[-4000:], sep="\n")
        return 1
    count = int(found[1])
    figures = {"peak_rss_MiB": int(memory[1]), "inputs_of_the_corpus": num_inputs}
    print(f"{kind}: {count} runs", figures)
    if log := os.environ.get("PLAN_LOG"):
        said = {"count": count, "figures": figures}
        Path(log).write_text(json.dumps(said) + "\n", encoding="utf-8")
    return 0


def main() -> int:
    if "--inside" in sys.argv:
        fuzz(sys.argv[1], sys.argv[3:])
        return 0
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=MODULES)
    parser.add_argument("--runs", type=int, default=int(os.environ.get("PLAN_TRIALS", 100_000)))
    parser.add_argument("--seed", type=int, default=int(os.environ.get("PLAN_SEED", 1)))
    args = parser.parse_args()
    return run(args.kind, args.runs, args.seed)


if __name__ == "__main__":
    sys.exit(main())
