"""Whether guesses ever change an answer: random workloads, and whole distributions.

    PYTHONPATH=src:tests python bench/drafted.py [--workloads 500] [--sequences 200000] [--seed 1]
    PYTHONPATH=src:tests python bench/drafted.py --times  # of a guess by n-grams, by length of text

A run may be cut: `--workloads 100 --seed 101` is the second hundred of `--workloads 500`.

Workloads: requests of every kind (greedy and drawn, cuts, penalties, stops, length caps, choices,
grammars, several answers), in company, with few pages so that some are preempted; answered without
guesses and with each drafter, and compared token for token. Distributions: the first three tokens
of unseeded answers, of which four may come each, beside the exact probabilities of all 64;
chi-square. The operating system's numbers are replaced by those of the seed given here.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

import torch

from cutaway.core.grammar import Grammar
from cutaway.core.request import Request, SamplingParams
from cutaway.core.step import Step
from cutaway.engine.admission import prerequisites
from cutaway.engine.config import EngineConfig
from cutaway.engine.drafters import Controller, Draft, Drafter, GuessSource, NGramDrafter, Wish
from cutaway.engine.drafters.draft_models import early_layers
from cutaway.engine.drafters.model_drafter import ModelDrafter
from cutaway.engine.drafters.streams import Streams
from cutaway.engine.drafters.trained_drafter import TrainedDrafter
from cutaway.engine.drafting import Drafting
from cutaway.engine.engine import Engine
from cutaway.engine.loading.loaded_model import LoadedModel
from cutaway.engine.loading.speculator_folder import LoadedSpeculator, TargetShape, read_shape
from cutaway.engine.native import is_recorded
from cutaway.kernels import native
from cutaway.quantize.dense import DenseWeight
from cutaway.quantize.packed import Packed
from cutaway.sampling.candidates import SamplerRow
from cutaway.sampling.effects import shares
from drafters import EachAlone
from engines import engine, loaded, nearly, run, workload

GRAMMARS = (
    Grammar.choice(["yes", "no", "nob"]),
    Grammar.regex("(ab|cd){3,9}"),
    Grammar.json_schema({"type": "array", "items": {"enum": ["aa", "ab"]}, "maxItems": 6}),
)
PROMPT = (1, 2, 3, 1, 2, 3, 1, 2)
SIZE, KEPT, NUM_JUDGED, TOGETHER = 6, 4, 3, 128
TOLD_EVERY = 20  # workloads: what is counted so far, so that a run that is ended loses little


class Wild(EachAlone):
    """Guesses what stood there before, or anything."""

    def __init__(self, seed: int, size: int = 256) -> None:
        self._chance, self._size = random.Random(seed), size

    def guess(self, token_ids: Sequence[int]) -> list[int]:
        chance = self._chance
        said = [chance.choice(token_ids) for _ in range(chance.randint(0, 6))]
        return [chance.choice((each, chance.randrange(self._size))) for each in said]


class Likely(EachAlone):
    """Guesses the model's own likeliest tokens, so that many stand, whatever is drawn."""

    def __init__(self, model: LoadedModel) -> None:
        self._model = model
        self._known: dict[tuple[int, ...], int] = {}

    def guess(self, token_ids: Sequence[int]) -> list[int]:
        said = tuple(token_ids)
        for _ in range(2):
            if said not in self._known:
                self._known[said] = int(last_row(self._model, said).argmax())
            said = (*said, self._known[said])
        return list(said[len(token_ids) :])


class Told(EachAlone):
    """Knows the answers, and is wrong now and then."""

    def __init__(self, answers: Sequence[Sequence[int]], seed: int) -> None:
        self._answers, self._chance = answers, random.Random(seed)

    def guess(self, token_ids: Sequence[int]) -> list[int]:
        known = list(token_ids)
        found = next((a for a in self._answers if list(a[: len(known)]) == known), [])
        guesses = list(found[len(known) : len(known) + self._chance.randint(0, 6)])
        if guesses and self._chance.random() < 0.5:
            guesses[self._chance.randrange(len(guesses))] = self._chance.randrange(256)
        return guesses


