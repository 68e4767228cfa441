"""Pictures of the real page over the default model, step by step from a question to a saved file.

    python tools/pictures.py [--into build/pictures] [--readme] [--only stations] [--axe]

Dark and light, at 360 to 1920 pixels (--widths), each as tall as what it shows. One server, one
answer: it is watched while it comes, looked into at every station, scrubbed, branched, drawn at
another temperature, saved, and opened again when the server has ended; the rooms and the tour's
chapters. --only names what shall be taken. --axe says of each picture what axe has against it and
what is wider than the window. --readme writes the two pictures of README.md alone. Needs the page
(make web), playwright and Debian's chromium.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, Page, Route, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
PAGE = re.compile(r"Its page: (\S+)")
QUESTION = "What is gravity?"
SIZES = {1280: 800, 1440: 900, 1920: 1080, 1024: 768, 768: 1024, 390: 844, 360: 740}
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
LONGEST_MS = 120_000
TALLEST = 3000
WORDS = ("stream", "stations", "tour", "steps", "rooms")
# How much taller the window must be for what scrolls in it to be seen whole.
HIDDEN = """() => Math.max(0, ...[
  ...document.querySelectorAll('.station, .cutaway, dialog, dialog *')]
  .filter((each) => /auto|scroll/.test(getComputedStyle(each).overflowY))
  .map((each) => each.scrollHeight - each.clientHeight))"""

# What axe has against it, and what one would have to scroll sideways for.
AXE = ROOT / "web" / "node_modules" / "axe-core" / "axe.min.js"
FAULTS = """async () => [
  ...(await axe.run(document)).violations.map(
    (rule) => `${rule.id} (${rule.impact}): ${rule.nodes.map((node) => node.target)}`),
  ...[document.documentElement, ...document.querySelectorAll('.cutaway, .station, dialog, main')]
    .filter((each) => each.scrollWidth > each.clientWidth + 1)
    .map((each) => `wider than its window: ${each.tagName} ${each.className}`)]"""

WAITS = "Fetching|Looking|Opening|Reading|Asking|Measuring"
SETTLED = f"() => !/({WAITS})[^.]*\u2026/.test(document.body.innerText)"


@dataclass
class Served:
    """`cutaway run`, and the address that it prints."""

    address: str
    process: subprocess.Popen[str]

    def end(self) -> None:
        self.process.terminate()
        self.process.wait()


@contextmanager
def served() -> Iterator[Served]:
    """The program over the default model; it ends with the block."""
    command = [Path(sys.executable).with_name("cutaway"), "run", "--no-open"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        found = (PAGE.search(line) for line in process.stderr)
        yield Served(next(each[1] for each in found if each), process)
    finally:
        process.terminate()
        process.wait()


class Camera:
    """One page, taken in every size and scheme."""

    def __init__(
        self, page: Page, into: Path, *, widths: Sequence[int] = tuple(SIZES), axe: str = ""
    ) -> None:
        self.page, self.into, self.axe = page, into, axe
        self.sizes = {width: SIZES[width] for width in widths}
        self.num_faults = 0

    def take(self, name: str, *, is_whole: bool = True) -> None:
        """is_whole: as tall as what scrolls in it; where something moves there is no time."""
        for width, height in self.sizes.items():
            for scheme in SCHEMES:
                self.page.set_viewport_size({"width": width, "height": height})
                self.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
                hidden = self.page.evaluate(HIDDEN) if is_whole else 0
                if hidden:
                    # A phone's sheet is 86 % of its window.
                    tall = min(TALLEST, height + int(1.17 * hidden))
                    self.page.set_viewport_size({"width": width, "height": tall})
                self.page.mouse.move(0, 0)  # nothing is pointed at, however wide it is
                self.page.screenshot(path=self.into / f"{name}-{width}-{scheme}.png")
                self._judge(f"{name}, {width}, {scheme}")
        self.page.set_viewport_size({"width": 1280, "height": SIZES[1280]})

    def _judge(self, name: str) -> None:
        if not self.axe:
            return
        self.page.evaluate(self.axe)
        for fault in self.page.evaluate(FAULTS):
            self.num_faults += 1
            print(f"{name}: {fault}", flush=True)


def opened(browser: Browser, address: str) -> Page:
    """The page, with motion off."""
    context = browser.new_context(
        viewport={"width": 1280, "height": SIZES[1280]}, reduced_motion="reduce"
    )
    context.set_default_timeout(LONGEST_MS)
    context.add_init_script("localStorage.reader ??= 'engineer'")  # all that there is
    page = context.new_page()
    page.goto(address)
    page.get_by_role("button", name=QUESTION).and_(page.locator(":enabled")).wait_for()
    return page


def say(page: Page) -> None:
    page.get_by_label("Your message").fill(QUESTION)
    page.get_by_label("Your message").press("Enter")


def ask(page: Page) -> None:
    """Ask, and wait for the whole answer."""
    say(page)
    page.get_by_role("button", name="Look inside").wait_for()


def look_inside(page: Page) -> None:
    page.get_by_role("button", name="Look inside").click()
    station(page, "probabilities")  # the tour may have left another one


def station(page: Page, name: str) -> None:
    """Go to a station and wait until it shows what was asked for."""
    page.locator(f"nav [data-view={name}]").click()
    shown(page, name)


def shown(page: Page, name: str) -> None:
    """Agree to the price of a view where one is asked, and wait for it."""
    view = page.locator(f"article[data-view={name}][aria-busy=false]")
    price = page.get_by_role("group", name="What this view would take")
    view.or_(price).first.wait_for()
    if price.count():
        price.get_by_role("button", name="Show").click()
    view.wait_for()


def room(page: Page, name: str) -> None:
    """Enter a room, with the place behind it."""
    page.evaluate(
        "room => { location.hash = `#/room/${room}`"
        " + location.hash.slice(1).replace(/^.room.[a-z-]+/, '') }",
        name,
    )
    page.get_by_role("dialog").get_by_role("heading").first.wait_for()
    page.wait_for_function(SETTLED)


def of_the_stream(camera: Camera) -> None:
    """An answer that is being written, longer than the model's own so that there is time."""

    def lengthen(route: Route) -> None:
        asked = json.loads(route.request.post_data or "")
        route.continue_(post_data=json.dumps({**asked, "max_tokens": 2000, "ignore_eos": True}))

    page = camera.page
    camera.take("welcome")
    page.get_by_role("button", name="Settings", exact=True).click()
    camera.take("settings")
    page.get_by_role("button", name="Close the settings").click()
    page.route("**/v1/chat/completions", lengthen)
    say(page)
    page.locator("[data-token='12']").wait_for()
    camera.take("stream", is_whole=False)
    page.evaluate("() => { location.hash += '/t/1/s/0' }")
    page.locator(".cutaway .big").wait_for()
    camera.take("alive", is_whole=False)
    page.get_by_role("button", name="Close", exact=True).click()
    page.mouse.move(0, 0)
    page.get_by_role("button", name="Stop").click()
    page.mouse.move(0, 0)  # no token is pointed at
    page.unroute("**/v1/chat/completions")
    page.get_by_role("button", name="New chat").first.click()


