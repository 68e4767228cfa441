"""`cutaway serve` as a program: what it prints, what it refuses to start, how it ends."""

from __future__ import annotations

import fcntl
import json
import os
import re
import resource
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

import httpx2
import pytest
from server_app import chat, completion

from cutaway.cli.main import run
from house_tree import PACKAGE
from program import Cutaway, Ended, command, environment, spawn
from trials import IN_FULL, ran, trials

KEY = "a-key-of-enough-characters"


@contextmanager
def served(
    model: Path | str,
    *arguments: str,
    dtype: str = "float32",
    environ: Mapping[str, str] | None = None,
    prefix: Sequence[str] = (),
) -> Iterator[tuple[subprocess.Popen[str], str, list[str]]]:
    """The program once it is ready: process, address, and the lines that it said.

    model: a name, or the folder of a tiny model. prefix: a program that starts it.
    """
    model = f"random:{model / 'config.json'}" if isinstance(model, Path) else model
    settings = ("--dtype", dtype, "--cache-tokens", "4096", "--served-name", "tiny")
    process = subprocess.Popen(
        [*prefix, *command("serve", model, "--port", "0", *settings, *arguments)],
        env=environment(**(environ or {})),
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        lines = list(until_ready(process.stderr))
        found = re.search(r"http://[\d.]+:\d+", "".join(lines))
        assert found, lines
        yield process, found[0], lines
    finally:
        process.kill()
        process.communicate()


def until_ready(stderr: IO[str]) -> Iterator[str]:
    for line in stderr:
        yield line
        if line.startswith("curl "):
            return


TELLS_TURNS = """
import atexit, os, sys

atexit.register(lambda: os.write(2, f"turns of {sys.getswitchinterval():g} s\\n".encode()))
"""


def test_it_prints_where_it_listens_and_a_line_to_try_it(folder: Path, tmp_path: Path) -> None:
    """Its loop waits for a busy thread for half a millisecond.

    What that does to a neighbour's tokens is measured: bench/plan/beside.py.
    """
    (tmp_path / "sitecustomize.py").write_text(TELLS_TURNS, encoding="utf-8")
    path = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{PACKAGE.parent}"}
    with served(folder, environ=path) as (process, url, lines):
        curl = lines[-1]
        body = json.loads(curl[curl.index("'{") + 1 : curl.rindex("'")])
        assert httpx2.post(f"{url}/v1/chat/completions", json=body, timeout=300).status_code == 200
        assert f"{url}/v1" in "".join(lines)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=300)
    assert process.returncode == 0 and out == "" and "Traceback" not in err
    assert "turns of 0.0005 s" in err


def limited(num_descriptors: int) -> tuple[str, ...]:
    """A prefix that gives a program so many descriptors and no more."""
    return ("sh", "-c", f'ulimit -n {num_descriptors}; exec "$@"', "sh")


def is_closed(client: socket.socket) -> bool:
    """Whether the server has ended a connection."""
    try:
        while client.recv(4096, socket.MSG_DONTWAIT):
            pass
    except BlockingIOError:
        return False
    except ConnectionResetError:
        pass
    return True


def test_out_of_descriptors_idle_connections_make_room_and_one_line_tells(folder: Path) -> None:
    with ExitStack() as opened, served(folder, prefix=limited(128)) as (process, url, _):
        port = httpx2.URL(url).port
        assert port is not None
        idle = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(300)]
        for each in idle:
            opened.callback(each.close)
        with httpx2.Client(base_url=url, timeout=60) as http:
            assert http.get("/health").status_code == 200
            answer = http.post("/v1/completions", json=completion(max_tokens=2))
            assert answer.status_code == 200
        assert sum(is_closed(each) for each in idle) >= 300 - 128
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=300)
    assert err.count("out_of_descriptors") == 1 and "fault" not in err
    assert process.returncode == 0


