"""Guesses of a smaller model and of early layers: the same answers, and all pages returned."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tiny
from cutaway.compare.lever_cards import levers_of
from cutaway.core.errors import ConfigError, RequestError
from cutaway.core.grammar import Grammar
from cutaway.core.request import Request, SamplingParams
from cutaway.engine.build import build_engine
from cutaway.engine.config import EngineConfig
from cutaway.engine.drafters import Controller, GuessSource, Wish
from cutaway.engine.drafters.draft_models import (
    check_vocabulary,
    drafting_beside,
    drafting_of,
    early_layers,
)
from cutaway.engine.drafters.model_drafter import ModelDrafter
from cutaway.engine.drafting import Drafting
from cutaway.engine.engine import Engine
from cutaway.engine.loading.loaded_model import LoadedModel
from cutaway.service.card import stats_of
from cutaway.tokens.byte_tokenizer import byte_tokenizer
from engines import engine, loaded, nearly, run, workload

GRAMMAR = Grammar.regex("(ab|cd){3,9}")


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return loaded()


def drafter(draft: LoadedModel, *, num_pages: int = 200, **settings: Any) -> ModelDrafter:
    config = EngineConfig(**{"page_size": 8, **settings})
    return ModelDrafter(draft, config, kind="model", num_pages=num_pages, vocab_size=320)


def with_drafter(
    model: LoadedModel, made: ModelDrafter, *, controller: Controller | None = None, **settings: Any
) -> Engine:
    target = engine(model, **settings)
    target.drafting = Drafting({"model": GuessSource(made, controller)}, default="model")
    return target


def essences(target: Engine, requests: Sequence[Request]) -> dict[tuple[str, int], Any]:
    return {key: each.essence for key, each in run(target, requests).items()}


@pytest.mark.parametrize("noise", [0.0, 0.05, 10.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_draft_model_changes_no_answer(model: LoadedModel, noise: float, seed: int) -> None:
    """Stops, caps, penalties, choices, logprobs, a grammar, and pages that run out."""
    requests = workload(seed, count=5)
    requests[0] = replace(requests[0], params=replace(requests[0].params, grammar=GRAMMAR, stop=()))
    settings = {"num_pages": (14, 20, 200)[seed], "prefill_chunk": (4, 16, 512)[seed]}
    expected = essences(engine(model, **settings), requests)
    made = drafter(nearly(model, noise=noise), num_pages=settings["num_pages"])
    target = with_drafter(model, made, **settings)
    assert essences(target, requests) == expected
    assert target.num_drafted > 0
    assert target.cache_stats.used == 0 and made.cache_stats.used == 0
    if noise == 0:
        assert target.num_accepted > 0.9 * target.num_drafted


def test_drawn_answers_of_the_same_model_are_guessed_right(model: LoadedModel) -> None:
    """The drafter draws with the target's own random numbers: not the likeliest is guessed."""
    params = SamplingParams(temperature=1.5, seed=5, max_tokens=60, ignore_eos=True)
    request = Request(request_id="a", prompt_token_ids=(1, 2, 3), params=params)
    target = with_drafter(model, drafter(loaded()))
    answer = run(target, [request])["a", 0]
    assert answer.token_ids == run(engine(model), [request])["a", 0].token_ids
    assert target.num_accepted == target.num_drafted > 40
    told = stats_of(target)
    assert sum(each.right for each in told.guesses) == told.accepted_tokens
    assert [each.place for each in told.guesses] == list(range(12))
    assert all(each.drafter == "model" and each.tried == each.right for each in told.guesses)


@pytest.mark.parametrize("most", range(1, 6))
def test_f04_after_every_round_all_but_the_newest_token_is_stored(
    model: LoadedModel, most: int
) -> None:
    """k guessed, a stood, all a up to k: the drafter holds prompt and answer less one token."""
    made, chance = drafter(model), random.Random(most)
    text = [chance.randrange(256) for _ in range(13)]
    for stood in [*range(most + 1), *range(most + 1)]:
        wish = Wish(0, list(text), most)
        (draft,) = made.propose([wish])
        assert len(draft.token_ids) == len(draft.chances) == most
        fresh = drafter(model)
        assert fresh.propose([wish])[0].token_ids == draft.token_ids, "nothing stale was read"
        wrong = (draft.token_ids[stood] + 1) % 256 if stood < most else chance.randrange(256)
        text += [*draft.token_ids[:stood], wrong]
        held = made._take(Wish(0, text, most))
        assert held is not None
        # One token less is stored where all stood: the last guess was never computed.
        assert held.num_known == len(text) - 1 - (stood == most)
        assert held.tables.num_committed == held.num_known
    made.finish(0)
    assert made.cache_stats.used == 0


