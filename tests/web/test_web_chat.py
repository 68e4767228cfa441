"""The page in a real browser, over a real server with a tiny random model."""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Route

    from conftest import Opened

pytestmark = pytest.mark.slow

SEED = 3


def ask(opened: Opened, text: str = "hello") -> Locator:
    """Say something by keyboard and wait for the answer's end; the answer."""
    field = opened.page.get_by_label("Your message")
    field.fill(text)
    opened.page.get_by_role("button", name="Send", disabled=False).wait_for()
    answers = opened.page.get_by_role("article", name="Model")
    before = answers.count()
    field.press("Enter")
    answers.nth(before).get_by_role("button", name="Regenerate").wait_for()
    return answers.nth(before)


def changing(opened: Opened, **fields: Any) -> list[dict[str, Any]]:
    """Add fields to what the page asks from now on; the bodies that it sent itself.

    Answers are drawn with one seed: an untrained model's tokens may be halves of characters or
    take no room, and a test should not meet other ones each time.
    """
    bodies: list[dict[str, Any]] = []

    def change(route: Route) -> None:
        bodies.append(json.loads(route.request.post_data or ""))
        route.continue_(post_data=json.dumps({**bodies[-1], "seed": SEED, **fields}))

    opened.page.route("**/v1/chat/completions", change)
    return bodies


def test_an_answer_streams_and_shows_where_its_time_went(opened: Opened) -> None:
    changing(opened, max_tokens=40, ignore_eos=True)
    answer = ask(opened)
    assert answer.locator("[data-token]").count() > 5
    ribbon = answer.locator(".ribbon").inner_text()
    assert "40 tokens" in ribbon and "tokens/s" in ribbon
    stages = answer.locator(".ribbon").text_content() or ""
    for stage in ("queue", "prefill", "decode"):
        assert stage in stages
    assert opened.page.get_by_role("article", name="You").inner_text() == "hello"


def test_the_policy_holds_and_no_other_host_is_asked(opened: Opened) -> None:
    changing(opened, max_tokens=10)
    ask(opened, "<img src=x onerror=alert(1)><script>alert(2)</script>")
    hosts = {urlsplit(url).netloc for url in opened.asked}
    assert hosts == {urlsplit(opened.url).netloc}
    assert opened.said == [], "no policy was broken and nothing failed"
    assert opened.page.locator("article img, article script").count() == 0
    sent = opened.page.get_by_role("article", name="You").inner_text()
    assert sent == "<img src=x onerror=alert(1)><script>alert(2)</script>"


def test_text_becomes_neither_html_nor_code(opened: Opened) -> None:
    """Even where the page itself tried to."""
    refused = opened.page.evaluate(
        """() => {
          const code = document.createElement('script');
          code.append('window.ran = 1');
          document.body.append(code);
          try { document.body.innerHTML = '<b>x</b>'; return false; } catch { return true; }
        }"""
    )
    assert refused and opened.page.evaluate("() => window.ran") is None
    assert any("TrustedHTML" in line for line in opened.said)


def test_pointing_at_a_token_tells_its_probability_and_alternatives(opened: Opened) -> None:
    events: list[str] = []

    def listen(route: Route) -> None:
        asked = json.loads(route.request.post_data or "")
        response = route.fetch(
            post_data=json.dumps({**asked, "max_tokens": 12, "ignore_eos": True, "seed": SEED})
        )
        events.append(response.text())
        route.fulfill(response=response)

    opened.page.route("**/v1/chat/completions", listen)
    answer = ask(opened)
    token = answer.locator("[data-token]").nth(1)
    token.hover()
    card = opened.page.get_by_role("complementary", name="Token")
    shown = card.locator("p strong").inner_text()
    scored = logprobs(events[-1])[int(token.get_attribute("data-token") or "-1")]
    assert shown == percent(scored["logprob"])
    assert card.locator("tbody tr").count() == 8
    sums = sum(math.exp(each["logprob"]) for each in scored["top_logprobs"])
    assert 0 < sums <= 1 + 1e-6
    opened.page.mouse.move(2, 2)
    card.wait_for(state="detached")


def logprobs(stream: str) -> list[dict[str, Any]]:
    """What the server said of every token."""
    data = [line[6:] for line in stream.splitlines() if line.startswith("data: {")]
    choices = [choice for line in data for choice in json.loads(line)["choices"]]
    return [token for c in choices if c["logprobs"] for token in c["logprobs"]["content"]]


def percent(logprob: float) -> str:
    """A probability as the page writes it, written anew."""
    value = 100 * math.exp(logprob)
    if value < 0.01:
        return "< 0.01 %"
    return f"{value:.{0 if value >= 10 else 1 if value >= 0.1 else 2}f} %"


def test_tokens_are_walked_by_keyboard(opened: Opened) -> None:
    """Over those that show nothing: halves of characters, wherever they stand."""
    words = ("\xc3", "\xa9", "a", "\xe2", "\x82", "\xac", "b", "\xe2")  # a character is a byte
    opened.page.route("**/v1/chat/completions", lambda route: planned(route, words))
    answer = ask(opened)
    assert answer.locator("[data-token]").all_inner_texts() == ["é", "a", "€", "b"]
    box = answer.get_by_role("group", name="Answer")
    for _ in range(8):  # backwards from the message, over the buttons below the answer
        opened.page.keyboard.press("Shift+Tab")
        if box.evaluate("box => box === document.activeElement"):
            break
    chosen = answer.locator(".chosen")
    seen = [chosen.inner_text()]
    assert "%" in answer.locator("[aria-live]").inner_text()
    for key in ("ArrowRight", "ArrowRight", "Home", "ArrowLeft", "End", "ArrowRight", "ArrowLeft"):
        opened.page.keyboard.press(key)
        seen.append(chosen.inner_text())
    assert seen == ["é", "a", "€", "é", "é", "b", "b", "€"]
    opened.page.keyboard.press("Escape")
    chosen.wait_for(state="detached")


