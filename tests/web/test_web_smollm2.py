"""The whole page over SmolLM2 itself: from a question to a file that opens without a server."""

from __future__ import annotations

import itertools
import json
import math
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from test_web_chat import changing
from test_web_cutaway import copied, facts

from conftest import ENGINEER, PATIENCE_MS, Opened
from cutaway.core.request import SamplingParams
from cutaway.host.gguf_file import read as read_gguf
from cutaway.sampling.candidates import SamplerRow
from cutaway.sampling.sampler import Sampler
from cutaway.sampling.uniform import uniform
from cutaway.trace.file import read
from cutaway.views import VIEWS
from oracles import smollm2_gguf
from program import command, environment

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

pytestmark = [pytest.mark.oracle, pytest.mark.slow]

NUM_TOKENS = 64
STEP = 3  # the token of the answer that is looked at
WORD = "gravitational"
COUNTS = """() => {
  window.counts = new Set();
  const count = () => window.counts.add(document.querySelectorAll('[data-token]').length);
  new MutationObserver(count).observe(document.body, {childList: true, subtree: true});
}"""
DIGITS = 0.05  # a share is told with two digits, 0.13 %


@dataclass
class Served:
    """The program over the real model, and a page of it that may outlive it."""

    process: subprocess.Popen[str]
    opened: Opened


@pytest.fixture
def served(chromium: Browser) -> Iterator[Served]:
    settings = ("--cache-tokens", "4096", "--no-open")
    process = subprocess.Popen(
        command("run", str(smollm2_gguf()), *settings),
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
    )
    context = chromium.new_context(viewport={"width": 1280, "height": 800}, reduced_motion="reduce")
    context.set_default_timeout(PATIENCE_MS)
    context.add_init_script(ENGINEER)
    try:
        assert process.stderr is not None
        said = (re.search(r"Its page: (\S+)", line) for line in process.stderr)
        opened = Opened(context.new_page(), next(found[1] for found in said if found))
        opened.page.on("console", lambda told: opened.said.append(f"{told.type}: {told.text}"))
        opened.page.on("pageerror", lambda error: opened.said.append(f"fault: {error}"))
        opened.page.goto(opened.url)
        yield Served(process, opened)
    finally:
        context.close()
        process.kill()
        process.communicate()


def test_from_a_question_to_a_file_that_opens_without_a_server(
    served: Served, tmp_path: Path
) -> None:
    opened, page = served.opened, served.opened.page
    watch_it_stream(opened)
    page.get_by_role("button", name="Look inside").click()
    open_every_station(page)
    scrub(page)
    bars = numbers_are_those_of_a_recomputation(page)
    file = save(page, tmp_path / "answer.cutaway")
    compare_two_temperatures(page)
    branch_at_a_token(page)
    assert opened.said == [], "no policy was broken and nothing failed"

    opening = enter(page, "open", "Open a trace")
    field = opening.locator("input[type=file]")
    field.wait_for()
    served.process.kill()
    served.process.wait()
    field.set_input_files(file)
    opening.locator("nav [data-view=probabilities]").click()
    opening.locator("article[data-view=probabilities]").wait_for()
    assert opening.locator("article .told").all_inner_texts() == bars, "as it was served"
    for view in VIEWS:
        opening.locator(f"nav [data-view={view.name}]").click()
        shown = opening.locator(f"article[data-view={view.name}]")
        assert shown.get_by_role("heading", level=2).inner_text() == view.question


def station(page: Page, view: str) -> Locator:
    """Go to a station by the map, and agree to its price where the machine is too busy."""
    page.locator(f"nav [data-view={view}]").click()
    shown = page.locator(f"article[data-view={view}][aria-busy=false]")
    price = page.get_by_role("group", name="What this view would take")
    shown.or_(price).first.wait_for()
    if price.count():
        price.get_by_role("button", name="Show").click()
    shown.wait_for()
    return shown


