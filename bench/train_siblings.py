"""A family of models that differ in one thing each, learned alike: is one design better?

    python bench/train_siblings.py --texts FOLDER --out DIR [--device cuda] [--workers 12]
    python bench/train_siblings.py --out DIR --tell

All have 3 layers of 128, V 1,024, and learn the same sequences in the same order, by a seed that
decides weights and order; so runs of one seed are pairs. Told are bits per byte of ten held-out
speeches, mean and spread over seeds, and of each pair of designs the mean difference with the p of
a paired t test. Texts and vocabulary are those of bench/train_pretrain.py. Runs that are in DIR are
not made again; --seconds starts no more of them.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import sys
import types
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, stdev
from time import monotonic, perf_counter
from typing import Any, cast

import torch
from torch import Tensor
from train_pretrain import texts

from cutaway.blocks.block import Block
from cutaway.core.errors import CutawayError
from cutaway.core.step import Step
from cutaway.host.run_record import read_record
from cutaway.tokens.files.tokenizer_files import load_folder
from cutaway.train import pretrain
from cutaway.train.stage_config import read_settings
from cutaway.train.vocabulary import VocabularySettings, learn

SETTINGS = """
updates = {updates}
rate = 3e-3
context = 256
tokens = {tokens}
save_every = 100000
measure_every = 100000
"""
SIZES: dict[str, object] = {
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-5,
}
LATENT: dict[str, object] = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "q_lora_rank": None,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "intermediate_size": 408,
    "moe_intermediate_size": 192,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 0,
    "first_k_dense_replace": 3,
}


@dataclass(frozen=True)
class Design:
    """What a sibling has otherwise than the first. form: what its blocks do with the stream."""

    told: str
    config: dict[str, object] = field(default_factory=dict[str, object])
    form: str = ""


DESIGNS = {
    "mha": Design("4 heads, each with keys of its own"),
    "gqa": Design("4 heads on one key head", {"num_key_value_heads": 1}),
    "gqa-wide": Design(
        "the same, feed-forward widened to the first's size",
        {"num_key_value_heads": 1, "intermediate_size": 448},
    ),
    "window": Design(
        "a window of 32 tokens in all layers",
        {
            "architectures": ["MistralForCausalLM"],
            "model_type": "mistral",
            "sliding_window": 32,
        },
    ),
    "mla": Design("keys and values from 32 + 16 numbers a token", LATENT),
    "moe": Design(
        "4 experts of 192, the best two of each token",
        {
            "architectures": ["MixtralForCausalLM"],
            "model_type": "mixtral",
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "intermediate_size": 192,
        },
    ),
    "norm-behind": Design("norms behind each sum, as in 2017", form="behind"),
    "no-sum": Design("no residual: each part replaces the stream", form="none"),
}
PAIRS = (
    *(("mha", "gqa"), ("mha", "gqa-wide"), ("mha", "window"), ("mha", "mla")),
    *(("mha", "moe"), ("mha", "norm-behind"), ("mha", "no-sum")),
)


def norm_behind(
    block: Block,
    hidden: Tensor,
    normed: Tensor,
    rotation: Any,
    step: Step,
    layer: int,
    *,
    next_norm: Any = None,
    **others: Any,
) -> tuple[Tensor, Tensor]:
    """norm(x + attention(x)), then norm(x + mlp(x)): what is handed on is normed already."""
    assert block.mlp_norm is not None, "these blocks have two norms"
    hidden = block.attention_norm(hidden + block.attention(hidden, rotation, step, layer))
    hidden = block.mlp_norm(hidden + block.mlp(hidden, step, layer))
    return hidden, hidden


def no_sum(
    block: Block,
    hidden: Tensor,
    normed: Tensor,
    rotation: Any,
    step: Step,
    layer: int,
    *,
    next_norm: Any = None,
    **others: Any,
) -> tuple[Tensor, Tensor]:
    """mlp(norm(attention(norm(x)))): nothing goes past a part."""
    assert block.mlp_norm is not None, "these blocks have two norms"
    hidden = block.attention(normed, rotation, step, layer)
    hidden = block.mlp(block.mlp_norm(hidden), step, layer)
    return hidden, hidden if next_norm is None else next_norm(hidden)


FORMS = {"behind": norm_behind, "none": no_sum}


def reform(transformer: torch.nn.Module, form: str) -> None:
    """Give every block another way with the stream, where the form is one of FORMS."""
    if form in FORMS:
        for block in cast("Sequence[Block]", transformer.blocks):
            block.forward = types.MethodType(FORMS[form], block)  # pyright: ignore


def prepared(work: Path, out: Path, name: str, seed: int, args: argparse.Namespace) -> Any:
    """The stage of one run."""
    design = DESIGNS[name]
    config = out / "pretrain.toml"
    out.mkdir(parents=True, exist_ok=True)
    model = {key: value for key, value in {**SIZES, **design.config}.items() if value is not None}
    lines = "\n".join(f"{key} = {json.dumps(value)}" for key, value in model.items())
    head = SETTINGS.format(updates=args.updates, tokens=args.tokens)
    config.write_text(f"{head}[model]\n{lines}\n", encoding="utf-8")
    overrides = (
        f"out={out}",
        f"data={work / 'learned.jsonl'}",
        f"held_out={work / 'held_out.jsonl'}",
        f"vocabulary={work / 'vocabulary'}",
        f"device={args.device}",
        f"seed={seed}",
    )
    stage = pretrain.prepare(read_settings(pretrain.PretrainSettings, config, overrides))
    reform(stage.model.transformer, design.form)
    return stage


def run_one(
    job: tuple[str, int], *, work: Path, args: argparse.Namespace, until: float
) -> dict[str, Any] | None:
    """One run from random weights, or what came of it before; None where time is up."""
    name, seed = job
    told = work / f"{name}-{seed}.json"
    if told.exists():
        return json.loads(told.read_bytes())
    if monotonic() > until:
        return None
    torch.set_num_threads(args.threads)
    out = work / f"{name}-{seed}"
    shutil.rmtree(out, ignore_errors=True)
    try:
        stage = prepared(work, out, name, seed, args)
        count = sum(each.numel() for each in stage.model.transformer.parameters())
        began = perf_counter()
        stage.run(say=lambda words: None)
    except (RuntimeError, CutawayError) as error:  # the others go on
        print(f"{name} {seed}: {error}", file=sys.stderr, flush=True)
        return None
    rows = read_record(out / "record.jsonl")
    row = {
        "design": name,
        "seed": seed,
        "parameters": count,
        "updates": args.updates,
        "tokens": args.tokens,
        "seconds": round(perf_counter() - began, 1),
        "first": rows[0]["loss"],
        "last": rows[-1]["loss"],
        "bits_per_byte": rows[-1]["measured"]["bits_per_byte"],
        "norms_first": rows[0]["norms"],
        "norms_last": rows[-1]["norms"],
    }
    shutil.rmtree(out / "updates", ignore_errors=True)
    if seed or DESIGNS[name].form:  # models of the first seed are kept
        shutil.rmtree(out, ignore_errors=True)
    told.write_text(json.dumps(row), encoding="utf-8")
    return row


def p_of(differences: Sequence[float]) -> float:
    """Two-sided p of a paired t test, by the integral of Student's density."""
    count = len(differences)
    spread = stdev(differences)
    if spread == 0:
        return 1.0
    t, free = abs(fmean(differences)) / (spread / math.sqrt(count)), count - 1
    scale = math.exp(math.lgamma((free + 1) / 2) - math.lgamma(free / 2)) / math.sqrt(
        free * math.pi
    )
    # Tails behind t: x = t + u / (1 - u) takes them to 0 .. 1, by the midpoint rule.
    steps = 100_000
    total = 0.0
    for step in range(steps):
        u = (step + 0.5) / steps
        x = t + u / (1 - u)
        total += (1 + x * x / free) ** (-(free + 1) / 2) / (1 - u) ** 2
    return min(1.0, 2 * scale * total / steps)


