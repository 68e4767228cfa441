"""A model of 0.98M parameters learned from speeches and Moby-Dick, in bits per byte of ten others.

    python bench/train_pretrain.py [--device cuda] [--seed 0] [key=value ...]
    python bench/train_pretrain.py --device cuda --layers 6 --width 256 --vocabulary 4096 rate=2e-3

`make oracles` fetches the texts. Of 233 State of the Union speeches every 23rd is held out; the
rest and the novel are learned from. First a vocabulary of 1,024 tokens is learned from them, then
the model by 1,200 updates of 16,384 tokens. Beside it stands what xz makes of the held-out
speeches when it was primed with the same text, and what six bytes in a row, counted in it, tell of
them. All goes through `cutaway train`'s own functions.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import statistics
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutaway.host.run_record import read_record
from cutaway.train import pretrain
from cutaway.train.stage_config import read_settings
from cutaway.train.vocabulary import VocabularySettings, learn

HELD_OUT_EVERY = 23
MODEL = {
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-5,
}
SETTINGS = """
updates = 1200
rate = 3e-3
context = 512
tokens = 16384
save_every = 400
measure_every = 200
"""


def texts(folder: Path) -> tuple[list[str], list[str]]:
    """What is learned from, and what is held out."""
    speeches = (folder / "sotu.txt").read_text(encoding="utf-8").split("\n\n")
    held_out = speeches[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]
    learned = [each for each in speeches if each not in held_out]
    return [*learned, (folder / "moby-dick.txt").read_text(encoding="utf-8")], held_out


def primed_xz(learned: list[str], held_out: list[str]) -> float:
    """Bits per byte that xz takes for the held-out texts after the others."""
    before, after = "\n\n".join(learned).encode(), "\n\n".join(held_out).encode()
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 2**26}]
    sizes = [len(lzma.compress(data, filters=filters)) for data in (before, before + after)]
    return 8 * (sizes[1] - sizes[0]) / len(after)


def counted(learned: list[str], held_out: list[str], *, length: int = 6) -> float:
    """Bits per byte of held-out texts by counts of bytes in a row, smoothed as Witten and Bell do.

    A byte after some others is as likely as it was there, but for a share of the next shorter
    context's, which grows with how many kinds of bytes came there.
    """
    texts_ = ["\n\n".join(each).encode() for each in (learned, held_out)]
    before, after = (np.frombuffer(each, np.uint8).astype(np.uint64) for each in texts_)
    chances = np.full(len(after), 1 / 256)
    codes = [np.zeros_like(before), np.zeros_like(after)]  # of the last bytes
    for size in range(1, length + 1):
        shift = np.uint64(8 * (size - 1))
        for place, each in enumerate((before, after)):
            moved = np.concatenate([np.zeros(size - 1, np.uint64), each[: len(each) - size + 1]])
            codes[place] = codes[place] | (moved << shift)
        seen, times = np.unique(codes[0], return_counts=True)
        contexts, group = np.unique(seen >> np.uint64(8), return_inverse=True)
        total = np.bincount(group, weights=times)
        kinds = np.bincount(group)
        met = _found(seen, times.astype(float), codes[1])
        all_, different = (
            _found(contexts, each.astype(float), codes[1] >> np.uint64(8))
            for each in (total, kinds)
        )
        chances = np.where(
            all_ > 0, (met + different * chances) / np.maximum(all_ + different, 1), chances
        )
    return float(-np.log2(chances).mean())


def _found(keys: NDArray[Any], values: NDArray[Any], wanted: NDArray[Any]) -> NDArray[Any]:
    """The value of each wanted key, 0 of one that is not there. keys: sorted."""
    places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[places] == wanted, values[places], 0.0)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--device", default="cpu")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--texts", type=Path, help="the folder of sotu.txt and moby-dick.txt")
    options.add_argument("--out", type=Path, help="where the run is kept; else it is thrown away")
    options.add_argument("--layers", type=int, default=MODEL["num_hidden_layers"])
    options.add_argument("--width", type=int, default=MODEL["hidden_size"])
    options.add_argument("--vocabulary", type=int, default=1024)
    options.add_argument("overrides", nargs="*", help="settings of `cutaway train pretrain`")
    args = options.parse_args()
    if args.texts is None:
        sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
        from fetch_oracles import oracles_folder

        args.texts = oracles_folder() / "american"
    learned, held_out = texts(args.texts)
    with tempfile.TemporaryDirectory() as name:
        work = args.out or Path(name)
        work.mkdir(parents=True, exist_ok=True)
        for file, listed in (("learned", learned), ("held_out", held_out)):
            lines = (json.dumps({"text": text}) + "\n" for text in listed)
            (work / f"{file}.jsonl").write_text("".join(lines), encoding="utf-8")
        vocabulary, run = work / "vocabulary", work / "run"
        if not vocabulary.exists():
            learn(
                VocabularySettings(
                    out=vocabulary, data=(work / "learned.jsonl",), size=args.vocabulary
                )
            )
        config = work / "pretrain.toml"
        shape = {
            **MODEL,
            "num_hidden_layers": args.layers,
            "hidden_size": args.width,
            "intermediate_size": 3 * args.width,
        }
        model = "\n".join(f"{key} = {json.dumps(value)}" for key, value in shape.items())
        config.write_text(f"{SETTINGS}[model]\n{model}\n", encoding="utf-8")
        paths = (
            f"out={run}",
            f"data={work / 'learned.jsonl'}",
            f"held_out={work / 'held_out.jsonl'}",
            f"vocabulary={vocabulary}",
            f"device={args.device}",
            f"seed={args.seed}",
        )
        overrides = (*paths, *args.overrides)
        stage = pretrain.prepare(read_settings(pretrain.PretrainSettings, config, overrides))
        count = sum(each.numel() for each in stage.model.transformer.parameters())
        began = perf_counter()
        stage.run(say=lambda words: print(words, file=sys.stderr))
        rows = read_record(run / "record.jsonl")
    took = perf_counter() - began
    settings = stage.settings
    seconds = statistics.median(row["seconds"] for row in rows)
    print(f"{count:,} parameters, {len(rows)} updates of {settings.tokens:,} tokens")
    print(f"optimizer {settings.optimizer}, seed {settings.seed}, device {args.device}, ", end="")
    print(f"{os.cpu_count()} CPU threads")
    print(f"first loss {rows[0]['loss']:.4f} nats a token, last {rows[-1]['loss']:.4f}")
    for row in rows:
        if row["measured"]:
            print(
                f"update {row['update'] + 1}: {row['measured']['bits_per_byte']:.4f} bits per byte"
            )
    print(f"median update {seconds:.3f} s, {settings.tokens / seconds:,.0f} tokens/s; {took:.0f} s")
    print(f"xz, primed with the same text: {primed_xz(learned, held_out):.4f} bits per byte")
    print(f"six bytes in a row, counted in it: {counted(learned, held_out):.4f} bits per byte")


if __name__ == "__main__":
    main()
