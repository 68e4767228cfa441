"""The levers in a real browser: two temperatures in two clicks, and Python finds the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from test_web_chat import ask, changing

import tiny

if TYPE_CHECKING:
    from playwright.sync_api import Locator

    from conftest import Opened

pytestmark = pytest.mark.slow


def enter(opened: Opened, **fields: Any) -> Locator:
    """An answer, and the room of its levers by the button below it."""
    changing(opened, max_tokens=8, temperature=0.8, **fields)
    ask(opened).get_by_role("button", name="Change one thing").click()
    room = opened.page.get_by_role("dialog", name="Levers")
    room.get_by_role("button", name="Compare").wait_for()
    return room


def found_by(program: str, folder: Path) -> Any:
    """What a copied program finds, run in this process over a model of the same weights."""
    config = folder / "config.json"
    config.write_text(json.dumps(tiny.config(max_position_embeddings=16384)), encoding="utf-8")
    name, _, settings = program.partition("LLM(")[2].partition(")")[0].partition(", ")
    assert settings == 'dtype="float32"', "it computes as this server does"
    own = json.dumps(f"random:{config}")
    wanted = program.replace(f"LLM({name}, ", f"LLM({own}, cache_tokens=512, ")
    scope: dict[str, Any] = {}
    exec(wanted.replace(name, own), scope)
    return scope["found"]


def test_two_temperatures_in_two_clicks_are_what_python_finds(
    opened: Opened, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = opened.page
    room = enter(opened)
    room.get_by_role("button", name="Compare").click()
    shown = room.get_by_role("region", name="What the change did")
    shown.get_by_role("heading", name="temperature=0, and nothing else").wait_for()
    assert "infinite in 8 steps" in shown.inner_text(), "greedy takes what could come away"
    room.get_by_label("temperature by slider").fill("1.4")
    room.get_by_role("button", name="Compare").click()
    shown.get_by_role("heading", name="temperature=1.4, and nothing else").wait_for()

    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    shown.get_by_role("button", name="Copy Python").click()
    shown.get_by_text("copied", exact=True).wait_for()
    found = found_by(page.evaluate("() => navigator.clipboard.readText()"), tmp_path)
    assert "temperature=1.4, and nothing else" in capsys.readouterr().out

    for title, pieces in (
        ("As it was", found.recorded_pieces),
        ("With the change", found.changed_pieces),
    ):
        chips = shown.get_by_role("group", name=f"{title}: its tokens").locator(".chip")
        told = [each.removesuffix("parts here").strip("\n") for each in chips.all_inner_texts()]
        assert told == list(pieces)
    assert found.first_difference is not None and found.divergence is not None
    assert f"from token {found.first_difference} of 8" in shown.inner_text()
    assert f"KL {found.divergence.kl.mean():.4g} nats on average" in shown.inner_text()
    measured = shown.get_by_role("table", name="Measured on both sides").inner_text()
    assert f"{found.num_equal_rows} of {found.num_rows}" in measured
    assert (
        f"tokens computed\t{found.recorded.num_computed}\t{found.changed.num_computed}" in measured
    )
    rating = shown.get_by_role("group", name="Rating")
    assert not found.are_whole and "An answer here is cut" in rating.inner_text()
    rating.get_by_role("button", name="With the change").click()
    rating.get_by_role("button", name="As it was").press("Enter")  # heard once, and last
    with page.expect_download() as saved:
        rating.get_by_role("button", name="Save 1 pair").click()
    saved.value.save_as(tmp_path / saved.value.suggested_filename)
    assert [json.loads(line) for line in (tmp_path / "pairs.jsonl").read_text().splitlines()] == [
        {
            "prompt": [{"role": "user", "content": "hello"}],
            "chosen": found.recorded_text,
            "rejected": found.changed_text,
        }
    ]
    shown.get_by_text("Step by step as a table").click()
    assert shown.get_by_role("row").filter(has_text=found.changed_pieces[0]).count()
    assert opened.said == [], "no policy was broken and nothing failed"


def test_comparisons_stay_beside_one_another_and_by_keyboard(opened: Opened) -> None:
    room = enter(opened)
    room.get_by_label("runs of each").fill("1")
    for value in ("0", "1.2"):
        room.get_by_label("temperature by slider").fill(value)
        room.get_by_label("to", exact=True).press("Enter")
        room.get_by_role("heading", name=f"temperature={value}, and nothing else").wait_for()
    lines = room.get_by_role("table", name="Comparisons of this answer")
    lines.get_by_role("button", name="temperature=0", exact=True).press("Enter")
    room.get_by_role("heading", name="temperature=0, and nothing else").wait_for()
    assert lines.get_by_role("button").count() == 2
    room.get_by_label("Change", exact=True).select_option("streaming")
    room.get_by_role("button", name="Compare").press("Enter")
    room.get_by_text("It gives the very same 8 tokens.").wait_for()
    assert "8 of 8" in room.get_by_role("table", name="Measured on both sides").inner_text()
    assert room.locator("option[disabled]").all_inner_texts()[-1] == "model"


def test_a_refusal_is_told_and_one_that_runs_can_be_stopped(opened: Opened) -> None:
    room = enter(opened)
    room.get_by_label("Change", exact=True).select_option("ablate")
    room.get_by_label("to", exact=True).fill("99")
    room.get_by_role("button", name="Compare").click()
    assert "layers from 0 to 1" in room.get_by_role("alert").inner_text()
    opened.page.route("**/compare", lambda route: None)  # as an engine that is busy for ever
    room.get_by_role("button", name="Compare").click()
    room.get_by_text("waiting for the engine").wait_for()
    room.get_by_role("button", name="Stop").click()
    room.get_by_role("button", name="Compare").wait_for()
    assert not room.get_by_role("alert").count()
