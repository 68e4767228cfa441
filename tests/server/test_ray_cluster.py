"""A real Ray of this machine: up, engines killed under streams, scaled, rolled, down."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import services
from cutaway.server.clusters.cluster_head import find_session
from program import command, environment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: cutaway[ray]"),
]
STREAMS, TOKENS = 20, 150


class Cluster:
    """A cluster that the program has started, and what it told."""

    def __init__(self, folder: Path) -> None:
        wide = {"hidden_size": 64, "head_dim": 16, "intermediate_size": 128}
        self.folder = folder
        self.model = services.make_model(folder, **wide)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.file = folder / "cluster.toml"
        self.write()

    def write(self, **changes: Any) -> None:
        fields = {
            "model": self.model,
            "engines": 2,
            "port": self.port,
            "drain_seconds": 5,
            **changes,
        }
        lines = [f"{name} = {json.dumps(value)}" for name, value in fields.items()]
        settings = '[settings]\ncache_tokens = 8192\npage_size = 8\ndevice = "cpu"\n'
        self.file.write_text("\n".join(lines) + f"\n{settings}", encoding="utf-8")

    def run(self, *arguments: str, code: int = 0) -> str:
        """One command; returns what it says on both streams."""
        done = subprocess.run(
            [*command("cluster", *arguments), "--folder", str(self.folder / "state")],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == code, (arguments, done.stdout, done.stderr)
        return done.stdout + done.stderr

    def status(self) -> dict[str, Any]:
        return json.loads(self.run("status", "--json"))

    def head(self) -> int:
        return json.loads((self.folder / "state/cluster.json").read_text())["head"]

    def ask(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as reply:
            return json.load(reply)

    @cached_property
    def name(self) -> str:
        return self.ask("/v1/models")["data"][0]["id"]

    def answer(self, number: int) -> str:
        """One stream's text. Raises: AssertionError where it is cut or ends in an error."""
        body = {
            "model": self.name,
            "prompt": f"stream number {number}",
            "max_tokens": TOKENS,
            "temperature": 0.9,
            "seed": number,
            "ignore_eos": True,
            "stream": True,
        }
        url = f"http://127.0.0.1:{self.port}"
        asked = urllib.request.Request(
            f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        text, is_done = "", False
        with urllib.request.urlopen(asked, timeout=120) as reply:
            for line in reply:
                if line.startswith(b"data: "):
                    if line.strip() == b"data: [DONE]":
                        is_done = True
                        continue
                    event = json.loads(line[6:])
                    assert "error" not in event, event
                    text += event["choices"][0]["text"]
        assert is_done, "the stream was cut"
        return text

    def answers_during(self, act: Callable[[], Any]) -> list[str]:
        """All streams' texts; once they have begun, something happens."""
        with ThreadPoolExecutor(STREAMS) as threads:
            going = [threads.submit(self.answer, number) for number in range(STREAMS)]
            time.sleep(0.4)
            act()
            return [each.result() for each in going]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("ray"))
    began = time.monotonic()
    try:
        made.run("up", str(made.file))
        assert time.monotonic() - began < 120, "a guard against a start that hangs"
        yield made
    finally:
        made.run("down")


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.timeout(700)
def test_scale_y1_streams_outlive_kills_scale_and_roll(cluster: Cluster) -> None:
    undisturbed = cluster.answers_during(lambda: None)
    assert len(set(undisturbed)) == STREAMS
    told = cluster.status()
    assert len(told["engine"]) == 2 and len(told["front"]) == 1

    def pids(kind: str) -> list[int]:
        return [facts["pid"] for facts in cluster.status()[kind].values()]

    def is_whole() -> bool:
        url = f"http://127.0.0.1:{cluster.port}/metrics"
        with urllib.request.urlopen(url, timeout=60) as reply:
            told = reply.read().decode()
        return len(re.findall(r'replica_state\{.*state="ready"\} 1\.0', told)) == 2

    for what, pid in (
        ("an engine's process", pids("engine")[0]),
        ("an engine's actor", parent_of(pids("engine")[1])),
        ("the controller", find_actor("ServeController")),
    ):
        assert cluster.answers_during(partial(kill, pid)) == undisturbed, what
        wait_until(is_whole)
    assert cluster.answers_during(lambda: cluster.run("scale", "1")) == undisturbed
    assert len(cluster.status()["engine"]) == 1
    session = cluster.head()
    assert find_session(session)
    cluster.run("down")
    assert not find_session(session), "no process is left"
    assert "No cluster is up" in cluster.run("down")
    assert "no cluster is up" in cluster.run("status", code=2)


def wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.1)


def find_actor(name: str) -> int:
    """The process of an actor, by the title that Ray gives it."""
    for each in Path("/proc").iterdir():
        if each.name.isdecimal():
            with suppress(OSError):
                if (each / "cmdline").read_bytes().startswith(f"ray::{name}".encode()):
                    return int(each.name)
    raise AssertionError(f"there is no {name}")
