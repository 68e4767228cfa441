"""The tour in a real browser: it asks, it is walked by keyboard, and its answers are measured."""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING

import pytest
from test_web_chat import ask, changing
from test_web_checks import axe  # noqa: F401
from test_web_cutaway import copied, look_inside

import tiny

if TYPE_CHECKING:
    from playwright.sync_api import Locator

    from conftest import Opened

pytestmark = pytest.mark.slow

NUM_TOKENS = 12
PROMPT = "What is the weight of the sea?"
FAULTS = """async () => (await axe.run('dialog')).violations.map(
  (rule) => `${rule.id}: ${rule.nodes.map((node) => node.target)}`)"""

# What a rule of the rooms styles within a station's figure, which shall be as it is elsewhere.
LEAKS = """() => [...document.styleSheets].flatMap((sheet) => [...sheet.cssRules])
  .map((rule) => rule.selectorText).filter((each) => each?.startsWith('.room '))
  .flatMap((each) => [...document.querySelectorAll(each)]
    .filter((one) => one.closest('article[data-view]'))
    .map((one) => `${each}: ${one.className}`))"""


def chapter(opened: Opened, letter: str) -> Locator:
    """What stands beside the list of chapters, once all of it was measured."""
    page = opened.page.locator("dialog .tour .page")
    page.locator(f"h3[data-chapter={letter}]").wait_for()
    page.locator("dl dd").first.wait_for()
    page.locator("article[data-view][aria-busy=false]").wait_for()
    page.get_by_role("button", name="Measure it").wait_for()
    return page


def guess(page: Locator, value: str) -> str:
    """Answer the question of a chapter; the verdict and what was measured."""
    if page.locator("fieldset").count():
        page.get_by_role("radio", name=value, exact=True).check()
    else:
        page.locator("#tour-guess").fill(value)
    page.get_by_role("button", name="Measure it").click()
    page.get_by_text(re.compile("Right\\.|Not this time\\.")).wait_for()
    return page.locator("form").last.inner_text()


def test_the_tour_asks_and_every_chapter_is_reached_by_keyboard(
    opened: Opened,
    axe: str,  # noqa: F811
) -> None:
    page = opened.page
    changing(opened, max_tokens=NUM_TOKENS, ignore_eos=True)
    page.set_viewport_size({"width": 360, "height": 740})
    page.emulate_media(color_scheme="dark", reduced_motion="reduce")
    page.get_by_role("link", name="Take the tour").press("Enter")
    page.get_by_label("The tour looks into an answer of yours. Ask:").fill(PROMPT)
    page.keyboard.press("Enter")
    chapter(opened, "a")
    page.evaluate(axe)
    numbers = page.locator("dialog .tour nav a b").all_inner_texts()
    assert numbers == [str(number) for number in range(1, len(numbers) + 1)], "no gap"
    links = page.locator("dialog .tour nav a").evaluate_all("(all) => all.map((each) => each.hash)")
    letters = [re.findall("tour-([a-z])", link)[0] for link in links]
    assert letters[:7] == list("abcdefg")
    for letter in letters:
        shown = chapter(opened, letter)
        assert page.get_by_role("alert").count() == 0, letter
        assert page.evaluate(FAULTS) == [], letter
        assert page.evaluate(LEAKS) == [], letter
        assert page.evaluate("document.querySelector('dialog').scrollWidth") <= 360, letter
        if letter != letters[-1]:
            page.keyboard.press("]")
            page.wait_for_url(re.compile(f"#/room/tour-{letters[letters.index(letter) + 1]}"))
        focused = page.evaluate("document.activeElement.tagName")
        assert focused in ("H3", "INPUT", "BODY", "DIALOG") and shown.count() == 1
    page.keyboard.press("]")
    card = page.locator("dialog .tour .card")
    card.get_by_text(PROMPT, exact=True).wait_for()
    assert f"{NUM_TOKENS} came out" in card.inner_text()
    assert f"0 of {len(letters)} questions right" in card.inner_text()
    assert page.evaluate(FAULTS) == [], "the last card"
    page.keyboard.press("[")
    page.keyboard.press("[")
    chapter(opened, letters[-2])
    assert opened.said == [], "no policy was broken and nothing failed"


def test_answers_are_those_of_a_recomputation_and_are_remembered(opened: Opened) -> None:
    page = opened.page
    changing(opened, max_tokens=NUM_TOKENS, ignore_eos=True)
    ask(opened, PROMPT)
    page.evaluate("location.hash = `#/room/tour-f${location.hash.slice(1)}`")
    shown = chapter(opened, "f")
    config = tiny.config()
    shown.get_by_role("button", name="Run", exact=True).click()
    shown.get_by_text("became").wait_for()
    assert shown.locator("form").first.locator(".told").count() == 8
    pairs = config["head_dim"] // 2
    # The tiny template writes this; the first token stands at 0.
    last = len(tokenized(opened, f"user: {PROMPT}\n")) + NUM_TOKENS - 1
    base, width = config["rope_theta"], config["head_dim"]
    turns = [2 * math.pi * base ** (2 * pair / width) for pair in range(pairs)]
    right = sum(turn <= last for turn in turns)
    assert "Not this time." in guess(shown, str(right + 1))
    said = guess(shown, str(right))
    assert "Right." in said
    assert f"{right} of {pairs}: their full turn is {last} positions or less." in said

    shown.get_by_role("heading", level=3).first.focus()
    page.keyboard.press("]")
    shown = chapter(opened, "g")
    told = shown.locator("form").last
    assert "Measure it" in told.inner_text()
    guess(shown, "attention")
    sums = [float(each.replace(",", "")) for each in told.locator(".told").all_inner_texts()]
    assert ("Right." in told.inner_text()) == (sums[0] > sums[1])

    marks = page.locator("dialog .tour nav a[href*='tour-f']")
    assert "\u2713" in marks.inner_text()
    assert json.loads(page.evaluate("localStorage.getItem('tour')"))["f"] == "right"
    page.reload()
    chapter(opened, "g")
    assert "\u2713" in page.locator("dialog .tour nav a[href*='tour-f']").inner_text()


