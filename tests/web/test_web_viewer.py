"""A trace and its viewer in one file, opened from disk: stations, scrubbing, and ill will."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from ill_will import PAYLOADS
from test_web_checks import axe, violations  # noqa: F401
from test_web_cutaway import NUM_TOKENS, copied, look_inside, station
from test_web_ill_will import HANDLERS

from conftest import PATIENCE_MS, Opened
from cutaway.trace.file import TraceFile, read, write
from cutaway.trace.viewer import with_viewer
from cutaway.views import VIEWS
from house_tree import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow

SAVED = ROOT / "tests" / "trace" / "files" / "schema_1.cutaway"


@pytest.fixture
def shown(chromium: Browser, tmp_path: Path) -> Iterator[Any]:
    """Opens a trace file as one document, from disk, in a browser that knows no server."""
    context = chromium.new_context(viewport={"width": 1280, "height": 800})
    context.set_default_timeout(PATIENCE_MS)

    def show(file: Path) -> Opened:
        path = tmp_path / "trace.html"
        path.write_text(with_viewer(file.read_bytes(), file=str(file)), encoding="utf-8")
        opened = Opened(context.new_page(), path.as_uri())
        opened.page.on("request", lambda request: opened.asked.append(request.url))
        opened.page.on("console", lambda told: opened.said.append(f"{told.type}: {told.text}"))
        opened.page.on("pageerror", lambda error: opened.said.append(f"fault: {error}"))
        opened.page.goto(opened.url)
        opened.page.get_by_role("navigation", name="Stations of the pipeline").wait_for()
        return opened

    yield show
    context.close()


def test_a_file_from_disk_shows_what_it_has_and_says_what_it_lacks(
    shown: Any,
    axe: str,  # noqa: F811
) -> None:
    opened = shown(SAVED)
    page = opened.page
    for view in read(SAVED).views:
        page.locator(f"nav [data-view={view.name}]").click()
        article = page.locator(f"article[data-view={view.name}]")
        article.get_by_role("heading", name=view.question).wait_for()
        assert "0 \u00b5s" not in article.locator(".proof").inner_text()
        assert violations(page, axe) == [], view.name
    article = page.locator("article[data-view=cost]")
    article.get_by_text("What goes wrong here").click()
    article.get_by_role("button", name="Numbers").click()
    article.get_by_role("table").first.wait_for()
    page.locator("nav [data-view=lens]").click()
    assert page.get_by_role("alert").inner_text() == "The file does not hold the view lens."
    assert opened.said == [] and opened.asked == [opened.url]


def test_an_answer_saved_as_html_is_scrubbed_without_its_server(
    opened: Opened, chromium: Browser, tmp_path: Path
) -> None:
    page = look_inside(opened)
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Save as one HTML file").click()
    path = tmp_path / "answer.html"
    waiting.value.save_as(path)
    context = chromium.new_context(viewport={"width": 360, "height": 740}, offline=True)
    context.set_default_timeout(PATIENCE_MS)
    saved = context.new_page()
    asked: list[str] = []
    saved.on("request", lambda request: asked.append(request.url))
    saved.goto(path.as_uri())
    scrubber = saved.get_by_role("slider", name="Token of the answer")
    scrubber.wait_for()
    told: list[dict[str, Any]] = []
    for step in range(NUM_TOKENS):
        scrubber.fill(str(step))
        saved.get_by_text(f"token {step + 1} of {NUM_TOKENS}").wait_for()
        shown = saved.locator("article[data-view=probabilities][aria-busy=false]")
        live = live_values(opened, step)
        saved.wait_for_function(
            "came => document.querySelector('article dd').innerText === came",
            arg=live["chosen"]["text"],
        )
        told.append(json.loads(copied(saved, shown, "JSON")))
        assert told[-1] == live
    assert [each["token"] for each in told] == list(range(NUM_TOKENS))
    assert "random:" in copied(saved, shown, "Python")
    for view in VIEWS:
        station(saved, view.name)
    saved.get_by_role("button", name="Sampling lab").click()
    saved.get_by_text("It is the token that was served.").wait_for()
    saved.get_by_label("Temperature").fill("0")
    saved.get_by_text("is taken: the largest logit, without any draw.").wait_for()
    # Tokens that the file has no name for stand as their ids, and are looked for once.
    saved.get_by_label("Temperature").fill("2")
    drawn = saved.locator(".verdict .big")
    for u in range(0, 2**32, 2**28):
        saved.get_by_label("u, the random number").fill(str(u))
        if drawn.inner_text().startswith("#"):
            break
    assert re.fullmatch(r"#\d+", drawn.inner_text()), "of 120 tokens the file has no name"
    assert saved.evaluate("() => new Promise((done) => setTimeout(() => done('at rest'), 50))")
    assert asked == [path.as_uri()]
    context.close()


def live_values(opened: Opened, token: int) -> Any:
    """The same view as the server gives it, by the page's own session."""
    url = next(name for name in opened.asked if name.endswith("/views"))
    body = {"view": "probabilities", "token": token}
    answer = opened.page.evaluate(
        """async ([url, body]) => (await (await fetch(url, {method: 'POST',
          headers: {'content-type': 'application/json', accept: 'application/json'},
          body: JSON.stringify(body)})).json()).values""",
        [url, body],
    )
    return answer


def hostile(trace: TraceFile) -> TraceFile:
    """The same with a text of ill will wherever a text stands."""
    texts = itertools.cycle(PAYLOADS)

    def put(value: object, name: str = "") -> object:
        if isinstance(value, dict):
            items = cast("dict[str, object]", value).items()
            return {key: put(each, key) for key, each in items}
        if isinstance(value, list):
            return [put(each, name) for each in cast("list[object]", value)]
        return next(texts) if isinstance(value, str) and name not in ("array", "type") else value

    def all_of(value: object) -> Any:
        return put(value)

    views = tuple(
        replace(view, values=all_of(view.values), question=next(texts), proof=next(texts))
        for view in trace.views
    )
    manifest = {**all_of(dict(trace.manifest)), "format": "cutaway trace", "schema": 1}
    left_out = [{"view": text, "reason": text} for text in PAYLOADS]
    return TraceFile({**manifest, "left_out": left_out}, all_of(list(trace.events)), views)


def test_what_a_file_says_runs_nothing(shown: Any, tmp_path: Path) -> None:
    path = tmp_path / "hostile.cutaway"
    write(path, hostile(read(SAVED)))
    opened = shown(path)
    page = opened.page
    for view in read(path).views:
        page.locator(f"nav [data-view={view.name}]").click()
        page.get_by_role("heading", name=view.question).wait_for()
        assert page.evaluate("() => window.ran") is None
        assert page.evaluate(HANDLERS) == []
        scripts = page.locator("script, style, img, iframe, object, embed, base")
        assert scripts.count() == 3, "the trace, the script and the style of the viewer"
    assert opened.asked == [opened.url]
    assert not [line for line in opened.said if "fault" in line]
