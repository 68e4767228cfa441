"""SentencePiece models trained on the spot: one for every combination of rules worth a name."""

# ruff: noqa: RUF001 - characters that look alike are what is tested
from __future__ import annotations

import io
from functools import cache
from pathlib import Path
from typing import Any

import sentencepiece

DOCS = Path(__file__).resolve().parents[1] / "docs"
OTHERS = (
    "每个字都会变成数字，模型只看见数字。",
    "é à ü ﬁ ① ２０ Ⅷ",
    "Каждая буква становится числом",
    "Straße, Größe, Äpfel, naïve façade",
)

# Name -> what differs from sentencepiece's own defaults (nmt_nfkc, blanks squeezed).
SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "llama": {
        "normalization_rule_name": "identity",
        "byte_fallback": True,
        "remove_extra_whitespaces": False,
        "split_digits": True,
    },
    "gemma": {
        "normalization_rule_name": "identity",
        "byte_fallback": True,
        "remove_extra_whitespaces": False,
        "add_dummy_prefix": False,
        "user_defined_symbols": ["<h1>", "\n", "\n\n", "\t"],
        "control_symbols": ["<turn>"],
    },
    "folded": {"normalization_rule_name": "nmt_nfkc_cf", "add_dummy_prefix": False},
    "suffix": {
        "normalization_rule_name": "nfkc",
        "byte_fallback": True,
        "treat_whitespace_as_suffix": True,
    },
    "across": {"split_by_whitespace": False, "remove_extra_whitespaces": False},
    "named": {"user_defined_symbols": ["<h1>", "ab"], "unk_surface": "<?>"},
}


def lines() -> list[str]:
    """Our own pages and a few words in other scripts."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.md"))]
    return [*"\n".join(texts).split("\n")[:3_000], *OTHERS * 5]


@cache
def trained(kind: str, name: str) -> bytes:
    """A model file of some 800 pieces. kind: unigram or bpe."""
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines()),
        model_writer=written,
        vocab_size=900 if SETTINGS[name].get("byte_fallback") else 700,
        model_type=kind,
        hard_vocab_limit=False,
        num_threads=1,
        minloglevel=2,
        **SETTINGS[name],
    )
    return written.getvalue()
