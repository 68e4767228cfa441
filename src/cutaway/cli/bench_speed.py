"""`cutaway bench latency` and `throughput`: an engine here beside its device's limits."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from cutaway.cli.settings.options import AsJson, Given, SettingsFile, integer, with_settings
from cutaway.cli.settings.setting_keys import ENGINE, MODEL
from cutaway.cli.terminal.terminal import note, print_data, print_json, table

if TYPE_CHECKING:
    from pathlib import Path

    from cutaway.engine.engine import Engine

PromptTokens = Annotated[int, typer.Option(parser=integer, metavar="N", help="of each prompt")]


@with_settings(MODEL, ENGINE)
def latency(
    *,
    given: Given,
    config: SettingsFile = None,
    batch: Annotated[
        int, typer.Option(parser=integer, metavar="N", help="answers side by side")
    ] = 1,
    prompt_tokens: PromptTokens = 1024,
    steps: Annotated[
        int, typer.Option(parser=integer, metavar="N", help="decode steps that are timed")
    ] = 32,
    json: AsJson = False,
) -> None:
    """Measure a decode step: its median, and what share of the bandwidth it reaches.

    Prompts are random tokens; answers are greedy and of equal length. The floor is the bytes that a
    step reads and writes over the bandwidth measured here. random:PATH/config.json is a shape.
    """
    engine = _engine(given, config, at_least=batch)

    from cutaway.bench import speed
    from cutaway.bench.workloads import workload_of

    workload = workload_of(
        "fixed",
        requests=batch,
        prompt_tokens=prompt_tokens,
        answer_tokens=steps + 8,
        vocab_size=engine.model.facts.vocab_size,
        seed=0,
    )
    limits = speed.limits_of(engine)
    report = speed.measure_latency(engine, workload, steps=steps, limits=limits)
    if json:
        print_json(asdict(report))
        return
    print_data(
        f"{report.sequences} x {report.context} tokens: a step {report.step_ms:.3f} ms (mean "
        f"{report.mean_ms:.3f}), {report.tokens_per_second:,.0f} tokens/s, by {report.kernel}"
    )
    print_data(
        f"floor {report.floor_ms:.3f} ms, {report.bandwidth_share:.0%} of it reached at "
        f"{limits.bandwidth / 1e9:,.0f} GB/s"
    )
    print_data(
        f"prompts {report.prefill_tokens_per_second:,.0f} tokens/s, {report.flops_share:.0%} of "
        f"{limits.flops / 1e12:,.1f} TFLOP/s; {report.device}"
    )


@with_settings(MODEL, ENGINE)
def throughput(
    *,
    given: Given,
    config: SettingsFile = None,
    workload: Annotated[
        str, typer.Option(metavar="NAME", help="fixed, spread (nano-vllm's set) or prefix")
    ] = "spread",
    requests: Annotated[int, typer.Option(parser=integer, metavar="N", help="how many")] = 256,
    prompt_tokens: PromptTokens = 1024,
    answer_tokens: Annotated[
        int, typer.Option(parser=integer, metavar="N", help="of each answer; spread: at most")
    ] = 1024,
    load_seed: Annotated[
        int, typer.Option(parser=integer, metavar="N", help="of prompts and lengths")
    ] = 0,
    repeat: Annotated[
        int, typer.Option(parser=integer, metavar="N", help="runs; the last is told")
    ] = 2,
    promise_first: Annotated[
        float, typer.Option(metavar="MS", help="time to the first token that counts as kept")
    ] = 1000,
    promise_token: Annotated[
        float, typer.Option(metavar="MS", help="mean time per further token that counts as kept")
    ] = 100,
    json: AsJson = False,
) -> None:
    """Measure a workload whose requests all wait at the start: tokens per second, gaps, goodput.

    Told is the last run: the first compiles. Without --no-prefix-cache later runs find the prompts
    of earlier ones.
    """
    engine = _engine(given, config, at_least=requests)

    from cutaway.bench import speed
    from cutaway.bench.workloads import workload_of

    load = workload_of(
        workload,
        requests=requests,
        prompt_tokens=prompt_tokens,
        answer_tokens=answer_tokens,
        vocab_size=engine.model.facts.vocab_size,
        seed=load_seed,
    )
    limits = speed.limits_of(engine)
    promises = (promise_first, promise_token)
    report = speed.measure_throughput(engine, load, promises=promises, limits=limits)
    for left in reversed(range(repeat - 1)):
        note(f"a run of {report.seconds:.2f} s; {left + 1} to go", dim=True)
        report = speed.measure_throughput(engine, load, promises=promises, limits=limits)
    if json:
        print_json(asdict(report))
        return
    rows = [
        (name, *(f"{quantiles[each]:,.1f}" for each in ("p50", "p90", "p99")))
        for name, quantiles in (("first token", report.first_token_ms), ("gap", report.gap_ms))
    ]
    print_data(table(("MILLISECONDS", "P50", "P90", "P99"), rows, right="P50 P90 P99"))
    print_data(
        f"{report.requests} requests, {report.prompt_tokens:,} tokens in, "
        f"{report.answer_tokens:,} out, in {report.seconds:.2f} s: "
        f"{report.tokens_per_second:,.0f} tokens/s, {report.requests_per_second:.2f} answers/s, "
        f"goodput {report.goodput:.2f} answers/s"
    )
    steps = ", ".join(f"{count} {name}" for name, count in report.steps.items())
    print_data(
        f"{report.bandwidth_share:.0%} of {limits.bandwidth / 1e9:,.0f} GB/s, "
        f"{report.flops_share:.0%} of {limits.flops / 1e12:,.1f} TFLOP/s; steps: {steps}; "
        f"{report.device}"
    )


def _engine(given: Given, config: Path | None, *, at_least: int) -> Engine:
    """An engine with the settings that are given; so many sequences fit if that is not said."""
    from cutaway.cli.session.session import open_llm
    from cutaway.cli.settings.settings import resolve

    if config is None and "max_sequences" not in given:
        given = {**given, "max_sequences": at_least}
    return open_llm(resolve(given, config=config)).engine
