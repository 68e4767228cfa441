"""Every architecture against transformers: logits, and greedy answers in every kind of run."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import architectures
import torch_bits
from cutaway.core.layout import Full
from cutaway.core.request import Request, SamplingParams
from cutaway.core.step import Step
from cutaway.engine.build import load_model
from cutaway.engine.config import EngineConfig
from cutaway.engine.loading.loaded_model import LoadedModel
from cutaway.replay.recorded_answers import verify_answer
from cutaway.weights.find.find import find
from engines import engine, run

pytest.importorskip("transformers")

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
        ],
    ),
]
LENGTHS = (37, 66)  # of prompts that begin alike; both pass the windows of the cases
FEWER = 16  # tokens of an answer where it is compared with what it is alone
FEW_PAGES = 16  # room for either of these answers, not for both


@dataclass
class Pair:
    """One model twice: transformers' and ours, loaded from the files that it wrote."""

    theirs: Any
    ours: LoadedModel

    @torch.no_grad()
    def expected(self, token_ids: list[int]) -> torch.Tensor:
        """Logits of transformers, one full forward without a cache."""
        return self.theirs(torch.tensor([token_ids])).logits[0]


@pytest.fixture(scope="module", params=architectures.CASES)
def saved(request, tmp_path_factory) -> tuple[Any, Path]:
    theirs = architectures.reference(request.param)
    folder = tmp_path_factory.mktemp("model")
    architectures.save(theirs, folder)
    return theirs, folder


@pytest.fixture(scope="module", params=DEVICES)
def pair(request, saved) -> Pair:
    theirs, folder = saved
    config = EngineConfig(dtype="float32", device=request.param)
    return Pair(theirs, load_model(find(str(folder)), config))


def prompts() -> list[list[int]]:
    drawn = torch.randint(0, 256, (2, 66), generator=torch.Generator().manual_seed(1)).tolist()
    drawn[1][:30] = drawn[0][:30]
    return [ids[:length] for ids, length in zip(drawn, LENGTHS, strict=True)]


def requests(given: list[list[int]], max_tokens: int) -> list[Request]:
    greedy = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    return [
        Request(request_id=f"r{number}", prompt_token_ids=tuple(ids), params=greedy)
        for number, ids in enumerate(given)
    ]


@torch.no_grad()
def test_logits_equal_transformers(pair: Pair) -> None:
    whole = [ids for row in prompts() for ids in row]
    step = Step.without_cache([whole], device=pair.ours.device)
    logits, expected = pair.ours.transformer(step).cpu(), pair.expected(whole)
    assert expected.std() > 0.05, "logits so alike would equal anything"
    assert (logits - expected).abs().max() < 1e-4


def test_the_torch_form_is_made_of_operations_whose_bits_hang_on_no_place(pair: Pair) -> None:
    if pair.ours.device.type != "cpu":
        pytest.skip("other devices compute entries one by one, by torch's own forms")
    few = requests(prompts(), 2)
    with torch_bits.Watch() as watch:
        run(engine(pair.ours), few)
        whole = few[0].prompt_token_ids
        pair.ours.transformer(Step.without_cache([list(whole)], device=pair.ours.device))
    # Add what is new to ENTRIES or ROWS there, which tries it under each instruction set.
    assert watch.untried == set()


def test_32_greedy_tokens_equal_transformers_in_every_kind_of_run(pair: Pair) -> None:
    """Alone against transformers; in company as alone, as far as the first tokens show it."""
    plain: dict[Any, list[int]] = {}
    for each in requests(prompts(), 32):
        alone = run(engine(pair.ours, prefix_cache=False), [each])
        plain |= {key: answer.token_ids for key, answer in alone.items()}
        answer = plain[each.request_id, 0]
        assert len(answer) == 32
        # Teacher-forced: each token is the greedy choice after those before it.
        logits = pair.expected([*each.prompt_token_ids, *answer[:-1]])
        assert answer == logits[len(each.prompt_token_ids) - 1 :].argmax(dim=-1).tolist()
    asked = requests(prompts(), FEWER)
    plain = {key: answer[:FEWER] for key, answer in plain.items()}
    assert answers(pair, asked, prefix_cache=False) == plain, "batched"
    assert answers(pair, asked, prefix_cache=False, prefill_chunk=7) == plain, "chunked"
    # Layers with windows need ever less as an answer grows, so nothing makes room for it.
    if any(isinstance(each.extent, Full) for each in pair.ours.transformer.cache_specs):
        assert crowded(pair, asked) == plain, "preempted"
    assert streamed(pair, asked) == plain, "streamed"
    cached = engine(pair.ours)
    run(cached, [replace(asked[0], params=replace(asked[0].params, max_tokens=1))])
    again = run(cached, asked)
    assert {key: answer.token_ids for key, answer in again.items()} == plain, "prefix-cached"
    usage = again["r0", 0].last.usage
    assert usage is not None and usage.cached_tokens > 0, "the second run found no prefix"
    assert cached.ledger is not None
    for record in cached.ledger.answers:
        verdict = verify_answer(cached, record)
        assert verdict.is_exact, f"run again: {verdict}"


def crowded(pair: Pair, asked: list[Request]) -> dict[Any, list[int]]:
    """Tokens where there is room for either answer, not for both."""
    target = engine(pair.ours, prefix_cache=False, num_pages=FEW_PAGES)
    made = run(target, asked)
    assert target.scheduler.num_preemptions > 0, "there was room for both"
    return {key: answer.token_ids for key, answer in made.items()}


def streamed(pair: Pair, asked: list[Request]) -> dict[Any, list[int]]:
    """Tokens as a reader of a stream has them, one piece of news after the other."""
    told: dict[Any, list[tuple[int, ...]]] = defaultdict(list)
    for news in engine(pair.ours).follower.follow(asked):
        for delta in news:
            told[delta.request_id, delta.choice].append(delta.token_ids)
    assert all(len(pieces) >= FEWER for pieces in told.values()), "each is told when it is there"
    return {key: [each for ids in pieces for each in ids] for key, pieces in told.items()}


def answers(pair: Pair, asked: list[Request], **settings: Any) -> dict[Any, list[int]]:
    made = run(engine(pair.ours, **settings), asked)
    return {key: answer.token_ids for key, answer in made.items()}
