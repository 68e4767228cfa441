"""Layers with a state: pages as snapshots, prefix hits, preemption, and no drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import architectures
from cutaway.blocks.attention.delta import ByHead, DeltaLayer
from cutaway.cache.pool import Pool
from cutaway.core.errors import ConfigError, RequestError
from cutaway.core.layout import SCRATCH_PAGE, CacheField, CacheSpec, group_layers
from cutaway.core.request import Request, SamplingParams
from cutaway.core.shapes import DeltaShape
from cutaway.core.step import Step
from cutaway.engine import memory
from cutaway.engine.build import load_model
from cutaway.engine.config import EngineConfig
from cutaway.engine.drafters import NGramDrafter
from cutaway.engine.loading.loaded_model import LoadedModel
from cutaway.engine.memory import SNAPSHOTS, pages_of
from cutaway.engine.running import Running
from cutaway.kernels.delta import delta_rule, short_convolution
from cutaway.replay.recorded_answers import verify_answer
from cutaway.weights.find.find import find
from engines import engine, run, workload

PAGE = 8  # of engines.engine
WIDTH = 12
SIZES = DeltaShape(num_key_heads=2, num_value_heads=4, key_size=6, value_size=5, kernel=3)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("state")
    architectures.save(architectures.reference("qwen3-next"), folder)
    return load_model(find(str(folder)), EngineConfig(dtype="float32", device="cpu"))


def asked(number: int, prompt: Sequence[int], **params: Any) -> Request:
    settings = {"temperature": 0.0, "max_tokens": 20, "ignore_eos": True, **params}
    return Request(
        request_id=f"r{number}",
        prompt_token_ids=tuple(prompt),
        params=SamplingParams(**settings),
    )


def answers(target: Any, requests: Sequence[Request]) -> list[list[int]]:
    return [answer.token_ids for _, answer in sorted(run(target, requests).items())]


def test_the_delta_rule_by_hand() -> None:
    one = torch.ones(1, 1, dtype=torch.float64)
    key = torch.tensor([[[1.0, 0.0]]]).double()
    state = torch.tensor([[[2.0], [3.0]]]).double()
    value = torch.tensor([[[5.0]]]).double()
    # Half of (2, 3) is (1, 1.5); the key knows 1, misses 4, and half of that is put right.
    result, after = delta_rule(key, key, value, one * 0.5, one * 0.5, state)
    assert after.flatten().tolist() == [3.0, 1.5]
    assert result.flatten().tolist() == [3.0]


def test_the_convolution_sees_the_last_tokens_of_its_channel() -> None:
    inputs = torch.tensor([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]])
    weight = torch.tensor([[1.0, 0.5], [0.0, 1.0]])
    mixed = torch.tensor([[1.0 + 0.5 * 2.0, 20.0], [2.0 + 0.5 * 3.0, 30.0]])
    assert torch.allclose(short_convolution(inputs, weight), torch.nn.functional.silu(mixed))


def layer() -> DeltaLayer:
    made = DeltaLayer(WIDTH, SIZES, reader=ByHead(WIDTH, SIZES), epsilon=1e-6).double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
    return made


def test_gradients_equal_finite_differences() -> None:
    made = layer()
    names, values = zip(*made.named_parameters(), strict=True)
    step = Step.without_cache([[0] * 4, [0] * 2])
    hidden = torch.randn(6, 12, generator=torch.Generator().manual_seed(1)).double()

    def forward(x: Tensor, *parameters: Tensor) -> Tensor:
        state = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(made, state, (x, None, step, 0))

    assert torch.autograd.gradcheck(forward, (hidden.requires_grad_(), *values), fast_mode=True)


def test_a_state_takes_a_page_and_no_bytes_per_token() -> None:
    spec = SIZES.state_spec
    keys = CacheSpec((CacheField("key", (2, 4)),))
    assert spec.is_state and not spec.can_roll_back and keys.can_roll_back
    assert spec.bytes_per_token("int8") == 0
    groups = group_layers((spec, keys))
    pool = Pool(
        groups,
        num_pages=(5, 9),
        page_size=PAGE,
        dtype=torch.int8,
        device=torch.device("cpu"),
    )
    fields = pool.layers[0].fields
    assert {name: tuple(pages.shape) for name, pages in fields.items()} == {
        "state": (5, 4, 6, 5),
        "inputs": (5, 2, 2 * 12 + 20),
    }
    assert {pages.dtype for pages in fields.values()} == {torch.float32}, "not the cache's int8"
    config = EngineConfig(max_sequences=3, max_tokens_per_step=64, page_size=PAGE)
    assert pages_of(spec, 1000, config) == 1 + 2 * 3 + 64 // PAGE + SNAPSHOTS
    assert pages_of(keys, 1000, config) == 1000


def test_states_take_their_memory_before_pages_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device: 1_000_000)
    config = EngineConfig(max_sequences=3, max_tokens_per_step=64, page_size=PAGE)
    one = 4 * (4 * 6 * 5 + 2 * 44)  # float32: the state and two tokens of 44 channels
    states = memory.state_bytes([SIZES.state_spec, SIZES.state_spec], config)
    assert states == 2 * one * (1 + 2 * 3 + 64 // PAGE + SNAPSHOTS)
    sizes = {"max_length": 10**6, "max_sequences": 3}
    allowed = memory.share_of_memory(torch.device("cpu"))
    tokens = memory.cache_tokens(allowed, bytes_per_token=10, state_bytes=states, **sizes)
    assert tokens == (400_000 - states) // 10
    assert memory.cache_tokens(allowed, bytes_per_token=0, state_bytes=states, **sizes) > 0
    with pytest.raises(ConfigError, match="sequences and their snapshots take 400001"):
        memory.cache_tokens(allowed, bytes_per_token=10, state_bytes=400_001, **sizes)


def test_a_running_sequence_holds_two_states_however_long_it_is(model: LoadedModel) -> None:
    target = engine(model)
    target.add(asked(0, range(100), max_tokens=60))
    groups = group_layers(model.transformer.cache_specs)
    group = next(each.index for each in groups if each.spec.is_state)
    most = 0
    while target.has_work:
        target.step()
        for sequence in target.scheduler.running:
            assert sequence.tables is not None
            held = [page for page in sequence.tables.groups[group].pages if page != SCRATCH_PAGE]
            most = max(most, len(held))
    assert 1 <= most <= 2


@pytest.mark.parametrize("shared", [PAGE, 3 * PAGE, 3 * PAGE + 5])
def test_a_prefix_hit_goes_on_from_a_snapshot(model: LoadedModel, shared: int) -> None:
    prefix = list(range(50, 50 + shared))
    first, second = asked(0, [*prefix, 1, 2, 3]), asked(1, [*prefix, 7, 8])
    expected = answers(engine(model, prefix_cache=False), [second])
    target = engine(model)
    run(target, [first])
    (again,) = run(target, [second]).values()
    assert [again.token_ids] == expected
    assert again.last is not None and again.last.usage is not None
    assert again.last.usage.cached_tokens == shared // PAGE * PAGE


def test_preempted_sequences_answer_as_alone(model: LoadedModel) -> None:
    requests = [asked(n, [n * 7 + i for i in range(25 + n)], max_tokens=20) for n in range(3)]
    alone = [answers(engine(model, prefix_cache=False), [each])[0] for each in requests]
    # 10 pages of 8 tokens, of which each takes 6 in the end: the young must make room.
    target = engine(model, num_pages=11)
    assert answers(target, requests) == alone
    assert target.scheduler.num_preemptions > 0


@pytest.mark.parametrize("stays", [False, True], ids=["once", "stays"])
def test_a_step_that_raised_leaves_no_trace_in_states(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch, stays: bool
) -> None:
    requests = [asked(n, [n * 7 + i for i in range(25 + n)], max_tokens=20) for n in range(3)]
    alone = [answers(engine(model), [each])[0] for each in requests]
    rows, left = Running.rows, [5]

    def fails(self: Running, num_drafts: int) -> object:  # behind the forward
        if self.sequence.request.request_id == "r1":
            left[0] -= 1
            if left[0] == 0 or (stays and left[0] < 0):
                raise RuntimeError
        return rows(self, num_drafts)

    monkeypatch.setattr(Running, "rows", fails)
    target = engine(model)
    told = run(target, requests)
    for (_, answer), wanted in zip(sorted(told.items()), alone, strict=True):
        assert answer.last is not None
        if answer.last.error is None:
            assert answer.token_ids == wanted
    assert [each.last.error is not None for _, each in sorted(told.items())] == [
        False,
        stays,
        False,
    ]
    assert target.scheduler.num_preemptions == 3 and target.cache_stats.used == 0


def test_guesses_are_refused_for_a_model_with_states(model: LoadedModel) -> None:
    """A state cannot be taken back; what was asked for is not dropped in silence."""
    with pytest.raises(ConfigError, match='draft is "ngram", but state0 keeps a state'):
        engine(model, draft="ngram", drafter=NGramDrafter())
    target = engine(model)
    repeated = asked(0, [5, 6, 7, 8] * 6)
    wanted = replace(repeated, params=replace(repeated.params, draft="ngram"))
    with pytest.raises(RequestError, match='draft is "ngram", but state0 keeps a state'):
        target.add(wanted)
    off = replace(repeated, params=replace(repeated.params, draft="off"))
    assert answers(target, [off]) == answers(engine(model), [repeated])


@pytest.mark.slow
@pytest.mark.parametrize("case", ["mixtral", "deepseek-v3", "qwen3-next"])
def test_answers_come_again_whatever_the_cache_keeps(case: str, tmp_path: Path) -> None:
    """Experts, latent rows and states; little of everything, so that answers share and wait."""
    pytest.importorskip("transformers")
    architectures.save(architectures.reference(case), tmp_path)
    loaded = load_model(find(str(tmp_path)), EngineConfig(dtype="float32", device="cpu"))
    tight = {"max_sequences": 6, "max_tokens_per_step": 48, "prefill_chunk": 16}
    target = engine(loaded, num_pages=15, **tight)
    run(target, workload(seed=1, count=8))
    assert target.ledger is not None
    records = [answer for answer in target.ledger.answers if answer.tokens]
    assert records
    for record in records:
        verdict = verify_answer(target, record)
        assert verdict.is_exact, str(verdict)
