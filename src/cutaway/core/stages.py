"""The stages in the order in which data passes, named once for taps, views, docs and page."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """One stage: its name, the folder that holds it, what enters and what leaves."""

    name: str
    folder: str
    enters: str
    leaves: str


STAGES: tuple[Stage, ...] = (
    Stage("text", "text", "messages", "prompt text, with control tokens marked"),
    Stage("tokens", "tokens", "prompt text", "token ids"),
    Stage("embedding", "blocks", "token ids", "hidden vectors [T, D]"),
    Stage("blocks", "blocks", "hidden vectors [T, D]", "hidden vectors [T, D]"),
    Stage("cache", "cache", "keys and values of new tokens", "keys and values of all tokens"),
    Stage("logits", "blocks", "hidden vectors of chosen rows", "logits [rows, V]"),
    Stage("sampling", "sampling", "logits [rows, V]", "token ids"),
    Stage("stream", "stream", "token ids", "text"),
)
