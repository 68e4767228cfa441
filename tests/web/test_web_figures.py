"""Figures of stations in a real browser: they draw what the views tell, and keys move them."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from test_web_cutaway import copied, facts, look_inside, share, station

import tiny

if TYPE_CHECKING:
    from conftest import Opened

pytestmark = pytest.mark.slow


def number(text: str) -> float:
    """A number as the page writes it."""
    return float(text.replace(",", "").replace("\u2212", "-"))


def test_forms_of_attention_stand_side_by_side_with_this_models_bytes(opened: Opened) -> None:
    page = look_inside(opened)
    own = facts(station(page, "pages"))["bytes a token"]
    shown = station(page, "attention")
    forms = shown.locator("li").filter(has_text="a token")
    assert forms.count() == 4
    mine = forms.filter(has_text="this model")
    assert mine.count() == 1 and f"{own} a token" in mine.inner_text()
    config = tiny.config()
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    whole = int(own.split()[0]) * heads // groups
    assert f"{whole} B a token" in forms.nth(0).inner_text(), "a head with notes of its own"
    drawn = forms.nth(0).get_by_role("img").get_attribute("aria-label")
    assert drawn == f"{heads} heads read {heads} sets of keys and values"
    window = forms.nth(3).locator("strong")
    before, all_kept = window.inner_text(), mine.locator("strong").inner_text()
    shown.get_by_label("Tokens so far").focus()
    page.keyboard.press("End")
    assert window.inner_text() == before, "a window is full"
    assert mine.locator("strong").inner_text() != all_kept, "what sees all grows"


def test_text_becomes_pieces_then_ids_and_ids_become_text(opened: Opened) -> None:
    page = look_inside(opened)
    shown = station(page, "tokens")
    told = json.loads(copied(page, shown, "JSON"))
    cards = shown.get_by_role("list", name="The text, piece by piece").locator("li")
    seen = cards.locator("[aria-hidden=false]")
    assert "".join(seen.all_inner_texts()) in "".join(told["texts"])
    shown.get_by_role("button", name="Ids", exact=True).press("Enter")
    ids = [int(each) for each in seen.all_inner_texts()]
    at = next(i for i in range(len(told["token_ids"])) if told["token_ids"][i:][: len(ids)] == ids)
    shown.get_by_role("button", name="Letters", exact=True).press("Enter")
    assert seen.all_inner_texts() == told["texts"][at : at + len(ids)]

    shown = station(page, "detokenization")
    rows = json.loads(copied(page, shown, "JSON"))["rows"]
    for step in (0, 3, 5):
        page.get_by_label("Token of the answer").fill(str(step))
        cards = shown.get_by_role("list", name=re.compile("^Ids and text")).locator("li")
        cards.nth(step).and_(page.locator(".own")).wait_for()
        sides = [each["text"] if each["token"] <= step else str(each["token_id"]) for each in rows]
        assert cards.locator("[aria-hidden=false]").all_inner_texts() == sides


def test_what_this_model_lacks_is_played_from_a_record_and_says_so(opened: Opened) -> None:
    page = look_inside(opened)
    shown = station(page, "speculation")
    assert "Recorded, not this answer" in shown.inner_text()
    guesses = shown.get_by_role("list", name="Guesses of this step").locator("li")
    looks = set[str]()
    on = shown.get_by_role("button", name="On", exact=True)
    on.focus()
    while on.is_enabled():
        page.keyboard.press("Enter")
        looks |= set(guesses.locator("small").all_inner_texts())
    assert {"guessed", "\u2713 stands", "\u2717 struck out", "not looked at"} <= looks

    shown = station(page, "experts")
    assert "Recorded, not this model" in shown.inner_text()
    way = shown.locator("figure svg[role=img]")
    first = way.get_attribute("aria-label")
    shown.get_by_role("button", name="On", exact=True).press("Enter")
    assert way.get_attribute("aria-label") != first
    assert way.locator("rect.lit").count() == 4 * 2, "two experts in each of four layers"


def test_strategies_stand_side_by_side_over_one_row(opened: Opened) -> None:
    page = look_inside(opened)
    shown = station(page, "sampling")
    told = json.loads(copied(page, shown, "JSON"))
    table = shown.get_by_role("table", name=re.compile("^One row of chances"))
    rows = table.locator("tbody tr")
    for row in range(rows.count()):
        cells = rows.nth(row).locator("td").all_inner_texts()
        for cell, each in zip(cells, told["strategies"], strict=True):
            chance = each["probabilities"][row]
            assert cell == share(chance) if chance else cell in ("cut", "\u2248 0")
    drawn = table.locator("tfoot tr").last.locator("td").all_inner_texts()
    assert drawn == [each["text"] for each in told["strategies"]]


def test_a_layer_opens_as_blocks_that_lead_to_their_stations(opened: Opened) -> None:
    page = look_inside(opened)
    shown = station(page, "residual")
    told = json.loads(copied(page, shown, "JSON"))
    shown.get_by_role("button", name=re.compile("^layer 1: attention adds")).press("Enter")
    blocks = shown.get_by_role("group", name=re.compile("^Layer 1 as blocks"))
    blocks.wait_for()
    adds = re.search(r"adds ([\d.,]+)", blocks.locator(".attention").inner_text())
    assert adds and number(adds[1]) == pytest.approx(told["attention"][1], rel=6e-3)
    blocks.get_by_role("button", name=re.compile("^Feed-forward")).press("Enter")
    opened_there = page.locator("article[data-view=feedforward][aria-busy=false]")
    opened_there.wait_for()
    assert json.loads(copied(page, opened_there, "JSON"))["layer"] == 1


def test_one_unit_one_query_and_one_row_are_worked_out(opened: Opened) -> None:
    page = look_inside(opened)
    shown = station(page, "feedforward")
    shown.get_by_role("group", name="Units that add most").get_by_role("button").nth(2).click()
    parts = [number(each) for each in shown.locator(".part strong").all_inner_texts()]
    told = json.loads(copied(page, shown, "JSON"))
    assert parts[0] == pytest.approx(told["gate"][2], rel=6e-3)
    assert parts[1] * parts[2] == pytest.approx(parts[3], rel=2e-2), "open times up"

    shown = station(page, "arithmetic")
    told = json.loads(copied(page, shown, "JSON"))["projection"]
    rows = shown.locator("figure ol li").filter(has_text=re.compile(r"^x|more")).locator("b")
    terms = [number(each) for each in rows.all_inner_texts()]
    assert sum(terms) == pytest.approx(told["value"], abs=2e-2 * sum(map(abs, terms)))

    shown = station(page, "embeddings")
    told = json.loads(copied(page, shown, "JSON"))
    drawn = shown.locator("figure svg[role=img]").first.get_attribute("aria-label")
    assert drawn == f"Row {told['token_ids'][0]:,} of {told['vocab_size']:,}, to scale"


def test_the_whole_way_has_this_answers_times_and_leads_to_its_stations(opened: Opened) -> None:
    page = look_inside(opened)
    shown = station(page, "cost")
    told = json.loads(copied(page, shown, "JSON"))
    way = shown.get_by_role("region", name="The whole way")
    laps = way.locator("button.lap")
    assert laps.count() == len(told["stages"]) - 1, "all but the text"
    page.emulate_media(reduced_motion="reduce")
    way.get_by_role("button", name="Next scene").click()
    assert "attention" in way.locator(".told").inner_text()
    laps.filter(has_text="the draw").press("Enter")
    page.locator("article[data-view=sampling][aria-busy=false]").wait_for()


def test_five_steps_end_with_the_shares_of_the_table(opened: Opened) -> None:
    page = look_inside(opened)
    shown = station(page, "arithmetic")
    told = json.loads(copied(page, shown, "JSON"))
    page.emulate_media(reduced_motion="reduce")
    film = shown.get_by_role("region", name="Attention in five steps")
    film.get_by_role("button", name="4 Share out").press("Enter")
    weights = told["weights"]
    best = max(range(len(weights)), key=weights.__getitem__)
    assert f"gets {share(weights[best])}" in film.locator(".caption").inner_text()
    shares = film.locator(".share small").all_inner_texts()
    seen = {share(each) for each in weights[: told["position"] + 1]} | {"0 %"}
    assert set(shares) <= seen and share(weights[best]) in shares