def native_model() -> LoadedModel:
    """The tests' random model in float32 and native kernels, which steps of many answers need."""
    return packed(loaded(dtype=torch.float32))


def small_vocabulary(*, uses_torch: bool = False) -> LoadedModel:
    """One with six tokens, so that n-grams nearly always guess and others are often right."""
    if uses_torch:
        return loaded(vocab_size=SIZE)
    return packed(loaded(vocab_size=SIZE, dtype=torch.float32))


def packed(model: LoadedModel) -> LoadedModel:
    """The same model, its matrices where native kernels read them: its steps are recorded."""
    for module in list(model.transformer.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, DenseWeight):
                matrix = native.PackedWeight.from_matrix(child.weight, native.Kind.F32)
                setattr(module, name, Packed(matrix))
    return model


def small_models(model: LoadedModel) -> dict[str, LoadedModel]:
    """Models that guess: one that is nearly right, one that is mostly wrong, and a first layer."""
    near, far = (nearly(model, noise=noise) for noise in (0.05, 2.0))
    if is_recorded(model):
        near, far = packed(near), packed(far)
    return {
        "model, nearly right": near,
        "model, mostly wrong": far,
        "early layer": early_layers(model, 1),
    }


def of_model(draft: LoadedModel, num_pages: int) -> ModelDrafter:
    """A drafter with as many pages as its target."""
    return ModelDrafter(
        draft,
        EngineConfig(page_size=8),
        kind="model",
        num_pages=num_pages,
        vocab_size=draft.facts.vocab_size,
    )


class InTwoMinds(EachAlone):
    """Knows the answers; of its two versions one is right for a while, or the other, or none."""

    def __init__(self, answers: Sequence[Sequence[int]], seed: int) -> None:
        self._told, self._chance = Told(answers, seed), random.Random(seed)

    def propose(self, wishes: Sequence[Wish]) -> list[Draft]:
        """Each draft and what may come in its place."""
        return [self._draft(wish) for wish in wishes]

    def _draft(self, wish: Wish) -> Draft:
        guesses = self._told.guess(wish.token_ids)[: wish.most]
        other, chance = list(guesses), self._chance
        if other:
            other[chance.randrange(len(other))] = chance.randrange(256)
        ways = [guesses, other]
        chance.shuffle(ways)
        return Draft(ways[0], "known", other_token_ids=ways[1])


def trained(model: LoadedModel, num_pages: int) -> TrainedDrafter:
    """A speculator of random weights for a model."""
    facts, width = model.facts, model.transformer.embedding.width
    layer = {
        **{"hidden_size": width, "intermediate_size": width, "num_hidden_layers": 1},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": width // 4},
        **{"vocab_size": facts.vocab_size, "max_position_embeddings": facts.max_length},
    }
    target = TargetShape(model.name, width, facts.num_layers, facts.vocab_size)
    told = {"speculators_model_type": "eagle3", "transformer_layer_config": layer}
    shape = read_shape(told, target, file="speculator")
    module, generator = shape.build(target).requires_grad_(False), torch.Generator().manual_seed(1)
    for parameter in module.parameters():
        if parameter.ndim > 1:
            drawn = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(drawn * parameter.shape[1] ** -0.5)
    ids = torch.arange(facts.vocab_size)
    speculator = LoadedSpeculator(module, model.transformer.embedding, shape.layers, ids)
    return TrainedDrafter(
        speculator,
        EngineConfig(page_size=8),
        num_pages=num_pages,
        vocab_size=facts.vocab_size,
        max_length=facts.max_length,
        end_token_ids=model.end_token_ids,
    )


def drafting_by(drafter: Drafter, controller: Controller | None = None) -> Drafting:
    """One drafter for all answers; a trained one reads the streams of steps."""
    if not isinstance(drafter, TrainedDrafter):
        return Drafting.of(drafter, controller=controller)
    sources = {"trained": GuessSource(drafter, controller)}
    return Drafting(sources, default="trained", streams=Streams(drafter.layers))


