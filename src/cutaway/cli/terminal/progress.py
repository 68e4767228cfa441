"""A progress bar on stderr while a model is fetched, where a person looks; else silence."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

from cutaway.cli.terminal.terminal import is_seen

Progress = Callable[[int, int], None]  # bytes done, bytes in all


@contextmanager
def download_bar(what: str) -> Generator[Progress]:
    """What to call with the bytes so far; the bar appears with the first call."""
    if not is_seen(sys.stderr):
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    bar = Progress(
        "fetching {task.description}",
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
    task = bar.add_task(what)

    def advance(done: int, total: int) -> None:
        if not bar.live.is_started:
            bar.start()
        bar.update(task, completed=done, total=total)

    try:
        yield advance
    finally:
        if bar.live.is_started:
            bar.stop()
