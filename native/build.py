"""Builds the native CPU kernels with the compiler at hand: native/ to one shared library.

    python native/build.py [--output FILE] [--sanitize avx2,portable]
    python native/build.py --program FILE [--machine aarch64]

Each file of isa/ is compiled for its own instruction set; which one runs is chosen when the library
is loaded, so one library serves every CPU of an architecture. --program builds check/isas.cpp, that
compares all instruction sets. CXX names the compiler. None at all: exit status 3, and Cutaway runs
on torch. Where CUTAWAY_QUICK_BUILD is set, only what this machine runs best is made to be fast.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

NATIVE = Path(__file__).resolve().parent
OUTPUT = NATIVE.parent / "src" / "cutaway" / "kernels" / "_native.so"

# Contraction is off: where products and sums are fused is written out, and the same everywhere.
FLAGS = (
    *("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-fno-math-errno"),
    *(
        "-fno-trapping-math",
        "-Wall",
        "-Wextra",
        "-Wno-psabi",
        "-Wno-maybe-uninitialized",
        "-Wno-uninitialized",
        "-pthread",
    ),
)
SANITIZERS = "-fsanitize=address,undefined"
# Lines are enough to name a fault; where variables lie takes a third of the compiler's time.
SANITIZE = (SANITIZERS, "-fno-sanitize-recover=all", "-g1", "-O1")
# What others are compared with has the same bits however it is compiled, and less to compile.
QUICKLY = ("-O1",)
REFERENCES = (NATIVE / "isa" / "portable.cpp", NATIVE / "check" / "isas.cpp")
AVX2 = ("-mavx2", "-mfma", "-mf16c")
AVX512 = (*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mprefer-vector-width=512")
ISAS = {
    "x86_64": {
        "portable": (),
        "avx2": AVX2,
        "avx512": AVX512,
        "avx512_vnni": (*AVX512, "-mavx512vnni"),
    },
    "aarch64": {"portable": (), "neon": ("-march=armv8.2-a+dotprod",)},
}
NO_COMPILER = 3


def compiler() -> str:
    """CXX, or the first C++ compiler on the path. Raises FileNotFoundError where there is none."""
    named = os.environ.get("CXX")
    for each in [named] if named else ["c++", "g++", "clang++"]:
        path = shutil.which(each)
        if path:
            return path
    raise FileNotFoundError("no C++ compiler: set CXX or install g++ or clang++")


def sources(machine: str) -> dict[Path, tuple[str, ...]]:
    """Every file to compile with its own flags."""
    isas = ISAS.get(machine, {"portable": ()})
    files = {NATIVE / "isa" / f"{name}.cpp": flags for name, flags in isas.items()}
    return files | {path: () for path in sorted((NATIVE / "runtime").glob("*.cpp"))}


def sanitized(
    files: Mapping[Path, tuple[str, ...]], isas: Collection[str]
) -> dict[Path, tuple[str, ...]]:
    """The same with sanitizers, without instruction sets that are not named: with sanitizers one
    takes minutes to compile, and where the CPU lacks it not one line of it runs."""
    return {
        path: (*own, *SANITIZE)
        for path, own in files.items()
        if path.parent.name != "isa" or path.stem in isas
    }


def sets_here(isas: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Those that this CPU has, the best last, as Linux tells it of x86; none if that is unknown."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    told = next((line for line in lines if line.startswith("flags")), None)
    if told is None:
        return []
    had = {f"-m{word}" for word in told.replace("_", "").split()}
    return [
        name for name, flags in isas.items() if {each for each in flags if "=" not in each} <= had
    ]


def quickly(
    files: Mapping[Path, tuple[str, ...]], here: Sequence[str]
) -> dict[Path, tuple[str, ...]]:
    """The same with the best set as it is, others in less time, and what cannot run in no time.

    Bits are the same.
    """

    def flags(path: Path) -> tuple[str, ...]:
        if path.parent.name != "isa" or path.stem == here[-1]:
            return ()
        return QUICKLY if path.stem in here else ("-O0",)

    return {path: (*own, *flags(path)) for path, own in files.items()}


def compiled(cxx: str, files: Mapping[Path, tuple[str, ...]], folder: Path) -> list[str]:
    """Object files of all sources, compiled in parallel."""

    def compile_one(item: tuple[Path, tuple[str, ...]]) -> str:
        path, flags = item
        made = str(folder / f"{path.parent.name}_{path.stem}.o")
        subprocess.run([cxx, *FLAGS, *flags, "-c", str(path), "-o", made], check=True)
        return made

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(compile_one, files.items()))


def build(
    output: Path, *, machine: str = platform.machine(), sanitized_isas: Collection[str] = ()
) -> None:
    """Put the library in place, in one move once all is well; with sanitizers where sets are named.

    Raises: FileNotFoundError without a compiler, CalledProcessError if it fails.
    """
    cxx, files = compiler(), sources(machine)
    if sanitized_isas:
        files = sanitized(files, sanitized_isas)
    elif os.environ.get("CUTAWAY_QUICK_BUILD") and (here := sets_here(ISAS.get(machine, {}))):
        files = quickly(files, here)
    with tempfile.TemporaryDirectory(dir=output.parent) as name:
        objects = compiled(cxx, files, Path(name))
        library = Path(name) / output.name
        # libstdc++ goes inside: the library runs where another one, or none, is installed.
        own = () if "clang" in cxx else ("-static-libstdc++", "-static-libgcc")
        extra = (SANITIZERS,) if sanitized_isas else own
        linked = [cxx, "-shared", "-pthread", *extra, *objects, "-o", str(library)]
        subprocess.run(linked, check=True)
        os.replace(library, output)


def build_program(output: Path, *, machine: str) -> None:
    """The program that compares instruction sets, whole in itself. Raises as build does."""
    cxx = compiler()
    files = sources(machine) | {path: QUICKLY for path in REFERENCES}
    with tempfile.TemporaryDirectory(dir=output.parent) as name:
        objects = compiled(cxx, files, Path(name))
        subprocess.run([cxx, "-static", "-pthread", *objects, "-o", str(output)], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Build Cutaway's native CPU kernels.")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--sanitize", default="", help="instruction sets to build with sanitizers")
    parser.add_argument("--program", type=Path, help="build the comparison program instead")
    parser.add_argument("--machine", default=platform.machine(), help="x86_64 or aarch64")
    options = parser.parse_args()
    try:
        if options.program:
            build_program(options.program, machine=options.machine)
        else:
            isas = options.sanitize.split(",") if options.sanitize else ()
            build(options.output, machine=options.machine, sanitized_isas=isas)
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return NO_COMPILER
    except subprocess.CalledProcessError as error:
        return error.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
