"""The program `cutaway run` over a tiny model, and Debian's Chromium before it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import tiny
from cutaway.server.page import BUILT
from program import command, environment

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page, SetCookieParam

# It says nothing of its own to the internet, and needs neither GPU nor, in a container, sandbox or
# more shared memory than Docker gives.
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"),
    "--disable-dev-shm-usage",
)
# Tests read all numbers, unless they say who reads.
ENGINEER = "localStorage.reader ??= 'engineer'"
PATIENCE_MS = 120_000  # a browser beside other tests may be slow; a fault is not hidden by waiting

TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
LINK = re.compile(r"http://\S+/\?once=\S+")


@dataclass
class Opened:
    """A page in a browser, where it is, and what it did."""

    page: Page
    url: str
    asked: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """A browser. Where one is missing the test is skipped, in CI it fails.

    Playwright's event loop runs in the tests' thread until the browser is closed: a file's tests
    share one, and the next file's may run loops of their own.
    """
    found = shutil.which("chromium")
    lacks = None if found else "chromium is not installed (Debian: apt-get install chromium)"
    lacks = lacks or (
        None if (BUILT / "index.html").is_file() else "the page is not built: make web"
    )
    if lacks is not None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(lacks)
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder whose runs of training the page shows; nothing is in it at first."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="session")
def link(tmp_path_factory: pytest.TempPathFactory, runs: Path) -> Iterator[str]:
    """The address that the program prints: it lets in the first browser that opens it."""
    folder = tmp_path_factory.mktemp("page")
    # Room for an answer that is still being written when a test stops it.
    config = folder / "config.json"
    config.write_text(json.dumps(tiny.config(max_position_embeddings=16384)), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    (folder / "keys").write_text("alice a-key-of-enough-characters\n", encoding="utf-8")
    settings = ("--dtype", "float32", "--cache-tokens", "16384", "--no-open", "--runs", str(runs))
    process = subprocess.Popen(
        command("run", f"random:{config}", *settings, "--api-key-file", str(folder / "keys")),
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        yield next(found[0] for line in process.stderr if (found := LINK.search(line)))
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="session")
def cookies() -> list[SetCookieParam]:
    """What the browser keeps that came by the link, from when it came."""
    return []


@pytest.fixture(scope="module")
def let_in(chromium: Browser, link: str, cookies: list[SetCookieParam]) -> Iterator[BrowserContext]:
    """A browser's session that came by the link and keeps the cookie."""
    context = chromium.new_context(viewport={"width": 1280, "height": 800})
    context.set_default_timeout(PATIENCE_MS)
    context.add_init_script(ENGINEER)
    if cookies:
        context.add_cookies(cookies)
    else:
        context.new_page().goto(link)
        cookies += context.cookies()
    yield context
    context.close()


@pytest.fixture
def opened(let_in: BrowserContext, link: str) -> Iterator[Opened]:
    """The page, opened anew, with what it asked for and complained of."""
    page = let_in.new_page()
    noted = Opened(page, link.partition("?")[0])
    page.on("request", lambda request: noted.asked.append(request.url))
    page.on("console", lambda message: noted.said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: noted.said.append(f"fault: {error}"))
    page.goto(noted.url)
    yield noted
    page.close()
