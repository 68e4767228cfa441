"""A model as far as it is on this machine: commands that only look never ask the network."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from cutaway.weights.find import Found, find
from cutaway.weights.names import NAMED
from cutaway.weights.package import is_cached


def at_hand(name: str) -> Found | None:
    """The model of that name; None where it would have to be fetched.

    Raises: as find does, for what is no model at all.
    """
    if name in NAMED:
        return find(name) if is_cached(NAMED[name]) else None
    if name.count("/") != 1 or name.startswith("random:") or Path(name).expanduser().exists():
        return find(name)
    folder = _hub_folder(name)
    return None if folder is None else replace(find(str(folder)), name=name)


def _hub_folder(repository: str) -> Path | None:
    """Where the hub's own cache has a repository."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        config = try_to_load_from_cache(repository, "config.json")
    except HFValidationError:
        return None
    return Path(config).parent if isinstance(config, str) else None
