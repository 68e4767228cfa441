"""A share of the kernels' cases, where a run asks for no more."""

from __future__ import annotations

import os
import zlib

import pytest

ONE_IN = int(os.environ.get("CUTAWAY_ONE_IN", "1"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of a test's cases one in so many, the same each time, and of each test its first at least."""
    if ONE_IN == 1:
        return
    seen: set[str] = set()
    left_out: list[pytest.Item] = []
    for item in items:
        test = item.nodeid.partition("[")[0]
        if test in seen and zlib.crc32(item.nodeid.encode()) % ONE_IN:
            left_out.append(item)
        seen.add(test)
    config.hook.pytest_deselected(items=left_out)
    gone = set(left_out)
    items[:] = [item for item in items if item not in gone]
