"""What stores behind the pages of several engines hold together, and what is told of it."""

from __future__ import annotations

from dataclasses import replace

from cutaway.cache.stores import StoreStats
from cutaway.fleet.counts import add_counts, add_stores
from cutaway.server.watching.metrics import Metrics
from cutaway.service.service import EngineStats

HOST = StoreStats(kind="host", num_bytes=10, most_bytes=20, pages=2, written=5, found=3)
DISK = StoreStats(kind="disk", is_shared=True, num_bytes=70, most_bytes=90, pages=7, spoilt=1)


def test_hosts_memories_are_summed_and_a_shared_folder_counts_once() -> None:
    engines = [
        EngineStats(stores=(HOST, DISK), restored_pages=3),
        EngineStats(stores=(HOST, replace(DISK, pages=8)), restored_pages=4),
    ]
    host, disk = add_stores(engines)
    assert host == replace(HOST, num_bytes=20, most_bytes=40, pages=4, written=10, found=6)
    assert disk == replace(DISK, pages=8, spoilt=2)
    assert add_counts(engines).restored_pages == 7


def test_metrics_tell_each_store() -> None:
    text = Metrics("m").text(EngineStats(stores=(HOST, DISK), restored_pages=3)).decode()
    assert 'cutaway:page_store_bytes{model_name="m",store="host"} 10.0' in text
    assert 'cutaway:page_store_spoilt_total{model_name="m",store="disk"} 1.0' in text
    assert 'cutaway:kv_pages_restored_total{model_name="m"} 3.0' in text
