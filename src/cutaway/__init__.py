"""A real LLM inference engine that people can see into."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cutaway.core.request import SamplingParams
    from cutaway.engine.async_llm import AsyncLLM
    from cutaway.engine.llm import LLM

__version__ = "0.1.0"
__all__ = ["LLM", "AsyncLLM", "SamplingParams", "__version__"]

_WHERE = {
    "LLM": "cutaway.engine.llm",
    "AsyncLLM": "cutaway.engine.async_llm",
    "SamplingParams": "cutaway.core.request",
}


def __getattr__(name: str) -> object:
    """Import on first use, so that `import cutaway` does not wait for torch."""
    if name not in _WHERE:
        raise AttributeError(f"module 'cutaway' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_WHERE[name]), name)
