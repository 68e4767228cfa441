"""A real LLM inference engine that people can see into."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutaway.core.version import __version__

if TYPE_CHECKING:
    from cutaway.core.request import SamplingParams
    from cutaway.service.async_llm import AsyncLLM
    from cutaway.service.llm import LLM

__all__ = ["LLM", "AsyncLLM", "SamplingParams", "__version__"]

_WHERE = {
    "LLM": "cutaway.service.llm",
    "AsyncLLM": "cutaway.service.async_llm",
    "SamplingParams": "cutaway.core.request",
}


def __getattr__(name: str) -> object:
    """Import on first use, so that `import cutaway` does not wait for torch."""
    if name not in _WHERE:
        raise AttributeError(f"module 'cutaway' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_WHERE[name]), name)
