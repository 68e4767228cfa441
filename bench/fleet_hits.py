"""Prefix hits of a live fleet beside one engine with all its pages, and how even the load is.

    python bench/fleet_hits.py [--replicas 4] [--requests 600] [--families 60]

Requests are of families that begin alike, some asked for often and most seldom (Zipf), each with an
end of its own. The model is a tiny random one: what is found again does not depend on weights.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from cutaway.core.request import Request, SamplingParams
from cutaway.fleet.fleet import Fleet
from cutaway.fleet.fleet_config import FleetConfig
from cutaway.service.bounds import FleetShare, TrafficConfig
from cutaway.service.process import ProcessService

PAGES_OF_ONE = 8192  # tokens that one engine of the fleet can hold
SHARED, OWN = 512, 64  # tokens that a family's prompts begin with, and that each has alone
AT_ONCE = 16
SHAPE = {
    **{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 320},
    **{"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 16},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1024},
    **{"rms_norm_eps": 1e-5, "tie_word_embeddings": True, "hidden_act": "silu"},
}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--replicas", type=int, default=4)
    options.add_argument("--requests", type=int, default=600)
    options.add_argument("--families", type=int, default=60)
    args = options.parse_args()
    wanted = requests(args.requests, args.families)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(SHAPE), encoding="utf-8")
        model = f"random:{folder}/config.json"
        whole, _ = asyncio.run(measure(model, wanted, 1, args.replicas * PAGES_OF_ONE))
        parted, sent = asyncio.run(measure(model, wanted, args.replicas, PAGES_OF_ONE))
    mean = sum(sent.values()) / args.replicas
    print(f"{args.requests} prompts of {SHARED} + {OWN} tokens in {args.families} families")
    print(f"one engine of {args.replicas * PAGES_OF_ONE} tokens: {whole:.3f} of them found")
    print(f"{args.replicas} engines of {PAGES_OF_ONE} each: {parted:.3f} found")
    print(f"fleet / one {parted / whole:.3f} (bar: 0.90)")
    print(
        f"busiest / mean {max(sent.values()) / mean:.2f} (bar: 1.30), {dict(sorted(sent.items()))}"
    )


def requests(count: int, families: int) -> list[Request]:
    """So many, whose families follow Zipf's law."""
    chance = random.Random(1)
    weights = [1 / rank for rank in range(1, families + 1)]
    begins = [tuple(chance.randrange(256) for _ in range(SHARED)) for _ in range(families)]
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, seed=1)
    made: list[Request] = []
    for number, family in enumerate(chance.choices(range(families), weights, k=count)):
        own = tuple(chance.randrange(256) for _ in range(OWN))
        made.append(
            Request(
                request_id=f"r{number}",
                prompt_token_ids=(*begins[family], *own),
                params=params,
                owner="one",
            )
        )
    return made


@asynccontextmanager
async def fleet_of(model: str, replicas: int, cache_tokens: int) -> AsyncIterator[Fleet]:
    """So many engines, each a process with a thread, all of them ready."""

    def make(name: str, changed: Callable[[], None], secret: bytes, sharing: int) -> ProcessService:
        del name
        share = FleetShare(num_threads=1, num_sharing=sharing, page_secret=secret)
        return ProcessService(
            model, share=share, changed=changed, cache_tokens=cache_tokens, device="cpu"
        )

    config = FleetConfig(replicas=replicas, least_ready=replicas)
    fleet = Fleet(make, config, traffic=TrafficConfig(max_waiting=1000))
    await fleet.start()
    try:
        yield fleet
    finally:
        await fleet.close()


async def measure(
    model: str, wanted: Sequence[Request], replicas: int, cache_tokens: int
) -> tuple[float, Counter[str]]:
    """What part of all prompts was found again, and requests by engine."""
    sent: Counter[str] = Counter()
    async with fleet_of(model, replicas, cache_tokens) as fleet:
        places = asyncio.Semaphore(AT_ONCE)

        async def ask(request: Request) -> int:
            async with places:
                found, is_counted = 0, False
                async for delta in fleet.follow(request):
                    if not is_counted:
                        is_counted = True
                        has = (m.name for m in fleet.members if request.request_id in m.streams)
                        sent.update(has)
                    if delta.usage is not None:
                        found = delta.usage.cached_tokens
                return found

        found = sum(await asyncio.gather(*map(ask, wanted)))
    return found / sum(len(each.prompt_token_ids) for each in wanted), sent


if __name__ == "__main__":
    main()
