"""Where texts and answers would be ended for repeating themselves, by several settings.

    python bench/repetition.py --model smollm2 --texts 'docs/*.md' --texts 'src/**/*.py'
        --answers held_out.jsonl --settings 16,64,4 8,64,4

Texts are cut into as many tokens as an answer may have (--tokens), each read as an answer of its
own. --answers are conversations of a model (`messages` a line), of which the last is read. What a
setting ends of texts is a false stop, unless the text says so: each is shown.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from glob import glob
from pathlib import Path

from cutaway.core.request import CHAT_DETECTION, RepetitionDetection, SamplingParams
from cutaway.engine.loading.text_side import Opening
from cutaway.stream.loops import RepetitionDetector
from cutaway.weights.find.find import find

SHOWN = 100  # characters of the place


def place(token_ids: Sequence[int], wanted: RepetitionDetection) -> int | None:
    """Tokens until the end for repetition; None without one."""
    detector = RepetitionDetector(wanted)
    return next((at for at, each in enumerate(token_ids, 1) if detector.push(each)), None)


def answers(path: Path) -> Iterator[str]:
    """The last messages of conversations."""
    for line in path.read_text(encoding="utf-8").splitlines():
        yield json.loads(line)["messages"][-1]["content"]


def main() -> None:
    """Read all and print a row for each setting."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--model", default="smollm2")
    options.add_argument("--texts", action="append", default=[], help="a pattern of files")
    options.add_argument("--answers", action="append", default=[], type=Path)
    options.add_argument("--tokens", type=int, default=1024)
    options.add_argument("--settings", nargs="*", default=[str(CHAT_DETECTION)])
    args = options.parse_args()
    tokenizer = Opening(find(args.model)).tokenizer()
    read: dict[str, list[Sequence[int]]] = {}
    for pattern in args.texts:
        parts = read.setdefault(pattern, [])
        for name in sorted(glob(pattern, recursive=True)):
            ids = tokenizer.encode(Path(name).read_text(encoding="utf-8"))
            parts += (ids[at : at + args.tokens] for at in range(0, len(ids), args.tokens))
    for path in args.answers:
        read[path.name] = [tokenizer.encode(text) for text in answers(path)]
    print("| read | answers | tokens | setting | ended |\n|---|---|---|---|---|")
    for name, parts in read.items():
        for setting in args.settings:
            wanted = SamplingParams(repetition_detection=setting).repetition_detection
            assert wanted is not None
            found = [(part, at) for part in parts if (at := place(part, wanted)) is not None]
            count = sum(map(len, parts))
            print(f"| `{name}` | {len(parts):,} | {count:,} | {setting} | {len(found)} |")
            for part, at in found[:6]:
                print(f"    after {at}: {tokenizer.decode(part[max(0, at - 60) : at])[-SHOWN:]!r}")


if __name__ == "__main__":
    main()
