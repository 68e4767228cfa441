"""Recorded runs of training that the page plays where a server has none: what a small model did.

    PYTHONPATH=src python tools/recorded_runs.py [--within DIR]

The lesson (`cutaway train lesson`): a model of 0.15 million parameters from nothing to its
preferences. Writes what its five runs wrote down, number by number, as web/core/recorded_runs.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from cutaway.host.run_record import read_example, read_record
from cutaway.train.lesson.lesson import STAGES, LessonSettings, prepare
from cutaway.train.stage import TrainingStage

ROOT = Path(__file__).resolve().parent.parent
INTO = ROOT / "web" / "core" / "recorded_runs.json"
DIGITS = 3  # of each number: a curve shows no more
# A figure's curve shows no more of these; the page has a budget of bytes.
COARSE = {"norm": 2, "rate": 2, "margin": 2}
MOST_ROWS = 80  # of a run are kept, one for so many updates; measurements come every 20th
# A settings' path names a folder of this machine; these say what a run was.
SETTINGS = ("updates", "rate", "tokens", "context", "pairs", "prompts", "loss", "beta", "rewards")
# The page fetches all of it: figures that tell most, and one run's gradients and weight.
FIGURES = (
    *("accuracy", "margin", "reward", "k3_of_answer", "length", "clipped"),
    *("explained_variance", "chosen_shift", "rejected_shift"),
)
WHOLE = "pretrain"
EXAMPLES = ("sft", "dpo")  # whose example is kept: its tokens, and which are scored


def note(sentence: str) -> None:
    """A sentence for whoever watches."""
    print(sentence, file=sys.stderr)


def shorten(value: Any, digits: int) -> Any:
    """A number of few digits; what is none stays as it is."""
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value


def columns(rows: Sequence[Mapping[str, Any]], part: str | None) -> dict[str, list[Any]]:
    """Of each number its values by update, None where an update had none."""
    parts = [row if part is None else row.get(part) or {} for row in rows]
    names = (
        ("loss", "norm", "rate")
        if part is None
        else dict.fromkeys(
            name for each in parts for name in each if part != "figures" or name in FIGURES
        )
    )
    of_part = 2 if part == "norms" else DIGITS
    digits = {name: COARSE.get(name, of_part) for name in names}
    return {name: [shorten(each.get(name), digits[name]) for each in parts] for name in names}


def record(stage: TrainingStage[Any]) -> dict[str, Any]:
    """Run a stage; what it wrote down, number by number."""
    stage.run(say=note)
    name = stage.name
    rows = read_record(stage.settings.out / "record.jsonl")
    seconds = round(sum(row["seconds"] for row in rows), 1)
    every = next(n for n in (2, 4, 5, 10, 20) if len(rows) <= n * MOST_ROWS)
    rows = rows[every - 1 :: every]
    parts = ("figures", "measured", *(("norms", "weight") if name == WHOLE else ()))
    own = vars(stage.settings) if hasattr(stage.settings, "__dict__") else {}
    return {
        "name": name,
        "about": STAGES[name],
        "stage": name,
        "settings": {key: own[key] for key in SETTINGS if key in own},
        "plain": columns(rows, None),
        "every": every,
        "seconds": seconds,
        **{part: columns(rows, part) for part in parts},
        **({"example": read_example(stage.settings.out)} if name in EXAMPLES else {}),
        "samples": {str(row["update"]): row["samples"] for row in rows if row.get("samples")},
    }


def main() -> None:
    """Run all, and write what they wrote down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--within", type=Path, help="a folder for the runs, which stay there")
    given = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as made:
        settings = LessonSettings(out=(given.within or Path(made)) / "lesson")
        told = [record(each) for each in prepare(settings, note)]
    text = json.dumps(told, ensure_ascii=False, separators=(",", ":"))
    INTO.write_text(text + "\n", encoding="utf-8")
    seconds = sum(run["seconds"] for run in told)
    print(f"{INTO.name}: {len(text) / 1000:.0f} kB, {seconds:.0f} s of training")


if __name__ == "__main__":
    main()
