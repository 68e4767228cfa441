"""The film of one token in a real browser: numbers, keys, stills, frames, and its file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from test_web_chat import SEED, ask, changing
from test_web_checks import axe, violations  # noqa: F401
from test_web_viewer import live_values

from conftest import PATIENCE_MS, Opened

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

pytestmark = pytest.mark.slow

NUM_TOKENS = 6
SCENES = ["Text", "Pieces", "Ids", "Row", "Layers", "Chances", "Draw", "Again"]
# What the animations of the film change, and how many there are.
MOVED = """() => {
  const all = document.getAnimations().filter((each) => each.effect?.target?.closest?.('.stage'));
  const names = new Set(all.flatMap((each) => each.effect.getKeyframes().flatMap(Object.keys)));
  for (const name of ['offset', 'computedOffset', 'easing', 'composite']) names.delete(name);
  return [all.length, [...names].sort()];
}"""
PAST = "then => Number(document.querySelector('.journey input').value) > then"
CLEAR = """(stage) => Number(stage.getAnimations({subtree: true}).filter(
  (each) => each.playState === 'running').length)"""


def follow(opened: Opened) -> Locator:
    """Have an answer, and watch a token of it."""
    changing(opened, max_tokens=NUM_TOKENS, ignore_eos=True, temperature=0.8, seed=SEED)
    ask(opened, "What is it?").get_by_role("button", name="Follow a token").click()
    return whole(opened.page)


def whole(page: Page) -> Locator:
    film = page.locator(".journey[data-whole=true]")
    film.wait_for()
    return film


def second(film: Locator) -> float:
    return float(film.get_by_label("Second of the film").input_value())


def test_it_plays_by_itself_and_is_walked_by_keyboard(opened: Opened) -> None:
    film = follow(opened)
    page = opened.page
    began = second(film)
    page.wait_for_function(PAST, arg=began)
    page.keyboard.press("Space")
    film.get_by_role("button", name="Play").wait_for()
    stood = second(film)
    assert film.locator(".stage").evaluate(CLEAR) == 0, "nothing moves while it is paused"
    for _ in SCENES:
        page.keyboard.press("ArrowLeft")
    assert film.get_attribute("data-scene") == "text" and second(film) < max(stood, 5)
    for name in SCENES[1:]:
        page.keyboard.press("ArrowRight")
        current = film.locator("[aria-current=step]")
        assert current.inner_text() == name
        assert film.locator(".caption").inner_text().strip()
    page.keyboard.press("Home")
    assert film.get_attribute("data-scene") == "text"
    page.keyboard.press("End")
    assert film.get_attribute("data-scene") == "again"
    film.get_by_label("Second of the film").fill("0")
    assert film.get_attribute("data-scene") == "text"
    page.keyboard.press("Escape")
    film.wait_for(state="detached")
    assert opened.said == [], "no policy was broken and nothing failed"


def test_its_numbers_are_those_of_the_stations_at_any_token(opened: Opened) -> None:
    film = follow(opened)
    page = opened.page
    film.get_by_role("button", name="Pause").click()
    for step in (NUM_TOKENS - 1, 0, 3):
        film.get_by_role("group", name="Tokens of the answer").get_by_role("button").nth(
            step
        ).click()
        film = whole(page)
        film.get_by_text(
            f"Follow another token of this answer: {step + 1} of {NUM_TOKENS}"
        ).wait_for()
        live = live_values(opened, step)
        film.get_by_role("button", name="Chances", exact=True).click()
        bars = film.locator(".bars .told").all_inner_texts()
        assert len(bars) >= 7 and digits(bars[0]) == pytest.approx(
            100 * live["top"][0]["probability"], rel=0.05, abs=0.06
        )
        caption = film.locator(".caption").inner_text()
        assert f"{live['vocab_size']:,} pieces" in caption
        own = digits(film.locator(".bars .told").nth(chosen_bar(film)).inner_text())
        assert own == pytest.approx(100 * live["chosen"]["probability"], rel=0.05, abs=0.06)
        film.get_by_role("button", name="Ids", exact=True).click()
        told = film.locator(".line small").last.inner_text().replace(",", "")
        assert f"is number {int(told):,}." in film.locator(".caption").inner_text()


def chosen_bar(film: Locator) -> int:
    names = film.locator(".bars .name").evaluate_all(
        "(all) => all.findIndex((each) => each.classList.contains('own'))"
    )
    return int(names)


def digits(text: str) -> float:
    found = re.search(r"[\d.]+", text)
    assert found, text
    return float(found[0])


def test_frames_come_beside_the_pages_work(opened: Opened, chromium: Browser) -> None:
    """Only transform and opacity move, and no task computes for 50 ms: counted as its thread's
    own time, which other processes do not lengthen."""
    film = follow(opened)
    page = opened.page
    count, moved = page.evaluate(MOVED)
    assert count > 30 and moved == ["opacity", "transform"]
    film.get_by_label("Second of the film").fill("13")
    chromium.start_tracing(
        page=page, categories=["toplevel", "disabled-by-default-devtools.timeline"]
    )
    page.wait_for_function(PAST, arg=20, polling=500)
    events = json.loads(chromium.stop_tracing())["traceEvents"]
    threads = {
        (each["pid"], each["tid"])
        for each in events
        if each["name"] == "thread_name" and each["args"]["name"] == "CrRendererMain"
    }
    tasks = [
        each["tdur"] / 1000
        for each in events
        if each["name"].endswith("RunTask")
        and (each["pid"], each["tid"]) in threads
        and "tdur" in each
    ]
    assert len(tasks) > 50, "the film was looked at"
    assert max(tasks) < 50


def test_at_reduced_motion_it_is_stills(opened: Opened, axe: str) -> None:  # noqa: F811
    page = opened.page
    page.emulate_media(reduced_motion="reduce")
    film = follow(opened)
    assert film.get_by_role("button", name="Play").count() == 1, "nothing plays by itself"
    for width, scheme in ((1280, "light"), (360, "dark")):
        page.set_viewport_size({"width": width, "height": 740})
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
        for name in SCENES:
            film.get_by_role("button", name=name, exact=True).click()
            assert film.locator(".stage").evaluate(CLEAR) == 0
            assert violations(page, axe) == [], name
        assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")


def test_the_pages_first_look_leads_to_a_film(opened: Opened) -> None:
    changing(opened, max_tokens=NUM_TOKENS, ignore_eos=True)
    opened.page.get_by_role("button", name="Watch one word being made").click()
    film = whole(opened.page)
    assert "You typed 16 characters." in film.locator(".caption").inner_text() or second(film) > 4


def test_a_saved_answer_has_its_film_without_a_server(
    opened: Opened, chromium: Browser, tmp_path: Path
) -> None:
    film = follow(opened)
    page = opened.page
    film.get_by_role("button", name="Pause").click()
    captions = told(film)
    page.keyboard.press("Escape")
    step = int(film_step(captions))
    page.get_by_role("button", name="Look inside").click()
    page.get_by_label("Token of the answer").fill(str(step))
    page.locator("article[data-view=probabilities][aria-busy=false]").wait_for()
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Save as one HTML file").click()
    path = tmp_path / "answer.html"
    waiting.value.save_as(path)
    context = chromium.new_context(viewport={"width": 1280, "height": 900}, offline=True)
    context.set_default_timeout(PATIENCE_MS)
    saved = context.new_page()
    saved.goto(path.as_uri())
    saved.get_by_label("Token of the answer").fill(str(step))
    saved.get_by_role("button", name="Follow one token").click()
    held = whole(saved)
    held.get_by_role("button", name="Pause").click()
    assert told(held) == captions, "the file tells what the page told"
    context.close()


def told(film: Locator) -> dict[str, str]:
    """Every scene's caption, and which token it is about."""
    captions: dict[str, str] = {}
    for name in SCENES:
        film.get_by_role("button", name=name, exact=True).click()
        captions[name] = film.locator(".caption").inner_text()
        assert "not to be had" not in captions[name]
    return {**captions, "token": film.locator(".choice b").inner_text()}


def film_step(captions: dict[str, Any]) -> int:
    return int(captions["token"]) - 1
