"""An exported file is the live page: each number, sentence and label of every view."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from test_web_chat import ask, changing

from conftest import PATIENCE_MS
from cutaway.views import VIEWS

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from conftest import Opened

pytestmark = pytest.mark.slow

# What is asked, with which settings: emoji and marks, a control token by its name, cuts and stops.
ANSWERS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("\U0001f469\u200d\U0001f52c e\u0301?", {"max_tokens": 5, "ignore_eos": True}),
    ("<|endoftext|> to be or not", {"max_tokens": 7, "ignore_eos": True, "temperature": 0}),
    ("a b a b a", {"max_tokens": 9, "logit_bias": {"256": 100}, "ignore_eos": True}),
    ("stop me", {"max_tokens": 60, "stop": ["aa"], "logit_bias": {"97": 6}, "ignore_eos": True}),
)
# A way into a room: a file has its own lab, above the stations.
ROOM = "Turn the knobs yourself in the lab"
# Every view of the map: what its article says with tables opened, and what is told of pictures.
READ = """async () => {
  const frame = () => new Promise((done) => requestAnimationFrame(() => done()));
  const found = {};
  for (const stop of document.querySelectorAll('nav [data-view]')) {
    const view = stop.dataset.view;
    stop.click();
    let article = null;
    while (!(article = document.querySelector(`article[data-view=${view}][aria-busy=false]`)))
      await frame();
    const numbers = [...article.querySelectorAll('.tools button')].find(
      (each) => each.textContent === 'Numbers');
    if (numbers.getAttribute('aria-pressed') !== 'true') numbers.click();
    for (let wait = 0; wait < 6; wait += 1) await frame();
    // What it took, and how many rows of its pass were compared, is of the look, not of the answer.
    const proof = article.querySelector('.proof')?.innerText ?? '';
    const badge = article.querySelector('.badge').innerText.split('(')[0];
    found[view] = {
      text: article.innerText.replace(proof, badge).split('\\n').filter((each) => each.trim()),
      labels: [...article.querySelectorAll('[aria-label], [title]')].map(
        (each) => `${each.getAttribute('aria-label') ?? ''} ${each.getAttribute('title') ?? ''}`),
      drawn: [`${article.querySelectorAll('svg, canvas').length} pictures`],
    };
  }
  return found;
}"""


@pytest.fixture(scope="module")
def stranger(chromium: Browser) -> Iterator[Page]:
    """A browser that knows no server, and reads as an engineer."""
    context = chromium.new_context(
        viewport={"width": 1280, "height": 800}, reduced_motion="reduce", offline=True
    )
    context.set_default_timeout(PATIENCE_MS)
    context.add_init_script("localStorage.reader ??= 'engineer'")
    yield context.new_page()
    context.close()


def differences(live: list[str], file: list[str]) -> list[tuple[str | None, str | None]]:
    """What stands in the one and not in the other, line by line."""
    pairs = itertools.zip_longest([each for each in live if not each.startswith(ROOM)], file)
    return [(one, other) for one, other in pairs if one != other]


def saved(page: Page, path: Path) -> Path:
    """The answer that is open, as one file."""
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Save as one HTML file").click()
    waiting.value.save_as(path)
    return path


def test_every_view_of_an_exported_file_is_the_live_one(
    opened: Opened, stranger: Page, tmp_path: Path
) -> None:
    page = opened.page
    page.emulate_media(reduced_motion="reduce")
    for index, (asked, settings) in enumerate(ANSWERS):
        page.unroute("**/v1/chat/completions")
        changing(opened, **settings)
        page.get_by_role("button", name="New chat").first.click()
        ask(opened, asked).get_by_role("button", name="Look inside").click()
        page.locator("article[data-view=probabilities][aria-busy=false]").wait_for()
        page.get_by_role("button", name="Whole page").click()
        # At the first token a file names 200 entries of the row, for its lab; the page names 10.
        page.get_by_label("Token of the answer").fill("1")
        live = page.evaluate(READ)
        assert set(live) == {view.name for view in VIEWS}
        is_stopped = "\u201caa\u201d" in live["detokenization"]["text"]
        assert is_stopped == ("stop" in settings), "the string ended it"
        place = re.sub(r"^.*?/t/", "#/t/", page.url)
        path = saved(page, tmp_path / f"{index}.html")
        stranger.goto(f"{path.as_uri()}{place}")
        stranger.get_by_role("slider", name="Token of the answer").wait_for()
        file = stranger.evaluate(READ)
        found = {
            f"{view}, {part}, of {asked!r}": different
            for view, shown in live.items()
            for part, told in shown.items()
            if (different := differences(told, file[view][part]))
        }
        assert not found
        page.get_by_role("button", name="Beside the chat").click()
        page.get_by_role("button", name="Close", exact=True).click()
