"""The engine on an NVIDIA GPU: the same truths, captured steps, and the golden ids in float32."""

from __future__ import annotations

import pytest
import torch

from cutaway import LLM, SamplingParams
from cutaway.core.step import Step
from cutaway.engine.drafters import NGramDrafter
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_captured_decode_step_equals_the_eager_one(dtype: torch.dtype) -> None:
    """Bit for bit at the bucket's shape, padding rows included; nearly so at the step's own."""
    model = loaded(device="cuda", dtype=dtype)
    target = engine(model)
    target._ahead = None  # so that each step is computed in its own call
    graphs = target.runner._graphs
    replay, checked = graphs.run, []

    @torch.inference_mode()
    def watched(numbers, sink=None):
        captured = replay(numbers).clone()
        count = len(numbers.plan.query_lengths)
        bucket = min(size for size in graphs._buckets if size >= count)
        static = graphs._inputs(bucket, graphs._width(numbers)).step
        assert static.token_ids[:count].tolist() == list(numbers.token_ids)
        checked.append(torch.equal(captured, model.transformer(static)[:count]))
        step = Step.of(numbers, target.runner.pool.layers, device=model.device)
        assert torch.allclose(captured, model.transformer(step), rtol=0.05, atol=0.05)
        return captured

    graphs.run = watched
    run(target, [r for r in workload(2) if not r.params.stop][:4])
    assert len(checked) > 5 and all(checked)


@pytest.mark.oracle
def test_smollm2_gives_its_golden_ids_on_the_gpu() -> None:
    llm = LLM(str(smollm2_gguf()), dtype="float32", device="cuda", cache_tokens=4096)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    answer = llm.chat(question, SamplingParams(temperature=0.0, max_tokens=30, logprobs=3))
    assert answer.token_ids == (504, 3575, 282, 4649, 314, 7042, 30, 2)
    assert [p for _, p in answer.logprobs[0].top] == pytest.approx(
        [-1.8827, -1.9648, -2.2657], abs=1e-3
    )
