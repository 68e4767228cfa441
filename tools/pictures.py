"""Pictures of the real page over the default model: the chat, each station, each room.

    python tools/pictures.py [--into build/pictures] [--readme]

Dark and light, at 1280 and 360 pixels. It asks the default model one question, opens its answer at
every station and walks through the rooms. --readme writes the two pictures of README.md alone.
Needs the page (make web), playwright and Debian's chromium.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
PAGE = re.compile(r"Its page: (\S+)")
QUESTION = "What is gravity?"
ROOMS = ("lab", "engine", "bpe", "open")
SIZES = {1280: 800, 360: 740}
LONGEST_MS = 120_000


@contextmanager
def served() -> Iterator[str]:
    """The address that `cutaway run` prints; the server ends with the block."""
    command = [Path(sys.executable).with_name("cutaway"), "run", "--no-open"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        yield next(found[1] for line in process.stderr if (found := PAGE.search(line)))
    finally:
        process.terminate()
        process.wait()


def page_of(browser: Browser, address: str, *, width: int, scheme: str) -> Page:
    """A page of that size, with motion off."""
    context = browser.new_context(
        viewport={"width": width, "height": SIZES[width]},
        color_scheme="dark" if scheme == "dark" else "light",
        reduced_motion="reduce",
    )
    context.set_default_timeout(LONGEST_MS)
    page = context.new_page()
    page.goto(address)
    return page


def ask(page: Page) -> None:
    """Ask, and wait for the whole answer."""
    page.get_by_label("Your message").fill(QUESTION)
    page.get_by_label("Your message").press("Enter")
    page.get_by_role("button", name="Look inside").wait_for()


def look_inside(page: Page) -> None:
    page.get_by_role("button", name="Look inside").click()
    page.locator("article[aria-busy=false]").wait_for()


def stations(page: Page) -> Iterator[str]:
    """Open every station of the map, one after the other."""
    for each in page.locator("nav [data-view]").all():
        name = each.get_attribute("data-view") or ""
        each.click()
        page.locator(f"article[data-view={name}][aria-busy=false]").wait_for()
        yield name


def all_pictures(browser: Browser, address: str, into: Path) -> None:
    for width in SIZES:
        for scheme in ("light", "dark"):
            page = page_of(browser, address, width=width, scheme=scheme)
            ask(page)
            page.screenshot(path=into / f"chat-{width}-{scheme}.png")
            look_inside(page)
            for name in stations(page):
                page.screenshot(path=into / f"{name}-{width}-{scheme}.png")
            for room in ROOMS:
                page.evaluate("room => { location.hash = `#/room/${room}` }", room)
                page.get_by_role("dialog").get_by_role("heading").first.wait_for()
                page.wait_for_load_state("networkidle")
                page.screenshot(path=into / f"room-{room}-{width}-{scheme}.png")
            page.context.close()


def readme_pictures(browser: Browser, address: str, into: Path) -> None:
    page = page_of(browser, address, width=1280, scheme="light")
    ask(page)
    page.screenshot(path=into / "chat.png")
    look_inside(page)
    page.locator("nav [data-view=lens]").click()
    page.locator("article[data-view=lens][aria-busy=false]").wait_for()
    page.screenshot(path=into / "inside.png")
    page.context.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Make pictures of the page.")
    parser.add_argument("--into", type=Path, default=ROOT / "build" / "pictures")
    parser.add_argument("--readme", action="store_true", help="the two of README.md alone")
    options = parser.parse_args()
    into = ROOT / "docs" / "pictures" if options.readme else options.into
    into.mkdir(parents=True, exist_ok=True)
    with served() as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        make = readme_pictures if options.readme else all_pictures
        make(browser, address, into)
        browser.close()
    print(f"pictures are in {into}")


if __name__ == "__main__":
    main()
