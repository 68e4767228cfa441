"""The page while an answer comes: what it writes anew, and what is left of an answer cut off."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from test_web_chat import ask, changing

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

    from conftest import Opened

pytestmark = pytest.mark.slow

LINES = "\n".join(f"total = total + {number}" for number in range(40))
TEXT = f"# Sums\n\nA first *paragraph*.\n\n- one\n- two\n\n```python\n{LINES}\n```\n\nThe end."

# Blocks whose content changed though blocks behind them, but the next one, had been there at the
# change before, and how many elements were put into the answer in all. What comes together is one
# change: a fast engine has several blocks in it.
WATCH = """() => {
  window.late = []; window.put = 0;
  let known = 0;
  new MutationObserver((records) => {
    const blocks = [...document.querySelectorAll("article.model .block")];
    for (const { target, addedNodes } of records) {
      window.put += addedNodes.length;
      const at = blocks.indexOf(target.closest?.(".block") ?? null);
      if (at >= 0 && at < known - 2) window.late.push(at);
    }
    known = blocks.length;
  }).observe(document.querySelector("main"), { childList: true, subtree: true });
}"""


def test_a_block_that_is_whole_is_never_written_again(opened: Opened) -> None:
    """Counted, not timed: an answer costs what its end costs, however long it is."""
    changing(opened, structured_outputs={"choice": [TEXT]}, max_tokens=2000)
    opened.page.evaluate(WATCH)
    answer = ask(opened)
    marks = answer.locator("[data-token]").count()
    assert answer.locator(".block").count() == 5 and marks > 100
    late, put = opened.page.evaluate("() => [window.late, window.put]")
    # The code is coloured when it is whole, and by then little stands behind it.
    assert set(late) <= {3}
    # A mark is put there once or twice as it comes, and once in colours: not at every token.
    assert put < 8 * marks + 200


def begin(page: Page, text: str) -> None:
    """Ask for a long answer and wait until some of it is there."""
    page.get_by_label("Your message").fill(text)
    page.get_by_role("button", name="Send").click()
    page.wait_for_function("() => document.querySelectorAll('[data-token]').length > 20")


def answers(page: Page) -> Locator:
    return page.get_by_role("article", name="Model")


def test_a_page_loaded_anew_amid_an_answer_keeps_it_and_goes_on(opened: Opened) -> None:
    page = opened.page
    changing(opened, max_tokens=12000, ignore_eos=True)
    begin(page, "tell me all of it")
    text = answers(page).get_by_role("group").inner_text().strip()
    page.reload()
    answers(page).get_by_text("Not finished").wait_for()
    kept = answers(page).get_by_role("group")
    kept.locator("[data-token]").nth(15).wait_for(state="attached")
    assert kept.inner_text().strip()[:10] == text[:10]
    bodies = changing(opened, max_tokens=5, ignore_eos=True)
    answers(page).get_by_role("button", name="Go on").click()
    page.get_by_text("2 / 2").wait_for()
    page.locator(".ribbon").wait_for()
    begun = bodies[0]["cutaway"]["answer_token_ids"]
    assert len(begun) > 15
    assert answers(page).locator("[data-token]").count() >= kept.locator("[data-token]").count()


def test_two_tabs_of_one_conversation_lose_nothing(opened: Opened) -> None:
    page = opened.page
    changing(opened, max_tokens=4, ignore_eos=True)
    ask(opened, "first of all")
    other = page.context.new_page()
    other.goto(page.url)
    other.get_by_text("first of all").first.wait_for()
    ask(opened, "second of all")
    other.get_by_role("article", name="You").nth(1).wait_for()
    other.get_by_label("Your message").fill("third of all")
    other.get_by_role("button", name="Send").click()
    page.get_by_role("article", name="You").nth(2).wait_for()
    answers(other).nth(2).get_by_role("button", name="Regenerate").wait_for()
    other.close()
    page.reload()
    page.get_by_role("article", name="You").nth(2).wait_for()
    # Not inner texts: those of turns out of sight are empty, since they are not laid out.
    said = page.get_by_role("article", name="You").all_text_contents()
    assert [each.strip() for each in said] == ["first of all", "second of all", "third of all"]


def test_the_ribbon_tells_what_the_ledger_has(opened: Opened) -> None:
    """Tokens, cache hits, speed and times; and money, once somebody says what an hour costs."""
    page = opened.page
    changing(opened, max_tokens=9, ignore_eos=True)
    ask(opened, "the same long words " * 12)
    page.get_by_role("button", name="Regenerate").click()
    page.get_by_text("2 / 2").wait_for()
    page.get_by_role("button", name="Regenerate").wait_for()
    trace = page.evaluate(TRACE)
    events = page.evaluate(EVENTS, trace)
    end = json.loads(events.strip().rpartition("data: ")[2])
    told = dict(page.locator(".ribbon dl > div").evaluate_all(PAIRS))
    usage, timings = end["usage"], end["timings"]
    assert usage["cached_tokens"] > 0
    assert told["prompt"] == f"{usage['prompt_tokens']} tokens, {usage['cached_tokens']} cached"
    assert told["answer"] == "9 tokens"
    after_the_first = 8 / timings["decode"]  # as the timeline counts it
    assert told["speed"] == f"{after_the_first:.1f} tokens/s"
    assert "tokenize" in told and "cost" not in told
    page.get_by_role("button", name="Settings", exact=True).click()
    page.get_by_label("An hour of this machine costs").fill("3600")
    page.keyboard.press("Tab")
    shown = float(page.locator(".ribbon dl > div", has_text="cost").locator("dd").inner_text())
    assert shown == pytest.approx(timings["prefill"] + timings["decode"], rel=1e-2)
    page.get_by_label("An hour of this machine costs").fill("")
    page.keyboard.press("Tab")
    page.locator(".ribbon dl > div", has_text="cost").wait_for(state="detached")


PAIRS = """(all) => all.map((pair) => [
  pair.querySelector("dt").textContent, pair.querySelector("dd").textContent])"""
TRACE = """() => new Promise((resolve) => {
  indexedDB.open("cutaway-chats").onsuccess = ({ target }) => {
    target.result.transaction("all").objectStore("all").getAll().onsuccess = (found) => {
      const chats = found.target.result.sort((one, other) => other.changed - one.changed);
      target.result.close();
      resolve(chats[0].turns.at(-1).trace);
    };
  };
})"""
EVENTS = "async (trace) => (await fetch(`/cutaway/v1/traces/${trace}/events`)).text()"
