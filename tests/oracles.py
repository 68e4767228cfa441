"""Where the fetched references lie; a test that asks for an absent one is skipped.

With CUTAWAY_REQUIRE_ORACLES=1 such a test fails instead, so that a CI job which should compare
with a reference cannot pass by skipping. `python tests/fetch_oracles.py` fetches them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, NoReturn

import pytest

from fetch_oracles import GEMMA3_GGUF, SMOLLM2_GGUF, oracles_folder

RankName = Literal["r50k_base", "p50k_base", "cl100k_base", "o200k_base"]
HfName = Literal["llama3", "qwen3", "gemma3"]

PROSE = {
    "sotu": "american/sotu.txt",
    "moby-dick": "american/moby-dick.txt",
    "austen": "austen/austen.txt",
    "kjv": "kjv/kjv.txt",
}


def rank_file(name: RankName) -> Path:
    """tiktoken's rank file of one vocabulary."""
    return _present(f"ranks/{name}.tiktoken")


def public_plans() -> Path:
    """313 public cases: encoding, text and ids."""
    return _present("ranks/TestPlans.txt")


def tokenizer_json(name: HfName) -> Path:
    """tokenizer.json; tokenizer_config.json lies beside it."""
    return _present(f"{name}/tokenizer.json")


def prose(name: str) -> str:
    """One text of the small prose, with its line ends as they are."""
    return _present(PROSE[name]).read_bytes().decode()


def smollm2_gguf() -> Path:
    """SmolLM2-135M-Instruct, Q4_1."""
    return _present(f"smollm2/{SMOLLM2_GGUF}")


def gemma3_gguf() -> Path:
    """Gemma 3 270M, Q4_K_M; under the Gemma Terms of Use."""
    return _present(f"gemma3-270m/{GEMMA3_GGUF}")


def template_file() -> Path:
    """Chat templates of published models by name, as one JSON object."""
    return _present("all-templates/templates.json")


def model_file(version: Literal["v1", "v2", "v3"]) -> Path:
    """Mistral's tokenizer.model, SentencePiece's BPE with byte fallback."""
    return _present(f"mistral/tokenizer.model.{version}")


def chat_template(name: str) -> str:
    """A published chat template; with _training, the same with marks around answers."""
    return _present(f"templates/{name}.jinja").read_bytes().decode()


def _present(name: str) -> Path:
    path = oracles_folder() / name
    return path if path.is_file() else _absent(name)


def _absent(name: str) -> NoReturn:
    sentence = f"{name} is not fetched; run `python tests/fetch_oracles.py`."
    if os.environ.get("CUTAWAY_REQUIRE_ORACLES") == "1":
        pytest.fail(sentence)
    pytest.skip(sentence)