def tell(work: Path) -> None:
    """The tables."""
    rows = [json.loads(path.read_bytes()) for path in sorted(work.glob("*-*.json"))]
    by_design = {
        name: {row["seed"]: row for row in rows if row["design"] == name} for name in DESIGNS
    }
    print("| design | parameters | seeds | bits per byte | spread | seconds |")
    print("|---|---|---|---|---|---|")
    for name, runs in by_design.items():
        if not runs:
            continue
        bits = [runs[seed]["bits_per_byte"] for seed in sorted(runs)]
        spread = f"{stdev(bits):.4f}" if len(bits) > 1 else ""
        first = runs[min(runs)]
        seconds = fmean(run["seconds"] for run in runs.values())
        print(
            f"| {name}: {DESIGNS[name].told} | {first['parameters']:,} | {len(bits)} | "
            f"{fmean(bits):.4f} | {spread} | {seconds:.0f} |"
        )
    print("\n| pair | seeds | second - first | p |\n|---|---|---|---|")
    for left, right in PAIRS:
        seeds = sorted(by_design[left].keys() & by_design[right].keys())
        if len(seeds) < 2:
            continue
        differences = [
            by_design[right][seed]["bits_per_byte"] - by_design[left][seed]["bits_per_byte"]
            for seed in seeds
        ]
        print(
            f"| {left}, {right} | {len(seeds)} | {fmean(differences):+.4f} | "
            f"{p_of(differences):.2g} |"
        )
    print("\n| gradient's norm by block | first update | last |\n|---|---|---|")
    for name, runs in by_design.items():
        if runs:
            run = runs[min(runs)]
            cells = [
                ", ".join(f"{v:.3g}" for k, v in run[key].items() if k.startswith("blocks"))
                for key in ("norms_first", "norms_last")
            ]
            print(f"| {name} | {cells[0]} | {cells[1]} |")


