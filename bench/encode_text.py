"""How fast text becomes token ids: ours beside the public tokenizers, one thread each.

Every round lets each tokenizer encode the same prose in the same order; the median of the rounds is
printed. "Forgetful" is ours when it has to forget all pieces before each round. Needs the files
that `make oracles` fetches.

    python bench/encode_text.py --rounds 7
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests"), str(ROOT / "tests" / "tokens")]

from fetch_oracles import oracles_folder  # noqa: E402

NAMES = ("r50k_base", "cl100k_base", "o200k_base", "llama3", "qwen3", "smollm2")
SPM_NAMES = ("v3", "gemma3", "gemma3-gguf")  # SentencePiece: Mistral's, Gemma 3's
RIVALS = ("tiktoken", "tokenizers", "sentencepiece")
PROMPT_CHARACTERS = 4_000  # HF tokenizers slows down on longer texts

Encode = Callable[[str], list[int]]


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--only", nargs="*", help=f"of {', '.join((*NAMES, *SPM_NAMES))}")
    options.add_argument("--megabytes", type=float, default=2.0, help="prose per round")
    arguments = options.parse_args()
    speeches = oracles_folder() / "american" / "sotu.txt"
    if not speeches.is_file():
        print("The vocabularies and the prose are not fetched: run `make oracles` first.")
        return 0
    prompts = cut(speeches.read_bytes().decode(), int(arguments.megabytes * 1e6))
    size = sum(len(prompt.encode()) for prompt in prompts)
    print(
        f"{size / 1e6:.1f} MB of prose in {len(prompts)} texts, {arguments.rounds} rounds, MB/s\n"
    )
    print(
        "| vocabulary | bytes per token | ours, forgetful | ours | tiktoken | HF | sentencepiece |"
    )
    print("|---|---|---|---|---|---|---|")
    for name in arguments.only or (*NAMES, *SPM_NAMES):
        print_row(name, prompts, size, arguments.rounds)
    return 0


def cut(text: str, size: int) -> list[str]:
    """The first characters of a text, in pieces as long as a page of prose."""
    starts = range(0, min(size, len(text)), PROMPT_CHARACTERS)
    return [text[start : start + PROMPT_CHARACTERS] for start in starts]


def print_row(name: str, prompts: list[str], size: int, rounds: int) -> None:
    ours, others = spm_contenders(name) if name in SPM_NAMES else contenders(name)
    rivals = {"ours": ours.encode} | others
    token_ids = [ours.encode(prompt) for prompt in prompts]
    for encode in rivals.values():
        assert [encode(prompt) for prompt in prompts] == token_ids, "all give the same ids"
    taken: dict[str, list[float]] = {rival: [] for rival in ("forgetful", *rivals)}
    for _ in range(rounds):
        ours._cache.clear()
        taken["forgetful"].append(seconds(ours.encode, prompts))
        for rival, encode in rivals.items():
            taken[rival].append(seconds(encode, prompts))
    speed = {rival: f"{size / 1e6 / median(times):.2f}" for rival, times in taken.items()}
    cells = [speed.get(rival, "") for rival in ("forgetful", "ours", *RIVALS)]
    density = f"{size / sum(map(len, token_ids)):.2f}"
    print(f"| {name} | {density} | {' | '.join(cells)} |", flush=True)


def contenders(name: str):
    """Ours and the public tokenizers over a byte-level vocabulary."""
    from token_oracles import beside

    pair = beside(name)
    return pair.ours, references(name, pair.plain)


def spm_contenders(name: str):
    """The same over a SentencePiece vocabulary."""
    from test_tokens_spm_oracles import MISTRAL, ours, theirs

    return ours(name), {"sentencepiece" if name in MISTRAL else "tokenizers": theirs(name)[0]}


def references(name: str, plain: Encode) -> dict[str, Encode]:
    """The public tokenizers that read this vocabulary; Llama 3 can be put before both."""
    if name == "llama3":
        return {"tiktoken": tiktoken_over_llama3(), "tokenizers": plain}
    return {"tiktoken" if name.endswith("_base") else "tokenizers": plain}


def tiktoken_over_llama3() -> Encode:
    import tiktoken
    from token_oracles import beside

    vocabulary = beside("llama3").ours.vocabulary
    (pattern,) = vocabulary.patterns
    ranks = {token: rank for rank, token in vocabulary.token_bytes.items()}
    return tiktoken.Encoding(
        name="llama3", pat_str=pattern, mergeable_ranks=ranks, special_tokens={}
    ).encode_ordinary


def seconds(encode: Encode, prompts: list[str]) -> float:
    start = time.perf_counter()
    for prompt in prompts:
        encode(prompt)
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
