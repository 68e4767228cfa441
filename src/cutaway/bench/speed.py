"""How fast an engine is: its decode steps, or a whole workload, beside the device's limits."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from cutaway.bench import machine
from cutaway.bench.workloads import Workload
from cutaway.blocks.weighed import model_work
from cutaway.core.errors import ConfigError
from cutaway.core.work import ModelWork, Work
from cutaway.engine.engine import Engine
from cutaway.kernels import hardware
from cutaway.trace.cost import works_of


@dataclass(frozen=True)
class Limits:
    """What the device reaches. Units: bytes and operations a second."""

    device: str
    bandwidth: float
    flops: float


@dataclass(frozen=True)
class LatencyReport:
    """Decode steps of so many answers side by side. Units: milliseconds, tokens a second.

    step_ms, mean_ms: of the engine's whole step by the clock on the wall.
    floor_ms: the step's bytes over the measured bandwidth; bandwidth_share is floor over step.
    flops_share: of the measured rate of products, in prefill.
    """

    model: str
    device: str
    sequences: int
    context: int
    kernel: str
    step_ms: float
    mean_ms: float
    tokens_per_second: float
    floor_ms: float
    bandwidth_share: float
    prefill_tokens_per_second: float
    flops_share: float


@dataclass(frozen=True)
class ThroughputReport:
    """A workload from the first request to the last token. Units: seconds, milliseconds.

    goodput: answers a second whose first token and mean gap kept both promises.
    bandwidth_share, flops_share: bytes and operations of the steps over what was measured.
    """

    model: str
    device: str
    workload: str
    requests: int
    prompt_tokens: int
    answer_tokens: int
    seconds: float
    tokens_per_second: float
    requests_per_second: float
    first_token_ms: dict[str, float]
    gap_ms: dict[str, float]
    goodput: float
    steps: dict[str, int]
    bandwidth_share: float
    flops_share: float


def limits_of(engine: Engine) -> Limits:
    """Copy or read bandwidth, and the rate of large products, measured now on the device."""
    if engine.model.device.type != "cuda":
        measured = machine.measure(rounds=3)
        name = f"{hardware.chosen_threads()} CPU threads"
        return Limits(name, measured.bandwidth, max(measured.peaks.values()))
    source = torch.empty(1 << 30, dtype=torch.uint8, device=engine.model.device)
    target = torch.empty_like(source)
    dtype = torch.bfloat16 if engine.model.dtype == torch.float32 else engine.model.dtype
    left, right = (torch.randn(8192, 8192, dtype=dtype, device=source.device) for _ in range(2))
    copy = _device_seconds(lambda: target.copy_(source))
    product = _device_seconds(lambda: torch.matmul(left, right))
    name = torch.cuda.get_device_name(source.device)
    return Limits(name, 2 * source.numel() / copy, 2 * 8192**3 / product)


def _device_seconds(run: Callable[[], object]) -> float:
    for _ in range(2):
        run()
    times: list[float] = []
    for _ in range(8):
        began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        began.record()
        run()
        ended.record()
        ended.synchronize()
        times.append(began.elapsed_time(ended) / 1e3)
    return statistics.median(times)


def measure_latency(
    engine: Engine, workload: Workload, *, steps: int, limits: Limits
) -> LatencyReport:
    """Median of decode steps after the prompts; the answers are ended afterwards.

    Raises: ConfigError where not all requests can run side by side.
    """
    requests = workload.requests("warm") + workload.requests("latency")
    count = len(workload.prompts)
    _check_room(engine, workload, count)
    for request in requests[:count]:  # compiles, captures and touches all that is used
        engine.add(request)
    for _ in range(3):
        engine.step()
    for request in requests[:count]:
        engine.abort(request.request_id)
    engine.step()
    for request in requests[count:]:
        engine.add(request)
    began = time.perf_counter()
    while not _all_decode(engine, count):
        engine.step()
    prefill = time.perf_counter() - began
    engine.step()
    times: list[float] = []
    for _ in range(steps):
        before = time.perf_counter()
        engine.step()
        times.append(time.perf_counter() - before)
    lengths = [sequence.num_tokens for sequence in engine.scheduler.running]
    kernel = engine.runner.kernel
    for request in requests[count:]:
        engine.abort(request.request_id)
    engine.step()
    model = _model_work(engine)
    read = [len(prompt) for prompt in workload.prompts]
    step, prompts = Work(), Work()
    for length in lengths:
        step += _sum(model.part(length - 1, length, 1, num_tokens=count, all_rows=count))
    for length in read:
        prompts += _sum(model.part(0, length, 1, num_tokens=sum(read), all_rows=count))
    median, floor = statistics.median(times), step.num_bytes / limits.bandwidth
    return LatencyReport(
        model=engine.model.name,
        device=limits.device,
        sequences=count,
        context=max(read),
        kernel=kernel,
        step_ms=median * 1e3,
        mean_ms=statistics.mean(times) * 1e3,
        tokens_per_second=count / median,
        floor_ms=floor * 1e3,
        bandwidth_share=floor / median,
        prefill_tokens_per_second=sum(read) / prefill,
        flops_share=prompts.flops / prefill / limits.flops,
    )


@dataclass
class _Heard:
    """When the tokens of an answer came."""

    first: float = 0.0
    last: float = 0.0
    tokens: int = 0
    gaps: list[float] = field(default_factory=list[float])


def measure_throughput(
    engine: Engine, workload: Workload, *, promises: tuple[float, float], limits: Limits
) -> ThroughputReport:
    """Run all requests to their ends. promises: milliseconds to the first token, and per gap.

    Raises: ConfigError where a request cannot fit.
    """
    _check_room(engine, workload, 1)
    model, spent, kernels = _model_work(engine), Work(), Counter[str]()
    heard: dict[str, _Heard] = {}
    lengths: dict[str, int] = {}
    began = time.perf_counter()
    for request in workload.requests("throughput"):
        engine.add(request)
        lengths[request.request_id] = len(request.prompt_token_ids)
        heard[request.request_id] = _Heard()
    while engine.has_work:
        deltas, now = engine.step(), time.perf_counter()
        kernels[engine.runner.kernel] += 1
        for delta in deltas:
            if delta.error is not None:
                raise delta.error
            each = heard[delta.request_id]
            if each.tokens:
                each.gaps.append((now - each.last) * 1e3)
            else:
                each.first = now - began
            each.last, each.tokens = now, each.tokens + len(delta.token_ids)
    seconds = time.perf_counter() - began
    for number in range(engine.num_steps - sum(kernels.values()), engine.num_steps):
        step = engine.ledger.step(number) if engine.ledger is not None else None
        if step is not None:
            for works in works_of(step, model):
                spent += _sum(works)
    answers = list(heard.values())
    kept = [
        each.first * 1e3 <= promises[0] and statistics.fmean(each.gaps or [0.0]) <= promises[1]
        for each in answers
    ]
    num_tokens = sum(each.tokens for each in answers)
    return ThroughputReport(
        model=engine.model.name,
        device=limits.device,
        workload=workload.name,
        requests=len(answers),
        prompt_tokens=sum(lengths.values()),
        answer_tokens=num_tokens,
        seconds=seconds,
        tokens_per_second=num_tokens / seconds,
        requests_per_second=len(answers) / seconds,
        first_token_ms=_quantiles([each.first * 1e3 for each in answers]),
        gap_ms=_quantiles([gap for each in answers for gap in each.gaps]),
        goodput=sum(kept) / seconds,
        steps=dict(kernels),
        bandwidth_share=spent.num_bytes / seconds / limits.bandwidth,
        flops_share=spent.flops / seconds / limits.flops,
    )


def _check_room(engine: Engine, workload: Workload, count: int) -> None:
    longest = max(map(len, workload.prompts)) + max(workload.answer_tokens)
    if longest > engine.max_length:
        raise ConfigError(
            f"a prompt and its answer may take {longest:,} tokens; the model and its cache hold "
            f"{engine.max_length:,}. Ask for fewer, or raise cache_tokens."
        )
    if count > engine.config.max_sequences:
        raise ConfigError(
            f"requests is {count}, and max_sequences is {engine.config.max_sequences}; all run "
            "side by side here. Raise the one or lower the other."
        )
    needed = count * longest
    if count > 1 and needed > engine.cache.capacity_tokens:
        raise ConfigError(
            f"{count} requests may take {needed:,} tokens side by side; the cache holds "
            f"{engine.cache.capacity_tokens:,}. Raise cache_tokens, or ask for fewer."
        )


def _all_decode(engine: Engine, count: int) -> bool:
    running = engine.scheduler.running
    return len(running) == count and all(each.num_output_tokens for each in running)


def _model_work(engine: Engine) -> ModelWork:
    dtype = str(engine.model.cache_dtype).removeprefix("torch.")
    return model_work(engine.model.transformer, engine.model.facts, dtype)


def _sum(works: tuple[Work, ...]) -> Work:
    return sum(works, Work())


def _quantiles(values: list[float]) -> dict[str, float]:
    if len(values) < 2:
        values = [*values, *values] or [0.0, 0.0]
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return {"p50": cuts[49], "p90": cuts[89], "p99": cuts[98]}
