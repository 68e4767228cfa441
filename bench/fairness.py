"""What a flood of one key does to another: first tokens and cached prefixes, alone and beside it.

A server of its own, by HTTP on the loopback. Alice floods: 400 requests at once, 12 long prompts
again and again, or connections whose bodies never come. Bob asks one thing after another, what he
had asked before: all but the last page of a prompt is cached, alone and beside alike. Each is a
process of its own, as they would be on machines of their own: what Alice reads is not in his time.

    python bench/fairness.py --model smollm2 --model random:config.json
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from random import Random

from cutaway.bench.server import cpu_seconds, start_server
from cutaway.server.entry.descriptors import raise_limit

KEYS = {"alice": "alice-has-a-key-of-her-own", "bob": "bob-has-another-key-of-his"}
WORDS = "the rain in that valley falls on a road where old men walk with dogs at night".split()
NOT_BEGUN = -1
WARM_SECONDS = 1.0  # from the flood's begin to Bob's first question


@dataclass
class Bob:
    """What one who asks now and then saw.

    first: seconds to the first token of each answer.
    cached: tokens of each prompt that were found again.
    """

    first: list[float] = field(default_factory=list[float])
    cached: list[int] = field(default_factory=list[int])
    refused: int = 0


def text(num_words: int, seed: int) -> str:
    """Words without end, unlike those of another seed."""
    random = Random(seed)
    return " ".join(random.choice(WORDS) for _ in range(num_words))


def request(who: str, body: dict[str, object]) -> bytes:
    """The bytes of a completion."""
    data = json.dumps(body).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {KEYS[who]}\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


async def answered(port: int, sent: bytes) -> tuple[float, bytes]:
    """Seconds to the first event of an answer, and all of it; infinite when it was refused."""
    began, first = time.perf_counter(), float("inf")
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    said = b""
    try:
        writer.write(sent)
        while data := await reader.read(1 << 16):
            said += data
            if first == float("inf") and b"\ndata: " in said:
                first = time.perf_counter() - began
            if b"[DONE]" in said or (first == float("inf") and b'"error"' in said):
                break
    finally:
        writer.close()
    return first, said


async def ask(port: int, bob: Bob, prompt: str) -> None:
    """One question of Bob's: three tokens, streamed."""
    body: dict[str, object] = {
        **{"model": "served", "prompt": prompt, "max_tokens": 3, "stream": True},
        "stream_options": {"include_usage": True},
    }
    first, said = await answered(port, request("bob", body))
    if first == float("inf"):
        bob.refused += 1
        return
    bob.first.append(first)
    lines = [line for line in said.split(b"\n") if line.startswith(b"data: {")]
    usage = next(u for line in reversed(lines) if (u := json.loads(line[6:]).get("usage")))
    bob.cached.append((usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0))


@dataclass(frozen=True)
class Alice:
    """The process that floods. refused: how many of its requests were, since it began."""

    pid: int
    refused: Synchronized[int]


@contextlib.asynccontextmanager
async def flood_of(flood: str, port: int) -> AsyncIterator[Alice]:
    """Alice's doing, for as long as the block lasts."""
    started = get_context("spawn")
    refused = started.Value("i", NOT_BEGUN)
    process = started.Process(target=be_alice, args=(flood, port, refused), daemon=True)
    process.start()
    try:
        while refused.value == NOT_BEGUN:
            await asyncio.sleep(0.05)
        await asyncio.sleep(WARM_SECONDS)
        assert process.pid is not None
        yield Alice(process.pid, refused)
    finally:
        process.kill()
        process.join()


def be_alice(flood: str, port: int, refused: Synchronized[int]) -> None:
    """Flood until the process is ended."""

    async def run() -> None:
        refused.value = 0
        await asyncio.gather(*FLOODS[flood](port, refused))

    raise_limit()
    asyncio.run(run())


async def again(port: int, make: Callable[[int], bytes], refused: Synchronized[int]) -> None:
    """Ask without end, whatever the answer is."""
    number = 0
    while True:
        _, said = await answered(port, make(number))
        number += 1
        if b'"error"' in said[:2000]:
            refused.value += 1
            await asyncio.sleep(0.5)


def many(port: int, refused: Synchronized[int]) -> list[Awaitable[object]]:
    """400 at once, each followed by the next."""

    def make(seed: int) -> Callable[[int], bytes]:
        return lambda number: request(
            "alice",
            {
                "model": "served",
                "prompt": text(20, 1000 * seed + number),
                **{"max_tokens": 200, "ignore_eos": True},
            },
        )

    return [again(port, make(seed), refused) for seed in range(400)]


def long(port: int, refused: Synchronized[int]) -> list[Awaitable[object]]:
    """12 prompts of about 1,000 tokens at once, each followed by another."""

    def make(seed: int) -> Callable[[int], bytes]:
        return lambda number: request(
            "alice",
            {
                "model": "served",
                "prompt": text(800, 7 + 1000 * seed + number),
                **{"max_tokens": 8, "ignore_eos": True},
            },
        )

    return [again(port, make(seed), refused) for seed in range(12)]


