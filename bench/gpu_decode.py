"""Decode steps on a GPU beside the card's bandwidth: wall clock, the device's time, and kernels.

    python bench/gpu_decode.py [--shapes qwen3-0.6b llama3-8b] [--batches 1 8 64 256] [--plain]

Weights are drawn on the device. A step reads all matrices and the keys and values of every
context; the floor is those bytes over the bandwidth of a copy, measured here. Every row is one
engine that runs so many answers of equal length: the scheduler, the sampler and the record of
answers are in the wall clock. --modes invariant has every row summed in one order; --plain takes
the definitions in PyTorch, as before there was Triton. --apart measures engines in turn, of which
one has norms, gates and heads of one token in kernels of their own beside its products, another the
merge of attention, and a third has that too and reads keys behind the kernel in front, not ahead.
A fourth does not have the cache filled with the next matrix of 4 bits.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import torch
from gpu_shapes import COMMON, SHAPES, nano_requests
from torch import Tensor

from cutaway.blocks.linear import Linear
from cutaway.blocks.moe import Experts
from cutaway.blocks.router import Router
from cutaway.blocks.weighed import stored_bytes
from cutaway.core.request import Request, SamplingParams
from cutaway.engine.build import precision_of
from cutaway.engine.config import EngineConfig
from cutaway.engine.engine import Engine
from cutaway.engine.loading.loaded_model import LoadedModel
from cutaway.host.garbage import hold_off
from cutaway.kernels import dispatch
from cutaway.kernels.norm import late
from cutaway.models.parts.reading import read_config
from cutaway.quantize.rounding import round_matrix
from cutaway.quantize.schemes import scheme_of
from cutaway.tokens.byte_tokenizer import byte_tokenizer

MODES = ("quickest", "invariant")
APART = ("nothing", "norms", "merges", "reads", "fetches")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--shapes", nargs="*", default=["qwen3-0.6b", "llama3-8b"])
    options.add_argument("--batches", nargs="*", type=int, default=[1, 8, 64, 256])
    options.add_argument("--context", type=int, default=1024)
    options.add_argument("--steps", type=int, default=24)
    options.add_argument("--plain", action="store_true")
    options.add_argument("--apart", nargs="+", default=["nothing"], choices=APART)
    options.add_argument("--profile", nargs="*", type=int, default=[])
    options.add_argument("--set", action="store_true", help="nano-vllm's 256 requests too")
    options.add_argument("--prompts", nargs="*", default=[], help="as 1x4096 16x1024")
    options.add_argument("--most-tokens", nargs="*", type=int, default=[16384], help="of a step")
    options.add_argument("--quant", default="off", help="int8, int4 or fp8, as the engine's quant")
    options.add_argument("--modes", nargs="*", default=["quickest"], choices=MODES)
    options.add_argument("--kv-dtype", default="auto", help="float8_e4m3fn, int8")
    args = options.parse_args()
    if not torch.cuda.is_available():
        sys.exit("gpu_decode needs an NVIDIA GPU; torch sees none here.")
    if args.plain:
        dispatch.has_triton = lambda: False

    modes = [{"invariant": True} if mode == "invariant" else {} for mode in args.modes]
    bandwidth = copy_bandwidth()
    say(card=torch.cuda.get_device_name(0), torch=torch.__version__, copy_gb_s=bandwidth / 1e9)
    for shape in args.shapes:
        with hold_off():  # Python's cycle collector, as in the process that serves
            model = random_model(SHAPES[shape] | COMMON, quant=args.quant, kv_dtype=args.kv_dtype)
        weights = read_bytes(model)
        for batch, settings, what in product(args.batches, modes, args.apart):
            with apart(what):
                engine = engine_of(model, batch, args.context + 160, **settings)
                given = (engine, batch, args.context, args.steps)
                row = measure(*given, profiles=batch in args.profile)
            read = weights + batch * args.context * kv_bytes(model)
            if "experts_read" in row:
                read -= expert_bytes(model) * (1 - row["experts_read"])
            floor = read / bandwidth * 1e3
            row |= {"quant": args.quant, "kv": args.kv_dtype, "floor_ms": floor} | settings
            row |= {"apart": what, "over_floor": row["step_ms"] / floor}
            say(shape=shape, batch=batch, plain=args.plain, **row)
            del engine, given
            torch.cuda.empty_cache()
        for case, settings in product(args.prompts, modes):
            count, _, length = case.partition("x")
            row = measure_prompts(
                model, int(count), int(length), profiles=bool(args.profile), **settings
            )
            say(shape=shape, quant=args.quant, prompts=case, **row, **settings)
            torch.cuda.empty_cache()
        if args.set:
            for most, settings in product(args.most_tokens, modes):
                rows = request_set(model, most_tokens=most, **settings) | settings
                say(shape=shape, quant=args.quant, kv=args.kv_dtype, step_tokens=most, **rows)
        del model
        torch.cuda.empty_cache()


@contextmanager
def apart(what: str) -> Iterator[None]:
    """Some of a step of one sequence in kernels of its own, of engines that are built within."""
    places = {"norms": (late, "LEAVES_NORMS")}
    if dispatch.has_triton():
        from cutaway.kernels.attention import triton, triton_splits
        from cutaway.kernels.integers import triton_nibbles

        places |= {"merges": (triton_splits, "MERGES_ALONG"), "reads": (triton, "READS_AHEAD")}
        places |= {"fetches": (triton_nibbles, "FETCHES")}
    if what not in places:
        yield
        return
    module, name = places[what]
    setattr(module, name, False)
    try:
        yield
    finally:
        setattr(module, name, True)


def say(**row: Any) -> None:
    rounded = {k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}
    print(json.dumps(rounded), flush=True)


def copy_bandwidth() -> float:
    """Bytes read and written per second by a large copy on the device."""
    source = torch.empty(4 << 30, dtype=torch.uint8, device="cuda").random_(0, 255)
    target = torch.empty_like(source)
    seconds = device_seconds(lambda: target.copy_(source), 10)
    return 2 * source.numel() / seconds


def device_seconds(run: Any, rounds: int) -> float:
    """Median by the device's clock, after two runs that do not count."""
    run(), run()
    times: list[float] = []
    for _ in range(rounds):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        run()
        after.record()
        torch.cuda.synchronize()
        times.append(before.elapsed_time(after) / 1e3)
    return statistics.median(times)


