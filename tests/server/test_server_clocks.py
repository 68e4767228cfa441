"""A wall clock that jumps by a day, back and forth: nothing ends too early, no time is negative."""

from __future__ import annotations

import json
import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest
from server_app import chat, completion
from test_server_program import served

from house_tree import PACKAGE
from trials import ran, trials

# In every process: no two looks at the wall clock agree; monotonic ones are left alone.
JUMPING = """
import datetime, itertools, os, time

real, days = time.time, itertools.cycle((0, 86400, -86400, 40, 86400 * 400))
time.time = lambda: real() + next(days)
time.time_ns = lambda: int(time.time() * 10**9)

class Jumping(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(time.time(), tz)

    @classmethod
    def utcnow(cls):
        return cls.now(datetime.timezone.utc).replace(tzinfo=None)

    @classmethod
    def today(cls):
        return cls.now()

datetime.datetime = Jumping
open(os.path.join(os.path.dirname(__file__), f"{os.getpid()}.seen"), "w").close()
"""


@pytest.mark.slow
def test_a_wall_clock_that_jumps_ends_nothing_and_gives_no_negative_time(
    folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(JUMPING, encoding="utf-8")
    environ = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{PACKAGE.parent}"}
    count = trials(60)
    with served(folder, "--log", "json", environ=environ) as (process, url, _):
        with httpx2.Client(base_url=url, timeout=300) as http:

            def one(number: int) -> tuple[int, int]:
                fields = {"max_tokens": 30, "ignore_eos": True, "timeout": 120}
                if number % 3 == 0:
                    answer = http.post("/v1/chat/completions", json=chat(**fields))
                else:
                    body = completion(f"text {number}", **fields, stream=number % 3 == 1)
                    answer = http.post("/v1/completions", json=body)
                    assert number % 3 != 1 or "[DONE]" in answer.text
                times = re.findall(r'"(\w+_ms)":([^,}]+)', answer.text)
                assert times and all(0 <= float(each) < 3_600_000 for _, each in times), times
                (made,) = set(re.findall(r'"created":(\d+)', answer.text))
                return answer.status_code, int(made)

            with ThreadPoolExecutor(4) as pool:
                told = list(pool.map(one, range(count)))
            metrics = http.get("/metrics").text
            ready = http.get("/ready").status_code
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=300)
    assert [status for status, _ in told] == [200] * count and ready == 200
    created = [made for _, made in told]
    assert max(created) - min(created) > 86_400, "the clock jumped between answers"
    assert len(list(tmp_path.glob("*.seen"))) >= 2, "in server and engine"
    sums = re.findall(r"^cutaway:\w+_seconds(?:_sum)?(?:{[^}]*})? (\S+)$", metrics, re.M)
    assert len(sums) > 4 and all(0 <= float(each) < 3600 for each in sums)
    lines = [json.loads(line) for line in err.splitlines() if line.startswith("{")]
    times = [line["seconds"] for line in lines if line["event"] == "request"]
    assert len(times) > count // 2 and all(0 <= each < 3600 for each in times)
    assert not any(line["event"] == "engine" for line in lines), "the engine was taken for hung"
    ran(count)
