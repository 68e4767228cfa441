"""The way of a token at the page's raw frames: engine, wire, browser, paint, by two clocks."""

from __future__ import annotations

import json
import statistics
from typing import TYPE_CHECKING, Any

import pytest
from test_web_chat import ask, changing
from test_web_cutaway import station

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

    from conftest import Opened

pytestmark = pytest.mark.slow

NUM_TOKENS = 8  # whose frames stand in the table at once, and their ends
PARTS = ("engine to wire", "wire to browser", "browser to paint")
MS = {"\u00b5s": 0.001, "ms": 1.0, "s": 1000.0}
ROUNDED = 0.006  # three digits are shown


def ms(text: str) -> float:
    """A time as the page writes it, in milliseconds."""
    number, unit = text.replace("\u00b1", "").replace("\u2212", "-").replace(",", "").split()
    return float(number) * MS[unit]


def rows(shown: Locator, name: str) -> list[list[str]]:
    """The cells of a table's rows."""
    all_rows = shown.get_by_role("table", name=name).locator("tbody tr").all()
    return [row.locator("th, td").all_inner_texts() for row in all_rows]


def raw_pieces(shown: Locator) -> list[Any]:
    """The frames of the stream, read where they stand byte for byte."""
    found: list[Any] = []
    frames = shown.get_by_role("table", name="Frames as they came").locator("tbody tr")
    for index in range(frames.count()):
        frames.nth(index).get_by_role("button").click()
        shown.get_by_role("heading", name=f"Frame {index + 1} of ").wait_for()
        raw = shown.get_by_role("region", name="Raw frame").inner_text()
        data = raw.strip().removeprefix("data: ")
        found += [] if data == "[DONE]" else [json.loads(data)]
    return found


def num_tokens(piece: Any) -> int:
    """How many tokens a piece of the stream brings."""
    told = [each["logprobs"]["content"] for each in piece["choices"] if each["logprobs"]]
    return sum(len(content) for content in told)


def events_of(page: Page, trace: str) -> list[Any]:
    """What the engine recorded, as the browser may read it."""
    path = f"/cutaway/v1/traces/{trace}/events"
    text: str = page.evaluate("async (path) => (await fetch(path)).text()", path)
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]


def test_a_tokens_way_is_measured_in_order_and_told_as_it_is_drawn(opened: Opened) -> None:
    page = opened.page
    bodies = changing(opened, max_tokens=NUM_TOKENS, ignore_eos=True)
    ask(opened, "What is it?").get_by_role("button", name="Look inside").click()
    assert bodies[0]["cutaway"]["times"] is True
    page.locator("article[data-view=probabilities][aria-busy=false]").wait_for()
    shown = station(page, "detokenization")
    shown.get_by_text("Raw frames").click()
    shown.get_by_role("table", name="The way of each token").wait_for()

    sums = {row[0]: row[1:] for row in rows(shown, "What the way of a token took")}
    assert tuple(sums) == PARTS
    ways = [[ms(cell) for cell in row[1:]] for row in rows(shown, "The way of each token")]
    assert len(ways) == NUM_TOKENS
    within = ms(sums["wire to browser"][2])
    for wire, browser, paint in ways:
        assert wire >= 0 and browser >= -within * (1 + ROUNDED) and paint >= 0
    for name, values in zip(PARTS, zip(*ways, strict=True), strict=True):
        middle, most = (ms(cell) for cell in sums[name][:2])
        assert middle == pytest.approx(statistics.median(values), rel=ROUNDED)
        assert most == pytest.approx(max(values), rel=ROUNDED)

    pieces = raw_pieces(shown)
    sent = [each["cutaway"]["sent"] for each in pieces for _ in range(num_tokens(each))]
    start, *others = events_of(page, pieces[0]["id"])
    chosen = [start["came"] + each["at"] for each in others if each["type"] == "token"]
    for way, sent_at, chosen_at in zip(ways, sent, chosen, strict=True):
        # The page's numbers of milliseconds since the machine's start keep about 1e-7 of them.
        assert way[0] == pytest.approx(1000 * (sent_at - chosen_at), rel=ROUNDED, abs=1e-4)

    curve = shown.get_by_role("button", name="Milliseconds that each token took")
    curve.focus()
    curve.press("Home")
    for index, way in enumerate(ways):
        told = [f"{name} " for name in PARTS]
        line = shown.get_by_text(f"token {index + 1}: {told[0]}").inner_text().partition(": ")[2]
        drawn = [
            float(part.removeprefix(name).replace("\u2212", "-"))
            for part, name in zip(line.split(", "), told, strict=True)
        ]
        assert drawn == pytest.approx(way, rel=ROUNDED, abs=1e-4)
        curve.press("ArrowRight")
