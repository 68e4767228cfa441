"""Settings of every test: threads, hypothesis profiles, and no silent skip of an oracle in CI."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import signal
import sys
import zlib
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# Assertions of helpers hold as those of tests do, under python -O as well. Those of tests do
# anyway, and each name here is compared with each module that is ever imported.
pytest.register_assert_rewrite(
    *(
        path.stem
        for path in Path(__file__).parent.rglob("*.py")
        if path.name != "conftest.py" and not path.name.startswith("test_")
    )
)
# What is imported and collected stays: nobody looks through millions of objects for garbage while
# they are made, nor each time that a test collects what it left.
gc.disable()
# Workers of xdist share the cores; torch and OpenMP read this when they are first imported. It is
# not set in the process that starts them: they would inherit what it has, all the cores for each,
# and threads that wait for one another's cores make small operations thirty times slower.
if _WORKERS := os.environ.get("PYTEST_XDIST_WORKER_COUNT"):
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // int(_WORKERS))))
# Processes that tests start would each compile torch anew, seconds of computing.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# A shell starts what it puts into the background deaf to Ctrl-C, and children inherit that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Without a GPU Triton's kernels run in its interpreter; it reads this when it is first imported.
_HIDDEN = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")  # from CUDA, and so from torch
_HAS_GPU = Path("/dev/nvidiactl").exists() and not _HIDDEN
if not _HAS_GPU:
    os.environ.setdefault("TRITON_INTERPRET", "1")
# A test never reaches the internet by accident: the hub answers from its local cache or not at all.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# No deadline anywhere: a shared machine stalls, and a stall is not a fault.
settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("local", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "local")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Quick tests first, so that most faults show early; then the longest, so that none is last.

    A slow file is as long as the longest timeout that a test of it needs, or as it has tests.
    """
    slow = [item for item in items if item.get_closest_marker("slow") is not None]
    counts = Counter(item.path for item in slow)
    timeouts: dict[Path, float] = dict.fromkeys(counts, 0.0)
    for item in slow:
        if timeout := item.get_closest_marker("timeout"):
            timeouts[item.path] = max(timeouts[item.path], float(timeout.args[0]))
    is_slow = set(slow)

    def order(item: pytest.Item) -> tuple[bool, float, int]:
        if item not in is_slow:
            return False, 0.0, 0
        return True, -timeouts[item.path], -counts[item.path]

    items.sort(key=order)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, Any, Any]:
    """A file that leaves an event loop running in this thread fails, not whatever comes next."""
    result = yield
    if nextitem is None or nextitem.path != item.path:
        with contextlib.suppress(RuntimeError):
            loop = asyncio.get_running_loop()
            pytest.fail(f"{item.path.name} leaves {loop!r} running: no other can run one")
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """From here on garbage is collected, of what tests make."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file's tests stay with one worker, where nothing else was asked for."""
    if config.getoption("dist") != "load":
        return None
    from by_file import ByFile

    return ByFile(config, log)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """What needs a GPU is left out where there is none, also where a whole folder is run.

    Numbers drawn at large are each test's own and the same in each run: a fault comes again.
    """
    seed = zlib.crc32(item.nodeid.encode())
    random.seed(seed)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(seed)
    if item.get_closest_marker("gpu") is not None and not _HAS_GPU:
        pytest.skip("needs an NVIDIA GPU")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where oracles are required, a skipped comparison with one is a failure."""
    report = yield
    is_skip = report.skipped and not hasattr(report, "wasxfail")
    if is_skip and _oracles_are_required() and item.get_closest_marker("oracle"):
        _fail(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a whole file that skips itself; its marks were never read, so its text is."""
    report = yield
    if report.skipped and _oracles_are_required() and isinstance(collector, pytest.Module):
        if "mark.oracle" in Path(collector.path).read_text(encoding="utf-8"):
            _fail(report)
    return report


@pytest.fixture(autouse=True)
def _same_threads_after_as_before() -> Iterator[None]:
    """A test that sets the number of threads does not slow the next ones down."""
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch else 0
    yield
    if torch and torch.get_num_threads() != before:
        torch.set_num_threads(before)


def _oracles_are_required() -> bool:
    return os.environ.get("CUTAWAY_REQUIRE_ORACLES", "") not in ("", "0")


def _fail(report: pytest.TestReport | pytest.CollectReport) -> None:
    report.outcome = "failed"
    report.longrepr = f"an oracle is required here, but was skipped: {report.longrepr}"
