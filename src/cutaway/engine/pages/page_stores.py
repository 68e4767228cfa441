"""What stands behind an engine's pages, as its settings have it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch

from cutaway.cache.disk import DiskPages
from cutaway.cache.prefix import root_key
from cutaway.cache.stores import Content, HostPages, PageStore
from cutaway.engine.engine import Engine
from cutaway.engine.loading.unloaded_model import folder_of
from cutaway.engine.numeric_class import form_of, numeric_class_of, weights_of
from cutaway.host import gguf_file
from cutaway.weights.find.find import Found


def stores_of(engine: Engine, found: Found | None, secret: bytes | None) -> list[PageStore]:
    """The host's memory first, then a disk.

    found: where the model is from.   secret: of the folder on the disk, where there is one.
    """
    config, pool, stores = engine.config, engine.runner.pool, list[PageStore]()
    if config.host_cache_bytes:
        is_gpu = engine.model.device.type == "cuda"

        def slots(count: int, size: int) -> Content:
            return torch.zeros((count, size), dtype=torch.uint8, pin_memory=is_gpu).numpy()

        stores.append(
            HostPages(pool.page_bytes, most_bytes=config.host_cache_bytes, new_slots=slots)
        )
    if config.disk_cache is not None and secret is not None and found is not None:
        stores.append(
            DiskPages(
                Path(config.disk_cache),
                pool.page_bytes,
                secret=secret,
                form=_form_of_pages(engine, found),
                most_bytes=config.disk_cache_bytes,
            )
        )
    return stores


def _form_of_pages(engine: Engine, found: Found) -> bytes:
    """Equal where pages that one process wrote are those that another would have computed."""
    model, config, runner = engine.model, engine.config, engine.runner
    specs = [f"{layer}: {spec}" for layer, spec in enumerate(model.transformer.cache_specs)]
    numbers = numeric_class_of(
        model, runner, weights_of(model, engine.fingerprints), form_of(model, config)
    )
    return root_key(numbers, _configuration(found), config.page_size, *specs)


def _configuration(found: Found) -> bytes:
    """A digest of what a model's files say beside weights: positions or an epsilon are in none."""
    if found.kind == "gguf":
        said = repr(sorted(gguf_file.read(found.path).metadata.items())).encode()
    else:
        is_random = found.kind == "random"
        said = (found.path if is_random else folder_of(found) / "config.json").read_bytes()
    return hashlib.sha256(said).digest()
