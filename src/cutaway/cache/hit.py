"""How much of a prefix every cache group can still serve.

Free of torch. It only looks: nothing is held or evicted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from cutaway.cache.table import unseen_pages
from cutaway.core.layout import Extent, Window

Has: TypeAlias = Callable[[bytes], bool]  # whether a group can serve the page of a key


def longest_hit(
    groups: Sequence[tuple[Extent, Has]], keys: Sequence[bytes], *, page_size: int
) -> int:
    """Most leading pages, of those that keys names, that could be reused in every group.

    A full group needs all of them without a hole; a window group only those that a query
    after the hit can see.
    """
    most = len(keys)
    windows: list[_Window] = []
    for extent, has in groups:
        if not isinstance(extent, Window):
            most = _leading(has, keys[:most])
    if not most:
        return 0
    for extent, has in groups:
        if isinstance(extent, Window):
            windows.append(_Window(extent, has, keys[:most]))
    while most > 0 and not all(w.serves(most, page_size) for w in windows):
        most -= 1
    return most


def _leading(has: Has, keys: Sequence[bytes]) -> int:
    for number, key in enumerate(keys):
        if not has(key):
            return number
    return len(keys)


class _Window:
    """Which pages of a prefix a window group still has."""

    def __init__(self, extent: Window, has: Has, keys: Sequence[bytes]) -> None:
        self._extent = extent
        self._leading = _leading(has, keys)
        self._run_before = [0]  # entry n: pages present in a row just before page n
        for key in keys:
            run = self._run_before[-1] + 1 if has(key) else 0
            self._run_before.append(run)

    def serves(self, num_pages: int, page_size: int) -> bool:
        unseen = unseen_pages(self._extent, num_pages * page_size, page_size)
        has_window = self._run_before[num_pages] >= num_pages - unseen.stop
        return has_window and self._leading >= unseen.start