def watch_it_stream(opened: Opened) -> None:
    changing(opened, max_tokens=NUM_TOKENS, ignore_eos=True)
    page = opened.page
    page.evaluate(COUNTS)
    field = page.get_by_label("Your message")
    field.fill("What is gravity?")
    page.get_by_role("button", name="Send", disabled=False).wait_for()
    field.press("Enter")
    page.get_by_role("button", name="Regenerate").wait_for()
    assert page.evaluate("() => window.counts.size") > 4, "not all at once"
    assert "gravity" in page.get_by_role("article", name="Model").inner_text().lower()


def open_every_station(page: Page) -> None:
    for view in VIEWS:
        shown = station(page, view.name)
        assert shown.get_by_role("heading", level=2).inner_text() == view.question
        badge = shown.locator(".badge").inner_text()
        assert badge == "recorded" or badge.startswith("\u2713 exact"), f"{view.name}: {badge}"


def scrub(page: Page) -> None:
    page.get_by_label("Token of the answer").focus()
    page.keyboard.press("Home")  # it opened at the token after a word
    for _ in range(STEP):
        page.keyboard.press("ArrowRight")
    assert f"/s/{STEP}" in page.url
    assert json.loads(copied(page, station(page, "sampling"), "JSON"))["token"] == STEP


def numbers_are_those_of_a_recomputation(page: Page) -> list[str]:
    """Gives what stands at the bars of the likeliest tokens."""
    row = json.loads(copied(page, station(page, "logits"), "JSON"))
    logits = np.array([-np.inf if each is None else each for each in row["logits"]])
    chances = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    shown = station(page, "probabilities")
    bars = shown.locator(".told").all_inner_texts()
    best = np.lexsort((np.arange(len(logits)), -logits))[:10]
    top = json.loads(copied(page, shown, "JSON"))["top"]
    assert [each["token_id"] for each in top] == best.tolist()
    for bar, token_id in zip(bars, best, strict=False):
        assert percent(bar) == pytest.approx(100 * chances[token_id], rel=DIGITS)
    assert redrawn(row) == row["recorded"]

    told = json.loads(copied(page, station(page, "arithmetic"), "JSON"))
    scaled = np.array([-np.inf if each is None else each for each in told["masked"]])
    weights = np.exp(scaled - scaled.max()) / np.exp(scaled - scaled.max()).sum()
    page.get_by_role("button", name=re.compile("^All .* keys")).click()
    cells = [each.locator("td").nth(4) for each in page.locator("article tbody tr").all()]
    softmax = [percent(each.inner_text()) for each in cells]
    assert softmax == pytest.approx((100 * weights).tolist(), rel=DIGITS, abs=1e-6)

    shown = station(page, "positions")
    scores = shown.locator("tbody td:last-child").all_inner_texts()
    assert len(scores) == 4 and len(set(scores)) == 1, "a shift changes nothing"
    position = json.loads(copied(page, shown, "JSON"))["position"]
    label = shown.locator("ol svg").nth(1).get_attribute("aria-label") or ""
    angle = position * 100_000 ** (-2 / 64) % (2 * math.pi)
    assert float(label.split()[-2]) == pytest.approx(angle, rel=5e-3)

    kept = facts(station(page, "pages"))
    token_bytes = 2 * 30 * 3 * 64 * 2  # key and value, layers, heads, width, float16
    assert kept["bytes a token"] == f"{token_bytes / 1024:g} KiB"
    num_kept = int(kept["tokens kept"])
    assert percent(kept["kept in all"]) == pytest.approx(num_kept * token_bytes / 2**20, rel=5e-3)

    shown = station(page, "merges")
    page.get_by_label("Words to look at").fill(WORD)
    page.get_by_role("button", name="Look", exact=True).click()
    shown.locator(".finding").get_by_text(f"\u201c{WORD}\u201d became").wait_for()
    (piece,) = json.loads(copied(page, shown, "JSON"))["pieces"]
    assert [(each["left"], each["right"]) for each in piece["steps"]] == merges(WORD)
    page.get_by_role("button", name="Back to the answer").click()
    return bars


