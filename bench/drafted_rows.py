"""Whether verified guesses keep a model's own next-token distribution: chi-square.

    PYTHONPATH=src:bench:tests python bench/drafted_rows.py [--model small] [--draws 200000]

Of SmolLM2, or of a random model with 320 tokens of which 40 may come (small). The rows are those of
one place of an answer, recorded once: the model's, and what each drafter has there. Each draw is
what an engine does with such rows: the sampler's, the drafter's, and the verdict; seeds are fixed
here. Tokens expected less than five times are counted together.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter

import torch
from accept_rules import LAYERS, rows_of
from drafted import PROMPT as SMALL_PROMPT
from drafted import last_row, small_models, trained
from torch import Tensor

from cutaway.core.request import SamplingParams
from cutaway.core.step import Step
from cutaway.engine.drafters import Wish
from cutaway.engine.drafters.streams import Streams
from cutaway.sampling.accept import accept
from cutaway.sampling.candidates import SamplerRow
from cutaway.sampling.effects import shares
from cutaway.sampling.rejection import Guessed, propose, verify
from cutaway.sampling.sampler import Sampled, Sampler
from cutaway.service.llm import LLM
from engines import loaded

PROMPT, PLACE, POSITION, SEED = "What is gravity?", 6, 40, 16
TOGETHER, LEAST_EXPECTED = 64, 5.0


def main() -> None:
    """Print a line for each drafter."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=("smollm2", "small"), default="smollm2")
    parser.add_argument("--draws", type=int, default=200_000)
    parser.add_argument("--temperature", type=float, default=1.0)
    asked = parser.parse_args()
    row, drawing = small_rows() if asked.model == "small" else recorded_rows()
    top_k = 40 if asked.model == "small" else 0
    params = SamplingParams(temperature=asked.temperature, top_k=top_k)
    order = row.argsort(descending=True)
    fixed = {"n-gram, the likeliest": int(order[0]), "n-gram, the 20th": int(order[19])}
    for name, guess in fixed.items():
        judge(name, row, params, asked.draws, lambda rows, guess=guess: compared(row, rows, guess))
    for name, own in drawing.items():
        judge(name, row, params, asked.draws, lambda rows, own=own: rejected(row, rows, own))


def recorded_rows() -> tuple[Tensor, dict[str, Tensor]]:
    """SmolLM2's row at the place, and those of drafters. Shapes: [V] each."""
    target, early = rows_of(LLM("smollm2", dtype="float32", cache_tokens=4096), PROMPT, PLACE + 1)
    row = target[PLACE].clone()
    noise = torch.randn(row.shape, generator=torch.Generator().manual_seed(SEED))
    drawing = {f"early, {n} layers": early[n][PLACE].clone() for n in LAYERS}
    return row, {**drawing, "model, noise of 0.5": row + 0.5 * noise}


def small_rows() -> tuple[Tensor, dict[str, Tensor]]:
    """The same of the tests' random model and its drafters. Shapes: [320] each."""
    model = loaded()
    drafts = small_models(model)
    rows = {name: last_row(draft, SMALL_PROMPT).float() for name, draft in drafts.items()}
    drafter = trained(model, 40)
    streams = Streams(drafter.layers)
    step = replace(Step.without_cache([SMALL_PROMPT]), streams=streams)
    with torch.inference_mode():
        row = model.transformer(step)[-1].float()
    seen = streams.take()
    assert seen is not None, "the model has these layers"
    drafter.observe(0, 0, seen[:-1])
    guesses = Wish(0, SMALL_PROMPT, 1, params=SamplingParams(temperature=1.0))
    (draft,) = drafter.propose([guesses])
    return row, {**rows, "trained": draft.proposals[0].logits}


def compared(row: Tensor, rows: list[SamplerRow], guess: int) -> list[list[int]]:
    """What fixed guesses leave: each beside the draws of its two rows. Shapes: row [V]."""
    two = [each for row in rows for each in (row, after(row))]
    drawn = sample(row, two)
    pairs = zip(drawn[::2], drawn[1::2], strict=True)
    return [accept([int(a.token_id or 0), int(b.token_id or 0)], [guess]) for a, b in pairs]


def rejected(row: Tensor, rows: list[SamplerRow], own: Tensor) -> list[list[int]]:
    """What guesses leave that a drafter drew from its own row [V]."""
    drawn = sample(row, [each for row in rows for each in (row, after(row))])
    proposals = propose(own.expand(len(rows), -1), rows)
    guessed = [
        Guessed(2 * place, drawn[2 * place : 2 * place + 2], [proposal])
        for place, proposal in enumerate(proposals)
    ]
    both = [each for row in rows for each in (row, after(row))]
    given: list[list[int]] = []
    for proposal, told in zip(
        proposals, verify(row.expand(len(both), -1), both, guessed), strict=True
    ):
        ids = [int(one.token_id or 0) for one in told]
        given.append(accept(ids, [proposal.token_id][: len(ids) - 1]))
    return given


def after(row: SamplerRow) -> SamplerRow:
    """The row behind a guess."""
    return SamplerRow(params=row.params, seed=row.seed, position=row.position + 1)


def sample(row: Tensor, rows: list[SamplerRow]) -> list[Sampled]:
    """The same row for each of the settings. Shapes: [V]."""
    return Sampler(len(row)).sample(row.expand(len(rows), -1), rows)


def judge(
    name: str,
    row: Tensor,
    params: SamplingParams,
    count: int,
    give: Callable[[list[SamplerRow]], list[list[int]]],
) -> float:
    """Draw, and compare the first tokens with the row's distribution; returns p."""
    began, chance = perf_counter(), random.Random(SEED)
    seen, stood = Counter[int](), 0
    for start in range(0, count, TOGETHER):
        rows = [
            SamplerRow(params=params, seed=chance.getrandbits(63), position=POSITION)
            for _ in range(min(TOGETHER, count - start))
        ]
        for emitted in give(rows):
            seen[emitted[0]] += 1
            stood += len(emitted) == 2
    exact = shares(row, SamplerRow(params=params, seed=0, position=POSITION)) * count
    often = exact >= LEAST_EXPECTED
    found = torch.zeros_like(exact)
    for token, times in seen.items():
        assert exact[token] > 0, "a token came that may not"
        found[token] = times
    seldom = exact[~often].sum()[None]
    cells = torch.cat([exact[often], seldom[seldom > 0]])
    counts = torch.cat([found[often], found[~often].sum()[None][seldom > 0]])
    chi, degrees = float(((counts - cells) ** 2 / cells).sum()), len(cells) - 1
    halves = torch.tensor([degrees / 2, chi / 2], dtype=torch.float64)
    p = float(torch.special.gammaincc(halves[0], halves[1]))
    print(
        f"{name}: {count:,} draws, {stood / count:.1%} of the guesses stood; chi-square {chi:.1f} "
        f"at {degrees} degrees, p {p:.3f}; {perf_counter() - began:.0f} s",
        flush=True,
    )
    return p


if __name__ == "__main__":
    main()