def slow(port: int, _refused: Synchronized[int]) -> list[Awaitable[object]]:
    """1,030 bodies of which a byte comes now and then."""

    async def dawdle() -> None:
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(request("alice", {"model": "served", "prompt": "x" * 1000})[:-900])
                for _ in range(100):
                    await asyncio.sleep(1)
                    if reader.at_eof():
                        break
                    writer.write(b"x")
                writer.close()

    return [dawdle() for _ in range(1030)]


FLOODS: dict[str, Callable[[int, Synchronized[int]], list[Awaitable[object]]]] = {
    "400 at once": many,
    "12 long prompts": long,
    "1,030 slow bodies": slow,
}


def cpu_of(pids: dict[str, int]) -> dict[str, float]:
    """Seconds that each process has computed so far, where the system tells."""
    used = {name: cpu_seconds(pid) for name, pid in pids.items()}
    return {name: each for name, each in used.items() if each is not None}


async def measured(
    port: int, flood: str, num_words: int, num: int, pids: dict[str, int]
) -> tuple[Bob, Bob, str]:
    """Bob alone, and the same questions beside a flood; a long one is the last of either.

    The third is what the flood cost: CPU time of each process, and requests that were refused.
    """
    prompts = [*(text(num_words, 10**6 + seed) for seed in range(num)), text(700, 5)]
    alone, beside = Bob(), Bob()
    for who in (
        Bob(),
        Bob(),
        alone,
    ):  # what is cached of an answer's own page comes the second time
        for prompt in prompts:
            await ask(port, who, prompt)
    async with flood_of(flood, port) as alice:
        alice.refused.value = 0
        pids = {"Alice": alice.pid, **pids}
        before, began = cpu_of(pids), time.perf_counter()
        for prompt in prompts:
            await ask(port, beside, prompt)
            await asyncio.sleep(0.2)
        spent = {name: each - before[name] for name, each in cpu_of(pids).items()}
        refused = alice.refused.value
        seconds = time.perf_counter() - began
    cost = ", ".join(f"{name} {each:.1f}" for name, each in spent.items())
    return alone, beside, f"{cost} s of {seconds:.0f}; {refused}"


def auc(hits: list[float], misses: list[float]) -> float:
    """How often a hit is faster than a miss; 0.5 tells nothing."""
    pairs = [(h, m) for h in hits for m in misses]
    return sum((h < m) + 0.5 * (h == m) for h, m in pairs) / len(pairs)


async def timing(port: int, num: int) -> tuple[float, float]:
    """Whether first tokens tell what is cached: of another key, and of one's own.

    Alice asks right before Bob does, so that it is cached; what he asks first is left to chance.
    """
    hits, misses, own, chance = Bob(), Bob(), Bob(), Random(num)
    for seed in range(num):
        prompt = text(300, 10**7 + seed)
        body = {"model": "served", "prompt": prompt, "max_tokens": 1, "stream": True}
        await answered(port, request("alice", body))
        probes = [(hits, prompt), (misses, text(300, 2 * 10**7 + seed))]
        for who, asked in chance.sample(probes, 2):
            await ask(port, who, asked)
        await ask(port, own, prompt)
    return auc(hits.first, misses.first), auc(own.first, misses.first)


def tiny(folder: Path) -> str:
    """A random model of two layers with a long context."""
    shape = {
        **{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64},
        **{"intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4},
        **{"num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 32768},
        **{"rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True},
    }
    (folder / "config.json").write_text(json.dumps(shape), encoding="utf-8")
    return f"random:{folder / 'config.json'}"


async def report(port: int, args: argparse.Namespace, pids: dict[str, int]) -> None:
    columns = (
        *("flood", "Bob's words", "first token alone, ms", "beside, median", "most", "times"),
        *("cached alone, beside", "refused", "CPU; refused of the flood"),
    )
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for flood in args.flood or FLOODS:
        for num_words in args.words or (20, 200):
            alone, beside, cost = await measured(port, flood, num_words, args.questions, pids)
            usual, now = statistics.median(alone.first), statistics.median(beside.first or [9e9])
            print(
                f"| {flood} | {num_words} | {usual * 1e3:.1f} | {now * 1e3:.1f} | "
                f"{max(beside.first or [9e9]) * 1e3:.1f} | {now / usual:.2f} | "
                f"{sum(alone.cached):,} {sum(beside.cached):,} | {beside.refused} | {cost} |",
                flush=True,
            )
    across, own = await timing(port, args.probes)
    print(f"prefix timing, {args.probes} hits and misses: AUC {across:.2f} across keys, {own:.2f} "
          "for one's own")  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", action="append", help="may be repeated; default: a tiny random")
    parser.add_argument("--flood", action="append", choices=FLOODS)
    parser.add_argument("--words", action="append", type=int)
    parser.add_argument("--questions", type=int, default=15)
    parser.add_argument("--probes", type=int, default=30)
    args = parser.parse_args()
    raise_limit()  # 1,030 connections, and the server inherits it
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys"
        keys.write_text("".join(f"{name} {key}\n" for name, key in KEYS.items()), encoding="utf-8")
        for model in args.model or [tiny(Path(folder))]:
            served = ["--cache-tokens", "8192", "--served-name", "served"]
            with start_server([model, *served, "--api-key-file", str(keys)]) as server:
                print(f"\n{model}", flush=True)
                port = int(server.url.rpartition(":")[2])
                asyncio.run(report(port, args, server.pids))
    return 0


if __name__ == "__main__":
    sys.exit(main())
