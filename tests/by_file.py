"""How workers of xdist share the tests: in their order, those of a file together.

What tests of a file share, a model or a cluster, is then made by one worker and not by each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from xdist.scheduler import LoadScheduling

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

# More of one file are shared among workers after all: the others would wait for its end.
MOST_TOGETHER = 50
# A worker begins a test when it knows the next one.
FEWEST_PENDING = 2


def together(test_ids: Sequence[str], pending: Sequence[int]) -> int:
    """How many of the tests that are next are of one file."""
    files = [test_ids[index].partition("::")[0] for index in pending[:MOST_TOGETHER]]
    return next((n for n, file in enumerate(files) if file != files[0]), len(files))


class ByFile(LoadScheduling):
    """Gives a worker that runs out of tests those of the next file."""

    def check_schedule(self, node: WorkerController, duration: float = 0) -> None:
        """Give a worker the next tests, or let it end where there are none."""
        if node.shutting_down:
            return
        if self.pending:
            self._send_tests(node, FEWEST_PENDING - len(self.node2pending[node]))
        else:
            node.shutdown()

    def _send_tests(self, node: WorkerController, num: int) -> None:
        assert self.collection is not None, "the workers have collected"
        sent: list[int] = []
        while self.pending and len(sent) < min(num, FEWEST_PENDING):
            count = together(self.collection, self.pending)
            sent += self.pending[:count]
            del self.pending[:count]
        if sent:
            self.node2pending[node].extend(sent)
            node.send_runtest_some(sent)
