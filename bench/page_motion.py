"""How smoothly the page moves: the longest task of its thread, and frames a second.

python bench/page_motion.py [--model smollm2] [--seconds 4] [--only journey stations answer rooms]

One served answer in Chromium, moved in every way that the page has: the film of one token, scene by
scene; Play in each station that has one; Play of the answer, token by token, before each station;
and the rooms that play. A task's own time is what it computed, which other programs do not
lengthen; its length by the clock is beside it. Frames are those that the browser asked the page
for. Exits with 1 where a task computed for more than 50 ms.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from page_stations import FLAGS, asked, served
from playwright.sync_api import Browser, Locator, Page, sync_playwright

BOUND_MS = 50
PARTS = ("journey", "stations", "answer", "rooms")
CATEGORIES = ["toplevel", "disabled-by-default-devtools.timeline"]
# Counts the frames that come in so many seconds.
FRAMES = """(seconds) => new Promise((done) => {
  let frames = 0;
  let began = 0;
  const next = (now) => {
    began ||= now;
    if (now - began >= 1000 * seconds) done(1000 * frames / (now - began));
    else { frames += 1; requestAnimationFrame(next); }
  };
  requestAnimationFrame(next);
})"""
KINDS = "[aria-label='Recorded training'] .kinds button"


@dataclass
class Motion:
    """What a few seconds of motion were: frames a second, and the longest task in milliseconds."""

    frames: float
    own: float
    clock: float


class Watch:
    """Looks at a page while something plays, and tells what it saw, a line each."""

    def __init__(self, browser: Browser, page: Page, seconds: float) -> None:
        self.browser, self.page, self.seconds = browser, page, seconds
        self.seen: dict[str, Motion] = {}

    def see(self, name: str, begin: Callable[[], None], seconds: float | None = None) -> None:
        """Begin something, and watch it for a while."""
        self.page.wait_for_timeout(500)  # what came before has ended
        self.browser.start_tracing(page=self.page, categories=CATEGORIES)
        begin()
        frames = self.page.evaluate(FRAMES, seconds or self.seconds)
        own, clock = longest(json.loads(self.browser.stop_tracing())["traceEvents"])
        self.seen[name] = Motion(frames, own, clock)
        print(f"{name:34} {frames:8.1f} {own:10.1f} ms {clock:8.1f} ms", flush=True)


def longest(events: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """The longest task of the page's thread, by its own time and by the clock, in milliseconds."""
    threads = {
        (each["pid"], each["tid"])
        for each in events
        if each["name"] == "thread_name" and each["args"]["name"] == "CrRendererMain"
    }
    tasks = [
        each
        for each in events
        if each["name"].endswith("RunTask")
        and (each["pid"], each["tid"]) in threads
        and "tdur" in each
    ]
    assert tasks, "the page did something"
    return max(each["tdur"] for each in tasks) / 1000, max(each["dur"] for each in tasks) / 1000


def choose(page: Page, view: str) -> None:
    """Go to a station, and wait until its figure is there."""
    page.locator(f"nav [data-view={view}]").click()
    ready = page.locator(f"article[data-view={view}][aria-busy=false]")
    price = page.get_by_role("group", name="What this view would take")
    ready.or_(price).first.wait_for()
    if price.count():
        price.get_by_role("button", name="Show").click()
    ready.wait_for()


def views(page: Page) -> list[str]:
    return page.locator("nav [data-view]").evaluate_all(
        "all => all.map((each) => each.dataset.view)"
    )


def players(page: Page, view: str) -> Locator:
    """The buttons of a station that let something move."""
    figures = page.locator(f"article[data-view={view}] figure")
    return figures.get_by_role("button").filter(has_text="Play")


def of_the_journey(watch: Watch) -> None:
    page = watch.page
    page.get_by_role("button", name="Follow a token").click()
    film = page.locator(".journey[data-whole=true]")
    film.wait_for()
    if film.get_by_role("button", name="Pause").count():
        film.get_by_role("button", name="Pause").click()
    scenes = film.get_by_label("Scenes").get_by_role("button").all_inner_texts()
    clock = film.get_by_label("Second of the film")
    for index, name in enumerate(scenes):

        def begin(index: int = index) -> None:
            page.keyboard.press("Home")
            for _ in range(index):
                page.keyboard.press("ArrowRight")
            film.get_by_role("button", name="Play").or_(
                film.get_by_role("button", name="Again")
            ).first.click()

        watch.see(f"film, {name}", begin)
        if float(clock.input_value()) < float(clock.get_attribute("max") or 0):
            film.get_by_role("button", name="Pause").click()
    page.keyboard.press("Escape")


def of_the_stations(watch: Watch) -> None:
    page = watch.page
    for view in views(page):
        choose(page, view)
        for index in range(players(page, view).count()):
            button = players(page, view).nth(index)
            number = f" {index + 1}" if index else ""
            watch.see(f"{view}, its Play{number}", button.click)
            for pause in (
                page.locator(f"article[data-view={view}] figure").get_by_text("Pause").all()
            ):
                pause.click()


def of_the_answer(watch: Watch) -> None:
    page = watch.page
    play = page.locator(".scrubber").get_by_role("button", name="Play")
    for view in views(page):
        page.get_by_label("Token of the answer").fill("8")
        choose(page, view)
        watch.see(f"the answer plays, {view}", play.click)
        page.locator(".scrubber").get_by_role("button", name="Pause").click()


def of_the_rooms(watch: Watch) -> None:
    page = watch.page
    page.evaluate("() => { location.hash = '#/room/bpe' }")
    player = page.get_by_role("group", name="Player")
    player.get_by_label("Speed").select_option("16")
    watch.see("Learn a vocabulary", player.get_by_role("button", name="Play").click, 2)
    page.evaluate("() => { location.hash = '#/room/training' }")
    page.locator(KINDS).first.wait_for()
    for kind in page.locator(KINDS).all():
        kind.click()
        again = page.get_by_role("button", name="Again")
        watch.see(f"Training, {kind.inner_text()}", again.click)
    page.keyboard.press("Escape")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--tokens", type=int, default=64, help="of the answer")
    parser.add_argument("--seconds", type=float, default=4, help="that each motion is watched")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    given = parser.parse_args()
    with served(given.model) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=list(FLAGS)
        )
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.set_default_timeout(120_000)
        page.add_init_script("localStorage.reader ??= 'engineer'")
        page.goto(address)
        asked(page, given.tokens)
        watch = Watch(browser, page, given.seconds)
        print("what moves                         frames/s   longest task  by the clock")
        # The rooms and the film lie over the page: what is below them is looked at first.
        parts = {"stations": of_the_stations, "answer": of_the_answer}
        parts |= {"journey": of_the_journey, "rooms": of_the_rooms}
        for name, part in parts.items():
            if name in given.only:
                part(watch)
        browser.close()
    slow = [name for name, each in watch.seen.items() if each.own > BOUND_MS]
    least = min(watch.seen.items(), key=lambda each: each[1].frames)
    print(f"tasks over {BOUND_MS} ms: {', '.join(slow) or 'none'} (of {len(watch.seen)} motions)")
    print(f"fewest frames a second: {least[1].frames:.1f}, {least[0]}")
    sys.exit(bool(slow))


if __name__ == "__main__":
    main()
