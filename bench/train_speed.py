"""Tokens a second of training at SmolLM2-135M's shape, beside transformers in the same run.

    python bench/train_speed.py [--sequences 32] [--length 2048] [--updates 6] [--profile]
        [--rows captured,eager,transformers,captured+deterministic,compiled] [key=value ...]
    python bench/train_speed.py --rows captured,captured+lora,captured+lora+recomputed
    python bench/train_speed.py --rows captured,nanochat,captured --nanochat FOLDER
    python bench/train_speed.py --rows captured,torchtune,captured --torchtune FOLDER

Random weights and tokens, AdamW, products in bfloat16, one micro-batch an update; the mean of some
updates after four to warm up. Captured, forward and backward are replayed, as a stage does with
`deterministic = false`; as it does by default the row is captured+deterministic. Eager, each kernel
is launched; compiled, blocks are. transformers' model is compiled as a whole and runs under
autocast, with torch's fused AdamW and a clip, as its users have it. With lora a pair of rank 4
beside every matrix is trained alone, recomputed keeps each block's input alone, muon moves matrices
inside blocks. nanochat and torchtune are their own models and updates (peers/train_nanochat.py,
peers/train_torchtune.py), from folders of their repositories. GiB is what torch has of the device,
a graph's own memory with it; a share of the peak counts the operations of all weights of this
shape. key=value are fields of the shape, as in hidden_size=1024 num_hidden_layers=24.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from peers import train_nanochat, train_torchtune
from torch.nn.attention import SDPBackend, sdpa_kernel

from cutaway.blocks.transformer import Transformer
from cutaway.models.parts.reading import read_config
from cutaway.train.captured import CapturedPull
from cutaway.train.data.packing import MicroBatch, ScoredSequence
from cutaway.train.loop import Pull, descend, pull_back
from cutaway.train.losses.likelihood import likelihood
from cutaway.train.losses.losses import Loss, cross_entropy
from cutaway.train.model import compute_forms
from cutaway.train.model.model_folder import fill
from cutaway.train.model.utilization import update_flops, utilization
from cutaway.train.optimizers import Optimizers, OptimizerSettings
from cutaway.train.stage import deterministic
from cutaway.weights.adapter import put_on

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "tie_word_embeddings": True,
    "max_position_embeddings": 2048,
}
_RANK = 4  # of adapters
_PEERS = {"nanochat": train_nanochat.update_of, "torchtune": train_torchtune.update_of}
_WARM = 4  # updates: a layout is captured at the third
_BACKENDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}


def made(forms: set[str]) -> Transformer:
    """A model of random weights on the GPU."""
    architecture = read_config(CONFIG).architecture
    with torch.device("meta"):
        model = architecture.build()
    model.to_empty(device="cuda")
    fill(model, architecture, seed=0)
    if "lora" in forms:
        put_on(model, architecture.targets("hf"), rank=_RANK)
    compute_forms.multiply_in(model, torch.bfloat16)
    if "recomputed" in forms:
        compute_forms.recompute_blocks(model)
    if "compiled" in forms:
        compute_forms.compile_blocks(model)
    return model


def drawn(length: int, num_sequences: int) -> torch.Tensor:
    """Random ids. Shapes: [B, T]."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 49152, (num_sequences, length), generator=generator)


def ours(ids: torch.Tensor, forms: set[str]) -> Callable[[int], None]:
    """An update of our trainer."""
    model = made(forms)
    name = "muon" if "muon" in forms else "adamw"
    optimizers = Optimizers(model, OptimizerSettings(name=name, rate=1e-4))
    batch = MicroBatch(tuple(ScoredSequence.whole(row) for row in ids.tolist()))
    pull: Pull = pull_back
    if "captured" in forms:
        pull = CapturedPull(list(optimizers.parameters.values()))

    def objective(each: MicroBatch) -> Loss:
        return cross_entropy(likelihood(model, each))

    def update(index: int) -> None:
        descend([batch], objective, optimizers, update=index, factor=1.0, pull=pull)

    return update


def theirs(ids: torch.Tensor) -> Callable[[int], None]:
    """An update of transformers' model under torch.compile."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        **{name: value for name, value in CONFIG.items() if name != "architectures"}
    )
    config._attn_implementation = "sdpa"
    model = LlamaForCausalLM(config).to("cuda")
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    batch = ids.cuda()

    def update(index: int) -> None:
        del index
        with torch.autocast("cuda", torch.bfloat16):
            loss = compiled(input_ids=batch, labels=batch, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        float(loss.detach())

    return update


def made_by(
    row: str, ids: torch.Tensor, forms: set[str], folders: Mapping[str, Any]
) -> Callable[[int], object]:
    """An update of a row of the table. folders: of peers' repositories."""
    if row in _PEERS:
        return _PEERS[row](folders[row], CONFIG, ids)
    return theirs(ids) if row == "transformers" else ours(ids, forms)


