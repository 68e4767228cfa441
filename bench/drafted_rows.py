"""Whether verified guesses keep a model's own next-token distribution: chi-square.

    PYTHONPATH=src:bench:tests python bench/drafted_rows.py [--model small] [--draws 200000]

Of SmolLM2, or of a random model with 320 tokens of which 40 may come (small). The rows are those of
one place of an answer, recorded once: the model's, and what each drafter has there. Each draw is
what an engine does with such rows: the sampler's, the drafter's, and the verdict; seeds are fixed
here. Tokens expected less than five times are counted together. --workers processes share the
draws, and change none of them.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from accept_rules import LAYERS, rows_of
from drafted import PROMPT as SMALL_PROMPT
from drafted import last_row, small_models, trained
from torch import Tensor

from cutaway.blocks.transformer import Transformer
from cutaway.core.request import SamplingParams
from cutaway.core.step import Step
from cutaway.engine.drafters import Wish
from cutaway.engine.drafters.streams import Streams
from cutaway.engine.drafters.trained_drafter import TrainedDrafter
from cutaway.sampling.accept import accept
from cutaway.sampling.candidates import SamplerRow
from cutaway.sampling.effects import shares
from cutaway.sampling.rejection import Guessed, propose, verify
from cutaway.sampling.sampler import Sampled, Sampler
from cutaway.service.llm import LLM
from engines import loaded

PROMPT, PLACE, POSITION, SEED = "What is gravity?", 6, 40, 16
RELEASED = Path(__file__).parents[1] / "released" / "smollm2-speculator"
TOGETHER, LEAST_EXPECTED = 64, 5.0


def main() -> None:
    """Print a line for each drafter."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=("smollm2", "small"), default="smollm2")
    parser.add_argument("--draws", type=int, default=200_000)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--drafters", nargs="*", default=[], help="parts of names; all by default")
    parser.add_argument("--workers", type=int, default=1)
    asked = parser.parse_args()
    row, drawing = small_rows() if asked.model == "small" else recorded_rows()
    top_k = 40 if asked.model == "small" else 0
    params = SamplingParams(temperature=asked.temperature, top_k=top_k)
    order = row.argsort(descending=True)
    fixed = {"n-gram, the likeliest": int(order[0]), "n-gram, the 20th": int(order[19])}
    made = {name: partial(compared, row, guess=guess) for name, guess in fixed.items()}
    made |= {name: partial(rejected, row, own=own) for name, own in drawing.items()}
    context = get_context("spawn")
    with ProcessPoolExecutor(asked.workers, context, torch.set_num_threads, (1,)) as pool:
        for name, give in made.items():
            if not asked.drafters or any(part in name for part in asked.drafters):
                judge(name, row, params, asked.draws, give, pool)


def recorded_rows() -> tuple[Tensor, dict[str, Tensor]]:
    """SmolLM2's row at the place, and those of drafters. Shapes: [V] each."""
    given: dict[str, Any] = {"dtype": "float32", "device": "cpu", "cache_tokens": 4096}
    llm = LLM("smollm2", **given, draft_speculator=str(RELEASED))
    target, early, token_ids = rows_of(llm, PROMPT, PLACE + 1)
    row = target[PLACE].clone()
    noise = torch.randn(row.shape, generator=torch.Generator().manual_seed(SEED))
    drawing = {f"early, {n} layers": early[n][PLACE].clone() for n in LAYERS}
    drawing["model, noise of 0.5"] = row + 0.5 * noise
    assert llm.engine.drafting is not None, "a speculator was named"
    drafter = llm.engine.drafting.drafter("trained")
    assert isinstance(drafter, TrainedDrafter), "it is the one"
    known = token_ids[: len(token_ids) - len(target) + PLACE]
    own, drawing["trained"] = guessed_row(llm.engine.model.transformer, drafter, known)
    torch.testing.assert_close(own, row, rtol=1e-3, atol=1e-3)
    return row, drawing


def small_rows() -> tuple[Tensor, dict[str, Tensor]]:
    """The same of the tests' random model and its drafters. Shapes: [320] each."""
    model = loaded()
    drafts = small_models(model)
    rows = {name: last_row(draft, SMALL_PROMPT).float() for name, draft in drafts.items()}
    row, rows["trained"] = guessed_row(model.transformer, trained(model, 40), SMALL_PROMPT)
    return row, rows


@torch.inference_mode()
def guessed_row(
    transformer: Transformer, drafter: TrainedDrafter, token_ids: list[int]
) -> tuple[Tensor, Tensor]:
    """A model's row behind some tokens, and what a speculator has there. Shapes: [V] each."""
    streams = Streams(drafter.layers)
    row = transformer(replace(Step.without_cache([token_ids]), streams=streams))[-1].float()
    seen = streams.take()
    assert seen is not None, "the model has these layers"
    drafter.observe(0, 0, seen[:-1])
    wish = Wish(0, token_ids, 1, params=SamplingParams(temperature=1.0))
    (draft,) = drafter.propose([wish])
    return row, draft.proposals[0].logits


def compared(row: Tensor, rows: list[SamplerRow], *, guess: int) -> list[list[int]]:
    """What fixed guesses leave: each beside the draws of its two rows. Shapes: row [V]."""
    two = [each for row in rows for each in (row, after(row))]
    drawn = sample(row, two)
    pairs = zip(drawn[::2], drawn[1::2], strict=True)
    return [accept([int(a.token_id or 0), int(b.token_id or 0)], [guess]) for a, b in pairs]


def rejected(row: Tensor, rows: list[SamplerRow], *, own: Tensor) -> list[list[int]]:
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


def counted(
    give: partial[list[list[int]]], params: SamplingParams, seeds: list[int]
) -> tuple[Counter[int], int]:
    """First tokens by how often they came, and how many guesses stood."""
    rows = [SamplerRow(params=params, seed=seed, position=POSITION) for seed in seeds]
    emitted = give(rows)
    return Counter(each[0] for each in emitted), sum(len(each) == 2 for each in emitted)


def judge(
    name: str,
    row: Tensor,
    params: SamplingParams,
    count: int,
    give: partial[list[list[int]]],
    pool: Executor,
) -> float:
    """Draw, and compare the first tokens with the row's distribution; returns p."""
    began, chance = perf_counter(), random.Random(SEED)
    seeds = [chance.getrandbits(63) for _ in range(count)]
    parts = [seeds[start : start + TOGETHER] for start in range(0, count, TOGETHER)]
    seen, stood = Counter[int](), 0
    for found, kept in pool.map(partial(counted, give, params), parts, chunksize=8):
        seen, stood = seen + found, stood + kept
    exact = shares(row, SamplerRow(params=params, seed=0, position=POSITION)) * count
    often = exact >= LEAST_EXPECTED
    came = torch.zeros_like(exact)
    for token, times in seen.items():
        assert exact[token] > 0, "a token came that may not"
        came[token] = times
    seldom = exact[~often].sum()[None]
    cells = torch.cat([exact[often], seldom[seldom > 0]])
    counts = torch.cat([came[often], came[~often].sum()[None][seldom > 0]])
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