def main() -> None:
    """Run what is not there yet, and tell."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--texts", type=Path, help="the folder of sotu.txt and moby-dick.txt")
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--device", default="cpu")
    options.add_argument("--designs", default=",".join(DESIGNS))
    options.add_argument("--seeds", type=int, default=5)
    options.add_argument("--updates", type=int, default=800)
    options.add_argument("--tokens", type=int, default=8192)
    options.add_argument("--workers", type=int, default=1)
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--seconds", type=float, default=1e9)
    options.add_argument("--tell", action="store_true", help="what is there, and no runs")
    args = options.parse_args()
    work = args.out
    work.mkdir(parents=True, exist_ok=True)
    if args.tell:
        tell(work)
        return
    until = monotonic() + args.seconds
    make_data(work, args.texts)
    keep_corpora(work)
    jobs = [(name, seed) for seed in range(args.seeds) for name in args.designs.split(",")]
    one = partial(run_one, work=work, args=args, until=until)
    # Forked before CUDA is begun: each has the texts as tokens already.
    with ProcessPoolExecutor(args.workers, mp_context=get_context("fork")) as pool:
        for row in pool.map(one, jobs):
            if row is not None:
                told = f"{row['design']} {row['seed']}: {row['bits_per_byte']:.4f}"
                print(f"{told} in {row['seconds']} s", file=sys.stderr, flush=True)
    tell(work)


def make_data(work: Path, folder: Path | None) -> None:
    """Texts and vocabulary, where they are not there."""
    if not (work / "held_out.jsonl").exists():
        assert folder is not None, "--texts names the folder of the texts"
        for name, listed in zip(("learned", "held_out"), texts(folder), strict=True):
            lines = (json.dumps({"text": text}) + "\n" for text in listed)
            (work / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    if not (work / "vocabulary").exists():
        settings = VocabularySettings(
            out=work / "vocabulary", data=(work / "learned.jsonl",), size=1024
        )
        learn(settings)


def keep_corpora(work: Path) -> None:
    """Read the texts once for all runs."""
    tokenizer, read = load_folder(work / "vocabulary"), pretrain.read_corpus
    kept = {
        name: read((work / f"{name}.jsonl",), tokenizer, context=256)
        for name in ("learned", "held_out")
    }

    def remembered(paths: Sequence[Path], *_: Any, **__: Any) -> Any:
        return kept[paths[0].stem]

    pretrain.read_corpus = remembered


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