def test_a_long_prompt_is_computed_piece_by_piece_and_found_again(model: LoadedModel) -> None:
    made = drafter(model)
    text = [7 * i % 256 for i in range(200)]
    assert made.propose([Wish(0, text, 3)])[0].token_ids == [] and made.is_behind
    rounds = 1
    while not (draft := made.propose([Wish(0, text, 3)])[0]).token_ids:
        rounds += 1
    assert rounds <= 2 and made.is_behind
    again = made.propose([Wish(1, text, 3)])[0]
    assert again.token_ids == draft.token_ids, "its pages were found"
    assert made.cache_stats.hit_tokens >= 192 and not made.is_behind


def test_answers_of_another_root_share_no_page(model: LoadedModel) -> None:
    made = drafter(model)
    text = list(range(40))
    made.propose([Wish(0, text, 1)])
    made.propose([Wish(1, text, 1, root=b"another")])
    assert made.cache_stats.hit_tokens == 0


def test_where_pages_are_short_who_was_not_asked_for_gives_way(model: LoadedModel) -> None:
    made = drafter(model, num_pages=8, prefix_cache=False)
    for key in range(6):
        assert made.propose([Wish(key, list(range(key, key + 20)), 4)])[0].token_ids
    # Three at once do not fit: who does not gets no guess.
    drafts = made.propose([Wish(key, list(range(key, key + 20)), 4) for key in range(10, 13)])
    assert [bool(draft.token_ids) for draft in drafts].count(True) in (1, 2)
    for key in range(13):
        made.finish(key)
    assert made.cache_stats.used == 0


def test_nothing_is_guessed_beyond_what_the_drafter_can_hold() -> None:
    made = drafter(loaded(max_position_embeddings=32))
    assert made.propose([Wish(0, list(range(29)), 4)])[0].token_ids == []
    assert len(made.propose([Wish(0, list(range(28)), 4)])[0].token_ids) == 4


def test_a_guess_of_an_end_is_the_last(model: LoadedModel) -> None:
    ending = replace(model, end_token_ids=frozenset(range(320)))
    assert len(drafter(ending).propose([Wish(0, [1, 2, 3], 4)])[0].token_ids) == 1


def test_guesses_have_their_rows_where_neither_seed_nor_grammar_decides(
    model: LoadedModel,
) -> None:
    """A grammar drops ends from drafts: by rejection ends would then come too seldom."""
    made, free = drafter(model), SamplingParams(temperature=1.0)
    for key, (params, allowed, is_drawn) in enumerate(
        (
            (free, None, True),
            (free, lambda guesses: bytes([255] * 40), False),
            (replace(free, seed=1), None, False),
            (replace(free, temperature=0.0), None, False),
        )
    ):
        (draft,) = made.propose([Wish(key, [1, 2, 3], 4, params=params, allowed=allowed)])
        assert len(draft.proposals) == (len(draft.token_ids) if is_drawn else 0)


def test_the_controller_chooses_how_many_are_made(model: LoadedModel) -> None:
    """A drafter whose steps cost as much as the target's is asked for nothing after a while."""
    params = SamplingParams(temperature=0.0, max_tokens=120, ignore_eos=True)
    request = Request(request_id="a", prompt_token_ids=(1, 2, 3), params=params)
    made = drafter(nearly(model, noise=10.0))
    target = with_drafter(model, made, controller=Controller())
    answer = run(target, [request])["a", 0]
    assert answer.token_ids == run(engine(model), [request])["a", 0].token_ids
    assert target.num_drafted < 60


def test_early_layers_share_the_models_tensors_and_change_no_answer(model: LoadedModel) -> None:
    early = early_layers(model, 1)
    assert early.transformer.blocks[0] is model.transformer.blocks[0]
    assert len(early.transformer.cache_specs) == early.facts.num_layers == 1
    requests = workload(4, count=4)
    expected = essences(engine(model), requests)
    target = engine(model)
    config = EngineConfig(page_size=8, draft_layers=1)
    target.drafting = drafting_of(config, model, num_pages=200)
    assert essences(target, requests) == expected
    assert target.drafting.drafter("early").cache_stats.used == 0


@pytest.mark.parametrize("layers", [2, 30])
def test_no_more_layers_than_the_model_has_guess(model: LoadedModel, layers: int) -> None:
    with pytest.raises(ConfigError, match=f"draft_layers is {layers}.*from 1 to 1"):
        early_layers(model, layers)


def with_vocabulary(model: LoadedModel, **changes: Any) -> LoadedModel:
    tokenizer = byte_tokenizer(eos_token_id=256)
    token_bytes, size = tokenizer.token_bytes, changes.get("size", tokenizer.vocab_size)
    other = changes.get("other", {})

    class Changed:
        fingerprint = "another"
        vocab_size = size
        control_ids = tokenizer.control_ids

        def token_bytes(self, token_id: int) -> bytes:
            return other.get(token_id, token_bytes(token_id))

    return replace(model, name="drafter", tokenizer=Changed())


