"""From the runs of a base model and its stages to the small folders that are released, and judged.

    PYTHONPATH=src python tools/recorded_runs.py --within RUNS
    python bench/release_stages.py --runs RUNS --out released

These are the very runs that the page's room Training plays. Or, of a base that was pretrained on
speeches and a novel, with a GPU:

    python bench/train_pretrain.py --texts TEXTS --out RUNS/pretrain --device cuda
    python bench/train_preferences.py --base RUNS/pretrain/run/model --out RUNS \\
        --only tuned reward ppo_model rpo
    python bench/release_stages.py --runs RUNS --out released --prefix speeches --scheme int8 \\
        --base pretrain/run --ppo PPO_reward_model --dpo DPO_with_likelihood \\
        --text "State of the Union speeches and Moby-Dick (public domain)"

Numbers are kept in float16; with --scheme maps inside layers as `cutaway models quantize` rounds
them. What comes out is opened by the engine that serves and asked 200 tasks that were held out.
Every folder has a card with its settings, data, licence and figures.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch

from cutaway import LLM, SamplingParams
from cutaway.engine.loading.requantize import requantize
from cutaway.host.run_record import read_record
from cutaway.host.whole_file import whole_folder
from cutaway.quantize.schemes import scheme_of
from cutaway.train.model.model_folder import TrainedModel, open_model, stored_tensors
from cutaway.weights.files.safetensors_writer import write_safetensors
from cutaway.weights.find.find import find

TASKS = 200
WHAT = {
    "base": "A base model: random numbers that learned to go on with text. It is no assistant.",
    "sft": "The base after tuning on conversations: an assistant for one kind of task, which of "
    "three words is last. Half of the answers that it learned from are wrong.",
    "ppo": "The tuned model after PPO: paid for answers, with a leash of KL.",
    "dpo": "The tuned model after DPO on pairs of answers, without a reward model.",
}
# Of a run's settings, what the card tells.
TOLD = (
    *("updates", "rate", "tokens", "context", "pairs", "prompts"),
    *("loss", "beta", "rewards", "reward_model"),
)
MADE = "questions and answers by program (`write_data` of bench/train_preferences.py)"


def write_small(run: Path, out: Path, scheme: str) -> None:
    """Write a run's model in 16 bits or fewer, as a new folder."""
    model = open_model(str(run / "model"))
    tensors = stored_tensors(model.transformer, model.architecture)
    with tempfile.TemporaryDirectory() as name:
        half = Path(name, out.name) if scheme else out
        with whole_folder(half) as folder:
            TrainedModel.write(model, folder)
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            text = json.dumps({**config, "torch_dtype": "float16"}, indent=2) + "\n"
            (folder / "config.json").write_text(text, encoding="utf-8")
            kept = {name: each.to(torch.float16) for name, each in tensors.items()}
            write_safetensors(folder / "model.safetensors", kept)
        if scheme:
            requantize(find(str(half)), scheme_of(scheme, param="scheme"), out)


def judge(folder: Path, tasks: Sequence[Mapping[str, str]]) -> dict[str, float]:
    """Shares of greedy answers that have a shown form, that end, and whose last word is right.

    A base model has no template and is given the question alone, as text.
    """
    with LLM(str(folder), dtype="float32", device="cpu", cache_tokens=8192) as llm:
        asked = [[{"role": "user", "content": each["prompt"]}] for each in tasks]
        has_template = llm.engine.model.template_source is not None
        prompts = (
            [llm.encode_chat(each) for each in asked]
            if has_template
            else [llm.encode(each["prompt"]) for each in tasks]
        )
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


def write_card(folder: Path, stage: str, run: Path, data: str, shares: Mapping[str, float]) -> None:
    """A model card in the hub's form."""
    told = cast("dict[str, Any]", json.loads((run / "run.json").read_text(encoding="utf-8")))
    rows = [row for row in read_record(run / "record.jsonl") if row["measured"]]
    last = cast("dict[str, float]", rows[-1]["measured"]) if rows else {}
    settings = ", ".join(
        f"{name} {Path(value).parent.name if name == 'reward_model' else value}"
        for name in TOLD
        if (value := told["settings"].get(name)) not in (None, "")
    )
    weights = folder / "model.safetensors"
    count = sum(each.numel() for each in open_model(str(run / "model")).transformer.parameters())
    facts = {
        "made by": f"`cutaway train {told['stage']}`: {settings}; all commands: "
        "[bench/release_stages.py](../../bench/release_stages.py)",
        "data": data,
        "licence": "Apache-2.0",
        "parameters": f"{count:,}",
        **{f"measured at its end: {name}": f"{value:.4g}" for name, value in last.items()},
        **{
            f"of {TASKS} held-out tasks, greedy, from this folder: {name}": f"{share:.1%}"
            for name, share in shares.items()
        },
        "sha256 of `model.safetensors`": hashlib.sha256(weights.read_bytes()).hexdigest(),
    }
    lines = "".join(f"| {name} | {value} |\n" for name, value in facts.items())
    text = (
        f"---\nlicense: apache-2.0\n---\n\n# {folder.name}\n\n{WHAT[stage]}\n\n| | |\n|---|---|\n"
    )
    (folder / "README.md").write_text(text + lines, encoding="utf-8")


def main() -> None:
    """Write the folders and print what each is worth."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--runs", type=Path, required=True, help="where all of them lie")
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--prefix", default="words", help="of the released names")
    options.add_argument("--text", default=MADE, help="that the base learned from, for the card")
    options.add_argument("--scheme", default="", help="of maps inside layers; else float16")
    for stage, run in (("base", "pretrain"), ("sft", "sft"), ("ppo", "ppo"), ("dpo", "dpo")):
        options.add_argument(f"--{stage}", default=run, help="its run's folder")
    args = options.parse_args()
    tasks_file = args.runs / "data" / "held_out_tasks.jsonl"
    lines = tasks_file.read_text(encoding="utf-8").splitlines()
    tasks = [json.loads(line) for line in lines][:TASKS]
    for stage in WHAT:
        run, out = args.runs / getattr(args, stage), args.out / f"{args.prefix}-{stage}"
        write_small(run, out, args.scheme)
        shares = judge(out, tasks)
        data = args.text if stage == "base" else "; ".join(dict.fromkeys((args.text, MADE)))
        write_card(out, stage, run, data, shares)
        size = sum(each.stat().st_size for each in out.iterdir())
        told = ", ".join(f"{name} {share:.1%}" for name, share in shares.items())
        print(f"{out.name}: {size:,} bytes; {told}", flush=True)


if __name__ == "__main__":
    main()