def random_model(
    values: dict[str, Any], *, quant: str = "off", kv_dtype: str = "auto"
) -> LoadedModel:
    """A model in bfloat16 whose matrices are drawn on the device, and rounded there if asked."""
    architecture, _, _ = read_config(values, file="shape")
    with torch.device("meta"):
        transformer = architecture.build()
    transformer = transformer.to(torch.bfloat16).requires_grad_(False).to_empty(device="cuda")
    for name, parameter in transformer.named_parameters():
        if "norm" in name:
            parameter.fill_(1.0)
        else:
            parameter.normal_(0, parameter.shape[-1] ** -0.5)
    if quant != "off":
        for part in transformer.modules():
            if isinstance(part, Linear):
                kept = [round_matrix(s.dense(), scheme_of(quant)).keep(None) for s in part.segments]
                part.segments = torch.nn.ModuleList(kept)
    transformer.join_segments()
    cache = precision_of("auto", torch.device("cuda"), kv_dtype=kv_dtype).cache
    return LoadedModel(
        name="random",
        licence="none",
        facts=architecture.facts,
        transformer=transformer.eval(),
        tokenizer=byte_tokenizer(eos_token_id=256),
        template_source=None,
        end_token_ids=frozenset({256}),
        sampling={},
        dtype=torch.bfloat16,
        cache_dtype=cache,
        device=torch.device("cuda"),
    )


def read_bytes(model: LoadedModel) -> int:
    """What a step reads of the weights: all matrices, but of a table of its own only some rows."""
    transformer = model.transformer
    # A tied table stands in two places and counts once; of one of its own only some rows are read.
    return stored_bytes(transformer) - transformer.embedding.table.num_bytes


def expert_bytes(model: LoadedModel) -> int:
    """Of all experts: of them a step reads those that its tokens chose."""
    parts = model.transformer.modules()
    return sum(stored_bytes(part) for part in parts if isinstance(part, Experts))


