"""The wall clock tells people when something was; what lasts, ends or is late is never asked of it.

It may be set a day forth or back at any moment. Durations and deadlines come from monotonic clocks:
perf_counter, monotonic, an event loop's own, performance.now in the page.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from house_tree import PACKAGE, ROOT, python_files, tree_files

# Every look at the wall clock, and whom it tells what.
PACKAGE_LOOKS = {
    "cache/disk.py": ["time.time"],  # how old a file is whose writer may have been killed
    "cli/repl/local_tools.py": ["date.today", "date.today"],  # the tool that tells today's date
    "host/aside.py": ["time.clock_gettime"],  # of what a thread computed: no wall clock
    "server/route_context.py": ["time.time"],  # since when a model is served
    "server/watching/loads.py": ["time.time"],  # when loads were told
    "server/watching/log.py": ["datetime.fromtimestamp"],  # when a line was logged
    "server/looks/run_routes.py": ["time.time"],  # how long ago a run last wrote
    "server/models.py": ["datetime.fromtimestamp"],  # the same as text
    "server/openai/chat.py": ["time.time", "time.time"],  # when an answer was made
    "server/openai/completions.py": ["time.time", "time.time"],
    "server/openai/kept.py": ["time.time"],  # how long an answer is kept
    "server/openai/responses.py": ["time.time"],
    "server/openai/state_routes.py": ["time.time"],  # when a conversation was made
    "server/watching/spans.py": ["time.time_ns"],  # from it all times of a span are counted
    "text/sandbox.py": ["datetime.now"],  # what a template asks for by strftime_now
    "text/template.py": ["datetime.now"],
}
OTHER_LOOKS = {"bench/plan/records.py": ["date.today"]}  # the day of a record
PAGE_LOOKS = {
    "web/page/chat/Sidebar.svelte": ["Date.now"],  # how long ago a chat was changed
    "web/page/chat/conversation.svelte.ts": ["Date.now"],  # when it was
}
OF_TIME = {
    "time",
    "time_ns",
    "localtime",
    "gmtime",
    "ctime",
    "asctime",
    "strftime",
    "clock_gettime",
}
OF_DATES = {"now", "utcnow", "today", "fromtimestamp", "utcfromtimestamp"}


def looks(source: str) -> Iterator[str]:
    """Each look at the wall clock in a module, by the name it has there."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            yield from (f"time.{each.name}" for each in node.names if each.name in OF_TIME)
        if not isinstance(node, ast.Attribute):
            continue
        owner = ast.unparse(node.value).rpartition(".")[2]
        if owner == "time" and node.attr in OF_TIME:
            yield f"time.{node.attr}"
        if owner in ("datetime", "date") and node.attr in OF_DATES:
            yield f"{owner}.{node.attr}"


def found_in(paths: list[Path], root: Path) -> dict[str, list[str]]:
    told = {path: sorted(looks(path.read_text(encoding="utf-8"))) for path in paths}
    return {path.relative_to(root).as_posix(): names for path, names in told.items() if names}


def test_the_package_looks_at_the_wall_clock_only_to_tell_people_when() -> None:
    assert found_in(sorted(PACKAGE.rglob("*.py")), PACKAGE) == PACKAGE_LOOKS


def test_measurements_and_tools_do_not_look_at_the_wall_clock() -> None:
    own = [path for path in python_files() if path.relative_to(ROOT).parts[0] in ("bench", "tools")]
    assert len(own) > 20
    assert found_in(own, ROOT) == OTHER_LOOKS


def test_the_page_looks_at_the_wall_clock_only_to_tell_people_when() -> None:
    told: dict[str, list[str]] = {}
    for path in tree_files():
        name = path.relative_to(ROOT).as_posix()
        if name.startswith("web/") and path.suffix in (".ts", ".svelte"):
            names = re.findall(r"\bDate\.now|\bnew Date\b|\bDate\(", path.read_text("utf-8"))
            if names and not name.endswith(".test.ts"):
                told[name] = names
    assert told == PAGE_LOOKS


def test_kernels_read_no_wall_clock() -> None:
    clocks = Counter[str]()
    for path in (ROOT / "native").rglob("*"):
        if path.suffix in (".c", ".cpp", ".h", ".hpp"):
            source = path.read_text(encoding="utf-8")
            clocks.update(
                re.findall(r"CLOCK_REALTIME|gettimeofday|system_clock|\w+_clock\b", source)
            )
    assert set(clocks) <= {"steady_clock"} and clocks["steady_clock"]


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import time\nbegan = time.time()", "time.time"),
        ("from time import monotonic, time_ns", "time.time_ns"),
        ("import datetime\ndatetime.datetime.now()", "datetime.now"),
        ("from datetime import date\ndef f(today=date.today): ...", "date.today"),
    ],
)
def test_each_way_to_look_is_seen(source: str, name: str) -> None:
    assert list(looks(source)) == [name]
    assert not list(looks("from time import monotonic\nloop.time()\nmonotonic()"))
