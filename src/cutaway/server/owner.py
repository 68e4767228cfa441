"""Who asks, once a key or a browser's cookie has told. It knows neither."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Owner:
    """One who may ask. Fair share is between owners, and none finds another's cached prompts."""

    name: str
    cache_salt: bytes


ANYBODY = Owner("", b"")  # where no key is asked for, all are one