def experts_read(model: LoadedModel, engine: Engine, batch: int) -> float | None:
    """The share of experts that the last step's tokens chose, by the kernels of its graph."""
    routers = [part for part in model.transformer.modules() if isinstance(part, Router)]
    graphs = engine.runner._graphs
    if not routers or graphs is None or not graphs._static:
        return None
    shares: list[float] = []

    def count(router: Any, _: Any, chosen: tuple[Tensor, Tensor]) -> None:
        shares.append(chosen[0][:batch].unique().numel() / router.num_experts)

    hooks = [router.register_forward_hook(count) for router in routers]
    _, inputs = min(
        (k, v) for k, v in graphs._static.items() if k.tokens is None and k.sequences >= batch
    )
    with torch.inference_mode():
        model.transformer(inputs.step)
    for hook in hooks:
        hook.remove()
    return statistics.mean(shares)


def kv_bytes(model: LoadedModel) -> int:
    dtype = str(model.cache_dtype).removeprefix("torch.")
    return sum(spec.bytes_per_token(dtype) for spec in model.transformer.cache_specs)


def engine_of(model: LoadedModel, batch: int, length: int, **settings: Any) -> Engine:
    plain = {"max_tokens_per_step": 8192, "prefill_chunk": 8192, "prefix_cache": False}
    config = EngineConfig(
        dtype="bfloat16", device="cuda", max_sequences=batch, **{**plain, **settings}
    )
    pages = 2 + batch * (-(-length // config.page_size) + 1)
    began = time.perf_counter()
    engine = Engine(model, config, num_pages=pages)
    torch.cuda.synchronize()
    gc.collect()
    gc.freeze()  # as in the process that serves, which builds its engine before it does
    print(f"# engine of {batch}: {time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)
    return engine


def measure(
    engine: Engine, batch: int, context: int, steps: int, *, profiles: bool
) -> dict[str, Any]:
    """Median milliseconds of decode steps, and of a graph's replay by the device's clock."""
    generator = torch.Generator().manual_seed(0)
    params = SamplingParams(temperature=0.0, max_tokens=160, ignore_eos=True)
    for number in range(batch):
        ids = torch.randint(0, 50_000, (context - 8,), generator=generator).tolist()
        engine.add(Request(request_id=str(number), prompt_token_ids=tuple(ids), params=params))
    first = profiled(engine) if profiles else None  # compiles too: its own kernels are right
    began, before = time.perf_counter(), _num_computed(engine)
    while not _all_decode(engine, batch):
        engine.step()
    prefill = time.perf_counter() - began
    num_prompt = _num_computed(engine) - before
    for _ in range(4):
        engine.step()
    times: list[float] = []
    for _ in range(steps):  # no wait between: the next step may be under way
        before = time.perf_counter()
        engine.step()
        times.append(time.perf_counter() - before)
    row: dict[str, Any] = {
        "step_ms": statistics.median(times) * 1e3,
        "mean_ms": statistics.mean(times) * 1e3,
        "kernel": engine.runner.kernel,
        "ahead": engine._ahead.num_taken if engine._ahead is not None else 0,
        "prefill_tokens_s": num_prompt / prefill,
    }
    graphs = engine.runner._graphs
    captured = graphs._captured if graphs else {}
    sized = [c for size, c in captured.items() if size.tokens is None and size.sequences >= batch]
    if captured:
        chosen = min(sized, key=lambda c: len(c.logits))
        row["graph_ms"] = device_seconds(chosen.graph.replay, 20) * 1e3
    share = experts_read(engine.model, engine, batch)
    if share is not None:
        row["experts_read"] = share
    if profiles:
        row["prefill_kernels_us"] = first
        row["kernels_us"] = profiled(engine)
        row["host_us"] = host_profiled(engine)
    return row


def measure_prompts(
    model: LoadedModel, count: int, length: int, *, profiles: bool, **settings: Any
) -> dict[str, Any]:
    """Prompts alone, each of one new token: the best of three runs, and the device's part of one.

    What bench/peers/vllm_offline.py measures with --prompts.
    """
    engine = engine_of(model, count, length + 32, max_tokens_per_step=16384, **settings)
    generator = torch.Generator().manual_seed(1)
    params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)

    def add(run: str) -> None:
        for number in range(count):
            ids = tuple(torch.randint(0, 50_000, (length,), generator=generator).tolist())
            engine.add(Request(request_id=f"{run} {number}", prompt_token_ids=ids, params=params))

    times: list[float] = []
    for run in range(4):
        add(str(run))
        began = time.perf_counter()
        while engine.has_work:
            engine.step()
        times.append(time.perf_counter() - began)
    row: dict[str, Any] = {
        "prefill_tokens_s": count * length / min(times[1:]),
        "best_ms": min(times[1:]) * 1e3,
        "first_ms": times[0] * 1e3,
    }
    if profiles:
        add("profiled")
        row["kernels_us"] = profiled(engine)
        add("host")
        row["host_us"] = host_profiled(engine, 1)
    return row


def _num_computed(engine: Engine) -> int:
    return sum(each.num_computed_tokens for each in engine.scheduler.running)


def _all_decode(engine: Engine, batch: int) -> bool:
    running = engine.scheduler.running
    return len(running) == batch and all(each.num_output_tokens for each in running)


def profiled(engine: Engine) -> dict[str, list[float]]:
    """Of one step: microseconds and calls of each kernel, the longest first."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as taken:
        engine.step()
        torch.cuda.synchronize()
    spent: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for event in taken.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            spent[event.name[:60]] += event.self_device_time_total
            calls[event.name[:60]] += 1
    return {name: [round(time_, 1), calls[name]] for name, time_ in spent.most_common(16)}


def host_profiled(engine: Engine, steps: int = 10) -> dict[str, float]:
    """Microseconds a step that the host spends in functions of its own, the longest first."""
    import cProfile
    import pstats

    profile = cProfile.Profile()
    profile.enable()
    for _ in range(steps):
        engine.step()
    profile.disable()
    spent = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    own = {f"{key[0][-24:]}:{key[2]}": value[2] for key, value in spent.items()}
    longest = sorted(own.items(), key=lambda item: -item[1])[:22]
    return {name: round(seconds / steps * 1e6, 1) for name, seconds in longest}


def request_set(model: LoadedModel, *, most_tokens: int, **settings: Any) -> dict[str, Any]:
    """nano-vllm's bench.py: 256 requests, 100 to 1,024 tokens in and out, seed 0; run twice.

    The first run compiles what kernels are still missing; both are told.
    """
    prompts, lengths = nano_requests()
    engine = engine_of(model, 256, 2048, max_tokens_per_step=most_tokens, **settings)
    row: dict[str, Any] = {}
    for name in ("first", "set"):
        for number, (ids, length) in enumerate(zip(prompts, lengths, strict=True)):
            params = SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True)
            request = f"{name} {number}"
            engine.add(Request(request_id=request, prompt_token_ids=tuple(ids), params=params))
        began, steps = time.perf_counter(), engine.num_steps
        while not _all_decode(engine, 256):
            engine.step()
        prompts_done, prompt_steps = time.perf_counter(), engine.num_steps
        spent: dict[int, list[float]] = {}
        while engine.has_work:
            before, count = time.perf_counter(), engine.scheduler.num_running
            engine.step()
            spent.setdefault(-(-count // 32) * 32, []).append(time.perf_counter() - before)
        seconds = time.perf_counter() - began
        row |= {
            # By running sequences, up to so many: steps, and the mean of their milliseconds.
            f"{name}_by_running": {n: [len(t), sum(t) / len(t) * 1e3] for n, t in spent.items()},
            f"{name}_seconds": seconds,
            f"{name}_tokens_s": sum(lengths) / seconds,
            f"{name}_until_all_decode_s": prompts_done - began,
            f"{name}_steps": [prompt_steps - steps, engine.num_steps - steps],
        }
    ahead = engine._ahead
    return row | {"begun_taken": None if ahead is None else [ahead.num_begun, ahead.num_taken]}


if __name__ == "__main__":
    main()
