"""Tokens per second of streams through the engine's process, beside the engine in this process.

    python bench/engine_process.py [--model smollm2] [--streams 8] [--tokens 96] [--rounds 5]

Both decode the same prompts, in turn, round by round, so that a ratio means something on a machine
whose speed moves. The third column is the share of one core that this process, which reads the
streams, needs meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from typing import Any

from cutaway import LLM, SamplingParams
from cutaway.bench.form import form_of
from cutaway.core.request import Request
from cutaway.service.process import ProcessService

PROMPT = "Stream {number}: gravity is a fundamental force that"
SPIN_SECONDS = 0.1  # the engine's threads here look for more work for a while before they sleep


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--model", default="smollm2")
    options.add_argument("--streams", type=int, default=8)
    options.add_argument("--tokens", type=int, default=96)
    options.add_argument("--rounds", type=int, default=5)
    asyncio.run(_measure(options.parse_args()))


async def _measure(args: Any) -> None:
    llm = LLM(args.model, cache_tokens=8192)
    print(form_of(llm.engine))
    service = ProcessService(args.model, cache_tokens=8192)
    await service.start()
    params = SamplingParams(temperature=0.0, max_tokens=args.tokens, ignore_eos=True)
    prompts = [llm.encode(PROMPT.format(number=number)) for number in range(args.streams)]
    num_tokens = args.streams * args.tokens

    def offline() -> float:
        began = time.perf_counter()
        llm.generate(prompts, params)
        return num_tokens / (time.perf_counter() - began)

    async def served(name: str) -> tuple[float, float]:
        time.sleep(SPIN_SECONDS)
        began, used = time.perf_counter(), time.process_time()
        requests = [
            Request(request_id=f"{name}-{number}", prompt_token_ids=tuple(ids), params=params)
            for number, ids in enumerate(prompts)
        ]
        await asyncio.gather(*(_read(service, request) for request in requests))
        seconds = time.perf_counter() - began
        return num_tokens / seconds, (time.process_time() - used) / seconds

    offline(), await served("warm")
    rounds = [(offline(), *(await served(str(number)))) for number in range(args.rounds)]
    await service.close()
    here, there, share = (statistics.median(column) for column in zip(*rounds, strict=True))
    ratio = statistics.median(there / here for here, there, _ in rounds)
    print(
        f"{args.streams} streams of {args.tokens} tokens, {args.rounds} paired rounds, {args.model}"
    )
    print(f"in this process    {here:8.1f} tokens/s")
    print(f"in its own process {there:8.1f} tokens/s, {ratio:5.3f} of the former (paired medians)")
    print(f"reading the streams took {share:.3f} of one core here")


async def _read(service: ProcessService, request: Request) -> None:
    async for _ in service.follow(request):
        pass


if __name__ == "__main__":
    main()