def planned(route: Route, words: tuple[str, ...]) -> None:
    """Answer in the server's place with tokens of exactly these bytes."""
    scored = [
        {"token": word, "bytes": list(word.encode("latin-1")), "logprob": -0.5, "top_logprobs": []}
        for word in words
    ]
    text = b"".join(word.encode("latin-1") for word in words).decode("utf-8", "ignore")
    choice = {"delta": {"content": text}, "logprobs": {"content": scored}, "finish_reason": "stop"}
    body = f"data: {json.dumps({'choices': [choice]})}\n\ndata: [DONE]\n\n"
    route.fulfill(content_type="text/event-stream", body=body)


def test_an_answer_is_stopped_where_it_is_and_another_is_made_beside_it(opened: Opened) -> None:
    bodies = changing(opened, max_tokens=12000, ignore_eos=True)
    page = opened.page
    page.get_by_label("Your message").fill("tell me all")
    page.get_by_role("button", name="Send").click()
    # Counted, not looked at: a token of an untrained model may take no room.
    page.wait_for_function("() => document.querySelectorAll('[data-token]').length > 3")
    page.get_by_role("button", name="Stop").click()
    page.get_by_text("Stopped.").wait_for()
    page.unroute("**/v1/chat/completions")
    bodies = changing(opened, max_tokens=5)
    page.get_by_role("button", name="Regenerate").click()
    page.get_by_text("2 / 2").wait_for()
    page.locator(".ribbon").wait_for()
    assert page.get_by_text("Stopped.").count() == 0
    assert page.get_by_role("article", name="Model").count() == 1
    assert [message["role"] for message in bodies[0]["messages"]] == ["user"]
    page.get_by_role("button", name="Earlier answer").click()
    page.get_by_text("Stopped.").wait_for()


def test_a_stopped_answer_tells_what_it_cost(opened: Opened) -> None:
    """The stream ended before its times came: the engine's record has them."""
    changing(opened, max_tokens=12000, ignore_eos=True)
    page = opened.page
    page.get_by_label("Your message").fill("tell me all")
    page.get_by_role("button", name="Send").click()
    page.wait_for_function("() => document.querySelectorAll('[data-token]').length > 3")
    page.get_by_role("button", name="Stop").click()
    ribbon = page.locator(".ribbon")
    ribbon.wait_for()
    answered = re.search(r"answer\s+(\d+) tokens", ribbon.inner_text())
    assert answered is not None and int(answered[1]) >= 4
    gauge = page.locator(".gauge").inner_text().split(" of ")[0]
    assert int(gauge.replace(",", "")) > int(answered[1])


def test_an_answer_that_repeats_itself_ends_and_can_go_on(opened: Opened) -> None:
    """Four times the same 30 tokens; what comes behind them is not shown any more."""
    words = [chr(97 + each % 26) for each in range(30)]
    ids = [*range(200, 203), *[each for _ in range(5) for each in range(30)]]
    scored = [
        {"token": words[each % 30], "token_id": each, "bytes": [97], "logprob": -0.5}
        | {"top_logprobs": []}
        for each in ids
    ]
    chunks = [
        {"choices": [{"delta": {"content": each["token"]}, "logprobs": {"content": [each]}}]}
        for each in scored
    ]
    events = [f"data: {json.dumps(each)}\n\n" for each in chunks]
    opened.page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(content_type="text/event-stream", body="".join(events)),
    )
    page = opened.page
    page.get_by_label("Your message").fill("again?")
    page.get_by_role("button", name="Send").click()
    page.get_by_text("the model says the same over and over").wait_for()
    assert page.get_by_role("button", name="Go on").is_visible()
    assert page.get_by_role("alert").count() == 0
    assert page.get_by_role("article", name="Model").get_by_role("group").inner_text() != ""


def test_a_refusal_is_told_in_the_servers_words(opened: Opened) -> None:
    changing(opened, max_tokens=-2)
    answer = ask(opened)
    assert "max_tokens is -2" in answer.get_by_role("alert").inner_text()


def test_without_the_cookie_the_page_says_what_it_lacks(chromium: Browser, opened: Opened) -> None:
    stranger = chromium.new_context()
    stranger.set_default_timeout(120_000)
    page = stranger.new_page()
    page.goto(opened.url)
    page.get_by_text("asks for a key").wait_for()
    assert page.get_by_role("button", name="Send").is_disabled()
    stranger.close()


@pytest.mark.parametrize("width", [1280, 360])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_its_window(opened: Opened, width: int, scheme: Any, tmp_path: Path) -> None:
    """CUTAWAY_SCREENSHOTS names a folder that keeps the pictures."""
    page = opened.page
    page.set_viewport_size({"width": width, "height": 740})
    page.emulate_media(color_scheme=scheme)
    changing(opened, max_tokens=60, ignore_eos=True)
    page.get_by_role("button", name="Confidence").click()
    ask(opened, "What is gravity?").locator("[data-token]").nth(4).hover()
    page.get_by_role("complementary", name="Token").wait_for()
    folder = Path(os.environ.get("CUTAWAY_SCREENSHOTS", tmp_path))
    page.screenshot(path=folder / f"chat-{scheme}-{width}.png")
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width
    edge = page.get_by_role("complementary", name="Token").bounding_box()
    assert edge and edge["x"] >= 0 and edge["x"] + edge["width"] <= width
    assert edge["y"] >= 0 and edge["y"] + edge["height"] <= 740
