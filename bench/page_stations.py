"""How long each station of the page takes from its choice to its first useful frame, and its price.

python bench/page_stations.py [--model smollm2] [--tokens 64]

One served answer, looked at in Chromium: all stations are chosen by the map, one after the other,
at one token and then at a later one. Useful is the first frame that has the station's own figure.
The price is what the server foretold (only_cost) beside what the same question took from the page,
until its last byte was there: drawing is a part of the first frame alone.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, Route, sync_playwright

FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run")
ADDRESS = re.compile(r"Its page: (\S+)")
BOUND, NEAR, INSTANT = 0.7, 1.5, 0.1
# Times of every question to the server, and the first frame that holds what was waited for.
WATCH = """(() => {
  localStorage.reader ??= 'engineer';
  const own = window.fetch;
  window.asked = [];
  performance.setResourceTimingBufferSize(10000);
  window.fetch = async (url, options) => {
    const isView = String(url).endsWith('/views') && options?.body;
    const began = performance.now();
    const answer = await own(url, options);
    if (!isView) return answer;
    const copy = answer.clone();
    void copy.arrayBuffer().then((bytes) => {
      const body = JSON.parse(options.body);
      const told = body.only_cost ? JSON.parse(new TextDecoder().decode(bytes)) : null;
      const all = performance.getEntriesByType('resource');
      const {startTime, responseEnd} = all.find((each) => each.startTime >= began);
      window.asked.push({body, told, seconds: (responseEnd - startTime) / 1000});
    }, () => undefined);
    return answer;
  };
  window.until = (view) => new Promise((done) => {
    const began = performance.now();
    const look = () => {
      const price = document.querySelector('[aria-label="What this view would take"] button');
      if (price) price.click(); // the wait begins with the choice all the same
      const article = document.querySelector(`article[data-view="${view}"] figure`);
      const isThere = article && article.querySelector(':scope > :not(figcaption, [role=status])');
      if (!isThere || document.querySelector(`article[data-view="${view}"][aria-busy=true]`)) {
        requestAnimationFrame(look);
      } else {
        const painted = () => done((performance.now() - began) / 1000);
        requestAnimationFrame(() => setTimeout(painted));
      }
    };
    document.querySelector(`nav [data-view="${view}"]`).click();
    look();
  });
})()"""


@dataclass
class Visit:
    """One station at one token. foretold, took: of its question to the server; None where free."""

    view: str
    seconds: float
    foretold: float | None
    took: float | None

    @property
    def ratio(self) -> float | None:
        if self.foretold is None or self.took is None:
            return None
        one, other = sorted((max(self.foretold, 1e-4), max(self.took, 1e-4)))
        return other / one


@contextmanager
def served(model: str) -> Iterator[str]:
    """The program over a model, ended with the block; gives its page's address."""
    command = [Path(sys.executable).with_name("cutaway"), "run", model, "--no-open"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the server ends with this program
    try:
        found = (ADDRESS.search(line) for line in process.stderr)
        yield next(each[1] for each in found if each)
    finally:
        process.terminate()
        process.wait()


def asked(page: Page, tokens: int) -> None:
    """An answer of so many tokens, opened."""

    def lengthen(route: Route) -> None:
        body = json.loads(route.request.post_data or "")
        body |= {"max_tokens": tokens, "ignore_eos": True, "seed": 1}
        route.continue_(post_data=json.dumps(body))

    page.route("**/v1/chat/completions", lengthen)
    page.get_by_role("button", name="What is gravity?").and_(page.locator(":enabled")).click()
    page.get_by_role("button", name="Look inside").click()
    shown = page.locator("article[data-view=probabilities][aria-busy=false]")
    price = page.get_by_role("group", name="What this view would take").get_by_role("button")
    shown.or_(price).first.wait_for()
    if price.is_visible():  # beside others it may be dear
        price.click()
        shown.wait_for()
    page.wait_for_timeout(1000)


def visit(page: Page, view: str) -> Visit:
    page.evaluate("() => { window.asked.length = 0 }")
    seconds = page.evaluate("(view) => window.until(view)", view)
    page.wait_for_timeout(1500)  # what it asks for besides shall not be the next one's wait
    told: list[dict[str, Any]] = page.evaluate("() => window.asked")
    own = [each for each in told if each["body"]["view"] == view]
    price = next((each["told"]["seconds"] for each in own if each["told"]), None)
    took = next((each["seconds"] for each in own if not each["told"]), None)
    return Visit(view, seconds, price, took)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--tokens", type=int, default=64, help="of the answer")
    given = parser.parse_args()
    with served(given.model) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=list(FLAGS)
        )
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.set_default_timeout(120_000)
        page.add_init_script(WATCH)
        page.goto(address)
        asked(page, given.tokens)
        names = page.locator("nav [data-view]").evaluate_all(
            "all => all.map((each) => each.dataset.view)"
        )
        names.sort(key=lambda name: name == "probabilities")  # it is open: leave it first
        visits: list[Visit] = []
        for step in (given.tokens // 8, given.tokens // 2):
            page.get_by_label("Token of the answer").fill(str(step))
            page.wait_for_timeout(1500)
            print(f"at token {step} of {given.tokens}")
            print("station          first frame   foretold   took   ratio")
            for name in names:
                visits.append(visit(page, name))
                tell(visits[-1])
        judge(visits)
        browser.close()


def tell(each: Visit) -> None:
    price = "" if each.ratio is None else f"{each.foretold:8.3f} {each.took:8.3f} {each.ratio:6.1f}"
    print(f"{each.view:16} {each.seconds:8.2f} s  {price}", flush=True)


def judge(visits: list[Visit]) -> None:
    late = [each.view for each in visits if each.seconds > BOUND]
    priced = [each for each in visits if each.ratio is not None]
    instant = [each for each in priced if max(each.foretold or 0, each.took or 0) <= INSTANT]
    others = [each for each in priced if each not in instant]
    far = [each for each in others if (each.ratio or 0) > NEAR]
    print(f"later than {BOUND} s: {', '.join(late) or 'none'} (of {len(visits)} choices)")
    print(f"foretold and taken within {INSTANT} s: {len(instant)} of {len(priced)} questions")
    print(f"of the others foretold within {NEAR} times: {len(others) - len(far)} of {len(others)}")
    for each in far:
        print(f"  not {each.view}: foretold {each.foretold:.3f} s, took {each.took:.3f} s")


if __name__ == "__main__":
    main()