def test_f07_other_strings_are_refused_with_sizes_and_the_first_that_differs(
    model: LoadedModel,
) -> None:
    with pytest.raises(ConfigError, match="257 tokens, and id 97 is b'x' there and b'a' here"):
        check_vocabulary(model, with_vocabulary(model, other={97: b"x", 98: b"y"}))
    with pytest.raises(ConfigError, match="40 and 257 tokens, and id 7"):
        check_vocabulary(model, with_vocabulary(model, size=40, other={7: b"z"}))


@pytest.mark.parametrize("rows", [260, 384])
def test_f07_a_difference_of_padding_alone_works(model: LoadedModel, rows: int) -> None:
    draft = loaded(vocab_size=rows)
    check_vocabulary(model, with_vocabulary(draft, size=rows))
    made = drafter(draft)
    (guessed,) = made.propose([Wish(0, [1, 2, 3], 5, params=SamplingParams(temperature=5.0))])
    assert guessed.token_ids and max(guessed.token_ids) < 320
    params = SamplingParams(temperature=0.0, max_tokens=30, logit_bias={319: 1.5}, ignore_eos=True)
    request = Request(request_id="a", prompt_token_ids=(1, 2, 3), params=params)
    answer = run(with_drafter(model, made), [request])["a", 0]
    assert answer.token_ids == run(engine(model), [request])["a", 0].token_ids


def test_a_configuration_brings_drafters_and_requests_choose(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(tiny.config()))
    path = f"random:{tmp_path / 'config.json'}"
    target = build_engine(path, EngineConfig(device="cpu", draft_model=path, draft_layers=1))
    assert target.drafting is not None
    assert target.drafting.names == ("off", "ngram", "model", "early")
    told: dict[str | None, int] = {}
    said: set[tuple[int, ...]] = set()
    for draft in (None, "off", "ngram", "model", "early", target.model.name):
        params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, draft=draft)
        request = Request(request_id=str(draft), prompt_token_ids=(1, 2, 3), params=params)
        answer = run(target, [request])[str(draft), 0]
        told[draft] = answer.last.timings.drafted
        said.add(tuple(answer.token_ids))
    assert len(said) == 1 and told["off"] == 0 and target.drafting.tried["model", 0] > 0
    with pytest.raises(RequestError, match='draft is "modle"; here it may be off, ngram, model'):
        target.add(Request(request_id="x", prompt_token_ids=(1,), params=params_of("modle")))


def params_of(draft: str) -> SamplingParams:
    return SamplingParams(draft=draft)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"draft": "model"}, 'draft is "model", but draft_model is not set'),
        ({"draft": "early"}, 'draft is "early", but draft_layers is not set'),
        ({"draft": "best"}, 'draft is "best"; it must be one of auto, off, ngram, model, early'),
        ({"draft_layers": 0}, "draft_layers is 0; it must be at least 1"),
    ],
)
def test_settings_that_do_not_fit_are_named(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        EngineConfig(**settings)


def test_auto_is_what_was_given() -> None:
    assert EngineConfig().draft == "off"
    assert EngineConfig(draft_model="x").draft == "model"
    assert EngineConfig(draft_layers=3).draft == "early"
    assert EngineConfig(draft_model="x", draft="ngram").draft == "ngram"


@pytest.mark.parametrize("place", range(5))
def test_f03_an_end_inside_what_stood_is_the_last_token(model: LoadedModel, place: int) -> None:
    """Nothing behind it is said, counted or scored, wherever it lies among the guesses."""
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, logprobs=2)
    request = Request(request_id="a", prompt_token_ids=(1, 2, 3), params=params)
    free = run(engine(model), [request])["a", 0].token_ids
    stop = next(at for at in range(8 + place, 40) if free[at] not in free[:at])
    ending = replace(request, params=replace(params, stop_token_ids=(free[stop],)))
    plain = run(engine(model), [ending])["a", 0]
    made = drafter(loaded())
    target = with_drafter(model, made)
    answer = run(target, [ending])["a", 0]
    assert answer.essence == plain.essence and answer.last.finish_reason == "stop"
    assert [each.token_id for each in answer.logprobs] == answer.token_ids
    assert target.num_accepted > 0 and len(answer.token_ids) <= stop + 1
    assert target.cache_stats.used == 0 and made.cache_stats.used == 0


def test_a_draft_model_is_a_choice_of_the_lever(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(tiny.config()))
    path = f"random:{tmp_path / 'config.json'}"
    target = build_engine(path, EngineConfig(device="cpu", draft_model=path, draft="off"))
    [card] = [card for card in levers_of(target) if card.name == "draft"]
    assert card.choices == ("off", "ngram", "model") and card.now == "off"
    beside = drafting_beside(
        target.drafting, target.model, replace(target.config, draft="model"), num_pages=40
    )
    assert target.drafting is not None
    mine, theirs = target.drafting.drafter("model"), beside.drafter("model")
    assert isinstance(mine, ModelDrafter) and isinstance(theirs, ModelDrafter)
    assert mine.model is theirs.model and mine.cache is not theirs.cache
