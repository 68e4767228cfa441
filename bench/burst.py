"""What requests that come at once cost a server: processor time each, and how late they begin.

    python bench/burst.py [--trees . ../before] [--requests 256] [--prompt-tokens 256] [--rounds 5]

Each tree's server has a tiny random model and is asked in turn with the others, by a client process
of its own: a first burst that is not counted, then the rounds. Told are medians of the rounds, for
each tree: milliseconds of processor time a request in the server's process and in the engine's,
answers of --answer-tokens included, and the first token's median and last.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

from gpu_shapes import COMMON, SHAPES

from cutaway.bench.serve import ServeLoad, run
from cutaway.bench.server import Started, start_server

TINY = {
    **{"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128, "vocab_size": 32_000},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16},
}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--trees", nargs="+", default=["."], help="checkouts to compare")
    options.add_argument("--requests", type=int, default=256)
    options.add_argument("--prompt-tokens", type=int, default=256)
    options.add_argument("--answer-tokens", type=int, default=2)
    options.add_argument("--rounds", type=int, default=5)
    args = options.parse_args()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        shape = SHAPES["qwen3-0.6b"] | COMMON | TINY
        (folder / "config.json").write_text(json.dumps(shape))
        servers = {
            tree: stack.enter_context(server_of(tree, f"random:{folder}/config.json"))
            for tree in args.trees
        }
        heard: dict[str, list[dict[str, float]]] = {tree: [] for tree in args.trees}
        for number in range(args.rounds + 1):
            for tree in args.trees[:: 1 if number % 2 else -1]:
                told = burst(servers[tree], args, number)
                heard[tree] += [told] * bool(number)  # the first makes what is made once
    for tree, rounds in heard.items():
        middles = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
        print(json.dumps({"tree": tree} | {k: round(v, 3) for k, v in middles.items()}))


@contextlib.contextmanager
def server_of(tree: str, model: str) -> Any:
    """A server of another checkout's code."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(Path(tree).resolve() / "src")
    try:
        with start_server(("--model", model, "--no-prefix-cache")) as server:
            yield server
    finally:
        os.environ.pop("PYTHONPATH")
        os.environ |= {} if before is None else {"PYTHONPATH": before}


def burst(server: Started, args: argparse.Namespace, seed: int) -> dict[str, float]:
    """One round's numbers in milliseconds."""
    load = ServeLoad(
        rate=1e6,
        requests=args.requests,
        prompt_tokens=args.prompt_tokens,
        answer_tokens=args.answer_tokens,
        seed=seed,
    )
    told = run(server.url, load, pids=server.pids)
    assert told.completed == args.requests, "all are answered"
    each = {
        f"{name}_ms": share * told.seconds * 1e3 / args.requests
        for name, share in told.shares.items()
    }
    first = told.first_token
    return {**each, "first_median_ms": first["p50"], "first_last_ms": first["p99"]}


if __name__ == "__main__":
    main()
