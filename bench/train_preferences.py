"""From text to an assistant that prefers: every stage on a tiny model, and what each is worth.

The task has a verifier: which of three words is the last. People who showed it were right in
half of their answers, and gave them in two forms, short and long. So the tuned model is right in
half; a reward model, PPO, GRPO and DPO have to raise that. A reward for length alone is there to
be hacked, with a leash and without.

    python bench/train_preferences.py --out runs/preferences >> bench/results/train_preferences.md

With --base all stages begin from a model that was pretrained on something else, whose vocabulary
they keep: bench/train_pretrain.py makes one, and bench/release_stages.py what is released. Words
after `--` are settings of every stage, as in `-- device=cuda precision=float32`; with --seed the
stages after tuning have folders of their own.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from cutaway.host.run_record import read_record
from cutaway.train import dpo, grpo, ppo, pretrain, reward, sft
from cutaway.train.lesson.lesson import SHAPE
from cutaway.train.lesson.puzzles import write_data
from cutaway.train.model.model_folder import TrainedModel
from cutaway.train.vocabulary import VocabularySettings, learn


def make_base(out: Path, data: Path, common: Mapping[str, Any]) -> Path:
    """Vocabulary and pretraining on the task's own text: the folder of the base model."""
    learn(VocabularySettings(out=out / "bpe", data=(data / "text.jsonl",), size=330))
    told: dict[str, Any] = {
        "out": out / "pretrain",
        "data": (data / "text.jsonl",),
        "vocabulary": out / "bpe",
        "model": SHAPE,
        "context": 64,
        "tokens": 4096,
        "updates": 400,
        "rate": 3e-3,
        "save_every": 400,
        **common,
    }
    return pretrain.prepare(pretrain.PretrainSettings(**told)).run(say=note)


def tune(out: Path, data: Path, base: Path, *, common: Mapping[str, Any], **sizes: int) -> Path:
    """Conversations: the folder of the tuned model. sizes: context, in tokens, and updates."""
    told: dict[str, Any] = {
        "out": out / "sft",
        "model": str(base),
        "data": (data / "sft.jsonl",),
        "tokens": 4096,
        "rate": 1e-3,
        "save_every": 200,
        **sizes,
        **common,
    }
    return sft.prepare(sft.SftSettings(**told), note).run(say=note)


def setting(text: str) -> tuple[str, Any]:
    """A setting's name and value from name=value; what is no JSON is a string."""
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def note(sentence: str) -> None:
    """A sentence for whoever watches."""
    print(sentence, file=sys.stderr)


class Bench:
    """The stages after tuning, each with a row of the table.

    common: settings of all of them.   max_tokens: of an answer.
    """

    def __init__(
        self, out: Path, data: Path, tuned: Path, common: Mapping[str, Any], max_tokens: int
    ) -> None:
        self.out, self.data, self.tuned = out, data, str(tuned)
        self.common, self.max_tokens = common, max_tokens
        self.rows: list[str] = []

    def folder(self, name: str) -> Path:
        """Where a stage's run lies."""
        seed = self.common.get("seed", 0)
        return self.out / (name.replace(" ", "_").replace(",", "") + (f"_{seed}" if seed else ""))

    def reward(self) -> Path:
        """A reward model, judged on pairs that it has not seen."""
        told: dict[str, Any] = {
            "out": self.folder("reward"),
            "model": self.tuned,
            "data": (self.data / "pairs.jsonl",),
            "held_out": (self.data / "held_out_pairs.jsonl",),
            "updates": 500,
            "rate": 1e-3,
            "save_every": 500,
            "measure_every": 500,
            **self.common,
        }
        settings = reward.RewardSettings(**told)
        return self.run("reward model", reward.prepare(settings), settings.out)

    def policy(self, name: str, kind: str, **changes: Any) -> Path:
        """PPO or GRPO on the tasks."""
        out = self.folder(name)
        told: dict[str, Any] = {
            "out": out,
            "model": self.tuned,
            "data": (self.data / "tasks.jsonl",),
            "held_out": (self.data / "held_out_tasks.jsonl",),
            "rewards": "final",
            "verifier": "final",
            "prompts": 64,
            "max_tokens": self.max_tokens,
            "save_every": 40,
            "measure_every": 40,
            **changes,
            **self.common,
        }
        if kind == "ppo":
            stage = ppo.prepare(ppo.PpoSettings(**told))
        else:
            stage = grpo.prepare(grpo.GrpoSettings(**told))
        return self.run(name, stage, out)

    def dpo(self, name: str, **changes: Any) -> Path:
        """DPO on the pairs that the reward model learned from."""
        out = self.folder(name)
        told: dict[str, Any] = {
            "out": out,
            "model": self.tuned,
            "data": (self.data / "pairs.jsonl",),
            "held_out": (self.data / "held_out_pairs.jsonl",),
            "save_every": 40,
            "measure_every": 40,
            **changes,
            **self.common,
        }
        return self.run(name, dpo.prepare(dpo.DpoSettings(**told), note), out)

    def verify(self, name: str, model: Path | str) -> None:
        """A model on held-out tasks beside the tuned one: a round of no updates."""
        told: dict[str, Any] = {
            "out": self.out / "unused",
            "model": self.tuned,
            "data": (self.data / "tasks.jsonl",),
            "held_out": (self.data / "held_out_tasks.jsonl",),
            "rewards": "final",
            "verifier": "final",
            "max_tokens": self.max_tokens,
            "updates": 4,
            "save_every": 4,
            "measure_every": 4,
            "rate": 0.0,
            **self.common,
        }
        stage = ppo.prepare(ppo.PpoSettings(**told))
        TrainedModel.load(stage.model, Path(model))
        assert stage.measure is not None
        self.rows.append(f"| {name}, verified | {figures(stage.measure())} | |")

    def run(self, name: str, stage: Any, out: Path) -> Path:
        """Run a stage, and note what was measured at its end."""
        began = time.perf_counter()
        path = stage.run(say=note)
        seconds = time.perf_counter() - began
        rows = read_record(out / "record.jsonl")
        logged = {
            key: rows[-1]["figures"][key]
            for key in ("reward", "sampler_largest", "equal_groups", "explained_variance")
            if key in rows[-1]["figures"]
        }
        self.rows.append(
            f"| {name}, {len(rows)} updates | {figures({**rows[-1]['measured'], **logged})} "
            f"| {seconds:.0f} |"
        )
        note(self.rows[-1])
        return path


