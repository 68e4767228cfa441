"""The rooms beside the chat in a real browser: lab, engine, player and trace files."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from test_web_chat import ask, changing

from cutaway.trace.difference import difference
from cutaway.trace.file import read
from house_tree import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

    from conftest import Opened

pytestmark = pytest.mark.slow
FILES = ROOT / "tests" / "trace" / "files"


def explore(page: Page, name: str) -> None:
    """Enter a room by the menu that tells of them all."""
    page.get_by_text("Explore", exact=True).click()
    page.get_by_role("link", name=re.compile(f"^{name}")).click()


def room(opened: Opened, name: str, title: str) -> Locator:
    """Enter a room."""
    opened.page.evaluate("name => void (location.hash = `#/room/${name}`)", name)
    dialog = opened.page.get_by_role("dialog", name=title)
    dialog.get_by_role("heading", name=title, exact=True).wait_for()
    return dialog


def test_the_lab_draws_what_the_engine_drew_and_what_it_would(opened: Opened) -> None:
    changing(opened, max_tokens=6, ignore_eos=True, temperature=0.8, top_p=0.9)
    ask(opened)
    explore(opened.page, "Sampling lab")
    lab = opened.page.get_by_role("dialog", name="Sampling lab")
    told = lab.get_by_text("it stays the same while you turn the knobs").inner_text()
    token = int(lab.get_by_label("Token of the answer").input_value())
    first = int(told.partition("position ")[2].partition(":")[0]) - token
    for token in range(1, 5):  # counted from 1, as everywhere
        lab.get_by_label("Token of the answer").fill(str(token))
        lab.get_by_text(f"position {first + token}:").wait_for()
        lab.get_by_text("It is the token that was served.").wait_for()
    meter = lab.get_by_role("table", name="Stretches of tokens").locator(".note")
    assert [each.partition(" of ")[2] for each in meter.all_inner_texts()] == ["4", "3", "2", "1"]
    lab.get_by_label("Temperature").fill("0")
    lab.get_by_text("is taken: the largest logit, without any draw.").wait_for()
    lab.get_by_role("button", name="As it was served").click()
    lab.get_by_text("It is the token that was served.").wait_for()
    lab.get_by_role("button", name="Branch from here").click()
    lab.wait_for(state="detached")
    opened.page.get_by_text("2 / 2").wait_for()
    assert opened.said == [], "no policy was broken and nothing failed"


def test_the_engine_tells_its_pages_and_escape_leads_out(opened: Opened) -> None:
    engine = room(opened, "engine", "Engine")
    told = engine.get_by_role("img").first
    told.wait_for()
    assert "pages in use" in (told.get_attribute("aria-label") or "")
    opened.page.keyboard.press("Escape")
    engine.wait_for(state="detached")


def test_a_vocabulary_is_learned_and_walked_by_keyboard(opened: Opened) -> None:
    learn = room(opened, "bpe", "Learn a vocabulary")
    learn.get_by_label("A text").fill("abababab")
    learn.get_by_role("button", name="Learn").click()
    learn.get_by_text("0 of 3").wait_for()
    learn.get_by_label("Merges done").press("End")
    learn.get_by_text("3 of 3").wait_for()
    assert "A vocabulary of 259: no pair is left. The text has 1 token," in learn.inner_text()
    size = learn.get_by_label("Size of the vocabulary")
    size.fill("258")
    size.dispatch_event("change")
    learn.get_by_text("2 of 2").wait_for()
    assert "A vocabulary of 258. The text has 2 tokens" in learn.inner_text()


def test_a_trace_file_opens_and_another_file_is_refused(opened: Opened) -> None:
    opening = room(opened, "open", "Open a trace")
    field = opening.locator(".drop input[type=file]")
    field.set_input_files(FILES / "schema_1.cutaway")
    opening.get_by_role("heading", name="Into which pieces is the text cut?").wait_for()
    opening.get_by_role("button", name="Timeline").click()
    opening.locator("article[data-view=timeline]").wait_for()
    field.set_input_files(ROOT / "README.md")
    assert "no zip" in opening.get_by_role("alert").inner_text()


def test_two_trace_files_differ_as_python_finds(opened: Opened) -> None:
    files = [FILES / f"schema_1{minor}.cutaway" for minor in ("", "_minor_1")]
    told = difference(*map(read, files))
    assert told.same_prompt and told.first_token is not None and told.texts and told.settings
    opening = room(opened, "open", "Open a trace")
    opening.locator(".drop input[type=file]").set_input_files(files[0])
    opening.get_by_text("Set another trace beside it").click()
    other = opening.get_by_label("Another trace")
    other.set_input_files(files[1])
    said = opening.get_by_role("status").filter(has_text="The same was asked.")
    assert f"part at token {told.first_token + 1}: " in said.inner_text()
    assert said.locator(".mark").all_inner_texts() == list(told.texts)
    rows = opening.locator("details tbody tr")
    shown = [each.locator("th, td").all_inner_texts() for each in rows.all()]
    wanted = [[n.replace(".", " "), json.dumps(a), json.dumps(b)] for n, a, b in told.settings]
    assert sorted(shown) == sorted(wanted)
    other.set_input_files(files[0])
    opening.get_by_text("Their answers do not part.").wait_for()


def test_a_room_without_an_answer_asks_for_one(opened: Opened) -> None:
    changing(opened, max_tokens=4, ignore_eos=True)
    lab = room(opened, "lab", "Sampling lab")
    lab.get_by_role("button", name="Ask \u201cWhat is gravity?\u201d").click()
    lab.get_by_text("It is the token that was served.").wait_for()


def test_a_room_and_all_behind_it_survive_a_reload(opened: Opened) -> None:
    changing(opened, max_tokens=4, ignore_eos=True)
    ask(opened).get_by_role("button", name="Look inside").click()
    page = opened.page
    page.locator("nav [data-view=attention]").click()
    page.get_by_role("combobox", name="Layer").select_option("1")
    page.get_by_role("combobox", name="Head").select_option("1")
    page.get_by_label("Token of the answer").fill("2")
    page.locator("article[data-view=attention][aria-busy=false]").wait_for()
    behind = page.url.partition("#/")[2]
    assert behind.endswith("/s/2/v/attention/l/1/h/1")
    explore(page, "Sampling lab")
    page.get_by_role("dialog", name="Sampling lab").get_by_role("link", name="Engine").click()
    page.get_by_role("dialog", name="Engine").wait_for()
    assert page.url.partition("#/")[2] == f"room/engine/{behind}"
    page.reload()
    page.get_by_role("dialog", name="Engine").get_by_role("img").first.wait_for()
    page.keyboard.press("Escape")
    page.locator("article[data-view=attention][aria-busy=false]").wait_for()
    assert page.url.partition("#/")[2] == behind
    assert page.get_by_role("combobox", name="Head").input_value() == "1"
    page.go_back()
    page.get_by_role("dialog", name="Engine").wait_for()
