"""The lesson by HTTP: one at a time, only for this machine, followed like any run, and ended."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest
from server_app import client, serving

from cutaway.server import lesson_process
from cutaway.server.lesson_process import MOST_LESSONS, LessonProcess

LESSON, RUNS = "/cutaway/v1/lesson", "/cutaway/v1/runs"


def with_lessons(
    folder: Path,
    runs: Path,
    body: Callable[[httpx2.AsyncClient], Awaitable[None]],
    command: Sequence[str] | None = None,
    **config: Any,
) -> None:
    async def ask() -> None:
        async with serving(folder, **config) as (app, context):
            context.runs = runs
            context.lesson = LessonProcess(*() if command is None else (command,))
            async with client(app) as http:
                await body(http)

    asyncio.run(ask())


async def wait_for(
    http: httpx2.AsyncClient, path: str, is_there: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    async with asyncio.timeout(120):
        while not is_there(told := (await http.get(path)).json()):
            await asyncio.sleep(0.1)
    return told


@pytest.mark.slow
def test_a_lesson_is_followed_and_stopped_and_the_next_has_a_name_of_its_own(
    folder: Path, tmp_path: Path
) -> None:
    async def body(http: httpx2.AsyncClient) -> None:
        assert (await http.get(LESSON)).json() == {
            **{"schema": 1, "can_start": True, "state": "none", "name": "", "fault": ""}
        }
        begun = (await http.post(LESSON, json={"rate": 0.01, "until": "sft"})).json()
        assert (begun["state"], begun["name"]) == ("running", "lesson")
        refused = await http.post(LESSON, json={})
        assert refused.status_code == 409
        assert refused.json()["error"]["code"] == "lesson_running"
        listed = await wait_for(http, RUNS, lambda told: bool(told["runs"]))
        assert listed["runs"][0]["name"] == "lesson-pretrain"
        assert listed["runs"][0]["settings"]["rate"] == 0.01
        path = f"{RUNS}/lesson-pretrain"
        followed = await wait_for(http, path, lambda told: len(told["rows"]) > 1)
        (first, *_) = followed["example"]
        assert "".join(text for text, _ in first).startswith("<|endoftext|>Which word is last: ")
        later = (await http.get(path, params={"start": followed["end"]})).json()
        assert "example" not in later, "it does not change, so it comes once"
        assert (await http.delete(LESSON)).json()["state"] == "stopped"
        assert (await http.delete(LESSON)).json()["state"] == "stopped"
        again = (await http.post(LESSON, json={"until": "pretrain"})).json()
        assert (again["state"], again["name"]) == ("running", "lesson-2")

    with_lessons(folder, tmp_path / "runs", body)


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        ({"rate": 2}, "rate is 2; it must be a number from 0 to 1."),
        ({"beta": -1}, "beta is -1; it must be a number from 0 to 100."),
        (
            {"until": "end"},
            'until is "end"; it must be one of pretrain, sft, reward, ppo, dpo.',
        ),
        ({"rewards": "truth"}, 'rewards is "truth"; it must be one of final, length.'),
        ({"rewards": ["final"]}, "rewards"),
        ({"out": "elsewhere"}, "out"),
    ],
)
def test_what_it_does_not_take_is_named_and_nothing_starts(
    folder: Path, tmp_path: Path, sent: dict[str, object], message: str
) -> None:
    async def body(http: httpx2.AsyncClient) -> None:
        refused = await http.post(LESSON, json=sent)
        assert refused.status_code == 400
        assert message in refused.json()["error"]["message"]
        assert (await http.get(LESSON)).json()["state"] == "none"

    with_lessons(folder, tmp_path / "runs", body)
    assert not (tmp_path / "runs").exists()


def test_a_server_that_others_reach_trains_for_nobody(folder: Path, tmp_path: Path) -> None:
    async def body(http: httpx2.AsyncClient) -> None:
        assert (await http.get(LESSON)).json()["can_start"] is False
        for refused in (await http.post(LESSON, json={}), await http.delete(LESSON)):
            assert refused.status_code == 403
            assert refused.json()["error"]["code"] == "lesson_off"

    with_lessons(folder, tmp_path / "runs", body, host="0.0.0.0", views="full")


def test_views_that_are_off_make_no_lesson(folder: Path, tmp_path: Path) -> None:
    async def body(http: httpx2.AsyncClient) -> None:
        for refused in (await http.get(LESSON), await http.post(LESSON, json={})):
            assert refused.json()["error"]["code"] == "views_off"

    with_lessons(folder, tmp_path / "runs", body, views="off")


def test_why_a_lesson_failed_is_told_without_where_this_machine_keeps_it(
    folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "runs").write_text("a file", encoding="utf-8")

    async def body(http: httpx2.AsyncClient) -> None:
        assert (await http.post(LESSON, json={})).status_code == 200
        told = await wait_for(http, LESSON, lambda told: told["state"] != "running")
        assert told["state"] == "failed"
        assert told["fault"] == "File exists: runs"

    with_lessons(folder, tmp_path / "runs", body)


def test_a_folder_has_room_for_so_many_lessons(folder: Path, tmp_path: Path) -> None:
    names = ("lesson", *(f"lesson-{number}" for number in range(2, MOST_LESSONS + 1)))
    for name in names:
        (tmp_path / f"{name}-pretrain").mkdir()

    async def body(http: httpx2.AsyncClient) -> None:
        refused = (await http.post(LESSON, json={})).json()["error"]
        assert refused["code"] == "too_many_lessons"
        assert refused["message"].startswith("20 lessons lie in the folder")
        (tmp_path / "lesson-7-pretrain").rmdir()
        begun = (await http.post(LESSON, json={"until": "pretrain"})).json()
        assert begun["name"] == "lesson-7"

    with_lessons(folder, tmp_path, body)


def test_a_lesson_that_hears_no_signal_is_ended_all_the_same(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaf = tmp_path / "deaf"
    deaf.write_text("#!/bin/sh\ntrap '' TERM\necho said >&2\nwhile :; do sleep 0.1; done\n")
    deaf.chmod(0o700)
    monkeypatch.setattr(lesson_process, "_END_SECONDS", 0.3)

    async def body(http: httpx2.AsyncClient) -> None:
        await http.post(LESSON, json={})
        await asyncio.sleep(0.3)
        assert (await http.delete(LESSON)).json()["state"] == "stopped"

    with_lessons(folder, tmp_path / "runs", body, command=(str(deaf),))


def test_it_is_behind_all_answers(folder: Path, tmp_path: Path) -> None:
    async def ask() -> None:
        async with serving(folder) as (_, context):
            context.lesson = LessonProcess()
            await context.lesson.start(tmp_path, {"until": "pretrain"})
            process = context.lesson._process  # pyright: ignore[reportPrivateUsage]
            assert process is not None
            assert os.getpriority(os.PRIO_PROCESS, process.pid) >= 10
            await context.lesson.stop()
            assert process.returncode is not None

    asyncio.run(ask())