def of_the_stations(camera: Camera) -> None:
    look_inside(camera.page)
    for each in camera.page.locator("nav [data-view]").all():
        name = each.get_attribute("data-view") or ""
        station(camera.page, name)
        camera.take(name)
    camera.page.get_by_role("button", name="Close", exact=True).click()


def of_the_steps(camera: Camera, server: Served) -> None:
    """Scrub, compare, save, branch, and open the file when nobody answers."""
    page = camera.page
    look_inside(page)
    page.get_by_label("Token of the answer").fill("8")
    station(page, "sampling")
    camera.take("scrubbed")
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save", exact=True).click()
    file = camera.into / "answer.cutaway"
    saved.value.save_as(file)
    page.get_by_text("Saved", exact=True).wait_for()
    camera.take("saved", is_whole=False)
    room(page, "lab")
    for temperature in ("0.2", "1.5"):
        page.get_by_role("slider", name="Temperature").fill(temperature)
        camera.take(f"compared-{temperature}")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Close", exact=True).click()
    page.get_by_role("article", name="Model").locator("[data-token]").nth(8).click()
    card = page.get_by_role("complementary", name="Token")
    card.locator("tbody button").first.wait_for()
    camera.take("token", is_whole=False)
    card.locator("tbody button").first.click()
    page.get_by_text("2 / 2").wait_for()
    page.get_by_role("button", name="Regenerate").wait_for()
    camera.take("branched")
    room(page, "open")
    page.locator("dialog input[type=file]").wait_for()
    server.end()
    page.locator("dialog input[type=file]").set_input_files(file)
    page.locator("article[aria-busy=false]").wait_for()
    camera.take("reopened")


