"""A model as far as it is on this machine: commands that only look never ask the network."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import cast

from cutaway.cli.terminal.terminal import note
from cutaway.models.parts.nested import TEXT_PARTS
from cutaway.weights.find.find import Found, find
from cutaway.weights.find.named_models import NAMED
from cutaway.weights.find.package import is_cached


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


def note_left_out(found: Found | None) -> None:
    """Say on stderr that images are not read, where a model's text part is all that runs."""
    if found is None or found.kind == "gguf":
        return
    config = found.path / "config.json" if found.kind == "folder" else found.path
    words = cast("dict[str, object]", json.loads(config.read_bytes())).get("architectures")
    if isinstance(words, list) and words and words[0] in TEXT_PARTS:
        note(f"{found.name} also sees; its text part alone runs here, and images are not read.")


def _hub_folder(repository: str) -> Path | None:
    """Where the hub's own cache has a repository."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        config = try_to_load_from_cache(repository, "config.json")
    except HFValidationError:
        return None
    return Path(config).parent if isinstance(config, str) else None
