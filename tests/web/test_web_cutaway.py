"""The cutaway in a real browser: every station opens, its numbers are those of a recomputation."""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any

import pytest
from test_web_chat import SEED, ask, changing
from test_web_checks import axe  # noqa: F401

import tiny
from cutaway.views import VIEWS

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Locator, Page, Route

    from conftest import Opened

pytestmark = pytest.mark.slow

NUM_TOKENS = 6
# A phone, a tablet and a desk; tools/pictures.py --axe goes through more.
WINDOWS: tuple[tuple[int, Any], ...] = ((390, "dark"), (768, "light"), (1440, "dark"))
FAULTS = """async () => [
  ...(await axe.run('.cutaway')).violations.map(
    (rule) => `${rule.id}: ${rule.nodes.map((node) => node.target)}`),
  ...[...document.querySelectorAll('.cutaway, .station, article')]
    .filter((each) => each.scrollWidth > each.clientWidth + 1)
    .map((each) => `wider than its window: ${each.className || each.tagName}`)]"""


def look_inside(opened: Opened) -> Page:
    """Have an answer and open it."""
    changing(opened, max_tokens=NUM_TOKENS, ignore_eos=True, temperature=0.8, seed=SEED)
    ask(opened, "What is it?").get_by_role("button", name="Look inside").click()
    opened.page.locator("article[data-view=probabilities][aria-busy=false]").wait_for()
    # It opens behind a word, which an untrained model writes anywhere: tests begin at the first.
    opened.page.get_by_label("Token of the answer").fill("0")
    opened.page.get_by_text(f"token 1 of {NUM_TOKENS}").wait_for()
    opened.page.locator("article[data-view=probabilities][aria-busy=false]").wait_for()
    return opened.page


def station(page: Page, view: str) -> Locator:
    """Go to a station by the map, and wait for what it shows."""
    page.locator(f"nav [data-view={view}]").click()
    shown = page.locator(f"article[data-view={view}][aria-busy=false]")
    shown.wait_for()
    return shown


def copied(page: Page, shown: Locator, what: str) -> str:
    """What one of the copy buttons gives."""
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    shown.get_by_role("button", name=f"Copy {what}").click()
    shown.get_by_text(f"{what} copied").wait_for()
    return page.evaluate("() => navigator.clipboard.readText()")


def facts(shown: Locator) -> dict[str, str]:
    """The numbers that stand first, by their names."""
    names, values = (shown.locator(f"dl {tag}").all_inner_texts() for tag in ("dt", "dd"))
    return dict(zip(names, values, strict=True))


def share(value: float) -> str:
    """A share of 1 as the page writes it, written anew."""
    percent = 100 * value
    if percent > 99.95 and percent < 100:
        return "> 99.9 %"
    if percent >= 10:
        return f"{percent:.{0 if percent >= 99.5 else 1}f} %"
    return f"{float(f'{percent:.2g}'):g} %"


def repeated(ids: list[int]) -> list[dict[str, int]]:
    """Stretches of 1 to 4 tokens, and those among them that began before."""
    found: list[dict[str, int]] = []
    for size in range(1, 5):
        grams = [ids[at : at + size] for at in range(len(ids) - size + 1)]
        again = sum(gram in grams[:at] for at, gram in enumerate(grams))
        found.append({"size": size, "num_all": len(grams), "num_again": again})
    return found


def test_every_station_opens_without_a_fault(opened: Opened, axe: str) -> None:  # noqa: F811
    page = look_inside(opened)
    page.evaluate(axe)
    assert page.locator("nav [data-view]").count() == len(VIEWS)
    for view in VIEWS:
        shown = station(page, view.name)
        assert shown.get_by_role("heading", level=2).inner_text() == view.question
        badge = shown.locator(".badge").inner_text()
        assert badge == "recorded" or badge.startswith("\u2713 exact"), f"{view.name}: {badge}"
        shown.get_by_role("button", name="Numbers", exact=True).click()
        assert shown.locator(".tables table").count() > 0, view.name
        assert page.get_by_role("alert").count() == 0, view.name
        for width, scheme in WINDOWS:
            page.set_viewport_size({"width": width, "height": 800})
            page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            assert page.evaluate(FAULTS) == [], f"{view.name}, {width}, {scheme}"
    assert opened.said == [], "no policy was broken and nothing failed"


