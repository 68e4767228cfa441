"""`cutaway bench serve`: its sums on scripted times, and a run against a server of a tiny model."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from pathlib import Path

import pytest
from live_server import live

from cutaway.bench.serve import ClientRecord, ServeLoad, report_of, run
from cutaway.bench.server import children, cpu_seconds, start_server
from cutaway.core.errors import ConfigError
from program import spawn


def heard(first: float, gap: float, *, tokens: int = 11) -> ClientRecord:
    """An answer whose tokens came evenly."""
    events = [first + gap * index for index in range(tokens)]
    return ClientRecord(status=200, events=events, num_tokens=tokens, is_whole=True)


def test_percentiles_are_times_that_were_measured() -> None:
    report = report_of([heard(i / 1000, 0.01) for i in range(1, 101)], 10.0, ServeLoad())
    assert report.first_token == pytest.approx({"mean": 50.5, "p50": 50, "p90": 90, "p99": 99})
    assert report.per_token["p99"] == pytest.approx(10)
    assert report.tokens_per_second == pytest.approx(110)


def test_goodput_counts_answers_that_kept_both_promises() -> None:
    answers = [
        heard(0.1, 0.01),
        heard(0.3, 0.01),
        heard(0.1, 0.05),
        ClientRecord(status=503),
        ClientRecord(),
    ]
    report = report_of(answers, 2.0, ServeLoad(promise_first=200, promise_token=20))
    assert (report.completed, report.refused, report.failed) == (3, 1, 1)
    assert report.goodput == pytest.approx(0.5) and report.kept == pytest.approx(0.2)


def test_a_run_without_any_answer_has_no_times() -> None:
    report = report_of([ClientRecord(status=503)], 1.0, ServeLoad())
    assert report.first_token == {} and report.refused == 1


def test_a_server_under_load_is_measured(folder: Path) -> None:
    load = ServeLoad(rate=50, requests=12, prompt_tokens=16, answer_tokens=8)

    async def body() -> None:
        async with live(folder) as server:
            url = f"http://127.0.0.1:{server.port}"
            report = await asyncio.to_thread(run, url, load)
            assert report.completed == report.requests == 12 and report.failed == 0
            assert report.tokens_per_second * report.seconds == pytest.approx(96)
            # As another engine's server, which tells of its tokens in OpenAI's way alone.
            named = partial(run, model=(server.context.name, 256))
            report = await asyncio.to_thread(named, url, load)
            assert report.tokens_per_second * report.seconds == pytest.approx(96)
            await server.until_idle()

    asyncio.run(body())


SHORT = ("--requests", "6", "--rate", "50", "--prompt-tokens", "8", "--answer-tokens", "4")


def test_it_starts_a_server_of_its_own_and_ends_it(folder: Path) -> None:
    model = f"random:{folder / 'config.json'}"
    settings = ("--model", model, "--dtype", "float32", "--cache-tokens", "4096", "--no-graphs")
    ended = spawn("bench", "serve", *settings, *SHORT, "--json")
    assert ended.code == 0, ended.err
    assert ended.json["completed"] == ended.json["requests"] == 6
    assert set(ended.json["shares"]) == {"client", "server", "engine"}
    assert all(0 <= share < 64 for share in ended.json["shares"].values())


def test_a_server_that_is_started_is_ended_whatever_happens(folder: Path) -> None:
    arguments = ["--model", f"random:{folder / 'config.json'}", "--cache-tokens", "512"]
    others = set(children(os.getpid()))  # of earlier tests in this process
    with pytest.raises(ZeroDivisionError), start_server(arguments) as server:
        assert set(server.pids) == {"client", "server", "engine"}
        assert cpu_seconds(server.pids["engine"])
        raise ZeroDivisionError
    assert set(children(os.getpid())) <= others
    assert cpu_seconds(server.pids["server"]) is None


def test_what_cannot_be_measured_is_one_line(folder: Path, tmp_path: Path) -> None:
    cases = {
        ("--model", "no-such-model"): "the server ended before it was ready: error: ",
        ("http://127.0.0.1:9", "--model", "smollm2"): "beside a URL",
        ("--dtype", "float32"): "without --model",
    }
    for options, words in cases.items():
        ended = spawn("bench", "serve", *options, *SHORT)
        assert ended.code in (1, 2) and words in ended.err, ended.err
        assert "Traceback" not in ended.err


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://127.0.0.1", "http://127.0.0.1:9"])
def test_where_no_server_is_it_says_so(url: str) -> None:
    with pytest.raises(ConfigError, match=r"url is|no server"):
        run(url, ServeLoad())


def test_a_load_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="rate is 0"):
        ServeLoad(rate=0)
