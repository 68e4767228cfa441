"""A tiny tuned model with its files, for stages that begin from one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from cutaway.tokens.files.tokenizer_files import load_folder
from cutaway.train.model.model_folder import new_model
from cutaway.train.sft import CHAT_TEMPLATE
from cutaway.train.vocabulary import VocabularySettings, learn

SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "max_position_embeddings": 96,
}
WORDS = ("red", "green", "blue", "black")


def tuned(folder: Path, *, seed: int = 0) -> str:
    """A model of random weights that has a template and ends answers: enough to sample from."""
    text = folder / "text.txt"
    text.write_text(" ".join(WORDS) * 20)
    learn(VocabularySettings(out=folder / "bpe", data=(text,), size=270))
    tokenizer = load_folder(folder / "bpe")
    ending = tokenizer.control_tokens["<|im_end|>"]
    config = {**SHAPE, "eos_token_id": ending}
    model = new_model(config, folder / "bpe", tokenizer, seed=seed)
    with torch.no_grad():  # answers that differ, and end now and then
        table = model.transformer.embedding.table.weight
        table *= 6
        table[ending] *= 5
    out = folder / "tuned"
    out.mkdir()
    model.write(out)
    (out / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    named = json.loads((out / "tokenizer_config.json").read_text())
    named |= {"eos_token": "<|im_end|>", "add_bos_token": False}
    (out / "tokenizer_config.json").write_text(json.dumps(named))
    return str(out)


def write_lines(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """A .jsonl file."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def pairs(count: int, *, start: int = 0) -> list[dict[str, Any]]:
    """The first word is right, the last is wrong; both are in the prompt."""
    rows: list[dict[str, Any]] = []
    for at in range(start, start + count):
        words = [WORDS[(at + shift) % 4] for shift in (0, 1 + at % 3)]
        rows.append({"prompt": " ".join(words), "chosen": words[0], "rejected": words[1]})
    return rows


def tasks(count: int) -> list[dict[str, Any]]:
    """The same prompts with the right answer."""
    return [{"prompt": each["prompt"], "answer": each["chosen"]} for each in pairs(count)]


def talks(count: int) -> list[dict[str, Any]]:
    """Conversations in which the right answer is given."""
    return [
        {
            "messages": [
                {"role": "user", "content": each["prompt"]},
                {"role": "assistant", "content": each["chosen"]},
            ]
        }
        for each in pairs(count)
    ]