def test_numbers_are_those_of_a_recomputation(opened: Opened) -> None:
    page = look_inside(opened)

    told = json.loads(copied(page, station(page, "arithmetic"), "JSON"))
    scaled = [each for each in told["masked"] if each is not None]
    parts = [math.exp(each - max(scaled)) for each in scaled]
    softmax = [share(part / sum(parts)) for part in parts]
    page.get_by_role("button", name=re.compile("^All .* keys")).click()
    rows = page.locator("article tbody tr").all()
    cells = [row.locator("td").nth(4).inner_text() for row in rows]
    assert cells[: len(softmax)] == softmax and set(cells[len(softmax) :]) <= {"0 %"}

    shown = station(page, "probabilities")
    top = json.loads(copied(page, shown, "JSON"))["top"]
    bars = shown.locator("table").first.locator("tr")
    for index, entry in enumerate(top):
        assert bars.nth(index).locator(".told").inner_text() == share(math.exp(entry["logprob"]))
    assert [each["rank"] for each in top] == list(range(1, len(top) + 1))

    shown = station(page, "logits")
    told = json.loads(copied(page, shown, "JSON"))
    row, bars = told["logits"], shown.locator("table").nth(1).locator("tr")
    parts = [math.exp(each - max(row)) for each in row]
    for index, token_id in enumerate(told["top_token_ids"]):
        note = bars.nth(index).locator(".note").inner_text()
        assert note == share(parts[token_id] / sum(parts))
    counts = shown.locator("table").first.locator(".told").all_inner_texts()
    assert sum(int(each.replace(",", "")) for each in counts) == len(row)

    kept = facts(station(page, "pages"))
    config = tiny.config()
    token_bytes = 2 * config["num_hidden_layers"] * config["num_key_value_heads"]
    token_bytes *= config["head_dim"] * 4  # float32
    assert kept["bytes a token"] == f"{token_bytes} B"
    assert float(kept["kept in all"].removesuffix(" KiB")) == pytest.approx(
        int(kept["tokens kept"]) * token_bytes / 1024, rel=5e-3
    )

    shown = station(page, "positions")
    told = json.loads(copied(page, shown, "JSON"))
    shown.get_by_label("Scaling", exact=False).select_option("linear")
    shown.get_by_label("Times as long").fill("4")
    told_turns = shown.get_by_text("Linear: every pair turns slower").inner_text()
    pairs = range(config["head_dim"] // 2)
    full = [math.tau * config["rope_theta"] ** (2 * pair / config["head_dim"]) for pair in pairs]
    length = 4 * told["max_length"]
    plain, slowed = (sum(times * each > length for each in full) for times in (1, 4))
    words = f"Of {length:,} positions {plain} pairs as trained make no full turn, {slowed} scaled"
    assert words in told_turns
    assert "This model adds none" in shown.inner_text()
    scores = shown.locator("tbody td:last-child").all_inner_texts()
    assert len(scores) == 4 and len(set(scores)) == 1, "a shift changes nothing"
    for pair, dial in enumerate(shown.locator("ol svg").all()):
        speed = config["rope_theta"] ** (-2 * pair / config["head_dim"])
        angle = told["position"] * speed % (2 * math.pi)
        label = (dial.get_attribute("aria-label") or "").removesuffix(" radians")
        assert float(label.rpartition(" ")[2]) == pytest.approx(angle, rel=5e-3)


def test_scrubbing_moves_every_station_and_the_address_leads_back(opened: Opened) -> None:
    page = look_inside(opened)
    slider = page.get_by_label("Token of the answer")
    slider.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert "/s/3" in page.url
    shown = station(page, "sampling")
    first = json.loads(copied(page, shown, "JSON"))
    assert first["token"] == 3 and first["is_same"]
    meter = shown.get_by_role("table", name="Stretches of tokens").locator(".note")
    ids = json.loads(copied(page, station(page, "tokens"), "JSON"))["token_ids"]
    assert first["repetition"] == repeated(ids[-NUM_TOKENS:][:4])
    station(page, "sampling")
    told = [f"{each['num_again']} of {each['num_all']}" for each in first["repetition"]]
    assert meter.all_inner_texts() == told
    assert json.loads(copied(page, station(page, "residual"), "JSON"))["position"] == (
        first["draw_effect"]["position"] - 1
    )
    page.locator("nav [data-view=residual]").focus()
    page.keyboard.press("ArrowRight")
    page.locator("article[data-view=drift][aria-busy=false]").wait_for()
    address = page.url
    page.keyboard.press("Escape")
    page.locator(".cutaway").wait_for(state="detached")
    assert "/s/" not in page.url
    page.go_back()
    page.locator("article[data-view=drift]").wait_for()
    assert page.url == address


def test_the_copied_python_gives_this_very_answer(
    opened: Opened, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It names the served model, how it computes, the very prompt and what was drawn with."""
    page = look_inside(opened)
    program = copied(page, station(page, "attention"), "Python")
    ids: list[Any] = json.loads(copied(page, station(page, "tokens"), "JSON"))["token_ids"]
    num_prompt = len(ids) - NUM_TOKENS
    assert f"prompt = {ids[:num_prompt]}" in program
    assert f"temperature=0.8, seed={SEED}, max_tokens={NUM_TOKENS}" in program
    config = tmp_path / "config.json"
    config.write_text(json.dumps(tiny.config(max_position_embeddings=16384)), encoding="utf-8")
    named = program.partition("LLM(")[2].partition(")")[0]
    assert named.endswith(', dtype="float32"')
    scope: dict[str, Any] = {}
    own = f"LLM('random:{config}', dtype='float32', cache_tokens=512)"
    exec(program.replace(f"LLM({named})", own), scope)
    assert [*scope["answer"].prompt_token_ids, *scope["answer"].choices[0].token_ids] == ids
    told = capsys.readouterr().out
    assert told.startswith("exact ") and "attention" in told


def test_raw_frames_are_those_that_were_sent_and_lead_to_their_tokens(opened: Opened) -> None:
    sent: list[str] = []

    def listen(route: Route) -> None:
        own = {"max_tokens": NUM_TOKENS, "ignore_eos": True, "seed": SEED}
        asked = json.loads(route.request.post_data or "")
        response = route.fetch(post_data=json.dumps({**asked, **own}))
        sent.append(response.text())
        route.fulfill(response=response)

    page = opened.page
    page.route("**/v1/chat/completions", listen)
    ask(opened, "What is it?").get_by_role("button", name="Look inside").click()
    page.locator("article[data-view=probabilities][aria-busy=false]").wait_for()
    frames = sent[0].split("\n\n")[:-1]
    assert frames[-1] == "data: [DONE]"
    shown = station(page, "detokenization")
    shown.get_by_text("Raw frames").click()
    raw = shown.get_by_role("region", name="Raw frame")
    raw.wait_for()
    assert facts(shown)["frames"] == str(len(frames))
    rows = shown.get_by_role("table", name="Frames as they came").locator("tbody tr")
    for index, frame in enumerate(frames[: rows.count()]):
        rows.nth(index).get_by_role("button").click()
        shown.get_by_role("heading", name=f"Frame {index + 1} of {len(frames)}").wait_for()
        assert raw.text_content() == f"{frame}\n\n"
        size = int(rows.nth(index).locator("td").nth(2).inner_text().replace(",", ""))
        assert size == len(f"{frame}\n\n".encode())
    tokens = rows.locator("td:nth-child(5)").all_inner_texts()
    carrying = next(index for index, each in enumerate(tokens) if each == "4")
    rows.nth(carrying).get_by_role("button").click()
    page.wait_for_url("**/s/3/**")
    page.reload()
    shown = page.locator("article[data-view=detokenization][aria-busy=false]")
    shown.get_by_text("Raw frames").click()
    shown.get_by_text("this answer's are not here").wait_for()


def test_a_dear_view_tells_its_price_and_is_computed_when_one_agrees(opened: Opened) -> None:
    computed: list[dict[str, Any]] = []

    def dearer(route: Route) -> None:
        """The server's own answer, with the time that a larger model would take."""
        body = json.loads(route.request.post_data or "")
        if not body.get("only_cost"):
            computed.append(body)
            route.continue_()
            return
        told = route.fetch().json()
        assert told["flops"] < 1e9, "a tiny model is never dear"
        route.fulfill(json={**told, "seconds": 2.04, "flops": 7 * 10**9})

    page = look_inside(opened)
    page.route("**/views", dearer)
    page.locator("nav [data-view=residual]").click()
    offer = page.get_by_role("group", name="What this view would take")
    assert re.match(
        r"Ledger at position \d+: \d+ tokens go through the model again, "
        r"about 7 GFLOP, about 2 s on this machine\.",
        offer.inner_text(),
    )
    free = {"tokens", "timeline", "pages", "cost", "characters", "detokenization"}
    assert {each["view"] for each in computed} <= free, "nothing was run before one agreed"
    offer.get_by_role("button", name="Show").click()
    shown = page.locator("article[data-view=residual][aria-busy=false]")
    assert "7 GFLOP, 2.04 s foreseen" in shown.locator(".cost").inner_text()
    assert [each for each in computed if each["view"] not in free] == [computed[-1]]
    station(page, "drift")  # as dear as what was agreed to
    page.locator("nav [data-view=timeline]").click()
    page.locator("article[data-view=timeline][aria-busy=false]").wait_for()
    assert page.get_by_role("alert").count() == 0


def test_heads_that_there_are_can_be_chosen_and_tell_whose_keys_they_read(opened: Opened) -> None:
    page, config = look_inside(opened), tiny.config()
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    for view in ("arithmetic", "positions"):
        station(page, view)
        options = page.get_by_role("combobox", name="Head").locator("option").all_inner_texts()
        keys = [f"{head}, keys {head * groups // heads}" for head in range(heads)]
        assert options == ["auto", *keys]
    page.get_by_role("combobox", name="Head").select_option(str(heads - 1))
    page.locator("article[data-view=positions][aria-busy=false]").wait_for()
    assert json.loads(copied(page, station(page, "arithmetic"), "JSON"))["head"] == heads - 1


def test_a_pinned_view_stays_beside_what_is_looked_at_next(opened: Opened) -> None:
    page = look_inside(opened)
    shown = station(page, "residual")
    shown.get_by_role("button", name="Pin", exact=True).click()
    page.get_by_label("Token of the answer").fill("4")
    sides = [page.get_by_role("region", name=name) for name in ("Pinned", "Shown")]
    articles = [side.locator("article[data-view=residual][aria-busy=false]") for side in sides]
    articles[1].get_by_text(re.compile("Now: position")).wait_for()
    told = [json.loads(copied(page, article, "JSON")) for article in articles]
    assert told[1]["position"] - told[0]["position"] == 4
    assert told[0]["stream"] != told[1]["stream"]
    plots = [article.locator(".plot svg").first for article in articles]
    scales = [plot.locator(".tick").all_text_contents() for plot in plots]
    assert scales[0] == scales[1], "both are drawn to one scale"
    *_, below, top = (float(each.replace(",", "")) for each in scales[0])
    most = max(max(each["stream"]) for each in told)
    assert top <= most < top + (top - below) + 1e-6, "which holds the larger"
    wide, narrow = [side.bounding_box() for side in sides], []
    page.set_viewport_size({"width": 360, "height": 740})
    narrow = [side.bounding_box() for side in sides]
    assert all(wide) and all(narrow)
    assert narrow[0] and narrow[1] and narrow[0]["y"] + narrow[0]["height"] <= narrow[1]["y"]
    page.set_viewport_size({"width": 1280, "height": 800})
    page.locator("nav [data-view=logits]").click()
    sides[1].locator("article[data-view=logits][aria-busy=false]").wait_for()
    page.reload()
    sides[1].locator("article[data-view=logits][aria-busy=false]").wait_for()
    articles[0].wait_for()
    assert json.loads(copied(page, articles[0], "JSON")) == told[0]
    articles[0].get_by_role("button", name="Unpin").click()
    sides[0].wait_for(state="detached")
    assert "/x/" not in page.url


def test_a_finger_points_then_chooses_and_pins_where_it_rests(opened: Opened) -> None:
    page = look_inside(opened)
    page.set_viewport_size({"width": 360, "height": 740})
    sheet = page.locator(".cut").bounding_box()
    assert sheet and sheet["width"] == 360 and sheet["y"] + sheet["height"] == pytest.approx(740)
    assert page.locator(".cut").evaluate("sheet => sheet.scrollWidth") <= 360
    session = page.context.new_cdp_session(page)
    session.send("Emulation.setTouchEmulationEnabled", {"enabled": True})

    def tap(mark: Locator) -> None:
        mark.scroll_into_view_if_needed()
        box = mark.bounding_box()
        assert box
        point = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
        session.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": [point]})
        session.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})

    grid = station(page, "attention").get_by_role("button", name=re.compile("Arrow keys go"))
    tap(grid.first)
    page.locator("article[data-view=attention] .hint").get_by_text(re.compile(":")).first.wait_for()
    assert "/h/" not in page.url, "the first time it points"
    tap(grid.first)
    page.wait_for_url(re.compile("/h/"))
    token = page.get_by_role("group", name="Tokens of prompt and answer").get_by_role("button").last
    token.evaluate(
        """token => token.dispatchEvent(new PointerEvent(
          "contextmenu", {pointerType: "touch", bubbles: true, cancelable: true}))"""
    )
    page.get_by_role("region", name="Pinned").wait_for()
    assert f"~attention~{NUM_TOKENS - 1}~" in page.url
    session.detach()
