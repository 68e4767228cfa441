"""How workers of xdist share the tests: half of them take quick ones, half of them slow ones.

Quick tests compute, and slow ones wait for processes, browsers and deadlines half of their time:
side by side they fill the cores, one kind after the other they do not. conftest.py puts the quick
ones at the front and the longest at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from xdist.scheduler import LoadScheduling

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

# Of one file one worker makes what its tests share; more of them would keep the others waiting.
MOST_TOGETHER = 50
# A worker begins a test when it knows the next one.
FEWEST_PENDING = 2


def file_of(test_id: str) -> str:
    """The file of a test; of the page's tests their folder, who share a browser and its server."""
    file = test_id.partition("::")[0]
    return "tests/web" if file.startswith("tests/web/") else file


def together(test_ids: Sequence[str], pending: Sequence[int], *, at_end: bool) -> slice:
    """Which of those pending are next: neighbours of one file, from the front or from the end."""
    near = pending[: -MOST_TOGETHER - 1 : -1] if at_end else pending[:MOST_TOGETHER]
    files = [file_of(test_ids[index]) for index in near]
    size = next((n for n, file in enumerate(files) if file != files[0]), len(files))
    return slice(-size, None) if at_end else slice(size)


class BothEnds(LoadScheduling):
    """Every second worker takes from the end of the tests, the others from the front."""

    def check_schedule(self, node: WorkerController, duration: float = 0) -> None:
        """Give a worker the next tests, or let it end where there are none."""
        if node.shutting_down:
            return
        if self.pending:
            self._send_tests(node, FEWEST_PENDING - len(self.node2pending[node]))
        else:
            node.shutdown()

    def _send_tests(self, node: WorkerController, num: int) -> None:
        at_end = self.nodes.index(node) % 2 == 1
        assert self.collection is not None, "the workers have collected"
        sent: list[int] = []
        while self.pending and len(sent) < num:
            part = together(self.collection, self.pending, at_end=at_end)
            sent += self.pending[part]
            del self.pending[part]
        if sent:
            self.node2pending[node].extend(sent)
            node.send_runtest_some(sent)