def drafted_engine(model: LoadedModel, drafting: Drafting, **settings: Any) -> Engine:
    """An engine with small pages that begins with its drafters."""
    num_pages = settings.pop("num_pages")
    config = EngineConfig(**{"page_size": 8, **settings})
    return Engine(model, config, num_pages=num_pages, drafting=drafting)


DRAFTERS: dict[str, Callable[[int], tuple[Drafter, Controller | None]]] = {
    "ngram": lambda _: (NGramDrafter(shortest=1), None),
    "ngram with controller": lambda _: (NGramDrafter(shortest=1), Controller()),
    "wild": lambda seed: (Wild(seed), None),
}


def main() -> None:
    """Run both, and say how many differed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", type=int, default=500)
    parser.add_argument("--sequences", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--drafters", nargs="+", help="all if left out")
    parser.add_argument("--times", action="store_true")
    parser.add_argument("--torch", action="store_true", help="in float64 by torch, not by kernels")
    asked = parser.parse_args()
    if asked.times:
        tell_times(asked.seed)
        return
    model = loaded() if asked.torch else native_model()
    if asked.workloads:
        compare(model, asked.workloads, asked.seed, asked.drafters)
    if not asked.sequences:
        return
    model = small_vocabulary(uses_torch=asked.torch)
    made = {name: make(asked.seed) for name, make in DRAFTERS.items()}
    made |= {"wild": (Wild(asked.seed, SIZE), None), "likeliest": (Likely(model), None)}
    for name, draft in small_models(model).items():
        made[name] = of_model(draft, 600), None
    made["trained"] = trained(model, 600), None
    for name in asked.drafters or made:
        drafter, controller = made[name]
        drafting = drafting_by(drafter, controller)
        judge(model, name, drafting, asked.sequences, asked.seed)


def tell_times(seed: int) -> None:
    """Microseconds of a guess for a text that grows by a token, of few and of many kinds."""
    chance = random.Random(seed)
    for kinds in (50, 50_000):
        for length in (100, 1_000, 10_000, 100_000):
            text, drafter = [chance.randrange(kinds) for _ in range(length)], NGramDrafter()
            drafter.propose([Wish(0, text, 8)])  # indexes the prompt
            took: list[float] = []
            for _ in range(500):
                text.append(chance.randrange(kinds))
                began = perf_counter()
                drafter.propose([Wish(0, text, 8)])
                took.append(1e6 * (perf_counter() - began))
            print(f"{kinds:,} kinds, {length:,} tokens: median {statistics.median(took):.1f} us")


def compare(model: LoadedModel, count: int, seed: int, names: Sequence[str] | None = None) -> None:
    """The same workloads without guesses and with each drafter, or those of some names."""
    began = perf_counter()
    told = Counter[str]()
    drafts = small_models(model)
    for number in range(seed, seed + count):
        requests, settings = drawn_workload(number)
        plain = engine(model, **settings)
        expected = {key: each.essence for key, each in run(plain, requests).items()}
        prompts = {request.request_id: request.prompt_token_ids for request in requests}
        answers = [[*prompts[key[0]], *said[0]] for key, said in expected.items()]
        told["answers"] += len(expected)
        told["preempted"] += plain.scheduler.num_preemptions
        close(plain)
        told_drafter: Drafter = Told(answers, number)
        made = {name: make(number) for name, make in DRAFTERS.items()}
        made["told"] = told_drafter, None
        made["in two minds"] = InTwoMinds(answers, number), None
        made["trained"] = trained(model, settings["num_pages"]), None
        for name, draft in drafts.items():
            made[name] = of_model(draft, settings["num_pages"]), None
        for name in names or made:
            drafter, controller = made[name]
            target = drafted_engine(model, drafting_by(drafter, controller), **settings)
            found = {key: each.essence for key, each in run(target, requests).items()}
            told[f"{name}: guesses"] += target.num_drafted
            told[f"{name}: stood"] += target.num_accepted
            told[f"{name}: answers that differ"] += sum(
                found[key] != expected[key] for key in expected
            )
            told[f"{name}: pages left"] += target.cache_stats.used
            if isinstance(drafter, ModelDrafter | TrainedDrafter):
                told[f"{name}: pages left"] += drafter.cache_stats.used
            close(target)
        done = number - seed + 1
        if done % TOLD_EVERY == 0 or done == count:
            print(f"{done} workloads from seed {seed}, {perf_counter() - began:.0f} s")
            for name, total in sorted(told.items()):
                print(f"  {name}: {total:,}", flush=True)


def drawn_workload(seed: int) -> tuple[list[Request], dict[str, int]]:
    """Requests, every third with a grammar, and an engine's settings; often too few pages."""
    chance = random.Random(seed)
    requests = workload(seed, count=5)
    for place in range(0, len(requests), 3):
        params = replace(requests[place].params, grammar=chance.choice(GRAMMARS), stop=())
        requests[place] = replace(requests[place], params=params)
    return requests, {
        "num_pages": chance.choice([14, 20, 200]),
        "prefill_chunk": chance.choice([4, 16, 512]),
    }


