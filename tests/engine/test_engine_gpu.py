"""The engine on an NVIDIA GPU: the same truths, captured steps, and the golden ids in float32."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

from cutaway import LLM, SamplingParams
from cutaway.blocks.linear import Linear
from cutaway.blocks.norm import OffsetRMSNorm, RMSNorm
from cutaway.core.request import Request
from cutaway.core.step import Step
from cutaway.engine.config import EngineConfig
from cutaway.engine.drafters import NGramDrafter
from cutaway.engine.loading.loaded_model import LoadedModel
from cutaway.engine.profiling import profile
from cutaway.kernels.norm import late
from cutaway.kernels.norm.late import norm_later
from cutaway.quantize.rounding import round_matrix
from cutaway.quantize.schemes import scheme_of
from drafters import SaidBefore
from engines import engine, loaded, run, workload
from oracles import smollm2_gguf

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


@pytest.fixture(scope="module")
def model():
    return loaded(device="cuda")


def essences(answers) -> dict:
    return {key: answer.essence for key, answer in answers.items()}


@pytest.mark.parametrize("seed", range(4))
def test_gpu_answers_equal_those_of_the_cpu(model, seed: int) -> None:
    requests = workload(seed)
    expected = essences(run(engine(loaded()), requests))
    assert essences(run(engine(model), requests)) == expected


@pytest.mark.parametrize(
    "settings",
    [
        {"prefix_cache": False},
        {"prefill_chunk": 3},
        {"graphs": False},
        {"num_pages": 18},
        {"drafter": NGramDrafter()},
    ],
    ids=lambda s: next(iter(s)),
)
def test_gpu_answers_do_not_depend_on_settings(model, settings) -> None:
    requests = workload(1)
    assert essences(run(engine(model, **settings), requests)) == essences(
        run(engine(model), requests)
    )


def in_fewer_bits(model: LoadedModel, word: str) -> LoadedModel:
    """Its linear maps rounded, as keep_weights leaves them on a GPU."""
    for part in model.transformer.modules():
        if isinstance(part, Linear) and part.in_features % 32 == 0:
            whole = round_matrix(part.dense().detach(), scheme_of(word)).keep(None)
            part.segments = nn.ModuleList([whole]).to("cuda")
    return model


def model_of(kind: str) -> LoadedModel:
    if kind in ("float32", "bfloat16"):
        return loaded(device="cuda", dtype=getattr(torch, kind))
    wide: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96}
    if kind == "experts":
        wide |= {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral"}
        wide |= {"num_local_experts": 6, "num_experts_per_tok": 2}
    model = loaded(device="cuda", dtype=torch.bfloat16, **wide)
    if kind == "experts":
        return model
    if kind.startswith("kv "):
        return replace(model, cache_dtype=getattr(torch, kind[3:]))
    return in_fewer_bits(model, kind)


def assert_near(captured: torch.Tensor, own: torch.Tensor, kind: str) -> None:
    """Logits of a padded step are nearly those of its own shape, whose products may sum otherwise.

    Nothing is asked of experts: of two alike scores another shape may choose the other.
    """
    apart = float((captured - own).norm() / own.norm())
    assert kind == "experts" or apart < 0.05, f"{kind}: {apart:.3f} of the norm apart"


@pytest.mark.parametrize(
    "kind",
    ["float32", "bfloat16", "int4", "int8", "fp8", "kv int8", "kv float8_e4m3fn", "experts"],
)
def test_a_captured_step_equals_the_eager_one(kind: str) -> None:
    """Bit for bit at the bucket's shape, padding rows included; nearly so at the step's own.

    Of decode steps, and of prompts beside them.
    """
    model = model_of(kind)
    target = engine(model)
    target._ahead = None  # so that each step is computed in its own call
    graphs = target.runner._graphs
    replay, checked, prompts = graphs.run, [], 0

    @torch.inference_mode()
    def watched(numbers, sink=None):
        captured = replay(numbers).clone()
        nonlocal prompts
        size, count = graphs._size(numbers), len(numbers.logit_rows)
        if size is None:
            prompts += 1
            static = graphs._mixed.step(numbers)
        else:
            static = graphs._inputs(size).step
            assert static.token_ids[:count].tolist() == list(numbers.token_ids)
        checked.append(torch.equal(captured, model.transformer(static)[:count]))
        step = Step.of(numbers, target.runner.pool.layers, device=model.device)
        assert_near(captured, model.transformer(step), kind)
        return captured

    graphs.run = watched
    run(target, [r for r in workload(2) if not r.params.stop][:4])
    assert len(checked) > 5 and prompts and all(checked)


@pytest.mark.parametrize("kind", ["bfloat16", "wide bfloat16", "int4", "int4 offset"])
def test_norms_and_gates_within_products_change_no_bit(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one answer's captured steps: beside the same steps in parts, and beside watched ones."""
    width = 1024 if kind == "bfloat16" else 4096 if kind == "wide bfloat16" else 2048
    sizes: dict[str, Any] = {"hidden_size": width, "intermediate_size": 3072, "head_dim": 64}
    sizes |= {"num_attention_heads": 32, "num_key_value_heads": 8}
    model = loaded(device="cuda", dtype=torch.bfloat16, **sizes)
    if kind.startswith("int4"):
        in_fewer_bits(model, "int4")
    if kind.endswith("offset"):
        for part in model.transformer.modules():
            if isinstance(part, RMSNorm):
                part.__class__, part.weight.data = OffsetRMSNorm, part.weight.data - 1
    target = engine(model)
    target._ahead = None
    graphs = target.runner._graphs
    replay, checked, left, placed = graphs.run, [], 0, []
    place = Linear.place_heads
    monkeypatch.setattr(
        Linear, "place_heads", lambda *given: placed.append(place(*given)) or placed[-1]
    )

    def count(*given: Any, **named: Any) -> Any:
        nonlocal left
        late_norm = norm_later(*given, **named)
        left += late_norm is not None
        return late_norm

    @torch.inference_mode()
    def watched(numbers, sink=None):
        nonlocal left
        captured = replay(numbers).clone()
        size = graphs._size(numbers)
        if size is None or len(numbers.token_ids) > 1:
            return captured
        static, left = graphs._inputs(size).step, 0
        checked.append(torch.equal(captured, model.transformer(static)))
        assert left == 3, "of two layers, but for the first norm"
        seen = replace(static, sink=lambda name, value, layer: None)
        checked.append(torch.equal(captured, model.transformer(seen)))
        with monkeypatch.context() as patched:
            patched.setattr(late, "LEAVES_NORMS", False)
            checked.append(torch.equal(captured, model.transformer(static)))
        return captured

    monkeypatch.setattr("cutaway.blocks.norm.norm_later", count)
    graphs.run = watched
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    run(target, [Request(request_id="one", prompt_token_ids=tuple(range(20)), params=params)])
    assert len(checked) > 20 and all(checked)
    assert placed and all(each is not None for each in placed)


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int4", "kv float8_e4m3fn", "experts"])
def test_a_captured_step_with_guesses_equals_the_eager_one(kind: str) -> None:
    """Whatever each brings, padding included; and it is what the step's own shape nearly gives."""
    model = model_of(kind)
    target = engine(model, drafter=SaidBefore(), draft="ngram", max_sequences=8)
    graphs = target.runner._graphs
    target.runner.prepare()
    prepared, replay, checked = graphs.num_captured, graphs.run, []

    @torch.inference_mode()
    def watched(numbers, sink=None, *, token_ids=None):
        captured = replay(numbers, sink, token_ids=token_ids).clone()
        size, count = graphs._size(numbers), len(numbers.token_ids)
        if size is None or size.tokens is None:  # prompts, or one token each
            return captured
        static = graphs._inputs(size).step
        starts = static.query_starts.tolist()
        counts = [after - before for before, after in pairwise(starts)]
        assert starts[-1] == len(static.token_ids) and max(counts) <= static.plan.most_queries
        checked.append(torch.equal(captured, model.transformer(static)[:count]))
        step = Step.of(numbers, target.runner.pool.layers, device=model.device)
        assert_near(captured, model.transformer(step), kind)
        return captured

    graphs.run = watched
    run(target, [r for r in workload(2) if not r.params.stop][:4])
    assert len(checked) > 5 and all(checked) and prepared > len(graphs._buckets)
    sizes = {size for size in graphs._captured if size.tokens}
    assert len(sizes) > 3


