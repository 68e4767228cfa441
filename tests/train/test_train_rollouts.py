"""The sampler's log-probabilities are the trainer's, however the engine computed them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import engines
import tiny
from cutaway.core.errors import ConfigError
from cutaway.core.request import Request, SamplingParams
from cutaway.engine.config import EngineConfig
from cutaway.engine.drafters import NGramDrafter
from cutaway.engine.drafting import Drafting
from cutaway.engine.loading.loaded_model import LoadedModel
from cutaway.tokens.byte_tokenizer import byte_tokenizer
from cutaway.train.data.packing import MicroBatch
from cutaway.train.losses.likelihood import likelihood
from cutaway.train.rollouts.rollouts import (
    Agreement,
    Rollout,
    Rollouts,
    RolloutSettings,
    agreement,
    derived_seed,
)

CHUNKS = EngineConfig(page_size=8, prefill_chunk=8)
PROMPTS = [[(7 * row + 3 * at) % 256 for at in range(20 + row)] for row in range(6)]


def trained(seed: int = 0) -> LoadedModel:
    """A model whose tensors are trained: float32, nothing joined."""
    architecture, transformer = tiny.random_model(seed=seed, dtype=torch.float32)
    with torch.no_grad():  # logits of the size that models have: float32 rounds by their size
        transformer.unembedding.table.weight *= 0.5
    return LoadedModel(
        name="tiny",
        licence="none",
        facts=architecture.facts,
        transformer=transformer,
        tokenizer=byte_tokenizer(eos_token_id=engines.END),
        template_source=None,
        end_token_ids=frozenset({engines.END}),
        sampling={},
        dtype=torch.float32,
        cache_dtype=torch.float32,
        device=torch.device("cpu"),
    )


def rollouts_of(model: LoadedModel, **changes: Any) -> Rollouts:
    settings = {"temperature": 0.6, "max_tokens": 24, **changes.pop("settings", {})}
    return Rollouts(model, RolloutSettings(**settings), longest=40, **changes)


def compare(model: LoadedModel, found: list[Rollout], temperature: float = 0.6) -> Agreement:
    batch = MicroBatch(tuple(each.scored for each in found))
    given = likelihood(model.transformer, batch, temperature=temperature)
    return agreement(found, given.log_probs)


def move(model: LoadedModel) -> None:
    """An update in place, large enough that answers change."""
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in model.transformer.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"settings": {"at_once": 1}},
        {"engine": CHUNKS},
        {"engine": EngineConfig(prefix_cache=False)},
        {"drafting": Drafting.of(NGramDrafter())},
    ],
    ids=["together", "alone", "chunked", "no prefix cache", "drafted"],
)
def test_t33_log_probs_are_the_trainers(changes: dict[str, Any]) -> None:
    model = trained()
    found = rollouts_of(model, **changes).sample(PROMPTS, seed=1, round_=0, num_answers=2)
    assert len(found) == 2 * len(PROMPTS)
    assert [each.prompt for each in found] == [tuple(p) for p in PROMPTS for _ in range(2)]
    met = compare(model, found)
    assert met.largest < 1e-5
    assert met.mean_k3 < 1e-9
    assert compare(model, found, temperature=1.0).mean_k3 > 1e-3  # the raw softmax is another one


def test_log_probs_are_the_trainers_where_the_prompt_was_cached() -> None:
    model = trained()
    longer = [[*PROMPTS[0], 1, 2], [*PROMPTS[0], 1, 3]] * 3
    target = rollouts_of(model, engine=CHUNKS)
    found = target.sample(longer, seed=1, round_=0, num_answers=4)
    assert target._engine.cache_stats.hit_tokens > 0
    assert compare(model, found).largest < 1e-5


# T35: the prefix cache serves states of old weights.
def test_t35_after_an_update_all_is_as_in_an_engine_started_cold() -> None:
    model = trained()
    target = rollouts_of(model, engine=CHUNKS)
    before = target.sample(PROMPTS, seed=1, round_=0)
    hits = target._engine.cache_stats.hit_tokens
    move(model)
    after = target.sample(PROMPTS, seed=1, round_=0)
    assert after == rollouts_of(model, engine=CHUNKS).sample(PROMPTS, seed=1, round_=0)
    assert compare(model, after).largest < 1e-5
    assert compare(model, before).largest > 1e-2
    assert target._engine.cache_stats.hit_tokens == hits


def test_t35_an_engine_that_is_told_nothing_serves_old_states() -> None:
    """So the test above can fail."""
    model = trained()
    target = rollouts_of(model, engine=CHUNKS)
    target.sample(PROMPTS, seed=1, round_=0)
    move(model)
    target._is_first = True
    assert compare(model, target.sample(PROMPTS, seed=1, round_=0)).largest > 1e-3


# T34: rollouts are decoded and tokenised again.
def test_t34_ids_reach_the_loss_as_they_were_drawn() -> None:
    model = trained()
    found = rollouts_of(model).sample(PROMPTS * 6, seed=3, round_=0, num_answers=6)
    assert len(found) > 200
    decode = model.tokenizer.token_bytes
    lost = [each for each in found if list(b"".join(map(decode, each.answer))) != list(each.answer)]
    assert lost  # ids past 255 have no text, so decoding would lose them
    batch = MicroBatch(tuple(each.scored for each in found))
    targets = [token_id for each in found for token_id in each.answer]
    assert batch.targets().tolist() == targets


def test_an_answer_says_whether_it_ended() -> None:
    found = rollouts_of(trained()).sample(PROMPTS, seed=5, round_=0, num_answers=40)
    assert {each.is_ended for each in found} == {True, False}
    for each in found:
        assert each.is_ended == (each.answer[-1] == engines.END)
        assert each.is_ended or len(each.answer) == 24
        assert len(each.log_probs) == len(each.answer) == each.scored.count


def test_rollouts_are_a_function_of_seed_round_and_place() -> None:
    model = trained()
    first, again, other, later = (
        rollouts_of(model).sample(PROMPTS, seed=seed, round_=round_)
        for seed, round_ in ((1, 0), (1, 0), (2, 0), (1, 1))
    )
    assert first == again
    assert first != other
    assert first != later
    few = rollouts_of(model).sample(PROMPTS[:2], seed=1, round_=0)
    assert [each.answer for each in few] == [each.answer for each in first[:2]]


def test_seeds_of_places_differ() -> None:
    seeds = {derived_seed(1, a, b) for a in range(30) for b in range(30)}
    assert len(seeds) == 900
    assert max(seeds) < 2**63


def test_a_temperature_that_makes_all_answers_alike_is_refused() -> None:
    with pytest.raises(ConfigError, match="temperature is 0; it must be from"):
        RolloutSettings(temperature=0)


def test_what_was_recorded_under_old_weights_is_dropped_with_them() -> None:
    model = trained()
    target = engines.engine(model)
    request = Request(
        request_id="a", prompt_token_ids=(1, 2, 3), params=SamplingParams(max_tokens=3)
    )
    engines.run(target, [request])
    ledger, before = target.ledger, dict(target.fingerprints)
    assert ledger is not None and ledger.num_answers == 1
    move(model)
    target.renew_weights()
    assert ledger.num_answers == 0
    assert ledger.num_bytes == 0
    assert target.fingerprints.keys() == before.keys()
    assert target.fingerprints != before
    engines.run(target, [request])
    assert ledger.num_answers == 1