def test_sigterm_lets_answers_finish_and_takes_nothing_new_in(folder: Path) -> None:
    body = chat(stream=True, max_tokens=200, ignore_eos=True)
    longest = 0.0
    window = ("--drain-seconds", "240")  # a busy machine may take longer than the 30 of its own
    for _ in range(trials(1)):
        with (
            served(folder, *window) as (process, url, _),
            httpx2.Client(base_url=url, timeout=300) as http,
        ):
            engines = children_of(process.pid)
            with http.stream("POST", "/v1/chat/completions", json=body) as stream:
                lines = stream.iter_lines()
                said = [next(lines)]
                process.send_signal(signal.SIGTERM)
                began = time.monotonic()
                refused = until_draining(url)
                said += list(lines)
            process.communicate(timeout=300)
        longest = max(longest, time.monotonic() - began)
        assert "data: [DONE]" in said
        if refused is not None:  # the answer may have ended first; then nobody listened any more
            assert int(refused.headers["retry-after"]) >= 1
            assert refused.json()["error"]["code"] == "draining"
        assert process.returncode == 0
        assert engines and not any(Path(f"/proc/{each}").exists() for each in engines)
    ran(trials(1), ended_after_seconds=round(longest, 2))


def children_of(pid: int) -> list[str]:
    """Processes that the program started."""
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def until_draining(url: str) -> httpx2.Response | None:
    """Ask again until the server takes nothing in; None when it has ended already."""
    try:
        while True:
            answer = httpx2.post(f"{url}/v1/chat/completions", json=chat(max_tokens=1), timeout=300)
            if answer.status_code == 503:
                return answer
    except httpx2.TransportError:
        return None


# The engine's process alone: it writes a traceback for each request of so many tokens.
NOISY = """
import sys

if "cutaway.service.child" in sys.orig_argv:
    from cutaway.engine.engine import Engine
    add = Engine.add

    def noisy_add(self, request, told=()):
        assert request.params.max_tokens != 3
        add(self, request, told)

    Engine.add = noisy_add
"""


def test_who_does_not_read_its_lines_holds_up_no_request(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(NOISY, encoding="utf-8")
    noisy = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{PACKAGE.parent}"}
    with (
        served(folder, "--log", "json", environ=noisy) as (process, url, _),
        httpx2.Client(base_url=url, timeout=60) as http,
    ):
        assert process.stderr is not None
        fcntl.fcntl(process.stderr, fcntl.F_SETPIPE_SZ, 4096)  # a page: some 20 lines
        asked = [http.get("/health") for _ in range(200)]
        path = "/v1/completions"
        asked += [http.post(path, json=completion(max_tokens=3)) for _ in range(10)]
        assert [each.status_code for each in asked] == [200] * 200 + [500] * 10
        ids = [each.headers["x-request-id"] for each in asked]
        (engine,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(engine), signal.SIGKILL)
        while (answer := http.post(path, json=completion())).status_code != 200:
            ids.append(answer.headers["x-request-id"])
            time.sleep(0.05)  # more lines than may wait would be dropped
        ids.append(answer.headers["x-request-id"])
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=300)
    lines = [json.loads(line) for line in err.splitlines() if line.startswith("{")]
    assert [line["request_id"] for line in lines if line["event"] == "request"] == ids
    assert process.returncode == 0


def test_a_second_signal_ends_at_once_and_streams_say_so(long_folder: Path) -> None:
    """With one signal this answer would have come to its end, as the test above shows."""
    body = chat(stream=True, max_tokens=1900, ignore_eos=True, n=2)
    for _ in range(trials(1)):
        with served(long_folder) as (process, url, _):
            path = f"{url}/v1/chat/completions"
            with httpx2.stream("POST", path, json=body, timeout=300) as stream:
                lines = stream.iter_lines()
                next(lines)
                process.send_signal(signal.SIGINT)
                process.send_signal(signal.SIGTERM)
                said = [line for line in lines if line]
            process.communicate(timeout=300)
        assert process.returncode == 0
        assert "data: [DONE]" not in said and '"error"' in said[-1]
        assert len(said) < 2 * 1900, "it had all been said before it ended"
    ran(trials(1))


