"""What every view takes at large shapes: seconds, bytes of its numbers, peak memory.

python bench/views.py --shape wide --tokens 8000      32 layers x 4096, inner values drawn at random
python bench/views.py --shape narrow --tokens 100000  2 layers x 64, a served answer, replayed

The wide model is one layer of real weights 32 times over: what a view does with them and with inner
values of that shape takes as long as with others, and a forward of 8 billion parameters does not
fit here. The narrow one is served and replayed for real, prompt and all.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from cutaway import LLM
from cutaway.blocks.transformer import Transformer
from cutaway.core.facts import ModelFacts
from cutaway.core.request import Request, SamplingParams
from cutaway.replay.look import Look
from cutaway.views import VIEWS, view_of
from cutaway.views.parts.drawing import WIDTH, columns
from cutaway.views.parts.frame import frame_view, plain
from cutaway.views.parts.query import Query, query_of
from cutaway.views.parts.replay_values import Proof, ReplayValues, Wanted
from cutaway.views.parts.subject import Subject
from cutaway.views.parts.view import View

VOCABULARY, LAYERS = 128_256, 32
SHAPES = {
    "wide": {"hidden_size": 4096, "intermediate_size": 14336, "head_dim": 128}
    | {"num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 1},
    "narrow": {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16}
    | {"num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 2},
}
FURTHER = (
    ("attention", {"layer": 1}),
    ("attention", {"layer": 1, "head": 1}),
    ("lens", {"layer": 1}),
    ("tokens", {"text": "e"}),
    ("embeddings", {"text": "gravity"}),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="narrow")
    parser.add_argument("--tokens", type=int, default=8000, help="of the prompt")
    given = parser.parse_args()
    subject = answered(given.tokens)
    if given.shape == "wide":
        subject = widened(subject)
    facts = subject.facts
    print(
        f"{facts.num_layers} layers x {facts.width}, {facts.num_heads} heads on "
        f"{facts.num_groups} of {facts.head_size}, vocabulary {facts.vocab_size:,}; "
        f"{subject.num_positions:,} tokens"
    )
    print("| view | inner values, s | view, s | framed, MB | as JSON, MB | peak, MiB | columns |")
    print("|---|---|---|---|---|---|---|")
    for view, places in (*((view, {}) for view in VIEWS), *further()):
        row = measured(subject, view, query_of(places))
        words = " ".join(f"{name} {value}" for name, value in places.items())
        print(f"| {view.name} {words} | {row} |", flush=True)


def further() -> Iterator[tuple[View, Mapping[str, Any]]]:
    for name, places in FURTHER:
        yield view_of(name), places


def loaded(shape: str, **settings: Any) -> LLM:
    """Random weights of a shape."""
    config = {
        **{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu"},
        **{"max_position_embeddings": 131_072, "rms_norm_eps": 1e-5, "rope_theta": 5e5},
        **{"tie_word_embeddings": True, "vocab_size": VOCABULARY, **SHAPES[shape]},
        **{"bos_token_id": 256, "eos_token_id": 257},
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(config))
        return LLM(f"random:{path}", device="cpu", **settings)


def answered(num_tokens: int) -> Subject:
    """An answer of the narrow model to a random prompt of bytes, opened."""
    llm, chance = loaded("narrow", cache_tokens=num_tokens + 512), random.Random(0)
    prompt = tuple(chance.choice(b"eta oinsrhld") for _ in range(num_tokens))
    params = SamplingParams(max_tokens=32, temperature=0.8, top_p=0.9, seed=0, ignore_eos=True)
    began = perf_counter()
    llm.engine.add(Request(request_id="long", prompt_token_ids=prompt, params=params))
    while llm.engine.has_work:
        llm.engine.step()
    print(f"answered in {perf_counter() - began:.1f} s")
    assert llm.engine.ledger is not None, "an engine records unless told otherwise"
    look = Look(llm.engine, list(llm.engine.ledger.answers)[-1])
    look.prepare(VIEWS, Query())
    return look.subject


def widened(subject: Subject) -> Subject:
    """The same answer, as if the wide model had given it."""
    llm = loaded("wide", cache_tokens=512)
    model = llm.engine.model
    was, blocks = model.transformer, [*model.transformer.blocks] * LAYERS
    transformer = Transformer(
        embedding=was.embedding, blocks=blocks, unembedding=was.unembedding
    ).eval()
    specs = model.facts.cache_specs * LAYERS
    facts = replace(model.facts, num_layers=LAYERS, cache_specs=specs)
    build = replace(
        subject.build,
        dtype=str(model.dtype).removeprefix("torch."),
        cache_dtype=str(model.cache_dtype).removeprefix("torch."),
    )
    return replace(
        subject,
        transformer=transformer,
        facts=facts,
        build=build,
        take=lambda wanted: drawn(wanted, facts),
    )


def drawn(wanted: Wanted, facts: ModelFacts) -> ReplayValues:
    """Random numbers in the place of what is wanted."""
    heads, groups = (facts.num_heads, facts.head_size), (facts.num_groups, facts.head_size)
    shapes = {"query": heads, "mixed": heads, "key": groups, "value": groups}
    count = wanted.end - wanted.start
    values: dict[tuple[str, int | None], torch.Tensor] = {}
    for name in sorted(wanted.taps):
        shape = shapes.get(name.rpartition(".")[2], (facts.width,))
        if name == "blocks.mlp.product":
            shape = (facts.inner,)
        if name in ("blocks.attention.gate", "blocks.experts.ids"):
            continue  # of other models
        layers = sorted(wanted.layers) if name.startswith("blocks.") else [None]
        values |= {(name, layer): torch.randn(count, *shape) for layer in layers}
    stored = {
        layer: {name: torch.randn(wanted.end, *groups) for name in ("key", "value")}
        for layer in wanted.stored
    }
    rows = {index: 3 * torch.randn(facts.vocab_size) for index in wanted.rows}
    return ReplayValues(wanted, Proof("random", 0, 0), values, stored, rows)


@dataclass
class Row:
    taken: float
    seconds: float
    framed: int
    plain: int
    peak: int
    columns: int

    def __str__(self) -> str:
        return (
            f"{self.taken:.2f} | {self.seconds:.2f} | {self.framed / 1e6:.2f} | "
            f"{self.plain / 1e6:.2f} | {self.peak / 2**20:,.0f}"
            f" | {self.columns}{' TOO WIDE' * (self.columns > WIDTH)}"
        )


def measured(subject: Subject, view: View, query: Query) -> Row:
    """One look, drawn and framed; its memory is what it took beside what was there before."""
    spent = [0.0]

    def take(wanted: Wanted) -> ReplayValues:
        began = perf_counter()
        taken = subject.take(wanted)
        spent[0] += perf_counter() - began
        return taken

    before = forget_peak()
    began = perf_counter()
    shown = view.show(replace(subject, take=take), query)
    lines = shown.payload.draw().text().splitlines()
    seconds = perf_counter() - began - spent[0]
    peak = peak_bytes() - before
    widest = max(map(columns, lines), default=0)
    return Row(spent[0], seconds, len(frame_view(shown)), len(plain(shown)), peak, widest)


def forget_peak() -> int:
    """Bytes that this process has now; its peak counts from here (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak_bytes()


def peak_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    line = next(each for each in status.splitlines() if each.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
