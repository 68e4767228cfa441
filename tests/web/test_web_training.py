"""The room Training in a real browser: it invites, and then follows a run while it is made."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from test_web_chat import ask
from test_web_checks import axe, violations  # noqa: F401
from test_web_rooms import room

from cutaway.host.run_record import Record

if TYPE_CHECKING:
    from playwright.sync_api import Route

    from conftest import Opened

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def emptied(runs: Path) -> Iterator[None]:
    """Runs of one test are not those of the next."""
    yield
    for each in runs.iterdir():
        shutil.rmtree(each)


def row(update: int) -> dict[str, object]:
    return {
        "update": update,
        "loss": 4 - update / 20,
        "count": 100,
        "norm": 1 + update % 3,
        "rate": 1e-3,
        "seconds": 0.5,
        "figures": {"reward": update / 50, "k3_of_answer": update / 100, "ended": None},
        "norms": {"embedding": 0.5, "blocks.0": 0.01 * (1 + update)},
        "measured": {"held_out_loss": 4.0} if update % 10 == 9 else {},
        "samples": [["Once", f" upon {update}"]] if update % 10 == 9 else [],
    }


def test_a_run_is_watched_as_it_goes(opened: Opened, runs: Path, axe: str) -> None:  # noqa: F811
    dialog = room(opened, "training", "Training")
    dialog.get_by_text("cutaway train bpe vocabulary.toml").wait_for()
    recorded = dialog.get_by_role("region", name="Recorded training")
    for stage in ("1 Text", "2 Answers", "3 Reward model", "4 PPO", "or DPO"):
        recorded.get_by_role("button", name=stage).click()
        recorded.get_by_role("img", name=re.compile("^Loss: ")).wait_for()
    clock = recorded.get_by_role("slider")
    clock.focus()
    opened.page.keyboard.press("Home")
    recorded.get_by_text(re.compile(r"^2 of \d+ updates")).wait_for()
    recorded.get_by_role("button", name="Play").click()
    recorded.get_by_text(re.compile(r"^([4-9]|\d\d+) of \d+ updates")).wait_for()
    recorded.get_by_role("button", name="Pause").click()
    opened.page.emulate_media(reduced_motion="reduce")
    assert violations(opened.page, axe) == [], "recorded"
    record = Record(runs / "leash")
    record.path.parent.mkdir()
    told = {"stage": "ppo", "settings": {"updates": 40}, "device": "cpu"}
    (runs / "leash" / "run.json").write_text(json.dumps(told), encoding="utf-8")
    dialog.get_by_text("No update is done yet").wait_for()
    assert recorded.count() == 0, "there are own runs to see"
    for update in range(20):
        record.add(row(update))
    dialog.get_by_text("20 of 40 updates, about 10 s left").wait_for()
    dialog.get_by_role("img", name="Loss: 4 at update 1, 3.05 at 20").wait_for()
    for update in range(20, 40):
        record.add(row(update))
    (runs / "leash" / "model").mkdir()
    dialog.get_by_role("img", name="Loss: 4 at update 1, 2.05 at 40").wait_for()
    dialog.get_by_role("img", name="Reward against KL: 0 at KL, k3 0, 0.78 at 0.39").wait_for()
    dialog.get_by_role("img", name=re.compile("2 parts over 40 updates")).wait_for()
    dialog.get_by_text("Once upon 39").wait_for()
    dialog.get_by_role("cell", name="done").wait_for()
    for scheme in ("light", "dark"):
        opened.page.emulate_media(color_scheme=scheme)
        assert violations(opened.page, axe) == [], scheme
    (runs / "leash" / "run.json").write_text("?", encoding="utf-8")
    dialog.get_by_role("cell", name="leash/run.json does not say what run this is.").wait_for()

    # Odd runs take nothing of the others away: names that are one as text, rows of a few numbers.
    for name in (b"caf\xe9", b"caf\xe8"):
        odd = Record(runs / os.fsdecode(name))
        odd.path.parent.mkdir()
        (odd.path.parent / "run.json").write_text(json.dumps(told), encoding="utf-8")
        odd.path.write_text('{"update": 0, "loss": 1}\n{"update": 0, "loss": 1.0000000000000002}\n')
    opened.page.route(re.compile("/runs$"), more)
    dialog.get_by_text("3 more runs lie in the folder").wait_for()
    odd_runs = dialog.get_by_role("button", name="caf\ufffd")
    assert odd_runs.count() == 2
    odd_runs.first.click()
    dialog.get_by_role("img", name="Loss: 1 at update 1, 1 at 1").wait_for()
    assert opened.said == []


def more(route: Route) -> None:
    """As if more runs lay in the folder than are listed."""
    told = route.fetch().json()
    route.fulfill(json={**told, "left_out": 3})


def test_a_lesson_is_begun_by_keyboard_watched_and_stopped(
    opened: Opened,
    runs: Path,
    axe: str,  # noqa: F811
) -> None:
    dialog = room(opened, "training", "Training")
    form = dialog.get_by_role("form", name="Train one now")
    form.get_by_label("Learning rate").select_option("0.03")
    form.get_by_role("button", name="Train").focus()
    opened.page.keyboard.press("Enter")
    form.get_by_text("lesson is being made.").wait_for()
    dialog.get_by_role("button", name="lesson-pretrain").wait_for()
    dialog.get_by_role("heading", name="lesson-pretrain: pretrain").wait_for()
    dialog.get_by_text(re.compile(r"^\d+ of 400 updates")).wait_for()
    dialog.get_by_text(re.compile("What it learns from")).wait_for()
    assert dialog.locator("mark").first.inner_text().startswith("Which word is last: ")
    dialog.get_by_text("Update 20", exact=True).wait_for()
    told = json.loads((runs / "lesson-pretrain" / "run.json").read_text("utf-8"))
    assert told["settings"]["rate"] == 0.03
    opened.page.emulate_media(reduced_motion="reduce")
    assert violations(opened.page, axe) == []
    form.get_by_role("button", name="Stop").focus()
    opened.page.keyboard.press("Enter")
    form.get_by_role("button", name="Train").wait_for()
    assert opened.said == []


def test_the_lesson_of_the_chapter_goes_from_stage_to_stage(opened: Opened, runs: Path) -> None:
    """What a lesson writes down, stage by stage, as it would come: the chapter follows it."""
    state = {"schema": 1, "can_start": True, "state": "running", "name": "lesson", "fault": ""}
    ask(opened)
    opened.page.route(re.compile("/v1/lesson$"), lambda route: route.fulfill(json=state))
    dialog = room(opened, "tour-q", "Tour")
    made = dialog.get_by_role("region", name="Training made here")
    made.get_by_text("It prepares texts").wait_for()
    for stage, written in (("pretrain", " last: red moon"), ("sft", "The last word is oak.")):
        record = Record(runs / f"lesson-{stage}")
        record.path.parent.mkdir()
        told = {"stage": stage, "settings": {"updates": 40}, "device": "cpu"}
        (record.path.parent / "run.json").write_text(json.dumps(told), encoding="utf-8")
        example = json.dumps([[["Which", False], [" oak", True]]])
        (record.path.parent / "example.json").write_text(example, encoding="utf-8")
        record.add({**row(0), "samples": [["Which word is", written]]})
        made.get_by_role("button", name=re.compile("2 Answers" if stage == "sft" else "1 Text"))
        made.get_by_text("1 of 40 updates").wait_for()
    made.get_by_role("button", name="2 Answers: running", pressed=True).wait_for()
    same = made.get_by_label("What runs made of: Which word is")
    assert same.locator("dd").all_inner_texts() == [
        "Which word is last: red moon",
        "Which word is → The last word is oak.",
    ]
    made.get_by_role("button", name="1 Text: running").click()
    made.get_by_role("button", name="1 Text: running", pressed=True).wait_for()
    state["state"], state["fault"] = "failed", "no space left"
    dialog.get_by_role("alert").get_by_text("lesson ended early: no space left").wait_for()
    assert opened.said == []