def test_a_lever_runs_on_this_models_own_tokenizer(opened: Opened) -> None:
    page = opened.page
    changing(opened, max_tokens=4, ignore_eos=True)
    ask(opened, PROMPT)
    page.evaluate("location.hash = `#/room/tour-b${location.hash.slice(1)}`")
    shown = chapter(opened, "b")
    text = "Unbelievable na\u00efvet\u00e9"
    shown.get_by_label("Another text").fill(text)
    shown.get_by_role("button", name="Run", exact=True).click()
    said = shown.locator("form [role=status]").first.inner_text()
    ids = tokenized(opened, text)
    assert said.startswith(f"{len(ids)} tokens, {len(text.encode()) / len(ids):.3g} bytes each;")
    letters = guess(shown, str(PROMPT.count("e")))
    assert re.search(r"\d+ in \d+ tokens", letters)


def test_a_pinned_view_stays_in_the_chapter_that_draws_it(opened: Opened) -> None:
    page = opened.page
    changing(opened, max_tokens=4, ignore_eos=True)
    ask(opened, PROMPT)
    page.evaluate("location.hash = `#/room/tour-g${location.hash.slice(1)}`")
    shown = chapter(opened, "g")
    shown.get_by_role("button", name="Pin", exact=True).click()
    pinned = shown.get_by_role("region", name="Pinned")
    pinned.locator("article[data-view=residual]").wait_for()
    assert shown.locator("article[data-view=residual]").count() == 2
    page.keyboard.press("]")
    chapter(opened, "h")
    assert pinned.count() == 0, "another chapter has another view"
    page.keyboard.press("[")
    pinned.get_by_role("button", name="Unpin").click()
    pinned.wait_for(state="detached")
    chapter(opened, "g")


def test_a_chapter_is_about_its_own_word_and_gives_back_the_token_that_one_came_from(
    opened: Opened,
) -> None:
    page = look_inside(opened)
    page.get_by_label("Token of the answer").fill("3")
    page.get_by_text("token 4 of").wait_for()
    page.evaluate("location.hash = `#/room/tour-k${location.hash.slice(1)}`")
    shown = chapter(opened, "k").locator("article[data-view=probabilities]")
    told = json.loads(copied(page, shown, "JSON"))
    assert told["token"] == 0, "the figure shows what the chapter tells of"
    assert f"{told['chosen']['text']}" in page.locator("dialog dd").first.inner_text()

    page.keyboard.press("Escape")
    page.locator("dialog").wait_for(state="detached")
    assert page.url.endswith("/t/1/s/3"), "as it was left"


def test_figures_of_chapters_open_on_what_they_are_about_and_play(opened: Opened) -> None:
    page = opened.page
    changing(opened, max_tokens=NUM_TOKENS, ignore_eos=True)
    ask(opened, PROMPT)
    page.evaluate("location.hash = `#/room/tour-h${location.hash.slice(1)}`")
    shown = chapter(opened, "h").locator("article[data-view=arithmetic]")
    told = json.loads(copied(page, shown, "JSON"))
    film = shown.get_by_role("region", name="Attention in five steps")
    assert film.locator(".mixed").evaluate("each => getComputedStyle(each).opacity") == "1"
    film.get_by_role("button", name="Play").wait_for()
    page.keyboard.press("]")
    shown = chapter(opened, "i").locator("article[data-view=attention]")
    assert "keep" in shown.get_by_role("heading", level=2).inner_text()
    assert "notes" in shown.locator("figure h3").first.inner_text()
    telling = json.loads(copied(page, shown, "JSON"))["telling"]
    assert (told["layer"], told["head"]) == (telling["layer"], telling["head"])

    page.evaluate("location.hash = location.hash.replace('tour-i', 'tour-n')")
    page_of = chapter(opened, "n")
    shown = page_of.locator("article[data-view=pages]")
    wasted = shown.get_by_role("status").filter(has_text=f"Up to token {NUM_TOKENS} of")
    assert " 0 of them for nothing" not in wasted.inner_text()
    page_of.get_by_role("button", name="Play", exact=True).click()
    shown.get_by_text(f"Up to token 1 of {NUM_TOKENS}").wait_for()
    shown.get_by_text(f"Up to token 2 of {NUM_TOKENS}").wait_for()
    page_of.get_by_role("button", name="Pause", exact=True).click()


def tokenized(opened: Opened, text: str) -> list[int]:
    """What the server's tokenizer makes of a text."""
    answer = opened.page.evaluate(
        """async (prompt) => {
          const body = JSON.stringify({ prompt, add_special_tokens: false });
          const headers = { 'content-type': 'application/json' };
          return (await fetch('/tokenize', { method: 'POST', headers, body })).json();
        }""",
        text,
    )
    return answer["tokens"]
