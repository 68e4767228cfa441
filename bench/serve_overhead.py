"""Tokens per second of streams by HTTP, beside the engine in this process, and who uses the cores.

    python bench/serve_overhead.py [--model smollm2] [--streams 8] [--tokens 128] [--rounds 7]

Both decode the same prompts, in turn, round by round, so that a ratio means something on a machine
whose speed moves. The client only reads bytes. Shares are of one core, while the server answers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time

from cutaway import LLM, SamplingParams
from cutaway.bench.form import form_of
from cutaway.bench.server import cpu_seconds, start_server

PROMPT = "Stream {number}: gravity is a fundamental force that"
CACHE_TOKENS = 8192
SPIN_SECONDS = 0.1  # the engine's threads look for more work for a while before they sleep


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--model", default="smollm2")
    options.add_argument("--streams", type=int, default=8)
    options.add_argument("--tokens", type=int, default=128)
    options.add_argument("--rounds", type=int, default=7)
    args = options.parse_args()
    llm = LLM(args.model, cache_tokens=CACHE_TOKENS)
    print(form_of(llm.engine))
    prompts = [llm.encode(PROMPT.format(number=number)) for number in range(args.streams)]
    params = SamplingParams(temperature=0.0, max_tokens=args.tokens, ignore_eos=True)
    num_tokens = args.streams * args.tokens
    settings = ["--model", args.model, "--cache-tokens", str(CACHE_TOKENS)]
    with start_server([*settings, "--served-name", args.model]) as server:
        port = int(server.url.rpartition(":")[2])
        bodies = [asked(each, args.model, args.tokens) for each in prompts]
        pids = server.pids

        def offline() -> float:
            time.sleep(SPIN_SECONDS)
            began = time.perf_counter()
            llm.generate(prompts, params)
            return num_tokens / (time.perf_counter() - began)

        def served() -> tuple[float, dict[str, float]]:
            time.sleep(SPIN_SECONDS)
            before, began = used(pids), time.perf_counter()
            asyncio.run(read_all(port, bodies))
            seconds = time.perf_counter() - began
            shares = {name: (now - before[name]) / seconds for name, now in used(pids).items()}
            return num_tokens / seconds, shares

        offline(), served()
        rounds = [(offline(), *served()) for _ in range(args.rounds)]
    ratios = [by_http / here for here, by_http, _ in rounds]
    print(f"{args.streams} streams of {args.tokens} tokens, {args.rounds} paired rounds")
    print(f"the engine alone {statistics.median(each[0] for each in rounds):8.1f} tokens/s")
    print(f"by HTTP          {statistics.median(each[1] for each in rounds):8.1f} tokens/s")
    middle, least, most = statistics.median(ratios), min(ratios), max(ratios)
    print(f"by HTTP / alone  {middle:8.3f} (paired median; {least:.3f} to {most:.3f})")
    for name in pids:
        share = statistics.median(each[2][name] for each in rounds)
        print(f"{name} took {share:.3f} of one core")


def used(pids: dict[str, int]) -> dict[str, float]:
    """Seconds of a core that each process has used."""
    return {name: cpu_seconds(pid) or 0.0 for name, pid in pids.items()}


def asked(prompt: list[int], model: str, num_tokens: int) -> bytes:
    """A request for a stream, as bytes."""
    body = {
        **{"model": model, "prompt": prompt, "max_tokens": num_tokens},
        **{"temperature": 0, "ignore_eos": True, "stream": True},
    }
    data = json.dumps(body).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


async def read_all(port: int, bodies: list[bytes]) -> None:
    """Read all streams to their end."""
    await asyncio.gather(*(read(port, body) for body in bodies))


async def read(port: int, body: bytes) -> None:
    """Read one stream to its end, and see that it came to it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(body)
    last = b""
    while data := await reader.read(1 << 16):
        last = (last + data)[-64:]
    writer.close()
    if b"data: [DONE]" not in last:
        raise SystemExit(f"a stream ended with {last!r}")


if __name__ == "__main__":
    main()
