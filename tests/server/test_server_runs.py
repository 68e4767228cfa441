"""Runs of training by HTTP: listed, followed as they grow, and nothing beside them read."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from server_app import client, serving

from cutaway.host.run_record import FILE, Record, read_last, read_record
from cutaway.server.looks import run_routes

PATH = "/cutaway/v1/runs"


def row(update: int) -> dict[str, object]:
    return {"update": update, "loss": 5 - update / 100, "norms": {"blocks.0": 0.1}, "measured": {}}


def begin(runs: Path, name: str, *, updates: int = 40) -> Record:
    (runs / name).mkdir(parents=True)
    told = {
        "stage": "pretrain",
        "settings": {"updates": updates},
        "device": "cpu",
        "data": "0" * 64,
    }
    (runs / name / "run.json").write_text(json.dumps(told), encoding="utf-8")
    return Record(runs / name)


def with_runs(
    folder: Path, runs: Path, body: Callable[[httpx2.AsyncClient], Awaitable[None]], **config: Any
) -> None:
    async def ask() -> None:
        async with serving(folder, **config) as (app, context):
            context.runs = runs
            async with client(app) as http:
                await body(http)

    asyncio.run(ask())


def test_a_run_is_followed_as_it_grows(folder: Path, tmp_path: Path) -> None:
    record = begin(tmp_path, "base")
    (tmp_path / "notes").mkdir()
    for update in range(3):
        record.add(row(update))

    async def body(http: httpx2.AsyncClient) -> None:
        (listed,) = (await http.get(PATH)).json()["runs"]
        assert (listed["name"], listed["stage"], listed["is_over"]) == ("base", "pretrain", False)
        assert listed["settings"] == {"updates": 40} and listed["last"] == row(2)
        first = (await http.get(f"{PATH}/base")).json()
        assert first["rows"] == [row(0), row(1), row(2)] and first["end"] == first["size"]
        record.add(row(3))
        with record.path.open("a", encoding="utf-8") as opened:
            opened.write('{"update": 4, "lo')  # half a line: it comes with the next answer
        more = (await http.get(f"{PATH}/base", params={"start": first["end"]})).json()
        assert more["rows"] == [row(3)] and more["start"] == first["end"]
        record.path.write_text(json.dumps(row(0)) + "\n", encoding="utf-8")  # begun anew
        again = (await http.get(f"{PATH}/base", params={"start": more["end"]})).json()
        assert (again["start"], again["rows"]) == (0, [row(0)])

    with_runs(folder, tmp_path, body)


def test_a_long_record_comes_in_parts_that_are_the_whole(folder: Path, tmp_path: Path) -> None:
    record = begin(tmp_path, "long")
    lines = "".join(json.dumps({**row(at), "said": "x" * 1000}) + "\n" for at in range(1500))
    record.path.write_text(lines, encoding="utf-8")

    async def body(http: httpx2.AsyncClient) -> None:
        rows, start = list[dict[str, Any]](), 0
        while True:
            part = (await http.get(f"{PATH}/long", params={"start": start})).json()
            rows += part["rows"]
            start = part["end"]
            if start == part["size"]:
                break
            assert 900 < len(part["rows"]) < 1100
        assert rows == read_record(record.path) and len(rows) == 1500

    with_runs(folder, tmp_path, body)


@pytest.mark.parametrize("name", ["..", "none", "%2e%2e", "notes", "base%2f..", "."])
def test_nothing_beside_the_runs_is_read(folder: Path, tmp_path: Path, name: str) -> None:
    begin(tmp_path / "runs", "base").add(row(0))
    (tmp_path / "runs" / "notes").mkdir()
    (tmp_path / "run.json").write_text("{}", encoding="utf-8")

    async def body(http: httpx2.AsyncClient) -> None:
        refused = await http.get(f"{PATH}/{name}")
        assert refused.status_code in (404, 405) or refused.json().get("runs") is not None

    with_runs(folder, tmp_path / "runs", body)


def test_a_broken_run_says_so_and_the_others_are_listed(folder: Path, tmp_path: Path) -> None:
    begin(tmp_path, "whole").add(row(0))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("[1", encoding="utf-8")
    begin(tmp_path, "torn")
    (tmp_path / "torn" / FILE).write_text("[]\n", encoding="utf-8")

    async def body(http: httpx2.AsyncClient) -> None:
        told = {each["name"]: each for each in (await http.get(PATH)).json()["runs"]}
        assert told["broken"]["fault"] == "broken/run.json does not say what run this is."
        assert told["torn"]["fault"] == f"torn/{FILE}, its last line is no update of a run."
        assert told["whole"]["last"] == row(0)
        assert "rows" in (await http.get(f"{PATH}/torn")).json()

    with_runs(folder, tmp_path, body)


def test_views_that_are_off_show_no_runs(folder: Path, tmp_path: Path) -> None:
    async def body(http: httpx2.AsyncClient) -> None:
        assert (await http.get(PATH)).json()["error"]["code"] == "views_off"

    with_runs(folder, tmp_path, body, views="off")


def test_no_folder_is_no_run_and_a_bad_start_is_refused(folder: Path, tmp_path: Path) -> None:
    async def body(http: httpx2.AsyncClient) -> None:
        assert (await http.get(PATH)).json()["runs"] == []
        refused = await http.get(f"{PATH}/base", params={"start": "-1"})
        assert refused.json()["error"]["message"].startswith('start is "-1"; it must be the end')

    with_runs(folder, tmp_path / "none", body)


def test_odd_names_and_texts_take_no_other_run_away(folder: Path, tmp_path: Path) -> None:
    begin(tmp_path, "whole").add(row(0))
    begin(tmp_path, os.fsdecode(b"caf\xe9")).add(row(1))
    (begin(tmp_path, "half").path).write_text('{"update": 0, "samples": ["\\ud800"]}\n')

    async def body(http: httpx2.AsyncClient) -> None:
        told = {each["name"]: each for each in (await http.get(PATH)).json()["runs"]}
        assert told.keys() == {"whole", "caf\ufffd", "half"}
        assert told["half"]["last"]["samples"] == ["\ufffd"]
        assert (await http.get(f"{PATH}/caf\ufffd")).json()["rows"] == [row(1)]

    with_runs(folder, tmp_path, body)


def test_a_run_that_goes_away_or_may_not_be_read_hides_no_other(
    folder: Path, tmp_path: Path, monkeypatch
) -> None:
    for name in ("whole", "gone"):
        begin(tmp_path, name).add(row(0))
    written = run_routes._written

    def refuse(run: Path) -> float:
        if run.name == "gone":
            raise PermissionError(13, "Permission denied")
        return written(run)

    monkeypatch.setattr(run_routes, "_written", refuse)

    async def body(http: httpx2.AsyncClient) -> None:
        assert [each["name"] for each in (await http.get(PATH)).json()["runs"]] == ["whole"]

    with_runs(folder, tmp_path, body)


def test_a_bad_line_in_the_middle_is_a_fault_of_its_run(folder: Path, tmp_path: Path) -> None:
    begin(tmp_path, "bad").path.write_text('{"update": 0}\nno\n{"update": 2}\n')

    async def body(http: httpx2.AsyncClient) -> None:
        told = await http.get(f"{PATH}/bad")
        assert told.status_code == 200
        assert told.json()["fault"] == f"bad/{FILE}, line 2 is no update of a run."
        later = (await http.get(f"{PATH}/bad", params={"start": "14"})).json()
        assert later["fault"] == f"bad/{FILE}, line 1 behind byte 14 is no update of a run."

    with_runs(folder, tmp_path, body)


def test_a_last_line_of_any_length_is_read(tmp_path: Path) -> None:
    record = begin(tmp_path, "long")
    record.add(row(0))
    long = {**row(1), "samples": ["x" * 5_000_000]}
    record.add(long)
    assert read_last(record.path) == long


def test_more_runs_than_are_listed_can_be_followed(
    folder: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(run_routes, "MOST_RUNS", 1)
    for name in ("first", "second"):
        begin(tmp_path, name).add(row(0))

    async def body(http: httpx2.AsyncClient) -> None:
        told = (await http.get(PATH)).json()
        assert len(told["runs"]) == 1 and told["left_out"] == 1
        for name in ("first", "second"):
            assert (await http.get(f"{PATH}/{name}")).json()["rows"] == [row(0)]

    with_runs(folder, tmp_path, body)


def test_a_full_disk_leaves_no_half_line_and_is_named(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    record = begin(tmp_path, "full")
    record.add(row(0))
    before = record.path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, limits[1]))
    try:
        with pytest.raises(OSError, match=FILE):
            record.add(row(1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert record.path.read_bytes() == before
