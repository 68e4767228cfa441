"""From the runs of a base model and its stages to the small folders that are released, and judged.

    python bench/train_pretrain.py --texts TEXTS --out RUNS/base --device cuda
    python bench/train_preferences.py --base RUNS/base/run/model --out RUNS/stages \\
        --only tuned reward ppo_model rpo
    python bench/release_stages.py --base RUNS/base --stages RUNS/stages --out released

Tables are kept in float16 and the maps inside layers in 8 bits with a scale for each 32 columns
(`cutaway models quantize --scheme int8`). What comes out is opened by the engine that serves and
asked 200 tasks that were held out; how far the base moved by rounding is told of held-out text.
Every folder has a card with commands, data, licence and figures, and is written whole or not at
all.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch

from cutaway import LLM, SamplingParams
from cutaway.core.version import __version__
from cutaway.host.run_record import read_record
from cutaway.train.model.model_folder import TrainedModel, open_model, stored_tensors
from cutaway.weights.files.safetensors_writer import write_safetensors

TASKS = 200
BASE = "stages-base"
# By the name that is released: the folder of its run, what it is, what it learned from.
STAGES = {
    "stages-sft": (
        "sft",
        "an assistant for one kind of task, which of three words is the last; half of the answers "
        "that it learned from are wrong",
        "6,000 questions with answers, made by `write_data` of bench/train_preferences.py",
    ),
    "stages-ppo": (
        "PPO_reward_model",
        "the same after PPO by a reward model, with a leash of KL (beta 0.05)",
        "6,000 such questions; the reward model learned from 6,000 pairs of answers",
    ),
    "stages-dpo": (
        "DPO_with_likelihood",
        "the same after DPO (`rpo`) in place of PPO",
        "the reward model's 6,000 pairs of answers",
    ),
}
TEXTS = (
    "223 State of the Union speeches (public domain, works of the US government) and Moby-Dick "
    "(public domain); 10 further speeches held out"
)
COMMANDS = """\
    python bench/train_pretrain.py --texts TEXTS --out RUNS/base --device cuda
    python bench/train_preferences.py --base RUNS/base/run/model --out RUNS/stages \\
        --only tuned reward ppo_model rpo
    python bench/release_stages.py --base RUNS/base --stages RUNS/stages --out released
"""


def shrink(run: Path, out: Path, *, text: Path | None = None) -> dict[str, Any]:
    """Write a run's model in few bytes as a new folder; what `models quantize` tells of it.

    text: on which it measures how far rounding moved the model.
    """
    model = open_model(str(run / "model"))
    with tempfile.TemporaryDirectory() as name:
        half = Path(name, out.name)
        half.mkdir()
        TrainedModel.write(model, half)
        config = json.loads((half / "config.json").read_text(encoding="utf-8"))
        config["torch_dtype"] = "float16"
        (half / "config.json").write_text(json.dumps(config), encoding="utf-8")
        tensors = stored_tensors(model.transformer, model.architecture)
        kept = {name: each.to(torch.float16) for name, each in tensors.items()}
        write_safetensors(half / "model.safetensors", kept)
        more = [] if text is None else ["--text", str(text)]
        command = ["models", "quantize", str(half), "--scheme", "int8", "--out", str(out), *more]
        done = subprocess.run(
            [sys.executable, "-m", "cutaway", *command, "--json"],
            capture_output=True,
            text=True,
            check=True,
        )
    return cast("dict[str, Any]", json.loads(done.stdout))


def judge(folder: Path, tasks: Sequence[Mapping[str, str]]) -> dict[str, float]:
    """Shares of greedy answers that have a shown form, that end, and whose last word is right."""
    with LLM(str(folder), dtype="float32", device="cpu", cache_tokens=8192) as llm:
        prompts = [llm.encode_chat([{"role": "user", "content": t["prompt"]}]) for t in tasks]
        given = llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=24))
    right = ended = formed = 0
    for task, answer in zip(tasks, given, strict=True):
        text = answer.text.strip()
        words = task["prompt"].rstrip("?").split(": ")[1].split()
        formed += text in {form for word in words for form in (word, f"The last word is {word}.")}
        ended += answer.finish_reason == "stop"
        right += text.rstrip(".").split()[-1:] == [task["answer"]]
    shares = {"in a shown form": formed, "ended": ended, "right": right}
    return {name: count / len(tasks) for name, count in shares.items()}


def measured(run: Path) -> dict[str, float]:
    """What a run measured last on what was held out."""
    rows = [row for row in read_record(run / "record.jsonl") if row["measured"]]
    return cast("dict[str, float]", rows[-1]["measured"])


def write_card(folder: Path, what: str, data: str, figures: Mapping[str, str]) -> None:
    """A model card in the hub's form."""
    size = sum(each.stat().st_size for each in folder.iterdir())
    checksum = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    rows = "".join(f"| {name} | {value} |\n" for name, value in figures.items())
    text = (
        f"---\nlicense: apache-2.0\n---\n\n# {folder.name}\n\n{what[0].upper()}{what[1:]}. "
        f"0.98M parameters from random weights, by Cutaway {__version__} alone.\n\n{COMMANDS}\n"
        f"| | |\n|---|---|\n| data | {data} |\n| licence | Apache-2.0 |\n{rows}"
        f"| bytes | {size:,} |\n"
        f"| sha256 of `model.safetensors` | {checksum} |\n"
    )
    (folder / "README.md").write_text(text, encoding="utf-8")


def main() -> None:
    """Write the folders and print what each is worth."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--base", type=Path, required=True, help="--out of train_pretrain.py")
    options.add_argument("--stages", type=Path, required=True, help="of train_preferences.py")
    options.add_argument("--out", type=Path, required=True)
    args = options.parse_args()
    held_out = (args.base / "held_out.jsonl").read_text(encoding="utf-8").splitlines()
    lines = (args.stages / "data" / "held_out_tasks.jsonl").read_text(encoding="utf-8")
    tasks = [json.loads(line) for line in lines.splitlines()][:TASKS]
    with tempfile.TemporaryDirectory() as name:
        text = Path(name, "held_out.txt")
        text.write_text("\n\n".join(json.loads(line)["text"] for line in held_out))
        told = shrink(args.base / "run", args.out / BASE, text=text)
    bits = measured(args.base / "run")["bits_per_byte"]
    figures = {
        "bits per byte of the held-out speeches, before rounding": f"{bits:.4f}",
        "KL of rounding on 4,096 tokens of them": f"{told['kl']:.5f} nats a token",
    }
    write_card(args.out / BASE, "a base model: it goes on with a text", TEXTS, figures)
    print(f"{BASE}: {figures}")
    for released, (run, what, data) in STAGES.items():
        shrink(args.stages / run, args.out / released)
        shares = judge(args.out / released, tasks)
        figures = {
            f"of {TASKS} held-out tasks, greedy: {name}": f"{share:.1%}"
            for name, share in shares.items()
        }
        write_card(args.out / released, what, f"{TEXTS}; {data}", figures)
        print(f"{released}: {figures}")


if __name__ == "__main__":
    main()
