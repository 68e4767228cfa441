"""Recorded runs that the page plays where the loaded model has none: guesses and experts.

    PYTHONPATH=src python tools/recorded.py

Runs `cutaway view` over the default model with guesses, and over a small model with experts and
random weights, and writes web/core/recorded.json. What it writes is told as recorded on the page.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
INTO = ROOT / "web" / "core" / "recorded.json"
# Texts that repeat themselves, with a change: the first is taken of which guesses stood and fell.
GUESSED = (
    "Write six short sentences about the sun. Begin each with: The sun is",
    "Name the days of the week, each in a sentence like this one: On Monday I read a book.",
    "Write a poem about a cat in which each line begins with: The cat",
    "Count from twenty to thirty in words, as in: twenty and one is twenty-one.",
)
ROUTED = "What is gravity?"
# A small Mixtral: 4 layers of 8 experts, of which each token passes 2.
EXPERTS: dict[str, Any] = {
    **{"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "vocab_size": 320},
    **{"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 4},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5},
    **{"num_local_experts": 8, "num_experts_per_tok": 2, "max_position_embeddings": 2048},
    **{"rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False},
}


def ask(prompt: str, view: str, *settings: str) -> dict[str, Any]:
    """A view of an answer, as JSON values."""
    command = [sys.executable, "-m", "cutaway", "view", prompt, "--view", view, "--json", *settings]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def record_guesses() -> dict[str, Any]:
    """An answer with guesses, of which some stood and some fell."""
    settings = ("--chat", "--draft", "ngram", "--temperature", "0", "--max-tokens", "48")
    kept = ("text", "verdict", "came")
    for asked in GUESSED:
        told = ask(asked, "speculation", *settings)
        verdicts = [guess["verdict"] for step in told["steps"] for guess in step["guesses"]]
        print(f"{asked!r}: {verdicts}", file=sys.stderr)
        if verdicts.count("accepted") >= 4 and "refused" in verdicts:
            break
    else:
        raise SystemExit("no text has guesses that stood and guesses that fell; add one.")
    steps = [
        {
            **{name: step[name] for name in ("number", "token", "given", "last")},
            "guesses": [{name: guess[name] for name in kept} for guess in step["guesses"]],
        }
        for step in told["steps"]
    ]
    return {"asked": asked, "model": told["model"], "steps": steps}


def record_routes() -> dict[str, Any]:
    """Which experts each letter of a question went to."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.json"
        config.write_text(json.dumps(EXPERTS), encoding="utf-8")
        told = ask(ROUTED, "experts", "--model", f"random:{config}", "--max-tokens", "1")
    count = len(ROUTED)
    names = ("layers", "num_layers", "num_experts", "num_chosen", "has_shared")
    return {
        **{name: told[name] for name in names},
        "tokens": told["tokens"][:count],
        "ids": told["ids"][:count],
        "weights": [
            [[round(each, 3) for each in layer] for layer in token]
            for token in told["weights"][:count]
        ],
    }


def main() -> None:
    """Run both, and write what they told."""
    told = {"guessed": record_guesses(), "routed": record_routes()}
    INTO.write_text(
        json.dumps(told, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
