"""Which form of an engine's steps a bench measured: native kernels, torch or graphs, and why."""

from __future__ import annotations

from cutaway.engine.engine import Engine
from cutaway.engine.native import is_recorded
from cutaway.kernels import hardware
from cutaway.kernels.capture import num_threads, why_missing


def form_of(engine: Engine) -> str:
    """What computes an engine's steps; where that is not all native, why not.

    A library that does not fit its files is refused without a word, and torch takes the work: a
    figure without this line may be one of another form.
    """
    device = engine.model.device
    if device.type != "cpu":
        return f"{device.type}, {'graphs' if engine.config.graphs else 'no graphs'}"
    if is_recorded(engine.model):
        form = f"native kernels, {hardware.instruction_sets()[0]}, {_threads(num_threads())}"
        calls = sorted(set(engine.runner.torch_calls))
        return f"{form}; in torch: {', '.join(calls)}" if calls else form
    dtype = str(engine.model.dtype).removeprefix("torch.")
    return f"torch in {dtype}: {why_missing() or 'weights are not packed, as auto packs them'}"


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"