def percent(text: str) -> float:
    """The number of a text like 80.5 %, or 1.2\u00d710\u207b\u2077 %."""
    plain = text.replace("\u00d710", "e").translate(
        str.maketrans(
            "\u207b\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079", "-0123456789"
        )
    )
    return float(plain.strip("> ").split()[0])


def redrawn(row: dict[str, Any], **other: float) -> int:
    """What Python draws from a row of the page with the same u and perhaps other settings."""
    settings = {**row["settings"], **other}
    drawn = SamplerRow(
        params=SamplingParams(**settings),
        seed=int(row["seed"]),
        choice=row["choice"],
        position=row["position"],
    )
    assert uniform(drawn.seed, choice=drawn.choice, position=drawn.position) == row["u"]
    logits = torch.tensor([row["logits"]], dtype=torch.float32)
    (sampled,) = Sampler(logits.shape[1]).sample(logits, [drawn])
    assert sampled.token_id is not None
    return sampled.token_id


def merges(word: str) -> list[tuple[str, str]]:
    """Byte pair encoding from its definition: always the neighbours that were learned first."""
    pairs = read_gguf(smollm2_gguf()).strings("tokenizer.ggml.merges")
    ranks = {tuple(pair.split(" ")): rank for rank, pair in enumerate(pairs)}
    parts, steps = list(word), list[tuple[str, str]]()
    while True:
        found = [
            (ranks[pair], at) for at, pair in enumerate(itertools.pairwise(parts)) if pair in ranks
        ]
        if not found:
            return steps
        at = min(found)[1]
        steps.append((parts[at], parts[at + 1]))
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


def save(page: Page, path: Path) -> Path:
    """Save by the page's button; Python reads the same from the file."""
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Save", exact=True).click()
    waiting.value.save_as(path)
    trace = read(path)
    assert {view.name for view in trace.views} == {view.name for view in VIEWS}
    answer = trace.section("answer")
    assert (answer["num_tokens"], answer["finish_reason"]) == (NUM_TOKENS, "length")
    assert str(trace.of_kind("end")[0]["text"]).startswith("Gravity")
    return path


def enter(page: Page, room: str, title: str) -> Locator:
    """Enter a room, with the answer that is looked at behind it."""
    page.evaluate("room => void (location.hash = `#/room/${room}${location.hash.slice(1)}`)", room)
    dialog = page.get_by_role("dialog", name=title)
    dialog.get_by_role("heading", name=title, exact=True).wait_for()
    return dialog


def compare_two_temperatures(page: Page) -> None:
    """In the lab, with the same u: what is drawn is what Python draws."""
    row = json.loads(copied(page, station(page, "logits"), "JSON"))
    lab = enter(page, "lab", "Sampling lab")
    lab.get_by_text(f"position {row['position']}:").wait_for()
    lab.get_by_text("It is the token that was served.").wait_for()
    lab.get_by_label("Top p").fill("1")
    for temperature in (0.5, 1.5):
        lab.get_by_label("Temperature").fill(str(temperature))
        token_id = redrawn(row, temperature=temperature, top_p=1.0)
        text = read_gguf(smollm2_gguf()).strings("tokenizer.ggml.tokens")[token_id]
        assert lab.locator(".verdict .big").inner_text() == text.replace("\u0120", "\u00b7")
    page.keyboard.press("Escape")
    lab.wait_for(state="detached")


def branch_at_a_token(page: Page) -> None:
    token = page.get_by_role("article", name="Model").locator("[data-token]").nth(STEP)
    token.click()
    card = page.get_by_role("complementary", name="Token")
    card.get_by_role("button", name="Look inside").wait_for()
    card.locator("tbody button").first.click()
    page.get_by_text("2 / 2").wait_for()
    page.get_by_text(f"Branched at token {STEP + 1}").wait_for()
    page.get_by_role("button", name="Regenerate").wait_for()
