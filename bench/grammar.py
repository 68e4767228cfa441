"""Milliseconds that a grammar adds to a step, by the number of sequences; and to compile it.

The vocabulary is a model's own; logits are random. Added is what the masks, the sampler's first
stage and the accepted tokens take, per step.

    python bench/grammar.py --model smollm2
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import torch

from cutaway.core.grammar import Grammar
from cutaway.core.request import SamplingParams
from cutaway.engine.loading.tokenizer_of import tokenizer_of
from cutaway.sampling.candidates import SamplerRow
from cutaway.sampling.grammars.grammar_compiler import GrammarCompiler
from cutaway.sampling.grammars.grammar_state import GrammarState
from cutaway.sampling.sampler import Sampler
from cutaway.weights.find.find import find

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
TEXT = json.dumps({"name": "Anna Maria of the long road", "age": 42, "tags": ["a", "b"]})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    model = parser.parse_args().model
    tokenizer = tokenizer_of(find(model))
    vocab_size = tokenizer.vocab_size
    compiler = GrammarCompiler(tokenizer, num_rows=vocab_size, end_ids=tokenizer.eos_token_ids)
    print(f"{model}, {vocab_size} tokens")
    for name, schema in (("first grammar", PERSON), ("next", {**PERSON, "title": "other"})):
        began = time.perf_counter()
        compiled = compiler.compile(Grammar.json_schema(schema)).result()
        print(f"compile, {name}: {1e3 * (time.perf_counter() - began):.0f} ms")
    sampler = Sampler(vocab_size)
    params = SamplingParams(temperature=0)
    token_ids = tokenizer.encode(TEXT)
    for size in (1, 8):
        logits = torch.randn(size, vocab_size, generator=torch.Generator().manual_seed(1))
        states = [GrammarState(compiled) for _ in range(size)]
        host: list[float] = []
        masked: list[float] = []
        free: list[float] = []
        for position, token_id in enumerate(token_ids):
            began = time.perf_counter()
            masks = [state.masks([])[0] for state in states]
            taken = time.perf_counter() - began
            for times, allowed in ((masked, masks), (free, [None] * size)):
                rows = [
                    SamplerRow(params=params, seed=index, position=position, allowed=mask)
                    for index, mask in enumerate(allowed)
                ]
                began = time.perf_counter()
                sampler.sample(logits, rows)
                times.append(time.perf_counter() - began)
            began = time.perf_counter()
            for state in states:
                state.completes(token_id)
            host.append(taken + time.perf_counter() - began)
        figures = [1e3 * statistics.median(each) for each in (host, masked, free)]
        print(
            f"{size} sequences: masks {figures[0]:.2f} ms a step, worst {1e3 * max(host):.2f}; "
            f"sampling {figures[1]:.2f} ms with masks, {figures[2]:.2f} without"
        )
    compiler.close()


if __name__ == "__main__":
    main()
