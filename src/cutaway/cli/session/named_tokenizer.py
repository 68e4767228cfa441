"""The tokenizer of the model that a command names, fetched like the model itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutaway.tokens.tokenizer import Tokenizer

if TYPE_CHECKING:
    from cutaway.cli.settings.settings import Resolved


def open_tokenizer(settings: Resolved) -> Tokenizer:
    """The tokenizer of the model that the settings name; its weights stay on disk."""
    from cutaway.cli.terminal.progress import download_bar
    from cutaway.engine.loading.tokenizer_of import tokenizer_of
    from cutaway.weights.find.find import find

    with download_bar(settings.model) as progress:
        found = find(settings.model, progress=progress, accept_license=settings.accepts_license)
    return tokenizer_of(found)