def of_the_rooms(camera: Camera) -> None:
    room(camera.page, "lab")
    ways = camera.page.get_by_role("dialog").locator("a[href^='#/room/']").all()
    hrefs = [way.get_attribute("href") or "" for way in ways]
    for name in [re.split("[/-]", href)[2] for href in hrefs]:
        room(camera.page, name)
        if name == "follow":
            camera.page.locator(".journey[data-whole=true]").wait_for()
        camera.take(f"room-{name}")
    camera.page.keyboard.press("Escape")


def of_the_tour(camera: Camera) -> None:
    room(camera.page, "tour")
    links = camera.page.locator("nav[aria-label=Chapters] a")
    for index in range(links.count()):
        links.nth(index).click()
        camera.page.locator("dialog article[aria-busy=false]").wait_for()
        camera.page.wait_for_function(SETTLED)
        camera.take(f"tour-{index + 1:02}")
    camera.page.get_by_role("button", name="The end: your card").click()
    camera.page.locator("dialog .card").wait_for()
    camera.take("tour-end")
    camera.page.keyboard.press("Escape")


def all_pictures(camera: Camera, server: Served, only: list[str]) -> None:
    if "stream" in only:
        of_the_stream(camera)
    ask(camera.page)
    camera.take("chat")
    if "stations" in only:
        of_the_stations(camera)
    if "tour" in only:
        of_the_tour(camera)
    if "rooms" in only:
        of_the_rooms(camera)
    if "steps" in only:
        of_the_steps(camera, server)


def readme_pictures(browser: Browser, server: Served, into: Path) -> None:
    page = opened(browser, server.address)
    page.emulate_media(color_scheme="light")
    ask(page)
    page.screenshot(path=into / "chat.png")
    look_inside(page)
    station(page, "lens")
    page.screenshot(path=into / "inside.png")


def main() -> None:
    parser = argparse.ArgumentParser(description="Make pictures of the page.")
    parser.add_argument("--into", type=Path, default=ROOT / "build" / "pictures")
    parser.add_argument("--readme", action="store_true", help="the two of README.md alone")
    parser.add_argument("--only", nargs="+", choices=WORDS, default=list(WORDS))
    parser.add_argument("--widths", nargs="+", type=int, choices=sorted(SIZES), default=list(SIZES))
    parser.add_argument("--axe", action="store_true", help="say what axe has against each")
    options = parser.parse_args()
    into = ROOT / "docs" / "pictures" if options.readme else options.into
    into.mkdir(parents=True, exist_ok=True)
    with served() as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        if options.readme:
            readme_pictures(browser, server, into)
        else:
            axe = AXE.read_text(encoding="utf-8") if options.axe else ""
            page = opened(browser, server.address)
            camera = Camera(page, into, widths=options.widths, axe=axe)
            all_pictures(camera, server, options.only)
            if axe:
                print(f"axe and widths: {camera.num_faults} faults")
        browser.close()
    print(f"pictures are in {into}")


if __name__ == "__main__":
    main()