def judge(model: LoadedModel, name: str, drafting: Drafting, count: int, seed: int) -> float:
    """Chi-square of the first tokens of many unseeded answers, and its p; the first has no guesses.

    Returns p: how often a sample of the exact distribution lies so far off.
    """
    params = SamplingParams(temperature=1.5, top_k=KEPT, max_tokens=NUM_JUDGED + 1, ignore_eos=True)
    exact = probabilities(model, params)
    settings = {"num_pages": 600, "ledger_bytes": 0, "max_sequences": TOGETHER}
    target = drafted_engine(model, drafting, **settings)
    seen = Counter[tuple[int, ...]]()
    began = perf_counter()
    with unseeded(seed):
        for start in range(0, count, TOGETHER):
            requests = [
                Request(request_id=f"a{start + each}", prompt_token_ids=PROMPT, params=params)
                for each in range(min(TOGETHER, count - start))
            ]
            answers = run(target, requests).values()
            seen.update(tuple(answer.token_ids[:NUM_JUDGED]) for answer in answers)
    assert set(seen) <= set(exact), "a token came that may not"
    chi = sum((seen[pair] - count * p) ** 2 / (count * p) for pair, p in exact.items())
    chance_of_it = survival(chi, len(exact) - 1)
    print(
        f"{name}: {count:,} unseeded answers, {target.num_drafted:,} guesses, "
        f"{target.num_accepted:,} stood; chi-square {chi:.1f} at {len(exact) - 1} degrees, "
        f"p {chance_of_it:.3f}; {perf_counter() - began:.0f} s",
        flush=True,
    )
    return chance_of_it


@contextmanager
def unseeded(seed: int) -> Iterator[None]:
    """Requests without a seed get bits of a generator that begins here, not the system's."""
    before = prerequisites.resolve_seed
    prerequisites.resolve_seed = partial(before, entropy=random.Random(seed).randbytes)
    try:
        yield
    finally:
        prerequisites.resolve_seed = before


def probabilities(model: LoadedModel, params: SamplingParams) -> dict[tuple[int, ...], float]:
    """Of all beginnings that may come, from the model's own rows."""
    found: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(NUM_JUDGED):
        longer: dict[tuple[int, ...], float] = {}
        for said, share in found.items():
            logits = last_row(model, (*PROMPT, *said))
            row = shares(logits, SamplerRow(params=params, seed=0, position=0))
            for token in row.nonzero()[:, 0].tolist():
                longer[*said, token] = share * float(row[token])
        found = longer
    assert math.isclose(sum(found.values()), 1, rel_tol=1e-6)
    return found


def last_row(model: LoadedModel, token_ids: Sequence[int]) -> torch.Tensor:
    """Logits behind some tokens. Shapes: [V]."""
    with torch.inference_mode():
        return model.transformer(Step.without_cache([token_ids]))[-1]


def survival(chi: float, degrees: int) -> float:
    """The chance of a chi-square at least so large."""
    half = torch.tensor([degrees / 2, chi / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def close(target: Engine) -> None:
    """End the threads that compiled grammars."""
    compiler = target._admission._compiler
    if compiler is not None:
        compiler.close()


if __name__ == "__main__":
    main()
