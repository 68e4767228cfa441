"""A model of 0.98M parameters learned from speeches and Moby-Dick, in bits per byte of ten others.

    python bench/train_pretrain.py [--device cuda] [--seed 0] [key=value ...]

`make oracles` fetches the texts. Of 233 State of the Union speeches every 23rd is held out; the
rest and the novel are learned from. First a vocabulary of 1,024 tokens is learned from them, then
the model by 1,200 updates of 16,384 tokens. Beside it stands what xz makes of the held-out
speeches when it was primed with the same text. All goes through `cutaway train`'s own functions.
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


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--device", default="cpu")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--texts", type=Path, help="the folder of sotu.txt and moby-dick.txt")
    options.add_argument("--out", type=Path, help="where the run is kept; else it is thrown away")
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
            learn(VocabularySettings(out=vocabulary, data=(work / "learned.jsonl",), size=1024))
        config = work / "pretrain.toml"
        model = "\n".join(f"{key} = {json.dumps(value)}" for key, value in MODEL.items())
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


if __name__ == "__main__":
    main()
