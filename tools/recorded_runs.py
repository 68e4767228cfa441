"""Recorded runs of training that the page plays where a server has none: what a small model did.

    PYTHONPATH=src python tools/recorded_runs.py [--within DIR]

A model of 0.15 million parameters from nothing to its preferences, on the task and with the shape
of bench/train_preferences.py: pretraining, tuning, a reward model, PPO on a verifier, DPO. Writes
what the five runs wrote down, number by number, as web/core/recorded_runs.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))

from train_preferences import SHAPE, note, write_data  # noqa: E402

from cutaway.host.run_record import read_record  # noqa: E402
from cutaway.train import dpo, ppo, pretrain, reward, sft  # noqa: E402
from cutaway.train.stage import TrainingStage  # noqa: E402
from cutaway.train.vocabulary import VocabularySettings, learn  # noqa: E402

INTO = ROOT / "web" / "core" / "recorded_runs.json"
ASKED = "Which word is last: red moon fish?"
DIGITS = 3  # of each number: a curve shows no more
# A figure's curve shows no more of these; the page has a budget of bytes.
COARSE = {"norm": 2, "rate": 2, "margin": 2}
EVERY = 2  # of so many updates the last is kept; measurements come at even counts
# A settings' path names a folder of this machine; these say what a run was.
SETTINGS = ("updates", "rate", "tokens", "context", "pairs", "prompts", "loss", "beta", "rewards")
# The page fetches all of it: figures that tell most, and one run's gradients and weight.
FIGURES = (
    *("accuracy", "margin", "reward", "k3_of_answer", "length", "clipped"),
    *("explained_variance", "chosen_shift", "rejected_shift"),
)
WHOLE = "pretrain"


def train(folder: Path) -> Iterable[tuple[str, str, TrainingStage[Any]]]:
    """Name, what it learns, and the stage of each run; each begins where an earlier one ended."""
    data = folder / "data"
    write_data(data)
    if not (folder / "bpe").is_dir():  # runs that are there are taken as they are
        learn(VocabularySettings(out=folder / "bpe", data=(data / "text.jsonl",), size=330))
    yield (
        "pretrain",
        "From random numbers to text: it guesses the next token of 6,000 lines.",
        pretrain.prepare(
            pretrain.PretrainSettings(
                out=folder / "pretrain",
                data=(data / "text.jsonl",),
                vocabulary=folder / "bpe",
                model=SHAPE,
                context=64,
                tokens=4096,
                updates=160,
                rate=3e-3,
                measure_every=20,
                samples=("Which word is",),
            )
        ),
    )
    yield (
        "sft",
        "From text to answers: the same, on conversations, and only the answers count.",
        sft.prepare(
            sft.SftSettings(
                out=folder / "sft",
                model=str(folder / "pretrain" / "model"),
                data=(data / "sft.jsonl",),
                context=64,
                tokens=4096,
                updates=120,
                rate=2e-3,
                measure_every=20,
                samples=(ASKED,),
            ),
            note,
        ),
    )
    tuned = str(folder / "sft" / "model")
    pairs: dict[str, Any] = {
        "model": tuned,
        "data": (data / "pairs.jsonl",),
        "held_out": (data / "held_out_pairs.jsonl",),
        "measure_every": 20,
    }
    yield (
        "reward",
        "A second model learns which of two answers people prefer; its score is a reward.",
        reward.prepare(
            reward.RewardSettings(out=folder / "reward", updates=120, rate=1e-3, **pairs)
        ),
    )
    yield (
        "ppo",
        "It answers, is paid for right answers, and a leash (KL) keeps it near its old self.",
        ppo.prepare(
            ppo.PpoSettings(
                out=folder / "ppo",
                model=tuned,
                data=(data / "tasks.jsonl",),
                held_out=(data / "held_out_tasks.jsonl",),
                rewards="final",
                verifier="final",
                prompts=64,
                max_tokens=16,
                updates=120,
                rate=3e-4,
                measure_every=20,
                save_every=40,
            )
        ),
    )
    yield (
        "dpo",
        "The same pairs without a reward model: preferred answers become likelier than rejected.",
        dpo.prepare(
            dpo.DpoSettings(out=folder / "dpo", updates=120, rate=1e-4, loss="rpo", **pairs), note
        ),
    )


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


def record(name: str, about: str, stage: TrainingStage[Any]) -> dict[str, Any]:
    """Run a stage; what it wrote down, number by number."""
    stage.run(say=note)
    every = read_record(stage.settings.out / "record.jsonl")
    rows = every[EVERY - 1 :: EVERY]
    parts = ("figures", "measured", *(("norms", "weight") if name == WHOLE else ()))
    own = vars(stage.settings) if hasattr(stage.settings, "__dict__") else {}
    return {
        "name": name,
        "about": about,
        "stage": stage.name,
        "settings": {key: own[key] for key in SETTINGS if key in own},
        "plain": columns(rows, None),
        "every": EVERY,
        "seconds": round(sum(row["seconds"] for row in every), 1),
        **{part: columns(rows, part) for part in parts},
        "samples": {str(row["update"]): row["samples"] for row in rows if row.get("samples")},
    }


def main() -> None:
    """Run all, and write what they wrote down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--within", type=Path, help="a folder for the runs, which stay there")
    given = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as made:
        told = [record(*each) for each in train(given.within or Path(made))]
    text = json.dumps(told, ensure_ascii=False, separators=(",", ":"))
    INTO.write_text(text + "\n", encoding="utf-8")
    seconds = sum(run["seconds"] for run in told)
    print(f"{INTO.name}: {len(text) / 1000:.0f} kB, {seconds:.0f} s of training")


if __name__ == "__main__":
    main()