@pytest.mark.slow
def test_an_engine_that_is_stopped_is_told_in_time_and_comes_back(folder: Path) -> None:
    """With the settings that everybody has, and with nothing to do or an answer under way."""
    longest = 0.0
    for number in range(trials(1)):
        with served(folder) as (process, url, _), httpx2.Client(base_url=url, timeout=60) as http:
            (engine,) = children_of(process.pid)
            asked = http.post("/v1/completions", json=completion())
            assert asked.status_code == 200
            os.kill(int(engine), signal.SIGSTOP)
            began = time.monotonic()
            if number % 2:
                threading.Thread(target=ask_and_forget, args=(url,), daemon=True).start()
            while http.get("/ready").status_code == 200:
                assert http.get("/health").status_code == 200
                assert time.monotonic() - began < 300, "nobody noticed"
                # Nobody reads a line of each here, and an engine whose dump finds no room waits.
                time.sleep(0.1)
            longest = max(longest, time.monotonic() - began)
            if not IN_FULL:  # else it is ended and started again after a minute
                os.kill(int(engine), signal.SIGCONT)
            while http.get("/ready").status_code != 200:
                assert time.monotonic() - began < 300, "it did not come back"
                time.sleep(0.05)
            assert IN_FULL or children_of(process.pid) == [engine], "it was started again"
            again = http.post("/v1/completions", json=completion())
            assert again.json()["choices"] == asked.json()["choices"]
    if IN_FULL:
        assert longest <= 10
    ran(trials(1), told_after_seconds=round(longest, 1))


def ask_and_forget(url: str) -> None:
    with suppress(httpx2.HTTPError):
        httpx2.post(f"{url}/v1/completions", json=completion(), timeout=300)


def test_a_model_that_is_not_loaded_in_time_ends_the_server(folder: Path) -> None:
    model = f"random:{folder / 'config.json'}"
    ended = spawn("serve", model, "--port", "0", "--load-seconds", "0.01")
    assert ended.code == 1 and "error: the model was not loaded in load_seconds, 0.01" in ended.err
    assert "Traceback" not in ended.err


def test_a_server_whose_engine_is_given_up_ends_with_an_error(folder: Path) -> None:
    with served(folder, "--max-restarts", "0") as (process, _, _):
        (child,) = children(process.pid)
        os.kill(child, signal.SIGKILL)
        _, err = process.communicate(timeout=300)
    assert process.returncode == 1 and "max_restarts is 0. The server ends" in err
    assert "Traceback" not in err


def children(pid: int) -> list[int]:
    """Processes that a process has started."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(each) for task in tasks for each in (task / "children").read_text().split()]


@pytest.fixture(scope="module")
def guarded(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a public server that asks for keys and takes little traffic."""
    file = tmp_path_factory.mktemp("guarded") / "keys"
    file.write_text(f"alice {KEY}\n", encoding="utf-8")
    door = ("--api-key-file", str(file), "--host", "0.0.0.0")
    bounds = ("--max-sequences", "1", "--max-waiting", "5", "--max-waiting-tokens", "20")
    with served(folder, *door, *bounds) as (_, url, _):
        yield url.replace("0.0.0.0", "127.0.0.1")


@pytest.mark.parametrize(
    ("prompts", "told"),
    [(["a"] * 9, "6 answers at once"), (["a" * 15] * 2, "20 tokens of prompts that wait")],
)
def test_the_bounds_of_traffic_reach_the_engines_door(
    guarded: str, prompts: list[str], told: str
) -> None:
    # All prompts of one request come to the door before any is answered.
    headers, body = {"x-api-key": KEY}, completion(prompts)
    answer = httpx2.post(f"{guarded}/v1/completions", json=body, headers=headers, timeout=300)
    assert answer.status_code == 503 and int(answer.headers["retry-after"]) >= 1
    assert told in answer.json()["error"]["message"]


