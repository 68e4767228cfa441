"""Names and types of an engine's settings, for whoever writes them as arguments. Free of torch."""

from __future__ import annotations

from typing import TypedDict


class EngineSettings(TypedDict, total=False):
    """Fields of EngineConfig, which says what each does; one that is None counts as not given."""

    dtype: str | None
    kv_dtype: str | None
    quant: str | None
    device: str | None
    cache_tokens: int | None
    page_size: int | None
    prefix_cache: bool | None
    host_cache_bytes: int | None
    disk_cache: str | None
    disk_cache_bytes: int | None
    pin: tuple[str, ...] | None
    max_sequences: int | None
    max_tokens_per_step: int | None
    prefill_chunk: int | None
    graphs: bool | None
    invariant: bool | None
    ledger_bytes: int | None
    override: tuple[str, ...] | None
    lora: tuple[str, ...] | None
    draft: str | None
    draft_model: str | None
    draft_layers: int | None
    draft_speculator: str | None
    tensor: int | None
    pipeline: int | None
    rank_listen: str | None
    rank_key_file: str | None
