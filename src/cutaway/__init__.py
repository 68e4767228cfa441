"""A real LLM inference engine that people can see into."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutaway.core.version import __version__

if TYPE_CHECKING:
    from cutaway.core.errors import CutawayError, RequestError
    from cutaway.core.grammar import Grammar
    from cutaway.core.output import Delta, Timings, TokenLogprob, Usage
    from cutaway.core.request import RepetitionDetection, SamplingParams
    from cutaway.replay.verify import Verdict
    from cutaway.service.async_llm import AsyncLLM
    from cutaway.service.generations import Choice, Generation
    from cutaway.service.llm import LLM
    from cutaway.views.parts.view import Shown

__all__ = [
    "LLM",
    "AsyncLLM",
    "Choice",
    "CutawayError",
    "Delta",
    "Generation",
    "Grammar",
    "RepetitionDetection",
    "RequestError",
    "SamplingParams",
    "Shown",
    "Timings",
    "TokenLogprob",
    "Usage",
    "Verdict",
    "__version__",
]

_WHERE = {
    "LLM": "cutaway.service.llm",
    "AsyncLLM": "cutaway.service.async_llm",
    "SamplingParams": "cutaway.core.request",
    "Grammar": "cutaway.core.grammar",
    "RepetitionDetection": "cutaway.core.request",
    "Generation": "cutaway.service.generations",
    "Choice": "cutaway.service.generations",
    "Delta": "cutaway.core.output",
    "TokenLogprob": "cutaway.core.output",
    "Usage": "cutaway.core.output",
    "Timings": "cutaway.core.output",
    "Verdict": "cutaway.replay.verify",
    "Shown": "cutaway.views.parts.view",
    "CutawayError": "cutaway.core.errors",
    "RequestError": "cutaway.core.errors",
}


def __getattr__(name: str) -> object:
    """Import on first use, so that `import cutaway` does not wait for torch."""
    if name not in _WHERE:
        raise AttributeError(f"module 'cutaway' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *_WHERE]
