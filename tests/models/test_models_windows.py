"""Models with windows in the engine: pages that left are free, and hits need the last alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import architectures
from cutaway.cache.table import window_pages
from cutaway.core.layout import FULL, Window
from cutaway.core.request import Request, SamplingParams
from cutaway.engine.build import load_model
from cutaway.engine.config import EngineConfig
from cutaway.engine.engine import Engine
from cutaway.engine.loading.loaded_model import LoadedModel
from cutaway.models import mistral, qwen2
from cutaway.models.parts.config_fields import Fields
from cutaway.weights.find.find import find
from drafters import InTwoMinds
from engines import engine, run

pytest.importorskip("transformers")

PAGE = 8


@pytest.fixture(scope="module")
def loaded(tmp_path_factory) -> Any:
    """A case's model, ours and transformers'."""

    def load(case: str, **more: Any) -> tuple[LoadedModel, Any]:
        theirs = architectures.reference(case, **more)
        folder = tmp_path_factory.mktemp("model")
        architectures.save(theirs, folder)
        return load_model(find(str(folder)), EngineConfig(dtype="float32", device="cpu")), theirs

    return load


def request(prompt: list[int], *, max_tokens: int, **params: Any) -> Request:
    greedy = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, **params)
    return Request(request_id="one", prompt_token_ids=tuple(prompt), params=greedy)


def drawn(count: int, seed: int = 0) -> list[int]:
    return torch.randint(0, 256, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.mark.parametrize("case", ["mistral", "gemma3"])
def test_f04_guesses_far_behind_the_first_window_change_nothing(loaded: Any, case: str) -> None:
    """Wrong ones are taken back where pages have left the window in the same step."""
    model, _ = loaded(case)
    asked = request(drawn(30), max_tokens=80)
    plain = run(engine(model), [asked])["one", 0]
    known = [*asked.prompt_token_ids, *plain.token_ids]
    target = engine(model, drafter=InTwoMinds([known], 5))
    answer = run(target, [asked])["one", 0]
    assert answer.essence == plain.essence
    assert target.num_drafted > target.num_accepted > 20 and target.cache_stats.used == 0


@pytest.mark.parametrize("case", ["mistral", "gemma3"])
def test_a_long_run_holds_no_more_pages_than_its_windows_need(loaded: Any, case: str) -> None:
    model, _ = loaded(case)
    target = engine(model, prefix_cache=False)
    target.add(request(drawn(30), max_tokens=200))
    target.step()  # the whole prompt
    specs = model.transformer.cache_specs
    extents = list(dict.fromkeys(spec.extent for spec in specs))
    assert any(isinstance(extent, Window) for extent in extents)
    while target.has_work:
        for group, extent in enumerate(extents):
            if isinstance(extent, Window):
                assert held(target, group) <= window_pages(extent, PAGE)
            else:
                (sequence,) = target.scheduler.running
                assert held(target, group) >= sequence.num_computed_tokens // PAGE
        target.step()
    assert target.cache_stats.used == 0


def held(target: Engine, group: int) -> int:
    (sequence,) = target.scheduler.running
    assert sequence.tables is not None
    return len(sequence.tables.groups[group].held)


def test_a_prefix_hit_needs_only_the_last_tokens_of_the_window(loaded: Any) -> None:
    model, _ = loaded("mistral")  # a window of 16 tokens in every layer: 3 pages at most
    prompt = drawn(150)
    target = engine(model, num_pages=1 + 8, prefill_chunk=16)
    first = run(target, [request(prompt, max_tokens=4)])["one", 0]
    assert first.last.usage.cached_tokens == 0
    second = run(target, [request(prompt, max_tokens=4)])["one", 0]
    assert second.last.usage.cached_tokens == 144, "18 pages found where 8 exist"
    assert second.token_ids == first.token_ids
    alone = run(engine(model, prefix_cache=False), [request(prompt, max_tokens=4)])["one", 0]
    assert alone.token_ids == first.token_ids


def test_d07_logits_past_the_window_equal_a_full_forward(loaded: Any) -> None:
    model, theirs = loaded("mistral", sliding_window=4)
    target = engine(model, prefill_chunk=3, prefix_cache=False)
    rows: list[torch.Tensor] = []

    def watch(name: str, value: torch.Tensor, layer: int | None) -> None:
        if name == "logits":
            rows.append(value.clone())

    target.sink = watch
    prompt = drawn(11)
    answer = run(target, [request(prompt, max_tokens=10, prompt_logprobs=0)])["one", 0]
    with torch.no_grad():
        expected = theirs(torch.tensor([prompt + answer.token_ids[:-1]])).logits[0]
    assert len(expected) == 20
    assert (torch.cat(rows) - expected).abs().max() < 1e-4


MISTRAL = {**architectures.COMMON, "sliding_window": 7}


@pytest.mark.parametrize("change", [{"sliding_window": None}, {"sliding_window": 0}, {}])
def test_d06_no_window_means_that_all_is_seen(change: dict[str, Any]) -> None:
    values = {name: value for name, value in MISTRAL.items() if name != "sliding_window"}
    made = mistral.from_hf(Fields({**values, **change}, file="config.json"))
    assert set(made.extents) == {FULL}
    assert set(mistral.from_hf(Fields(MISTRAL, file="config.json")).extents) == {Window(7)}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"use_sliding_window": False}, [FULL, FULL, FULL]),
        ({"use_sliding_window": True}, [FULL, Window(7), Window(7)]),
        ({"use_sliding_window": True, "max_window_layers": 28}, [FULL, FULL, FULL]),
        (
            {
                "use_sliding_window": True,
                "layer_types": ["sliding_attention", "full_attention", "full_attention"],
            },
            [Window(7), FULL, FULL],
        ),
    ],
)
def test_d06_a_window_is_used_where_the_file_says(change: Any, expected: Any) -> None:
    values = {**MISTRAL, "max_window_layers": 1, **change}
    assert list(qwen2.from_hf(Fields(values, file="config.json")).extents) == expected