def test_keys_of_a_file_are_asked_for(guarded: str) -> None:
    assert httpx2.get(f"{guarded}/v1/models", timeout=300).status_code == 401
    answer = httpx2.get(f"{guarded}/v1/models", headers={"x-api-key": KEY}, timeout=300)
    assert answer.status_code == 200
    assert httpx2.get(f"{guarded}/ready", timeout=300).status_code == 200


@pytest.fixture
def refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Cutaway]:
    """Run `serve` in this process, for what ends before anything is started."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    def called(*arguments: str, stdin: str | bytes = "") -> Ended:
        code = run(["serve", *arguments])
        out, err = capsys.readouterr()
        return Ended(code, out, err)

    yield called
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)  # a server takes all that it may


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--port", "70000"), 2, "port is 70000"),
        (("--host", "256.1.1.1", "--allow-unauthenticated"), 2, "cannot listen"),
        (("--api-key-file", "no-such-file"), 2, "cannot be read"),
        (("--allow-origin", "*"), 2, "allowed_origins"),
        (("--request-seconds", "0"), 2, "request_seconds is 0"),
        (("--drain-seconds", "-1"), 2, "drain_seconds is -1"),
        (("--drain-seconds", "nan"), 2, "drain_seconds is nan"),
        (("--request-seconds", "inf"), 2, "request_seconds is inf"),
        (("--max-waiting", "0"), 2, "max_waiting is 0"),
        (("--max-waiting-tokens", "-1"), 2, "max_waiting_tokens is -1"),
        (("--stall-seconds", "0"), 2, "stall_seconds is 0"),
        (("--load-seconds", "nan"), 2, "load_seconds is nan"),
        (("--restart-seconds", "-1"), 2, "restart_seconds is -1"),
        (("--max-restarts", "-1"), 2, "max_restarts is -1"),
        (("--page-size", "0"), 2, "page_size"),
    ],
)
def test_what_is_wrong_at_the_start_is_one_line(
    folder: Path, refused: Cutaway, arguments: tuple[str, ...], code: int, words: str
) -> None:
    ended = refused(f"random:{folder / 'config.json'}", *arguments)
    assert ended.code == code and words in ended.err
    assert "Traceback" not in ended.err and ended.err.startswith("error: ")


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_a_public_address_without_keys_is_refused(
    folder: Path, refused: Cutaway, host: str
) -> None:
    ended = refused(f"random:{folder / 'config.json'}", "--host", host, "--port", "0")
    assert ended.code == 2 and "--api-key-file" in ended.err
    assert "Traceback" not in ended.err


def test_a_port_that_is_taken_is_told(folder: Path, refused: Cutaway) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ended = refused(f"random:{folder / 'config.json'}", "--port", port)
    assert ended.code == 2 and "in use" in ended.err and "--port" in ended.err


def test_a_model_that_is_not_there_ends_the_program(refused: Cutaway, tmp_path: Path) -> None:
    ended = refused(str(tmp_path / "none.gguf"), "--port", "0")
    assert ended.code == 3 and "Traceback" not in ended.err


@pytest.mark.parametrize("name", [("--served-name", "m"), ()])
def test_an_adapter_takes_no_name_of_the_model_itself(
    refused: Cutaway, folder: Path, name: tuple[str, ...]
) -> None:
    model = f"random:{folder / 'config.json'}"
    taken = name[1] if name else f"random:{folder.name}"
    ended = refused(model, "--port", "0", *name, "--lora", f"{taken}={folder}")
    assert ended.code == 2 and "which is the model itself" in ended.err, ended.err


def test_a_process_of_its_own_ends_with_that_code_and_line(folder: Path) -> None:
    """As the tests above have it within this one: the last thing that is looked at is wrong."""
    ended = spawn("serve", f"random:{folder / 'config.json'}", "--port", "0", "--page-size", "0")
    assert ended.code == 2 and ended.err.startswith("error: ") and "page_size" in ended.err
    assert "Traceback" not in ended.err and ended.out == ""
