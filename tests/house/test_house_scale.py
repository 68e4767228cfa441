"""docs/scale.md has every fault and every bar once, and each test that it names is in the tree."""

from __future__ import annotations

import re

import pytest

from house_tree import ROOT

PAGE = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
IDS = [f"S{number:02}" for number in range(1, 40)]
IDS += [
    f"{letter}{n}" for letter, count in (("T", 6), ("F", 7), ("Y", 3)) for n in range(1, count + 1)
]
IDS += ["D1"]
ROWS = re.findall(r"^\| ([STFYD]\d+) \| .+? \| (\w+) \| (.+) \|$", PAGE, re.MULTILINE)
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def test_every_fault_and_every_bar_is_there_once_and_in_order() -> None:
    assert [name for name, _, _ in ROWS] == IDS
    assert {state for _, state, _ in ROWS} <= {"test", "part", "owed"}


@pytest.mark.parametrize(("name", "state", "where"), ROWS, ids=IDS)
def test_what_a_row_names_is_in_the_tree(name: str, state: str, where: str) -> None:
    for file, test in TEST.findall(where):
        assert re.search(rf"def {test}\(", (ROOT / file).read_text(encoding="utf-8")), test
    others = re.search(r"\b[STF]\d+\b|`python ", where)
    is_held = bool(TEST.search(where) or others)
    assert is_held or state == "owed", "what holds has a test or a command"


def test_tests_name_no_id_that_the_page_lacks() -> None:
    named = {
        each.upper()
        for file in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"def test_scale_(\w+)\(", file.read_text(encoding="utf-8"))
        for each in re.findall(r"(?:^|_)([stfyd]\d+)(?=_|$)", name)
    }
    assert named <= set(IDS)
    assert named, "tests are marked by their ids"
