"""What is waited for and what holds still: Cancel, Play, the map, and room for the chat."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from test_web_cutaway import copied, look_inside, station

from cutaway.views import VIEWS

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

    from conftest import Opened

pytestmark = pytest.mark.slow

PLACES = """() => [...document.querySelectorAll('nav [data-view]')].map((each) => {
  const {x, y, width, height} = each.getBoundingClientRect();
  const map = each.closest('nav');
  return [each.dataset.view, x + map.scrollLeft, y, width, height].join(' ');
})"""
BELOW = """() => {
  const [title, badge] = ['h2', '.badge'].map((each) =>
    document.querySelector(`article ${each}`).getBoundingClientRect());
  return badge.top >= title.bottom && badge.left === title.left;
}"""


# Views take their time, and what is shown meanwhile is noted: the token, and whether it is there.
LATE = """() => {
  const own = window.fetch;
  window.fetch = async (...all) => {
    if (String(all[0]).endsWith('/views')) await new Promise((done) => setTimeout(done, 700));
    return own(...all);
  };
  window.shown = [];
  setInterval(() => {
    const article = document.querySelector('article[data-view=residual]');
    const step = location.hash.match(/\\/s\\/(\\d+)/)[1];
    if (article) window.shown.push([Number(step), article.getAttribute('aria-busy')]);
  }, 50);
}"""


def held(page: Page, view: str) -> list[Route]:
    """Keep the server's answers to one view back, until somebody lets them go."""
    kept: list[Route] = []

    def keep(route: Route) -> None:
        body = json.loads(route.request.post_data or "")
        if body["view"] != view or body.get("only_cost"):
            route.continue_()
        else:
            kept.append(route)

    page.route("**/views", keep)
    return kept


def test_what_takes_longer_than_a_second_tells_how_long_and_can_be_ended(opened: Opened) -> None:
    page = look_inside(opened)
    kept = held(page, "residual")
    page.locator("nav [data-view=residual]").click()
    cancel = page.locator(".station").get_by_role("button", name="Cancel")
    cancel.wait_for()
    assert page.get_by_role("progressbar", name="Computing this view").count() == 1
    with page.expect_event("requestfailed"):
        cancel.click()  # the server is told that nobody waits
    told = page.get_by_role("status").filter(has_text="Cancelled")
    told.wait_for()
    assert len(kept) == 1 and cancel.count() == 0
    page.unroute("**/views")
    told.get_by_role("button", name="Compute it").click()
    page.locator("article[data-view=residual][aria-busy=false]").wait_for()
    assert told.count() == 0 and opened.said == []
    # Of a figure that is there already it is said what stands below.
    held(page, "residual")
    page.get_by_label("Token of the answer").fill("4")
    cancel.click()
    told.wait_for()
    assert "what stands below is of position" in told.inner_text()


def test_each_station_that_waits_can_be_ended_by_keyboard(opened: Opened) -> None:
    page = look_inside(opened)
    page.wait_for_function(
        "() => document.querySelector('nav [data-view=cost] small').textContent !== ''"
    )
    page.clock.install()
    asked: list[str] = []  # views, or what one costs; nothing is answered
    page.route("**/views", lambda route: asked.append(route.request.post_data_json["view"]))
    cancel = page.locator(".station").get_by_role("button", name="Cancel")
    waiting: list[str] = []
    for view in VIEWS:
        page.locator(f"nav [data-view={view.name}]").press("Enter")
        page.locator(f"nav [data-view={view.name}][aria-current]").wait_for()
        page.clock.fast_forward(1200)
        # What the view before asked for again may come this late. Another was there already.
        if view.name not in asked:
            continue
        waiting.append(view.name)
        cancel.wait_for()
        assert page.get_by_role("progressbar", name="Computing this view").count() == 1, view.name
        for _ in range(40):
            if cancel.evaluate("each => each === document.activeElement"):
                break
            page.keyboard.press("Tab")
        with page.expect_event("requestfailed"):
            page.keyboard.press("Enter")
        compute = page.get_by_role("status").get_by_role("button", name="Compute it")
        compute.wait_for()
        assert compute.evaluate("each => each === document.activeElement"), view.name
        assert cancel.count() == 0, view.name
        page.keyboard.press("Enter")
        compute.wait_for(state="detached")
    assert len(waiting) >= 15, waiting


