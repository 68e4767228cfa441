"""docs/checklist.md has every row once, and what a row names as its proof is in the tree."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from cutaway.bench.paper import SECTIONS
from cutaway.compare.levers import change_of
from cutaway.views import VIEWS
from house_tree import PACKAGE, ROOT

PAGE = ROOT / "docs" / "checklist.md"
# Rows of each group, and those whose proof is not there yet or that lack a part.
COUNTS = {
    **{"A": 9, "B": 20, "C": 8, "D": 3, "E": 11, "F": 10, "G": 12, "H": 20, "I": 5},
    **{"J": 12, "K": 5, "L": 9, "M": 10, "N": 11, "O": 4, "P": 9, "Q": 14, "R": 11},
}
OWED: list[str] = []
OPEN: list[str] = []

# Rows that are to be seen on the page; of these, what no station, room or chapter shows yet: what
# was never trained, no draft model, and levers that only the command line pulls.
SEEN = """
A1 A2 A3 A5 A7 A8 A9 B1 B2 B3 B4 B8 B9 B13 B14 B15 B16 B17 B18 C1 C2 C3 C4 C5 C6 D1 E1 E2 E3 E5 E6
E7 E8 E9 E10 F2 F3 F4 F5 F6 F7 F8 F9 G1 G4 G5 G6 G8 H1 H2 H3 H4 H5 H6 H7 H9 H10 H11 H12 H13 H15 H16
I1 I4 J2 J3 J5 J6 J7 J9 J11 J12 K1 K2 K3 K4 L1 L2 L3 L4 L6 L7 L9 M1 M2 M5 M6 M8 N1 N2 N3 N5 N6 N7 N8
O1 O2 O3 P1 P3 P4 P5 P6 P8 P9 Q1 Q2 Q3 Q5 Q6 Q7 Q9 Q10 Q11 Q12 Q13 R1 R2 R3 R4 R5 R6 R9 R11
""".split()
UNSEEN = ["J9"]
WEB = ROOT / "web"

# What a word of the column "proof" asks of the column "where".
NEEDS = {
    "terminal": r"`--view \w+`|`cutaway (view|why|complete|chat)\b",
    "command": r"`cutaway ",
    "test": r"`tests/",
    "arithmetic": r"`tests/",
    "benchmark": r"`cutaway bench |bench/results/",
    "text": r"",
    "owed": r"missing",
}
ROW = re.compile(r"^\| ([A-R]\d+) \| (.+) \| (.+) \| (.+) \| (.+) \|$", re.MULTILINE)
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    what: str
    owner: str
    proof: str
    where: str


def rows() -> list[Row]:
    return [Row(*found.groups()) for found in ROW.finditer(PAGE.read_text(encoding="utf-8"))]


def faults_of(row: Row) -> Iterator[str]:
    """What the row names and the tree lacks."""
    if row.owner != "none yet" and not (PACKAGE / row.owner.strip("`")).is_file():
        yield f"owner {row.owner}"
    for word in row.proof.split(", "):
        if word not in NEEDS or not re.search(NEEDS[word], row.where):
            yield f"proof {word}"
    for path, name in TEST.findall(row.where):
        file = ROOT / path
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
        if not re.search(rf"^ *(?:async )?def {name}\(", text, re.MULTILINE):
            yield f"test {path}::{name}"
    known = {view.name for view in VIEWS}
    yield from (f"view {n}" for n in re.findall(r"--view (\w+)", row.where) if n not in known)
    sections = re.findall(r"bench paper --only (\w+)", row.where)
    yield from (f"section {name}" for name in sections if name not in SECTIONS)
    for change in re.findall(r'--change (?:"([^"]+)"|(\S+?)`| (\S+) )', row.where):
        change_of("".join(change))  # raises where there is no such lever


def page_names() -> set[str]:
    """Stations that have a picture, rooms, and chapters of the tour by their letters."""
    core = WEB / "core"
    stations = (core / "stations.ts").read_text(encoding="utf-8")
    pictures = (WEB / "page/cutaway/stations/index.ts").read_text(encoding="utf-8")
    drawn = set(re.findall(r"^  (\w+): \w+,$", pictures, re.MULTILINE))
    told = re.findall(r'view: "(\w+)", name: "([^"]+)"', stations)
    rooms = re.findall(r'id: "\w+", name: "([^"]+)"', (core / "rooms.ts").read_text("utf-8"))
    chapters = (f"chapter {path.stem.upper()}" for path in core.glob("tour/[a-r].ts"))
    return {name for view, name in told if view in drawn} | {*rooms, *chapters, "every station"}


def places_of(where: str) -> list[str]:
    """Names of places of the page that a row has."""
    found = re.search(r"; page ((?:\*[^*]+\*(?:, )?)+)", where)
    return re.findall(r"\*([^*]+)\*", found[1]) if found else []


def test_what_is_to_be_seen_says_where_the_page_shows_it() -> None:
    names, told = page_names(), {row.name: places_of(row.where) for row in rows()}
    assert {"Chances", "Sampling lab", "every station"} <= names
    assert [name for name in SEEN if not told[name]] == UNSEEN
    assert {place for places in told.values() for place in places} <= names


def test_every_row_is_there_once_in_order() -> None:
    wanted = [f"{group}{n}" for group, count in COUNTS.items() for n in range(1, count + 1)]
    assert [row.name for row in rows()] == wanted and len(wanted) == 183


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.name)
def test_what_a_row_names_is_in_the_tree(row: Row) -> None:
    assert [*faults_of(row)] == []


def test_only_known_rows_are_owed_or_lack_a_part() -> None:
    assert [row.name for row in rows() if "owed" in row.proof] == OWED
    assert [row.name for row in rows() if "open: " in row.where] == OPEN
    assert {row.name for row in rows() if row.owner == "none yet"} <= {*OWED}


def test_a_row_that_names_what_is_not_there_is_caught() -> None:
    where = "`--view nothing`; `tests/house/test_house_checklist.py::test_no`; "
    where += "`cutaway bench paper --only nothing`"
    row = Row("A1", "what", "`views/none.py`", "terminal, wish", where)
    faults = [*faults_of(row)]
    assert [fault.split()[0] for fault in faults] == ["owner", "proof", "test", "view", "section"]