def figures(values: dict[str, float] | Any) -> str:
    """Figures by name, in one cell."""
    return ", ".join(f"{name} {value:.4g}" for name, value in values.items())


def main() -> None:
    """Run all stages and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--base", type=Path, help="the folder of another base model")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--seed", type=int, default=0, help="of the stages after tuning")
    parser.add_argument("common", nargs="*", help="settings of every stage")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    data = arguments.out / "data"
    if not data.is_dir():
        write_data(data)
    common = dict(map(setting, arguments.common))
    tuned = arguments.out / "sft" / "model"
    # A vocabulary that was learned from other text takes more tokens for these words.
    is_other = arguments.base is not None
    if not tuned.is_dir():
        base = arguments.base or make_base(arguments.out, data, common)
        sizes = {"context": 128, "updates": 600} if is_other else {"context": 64, "updates": 200}
        tuned = tune(arguments.out, data, base, common=common, **sizes)
    seeded = {**common, "seed": arguments.seed}
    bench = Bench(arguments.out, data, tuned, seeded, max_tokens=32 if is_other else 16)
    wanted: dict[str, Callable[[], object]] = {
        "tuned": lambda: bench.verify("tuned", tuned),
        "reward": bench.reward,
        "ppo": lambda: bench.policy("PPO, verifier", "ppo", rate=3e-4, updates=160),
        "grpo": lambda: bench.policy("GRPO, verifier", "grpo", rate=3e-4, updates=80, prompts=16),
        "ppo_model": lambda: bench.policy(
            "PPO, reward model",
            "ppo",
            rate=3e-4,
            updates=160,
            rewards="",
            reward_model=str(bench.folder("reward") / "model"),
        ),
        "hacked": lambda: bench.policy(
            "PPO, length without leash", "ppo", rate=3e-4, updates=160, rewards="length", beta=0.0
        ),
        "leashed": lambda: bench.policy(
            "PPO, length with leash", "ppo", rate=3e-4, updates=160, rewards="length", beta=0.05
        ),
        "dpo": lambda: bench.verify("DPO", bench.dpo("DPO", rate=1e-4, updates=400)),
        "rpo": lambda: bench.verify(
            "DPO with likelihood",
            bench.dpo("DPO with likelihood", rate=3e-4, updates=400, loss="rpo"),
        ),
    }
    for name, part in wanted.items():
        if not arguments.only or name in arguments.only:
            part()
    print(
        "\n".join(["| stage | figures on held-out data | seconds |", "|---|---|---|", *bench.rows])
    )


if __name__ == "__main__":
    main()
