"""Every architecture recorded on a CPU: near the reference, and taps that mean one thing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import architectures
from cutaway.core.request import Request, SamplingParams
from cutaway.engine.build import load_model
from cutaway.engine.config import EngineConfig
from cutaway.engine.engine import Engine
from cutaway.engine.loading.loaded_model import LoadedModel
from cutaway.engine.runner import runner_of
from cutaway.kernels import capture
from cutaway.weights.find.find import find
from engines import engine, run

pytest.importorskip("transformers")
pytestmark = pytest.mark.skipif(
    not capture.is_available(), reason="the native kernels are not built: run `make native`"
)

# Operations without a native form: learned positions; what few models have beside them.
POSITIONS = frozenset({"take_rows"})
LONG_ROPE = frozenset({"gt", "__getitem__", "where", "div", "cosines"})  # which factors hold
IN_TORCH = {
    **dict.fromkeys(("olmo-flags", "olmoe-flags"), frozenset({"clamp"})),
    **{"cohere-flags": frozenset({"layer_norm", "mul"})},
    **{"phi3": LONG_ROPE, "phi3-flags": LONG_ROPE},
}

PROMPTS = [[(7 * i + 3 * n) % 256 for i in range(n)] for n in (5, 40)]
Taps = list[tuple[str, int | None, torch.Tensor]]


@pytest.fixture(scope="module", params=architectures.CASES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    architectures.save(architectures.reference(request.param), path)
    return path


def loaded(folder: Path, dtype: str) -> LoadedModel:
    return load_model(
        find(str(folder)), EngineConfig(device="cpu", kv_dtype="float32", dtype=dtype)
    )


@pytest.fixture(scope="module")
def packed(folder: Path) -> LoadedModel:
    """As it is served, with what engines share."""
    return loaded(folder, "auto")


def requests() -> list[Request]:
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, prompt_logprobs=0)
    return [
        Request(request_id=f"r{i}", prompt_token_ids=tuple(p), params=params)
        for i, p in enumerate(PROMPTS)
    ]


def test_a_recorded_model_is_near_the_reference(
    folder: Path, packed: LoadedModel, request: pytest.FixtureRequest
) -> None:
    target = engine(packed)
    assert target.runner._native is not None, "whatever has no native form is a part in torch"
    allowed = IN_TORCH.get(request.node.callspec.params["folder"], POSITIONS)
    assert allowed.issuperset(target.runner._native.torch_calls)
    theirs = run(engine(loaded(folder, "float32")), requests())
    for key, answer in run(target, requests()).items():
        pairs = zip(answer.prompt_logprobs[1:], theirs[key].prompt_logprobs[1:], strict=True)
        assert all(a.logprob == pytest.approx(b.logprob, abs=1e-4) for a, b in pairs)


def taps_of(target: Engine, **means: Any) -> tuple[list[torch.Tensor], list[Taps]]:
    """Logits of each step of some requests, and what the taps saw in it."""
    served = target.runner
    target.runner = runner_of(
        target.model, served.pool, config=target.config, max_length=target.max_length, **means
    )
    logits: list[torch.Tensor] = []
    steps: list[Taps] = []
    forward = target.runner.forward

    def watched(numbers: Any, sink: Any = None, is_over: Any = None) -> torch.Tensor:
        seen: Taps = []
        if means:
            sink = lambda name, value, layer: seen.append((name, layer, value.clone()))  # noqa: E731
        made = forward(numbers, sink)
        logits.append(made.clone())
        steps.append(seen)
        return made

    target.runner.forward = watched
    run(target, requests())
    return logits, steps


def test_a_tap_sees_one_value_in_every_form_and_changes_no_bit(packed: LoadedModel) -> None:
    served, _ = taps_of(engine(packed))
    watched, recorded = taps_of(engine(packed), keeps=True)
    assert all(torch.equal(a, b) for a, b in zip(served, watched, strict=True))
    _, plain = taps_of(engine(packed), is_plain=True)
    for ours, theirs in zip(recorded, plain, strict=True):
        assert [each[:2] for each in ours] == [each[:2] for each in theirs]
        for (name, layer, value), (_, _, expected) in zip(ours, theirs, strict=True):
            assert value.shape == expected.shape, name
            far = (value - expected).abs().max().item()
            assert far <= 2e-4 + 1e-4 * expected.abs().max().item(), (name, layer, far)