def test_answers_with_captured_guesses_are_those_without() -> None:
    model = loaded(device="cuda", dtype=torch.float32)
    requests = workload(1)
    target = engine(model, drafter=SaidBefore())
    assert essences(run(target, requests)) == essences(run(engine(model), requests))
    assert target.num_accepted and any(size.tokens for size in target.runner._graphs._captured)


@pytest.mark.oracle
def test_smollm2_gives_its_golden_ids_on_the_gpu() -> None:
    llm = LLM(str(smollm2_gguf()), dtype="float32", device="cuda", cache_tokens=4096)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    answer = llm.chat(question, SamplingParams(temperature=0.0, max_tokens=30, logprobs=3))
    assert answer.token_ids == (504, 3575, 282, 4649, 314, 7042, 30, 2)
    assert [p for _, p in answer.logprobs[0].top] == pytest.approx(
        [-1.8827, -1.9648, -2.2657], abs=1e-3
    )


def test_pages_get_what_the_largest_step_leaves(model, capfd: pytest.CaptureFixture[str]) -> None:
    config = EngineConfig(device="cuda", max_tokens_per_step=512, max_sequences=8)
    found = profile(model, config)
    free, total = torch.cuda.mem_get_info()
    assert found.step > 0 and found.graphs > 0 and 0 < found.cache < free
    parts = found.in_use + found.step + found.graphs + found.spare
    assert found.cache + parts == found.total == total
    assert f"{found.cache / 2**30:.2f} for the cache" in capfd.readouterr().err
