"""The page without a pointer: Tab reaches all that can be used, and one sees where it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from test_web_checks import axe, violations  # noqa: F401
from test_web_cutaway import look_inside, station

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from conftest import Opened

pytestmark = pytest.mark.slow

ROOMS = {
    "tour": "Tour",
    "lab": "Sampling lab",
    "engine": "Engine",
    "bpe": "Learn a vocabulary",
    "training": "Training",
    "open": "Open a trace",
}
# What Tab should reach: seen, usable, and the chosen one of a group that arrow keys walk.
USABLE = """() => {
  const dialog = document.querySelector('dialog[open]') ?? document;
  const all = dialog.querySelectorAll(
    'a[href], button, input, select, textarea, summary, [tabindex]');
  const isFolded = (each) => each.tagName !== 'SUMMARY' && each.closest('details:not([open])');
  const one = (name, state) => dialog.querySelector(`[name="${name}"]${state}`);
  const isBeside = (each) =>
    each.type === 'radio' && each !== (one(each.name, ':checked') ?? one(each.name, ''));
  const usable = [...all].filter((each) => each.tabIndex >= 0 && !each.disabled
    && each.checkVisibility() && !isFolded(each) && !isBeside(each));
  usable.forEach((each, index) => { each.dataset.usable = index; });
  return usable.length;
}"""
# Which of them has the focus, and whether that shows: an outline of its own, or a frame around it.
FOCUSED = """() => {
  const focused = document.activeElement;
  const outline = getComputedStyle(focused);
  const isSeen = outline.outlineStyle !== 'none' && parseFloat(outline.outlineWidth) >= 1
    || focused.closest('.box:focus-within') !== null;
  return [focused.dataset.usable ?? null, isSeen, focused.outerHTML.slice(0, 120)];
}"""


def walked(page: Page) -> set[str]:
    """All that Tab reaches before it comes round, each of them to be seen."""
    num_usable = page.evaluate(USABLE)
    page.evaluate("() => document.activeElement.blur()")
    reached: set[str] = set()
    for _ in range(2 * num_usable + 10):
        page.keyboard.press("Tab")
        found, is_seen, told = page.evaluate(FOCUSED)
        if found is None:
            continue  # the browser's own bar, or what came meanwhile
        assert is_seen, f"one does not see that this has the focus: {told}"
        if found in reached and len(reached) >= num_usable:
            break
        reached.add(found)
    missed = page.evaluate(
        "(reached) => [...document.querySelectorAll('[data-usable]')].filter((each) =>"
        " !reached.includes(each.dataset.usable)).map((each) => each.outerHTML.slice(0, 120))",
        sorted(reached),
    )
    assert missed == [], "Tab does not come there"
    return reached


def test_tab_reaches_everything_beside_an_open_answer(opened: Opened) -> None:
    page = look_inside(opened)
    assert len(walked(page)) > 20
    station(page, "residual")  # a tower of layers, curves and links
    walked(page)
    page.keyboard.press("Escape")


@pytest.mark.parametrize("name", ROOMS)
def test_rooms_are_walked_by_tab_and_have_nothing_against_them(
    opened: Opened,
    axe: str,  # noqa: F811
    name: str,
) -> None:
    page = look_inside(opened)
    page.evaluate("name => void (location.hash = `#/room/${name}${location.hash.slice(1)}`)", name)
    dialog = page.get_by_role("dialog", name=ROOMS[name])
    dialog.get_by_role("heading", name=ROOMS[name], exact=True).wait_for()
    page.wait_for_function("() => !/(Fetching|Looking|Opening)/.test(document.body.innerText)")
    walked(page)
    schemes: tuple[Any, ...] = ("light", "dark")
    for scheme in schemes:
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        assert violations(page, axe) == [], scheme
    page.keyboard.press("Escape")
    dialog.wait_for(state="detached")


def test_escape_closes_an_answer_and_gives_the_focus_back(opened: Opened) -> None:
    page = look_inside(opened)
    page.keyboard.press("Escape")
    page.locator("section.cutaway").wait_for(state="detached")
    page.wait_for_function("() => document.activeElement?.textContent?.trim() === 'Look inside'")
    assert "/t/" not in page.evaluate("() => location.hash")


def test_a_room_that_there_is_not_is_told(opened: Opened) -> None:
    page = opened.page
    page.evaluate("() => void (location.hash = '#/room/kitchen')")
    page.get_by_role("alert").filter(has_text="There is no room “kitchen”").wait_for()
    page.get_by_role("alert").get_by_role("link", name="Tour").click()
    page.get_by_role("dialog", name="Tour").wait_for()
    page.evaluate("() => void (location.hash = '#/')")
    page.get_by_role("dialog").wait_for(state="detached")
