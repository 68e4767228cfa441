"""Who asks, once a key or a browser's cookie has told. It knows neither."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class Owner:
    """One who may ask. Fair share is between owners, and none finds another's cached prompts."""

    name: str
    cache_salt: bytes


ANYBODY = Owner("", b"")  # where no key is asked for, all are one

# Set for each request at the door: whose share of threads, places and the engine it takes.
SHARER: ContextVar[str] = ContextVar("sharer", default="")


def who_asks() -> str:
    """Whose share the request takes that is being answered: an owner's, or a connection's."""
    return SHARER.get()