def test_saving_can_be_ended(opened: Opened) -> None:
    page = look_inside(opened)
    page.route("**/file", lambda route: None)
    page.get_by_role("button", name="Save", exact=True).click()
    with page.expect_event("requestfailed"):
        page.locator(".top").get_by_role("button", name="Cancel").click()
    page.locator(".top").get_by_role("button", name="Cancel").wait_for(state="detached")
    assert page.get_by_role("button", name="Save", exact=True).is_enabled()


def test_the_map_and_the_badges_hold_still(opened: Opened) -> None:
    page = look_inside(opened)
    page.wait_for_function(
        "() => document.querySelector('nav [data-view=cost] small').textContent !== ''"
    )
    # Which station is chosen makes its name bold and nothing else.
    before = page.evaluate(PLACES)
    for view in VIEWS:
        station(page, view.name)
        assert page.evaluate(PLACES) == before, view.name
        assert page.evaluate(BELOW), view.name


def test_play_shows_each_token_before_the_next(opened: Opened) -> None:
    page = look_inside(opened)
    page.get_by_label("Token of the answer").fill("0")
    station(page, "residual")

    page.evaluate(LATE)
    page.get_by_role("button", name="Play").click()
    page.wait_for_function("() => location.hash.includes('/s/4')")
    shown = page.evaluate("() => window.shown")
    steps = list(dict.fromkeys(step for step, busy in shown if busy == "false"))
    assert steps[:4] == [0, 1, 2, 3], "every token's figure was there before the next was asked for"


@pytest.mark.parametrize("width", [900, 1440, 1920])
def test_an_open_answer_and_settings_leave_the_chat_its_room(opened: Opened, width: int) -> None:
    page = look_inside(opened)
    page.set_viewport_size({"width": width, "height": 800})
    page.get_by_role("button", name="Settings", exact=True).click()
    page.get_by_role("button", name="Close the settings").wait_for()
    box = page.locator(".middle").bounding_box()
    field = page.get_by_label("Your message").bounding_box()
    assert box and box["width"] >= 320 and field and field["width"] >= 200


FRAMES = """async () => {
    for (let i = 0; i < 3; i++) await new Promise((done) => requestAnimationFrame(done));
}"""


def test_the_header_is_one_line_whatever_stands_beside_it(opened: Opened) -> None:
    page = look_inside(opened)
    header = page.locator(".middle > header")
    settings = page.get_by_role("button", name="Settings", exact=True)
    for is_open in (True, False):
        if not is_open:
            page.get_by_role("button", name="Close", exact=True).click()
        for width in (900, 1024, 1280, 1440, 1920):
            page.set_viewport_size({"width": width, "height": 800})
            for _ in range(2):  # with the settings, and without
                settings.press("Enter")
                page.evaluate(FRAMES)  # until what watches sizes has answered to the new one
                box = header.bounding_box()
                assert box and box["height"] < 60, (width, is_open)


def test_a_phones_figure_has_the_screen(opened: Opened) -> None:
    page = look_inside(opened)
    page.set_viewport_size({"width": 390, "height": 844})
    for view in ("probabilities", "attention", "tokens"):
        title = station(page, view).get_by_role("heading", level=2).bounding_box()
        assert title and title["y"] < 0.3 * 844, f"{view}: what stands above takes too much"
    names = page.locator("nav [data-view]").evaluate_all(
        "(all) => new Set(all.map((each) => each.getBoundingClientRect().y)).size"
    )
    assert names == 1, "the map is one row to swipe through"
    assert json.loads(copied(page, station(page, "tokens"), "JSON"))["texts"]