def used(shape: tuple[int, int], seconds: float) -> str:
    """The share of the device's peak, where that is known."""
    architecture = read_config(CONFIG).architecture
    with torch.device("meta"):
        model = architecture.build()
    flops = update_flops(model, architecture.facts, [shape[1]] * shape[0])
    share = utilization(flops, seconds, torch.cuda.get_device_name())
    return "unknown" if share is None else f"{share:.1%}"


def measure(
    name: str, update: Callable[[int], object], shape: tuple[int, int], updates: int
) -> None:
    """Print one line of the table."""
    for index in range(_WARM):
        update(index)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    began = perf_counter()
    for index in range(updates):
        update(_WARM + index)
    torch.cuda.synchronize()
    seconds = (perf_counter() - began) / updates
    memory = torch.cuda.max_memory_reserved() / 2**30
    rate = shape[0] * shape[1] / seconds
    share = "" if "lora" in name else used(shape, seconds)
    told = f"{name} | {rate:,.0f} | {seconds * 1000:.0f} | {memory:.1f} | {share}"
    print(f"| {shape[0]} x {shape[1]:,} | {told} |", flush=True)


def profile(update: Callable[[int], object]) -> None:
    """Print where the device's time of two updates goes, and of what is between them."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiling

    with profiling(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
        for index in range(2):
            update(index)
        torch.cuda.synchronize()
    tell_waits(seen.events())
    tell_kernels(seen.events())


def tell_kernels(events: Any) -> None:
    """Print what the device ran, by kernels' names: the longest, and the sum of the rest."""
    spent: dict[str, list[float]] = {}
    for each in events:
        if each.device_type == torch.autograd.DeviceType.CUDA:
            spent.setdefault(each.name, []).append(each.time_range.elapsed_us() / 1e3)
    ordered = sorted(spent.items(), key=lambda item: -sum(item[1]))
    print("calls      ms  kernel")
    for name, times in ordered[:28]:
        print(f"{len(times):5} {sum(times):7.2f}  {name[:110]}")
    rest = [time for _, times in ordered[28:] for time in times]
    print(f"{len(rest):5} {sum(rest):7.2f}  all others")


def tell_waits(events: Any) -> None:
    """Print how long the device had nothing to do between its kernels, and the longest waits."""
    own = [each for each in events if each.device_type == torch.autograd.DeviceType.CUDA]
    spans = sorted((each.time_range.start, each.time_range.end, each.name) for each in own)
    end, waits = spans[0][0], list[tuple[float, str]]()
    for start, stop, name in spans:
        if start > end:
            waits.append((start - end, name))
        end = max(end, stop)
    whole, waited = end - spans[0][0], sum(wait for wait, _ in waits)
    print(f"device: {whole / 1e3:.1f} ms, {waited / 1e3:.1f} of them with nothing to do; before")
    for wait, name in sorted(waits, reverse=True)[:8]:
        print(f"{wait / 1e3:8.2f} ms {name[:60]}")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--sequences", type=int, default=32)
    options.add_argument("--length", type=int, default=2048)
    options.add_argument("--updates", type=int, default=6)
    options.add_argument("--rows", default="captured,transformers")
    options.add_argument("--attention", default="", help=f"one of {', '.join(_BACKENDS)}")
    options.add_argument("--profile", action="store_true")
    for peer in _PEERS:
        options.add_argument(f"--{peer}", type=Path, help="the folder of its repository")
    options.add_argument("shape", nargs="*", help="fields of config.json")
    args = options.parse_args()
    for each in args.shape:
        name, _, value = each.partition("=")
        CONFIG[name] = int(value)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    ids = drawn(args.length, args.sequences)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print("| sequences | form | tokens/s | ms | GiB | of the peak |\n|---|---|---|---|---|---|")
    for row in args.rows.split(","):
        forms = set(row.split("+"))
        form = deterministic() if "deterministic" in forms else nullcontext()
        try:
            update = made_by(row, ids, forms, vars(args))
            chosen = [_BACKENDS[args.attention]] if args.attention else list(_BACKENDS.values())
            with sdpa_kernel(chosen), form:
                measure(row, update, (args.sequences, args.length), args.updates)
                if args.profile and row not in ("transformers", *_PEERS):
                    profile(update)
        except torch.OutOfMemoryError as error:
            print(f"| {row}: {str(error)[:80]} |")
        update = None
        torch.compiler.reset()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
