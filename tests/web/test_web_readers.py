"""Two readers of one page: words and pictures, or all numbers; the browser remembers which."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from test_web_checks import axe, violations  # noqa: F401
from test_web_cutaway import look_inside, station

if TYPE_CHECKING:
    from conftest import Opened

pytestmark = pytest.mark.slow

TERMS = re.compile(r"cosine|norm|logit|softmax|FLOP|[KMG]iB|seed|entropy|layer \d+, head")
PAIRS = ("merges", "detokenization")  # they tell what became of what
OF_ENGINEERS = (".proof", "button:text-is('Copy JSON')", "nav [data-view=grammar]")


def test_one_switch_hides_what_is_for_engineers_and_is_remembered(
    opened: Opened,
    axe: str,  # noqa: F811
) -> None:
    page = look_inside(opened)
    page.emulate_media(reduced_motion="reduce")
    inside = page.get_by_role("region", name="Cutaway: inside this answer")
    for each in OF_ENGINEERS:
        assert inside.locator(each).first.is_visible(), each
    inside.get_by_role("button", name="Engineer", exact=True).click()
    for each in OF_ENGINEERS:
        assert inside.locator(each).locator("visible=true").count() == 0, each
    assert inside.locator("nav [data-view=attention]").is_visible()
    assert inside.locator(".finding").is_visible()
    assert violations(page, axe) == []
    page.reload()
    inside.locator("article[data-view=probabilities]").wait_for()
    assert inside.locator(".proof").locator("visible=true").count() == 0, "as it was left"
    page.get_by_role("button", name="Engineer's view").click()
    assert inside.locator(".proof").is_visible()


def test_every_station_speaks_everyday_words_with_one_number_a_sentence(opened: Opened) -> None:
    page = look_inside(opened)
    page.get_by_role("button", name="Engineer", exact=True).first.click()
    stops = page.locator("nav [data-view]")
    names = stops.evaluate_all("all => all.map((each) => each.dataset.view)")
    assert len(names) > 12 and "grammar" not in names
    for name in names:
        said = station(page, name).locator(".finding").inner_text()
        for sentence in re.split(r"(?<=[.!])\s", re.sub("\u201c.*?\u201d", "", said)):
            assert not TERMS.search(sentence), (name, sentence)
            assert len(re.findall(r"\d[\d.,]*", sentence)) < 2 + (name in PAIRS), (name, sentence)
    page.get_by_role("button", name="Engineer", exact=True).first.click()  # as other tests read


def test_the_cache_switched_off_is_counted_as_the_answer_grows(opened: Opened) -> None:
    page = look_inside(opened)
    shown = station(page, "pages")
    num_prompt = int(shown.locator("dl dd").last.inner_text().split(" of ")[1])
    for step in (0, 3, 5):
        page.get_by_label("Token of the answer").fill(str(step))
        without = sum(num_prompt + each for each in range(step + 1))
        told = shown.get_by_role("status").filter(has_text="Up to token")
        told.filter(has_text=f"{without:,} tokens computed").wait_for()
        assert f"{without - num_prompt - step:,} of them for nothing" in told.inner_text()
    shown.get_by_role("button", name="With the cache").click()
    told.filter(has_text=f"{num_prompt + 5:,} tokens computed, each once").wait_for()
