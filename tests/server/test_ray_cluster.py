"""A real Ray of this machine: who may join, what it says, and streams while it is killed.

One cluster for all tests; each leaves two engines behind.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property, partial
from http.client import HTTPException
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import services
from cutaway.cli.session.engine_memory import with_memory
from cutaway.server.clusters.cluster_config import read_cluster
from cutaway.server.clusters.cluster_head import ClusterFolder, find_session
from program import command, environment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: cutaway[ray]"),
]
STREAMS, TOKENS = 20, 150
STALL, ROOM = 8, 20  # seconds without a sign of work, and until no room is found: few, for tests
CPUS = max(1.0, (os.cpu_count() or 1) / 2)  # of an engine: two fill this machine
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
# The program over a Ray that says that it is another one.
OTHER_RAY = """
import ray
ray.__version__ = "2.57.1"
from cutaway.cli.main import main
main()
"""
# What Ray keeps for engines, as it says itself.
KEPT = """
import json, sys
from importlib import import_module
from pathlib import Path
from cutaway.server.clusters.cluster_head import ClusterFolder
from cutaway.server.clusters.ray_cluster import join
with join(ClusterFolder(Path(sys.argv[1]))):
    groups = import_module("ray.util").placement_group_table().values()
    kept = [bundle for g in groups if g["state"] == "CREATED" for bundle in g["bundles"].values()]
print(json.dumps([bundle["memory"] for bundle in kept]))
"""
Said = dict[int, list[Any]]  # by choice: text, ids, log-probabilities, how it ended; -1: counts


class Cluster:
    """A cluster that the program has started, and what it told."""

    def __init__(self, folder: Path) -> None:
        wide = {"hidden_size": 64, "head_dim": 16, "intermediate_size": 128}
        self.folder = folder
        self.model = services.make_model(folder, **wide)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.file = folder / "cluster.toml"
        fields = {
            **{"model": self.model, "engines": 2, "port": self.port, "drain_seconds": 5},
            **{"stall_seconds": STALL, "place_seconds": ROOM},
            "cpus": CPUS,
        }
        lines = [f"{name} = {json.dumps(value)}" for name, value in fields.items()]
        settings = '[settings]\ncache_tokens = 8192\npage_size = 8\ndevice = "cpu"\n'
        self.file.write_text("\n".join(lines) + f"\n{settings}", encoding="utf-8")

    def run(self, *arguments: str, code: int = 0, state: Path | None = None, **more: str) -> str:
        """One command; returns what it says on both streams. more: of its environment."""
        return run(
            [*command("cluster", *arguments), "--folder", str(state or self.folder / "state")],
            code=code,
            **more,
        )

    def status(self) -> dict[str, Any]:
        return json.loads(self.run("status", "--json"))

    def pids(self, kind: str) -> list[int]:
        """Processes that its replicas have started, as the system knows them: that is quicker."""
        words = f"-m\0cutaway\0{ {'engine': 'member', 'front': 'serve'}[kind] }\0".encode()
        return [pid for pid in find_session(self.state["head"]) if words in command_of(pid)]

    @property
    def state(self) -> dict[str, Any]:
        return ClusterFolder(self.folder / "state").state

    def ask(self, path: str, seconds: float = 60) -> str:
        url = f"http://127.0.0.1:{self.port}{path}"
        with urllib.request.urlopen(url, timeout=seconds) as reply:
            return reply.read().decode()

    @cached_property
    def name(self) -> str:
        return json.loads(self.ask("/v1/models"))["data"][0]["id"]

    @property
    def is_whole(self) -> bool:
        return len(re.findall(r'replica_state\{.*state="ready"\} 1\.0', self.ask("/metrics"))) == 2

    def answer(self, body: Mapping[str, Any]) -> Said:
        """All of one stream. Raises: AssertionError where it is cut or ends in an error."""
        asked = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/completions",
            json.dumps({"model": self.name, **body}).encode(),
            {"Content-Type": "application/json"},
        )
        said: Said = {}
        is_done = False
        with urllib.request.urlopen(asked, timeout=120) as reply:
            for line in reply:
                if not line.startswith(b"data: "):
                    continue
                if line.strip() == b"data: [DONE]":
                    is_done = True
                    continue
                event = json.loads(line[6:])
                assert "error" not in event, event
                take_in(event, said)
        assert is_done, "the stream was cut"
        return said

    def answers_during(self, act: Callable[[], Any], *, is_cut: bool = False) -> list[Said | None]:
        """What all streams say; once they have begun, something happens.

        is_cut: whether they may end with it: None stands for those that did.
        """

        def one(number: int) -> Said | None:
            try:
                return self.answer(body_of(number))
            except (AssertionError, HTTPException, OSError):
                if is_cut:
                    return None
                raise

        with ThreadPoolExecutor(STREAMS) as threads:
            going = [threads.submit(one, number) for number in range(STREAMS)]
            time.sleep(0.4)
            act()
            return [each.result() for each in going]

    def await_front(self) -> None:
        """Until one answers. Requests that it refuses meanwhile count for nothing."""

        def answers() -> bool:
            with suppress(HTTPException, OSError):
                return self.ask("/ready", seconds=5) != ""
            return False

        wait_until(answers)


def run(words: list[str], *, code: int = 0, **more: str) -> str:
    """A program's words on both streams; it must end with that code."""
    done = subprocess.run(
        words, env=environment(**more), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == code, (words, done.stdout, done.stderr)
    return " ".join((done.stdout + done.stderr).split())


def body_of(number: int) -> dict[str, Any]:
    """A stream as bar F1 wants it: n 1 to 3, grammars, penalties, log-probabilities, seeds."""
    chance = random.Random(number)
    body: dict[str, Any] = {
        **{
            "prompt": f"stream number {number}",
            "max_tokens": TOKENS,
            "n": chance.choice([1, 2, 3]),
        },
        **{"stream": True, "stream_options": {"include_usage": True}},
        **{"temperature": 0.0, "ignore_eos": True, "cutaway": {"token_ids": True}},
    }
    if number % 2:  # the other half has no seed, and takes what is likeliest
        body |= {"temperature": 0.9, "seed": number}
    if chance.random() < 0.3:
        form = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
        body |= {"response_format": form, "ignore_eos": False}
    if chance.random() < 0.3:
        body["frequency_penalty"] = 0.5
    if chance.random() < 0.2:
        body["logprobs"] = 2
    return body


def take_in(event: Mapping[str, Any], said: Said) -> None:
    for choice in event["choices"]:
        own = said.setdefault(choice["index"], ["", [], [], None])
        own[0] += choice["text"]
        own[1] += choice.get("token_ids") or []
        own[2] += (choice.get("logprobs") or {}).get("token_logprobs", [])
        own[3] = choice["finish_reason"]
    if usage := event.get("usage"):
        said[-1] = [usage["prompt_tokens"], usage["completion_tokens"]]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("ray"))
    began = time.monotonic()
    try:
        made.run("up", str(made.file))
        print(f"up in {time.monotonic() - began:.1f} s")
        session = made.state["head"]
        assert find_session(session)
        yield made
        began = time.monotonic()
        made.run("down")
        print(f"down in {time.monotonic() - began:.1f} s")
        assert not find_session(session), "no process is left"
        assert "no cluster is up" in made.run("status", code=2)
    finally:
        made.run("down")


@pytest.mark.timeout(900)
def test_scale_y2_a_missing_or_another_token_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    other = ClusterFolder(tmp_path / "other")
    other.make()  # with a token of its own
    other.keep({"address": cluster.state["address"]})
    here = {"HOME": str(tmp_path), "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    join = partial(cluster.run, "status", state=other.path, **here)
    for token in ({}, {"RAY_AUTH_TOKEN_PATH": str(other.token_file)}):
        said = join(code=2, **token)
        assert "does not take the token of this host" in said, said
        assert "set RAY_AUTH_TOKEN_PATH" in said.replace("Set", "set")
    own = ClusterFolder(cluster.folder / "state").token_file
    assert "engine" in join(RAY_AUTH_TOKEN_PATH=str(own)), "who has it is let in"


def test_the_head_of_a_cluster_of_this_machine_listens_to_nobody_else(cluster: Cluster) -> None:
    session = find_session(cluster.state["head"])
    head = [pid for pid in session if re.search(rb"/(gcs_server|raylet)\0", command_of(pid))]
    assert len(head) == 2
    opened = {host for pid in head for host in listening(pid)}
    assert opened
    assert opened <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}


def test_scale_s36_a_host_of_another_ray_is_refused_and_both_are_named(cluster: Cluster) -> None:
    words = command("cluster", "status", "--folder", str(cluster.folder / "state"))
    words[words.index("-c") + 1] = OTHER_RAY
    token = ClusterFolder(
        cluster.folder / "state"
    ).token_file  # Ray looks for it when it is imported
    here = {"RAY_AUTH_MODE": "token", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    said = run(words, code=2, RAY_AUTH_TOKEN_PATH=str(token), **here)
    assert re.search(r"was started with Ray 2\.\d+\.\d+ and Python 3\.\d+\.\d+", said), said
    assert "this host has Ray 2.57.1 and Python 3." in said, said


def test_scale_s38_ray_keeps_for_each_engine_what_it_is_estimated_to_take(
    cluster: Cluster,
) -> None:
    said = run([sys.executable, "-c", KEPT, str(cluster.folder / "state")])
    wanted = with_memory(read_cluster(cluster.file)).memory
    assert wanted is not None
    assert set(json.loads(said[said.index("[") :])) == {wanted}


@pytest.mark.timeout(300)
def test_scale_s37_who_finds_no_room_is_told_host_by_host(cluster: Cluster) -> None:
    said = cluster.run("scale", "3", code=2)
    lacking = rf"[\d.]+: {CPUS:g} CPU wanted, 0 CPU of {2 * CPUS:g} CPU free"
    assert re.search(rf"An engine waits for room for 1\d seconds\. {lacking}", said), said
    refusal = rf"no room in place_seconds, {ROOM}\. {lacking} Ask for less in cpus"
    assert re.search(refusal, said), said
    cluster.run("scale", "2")
    assert cluster.is_whole


@pytest.mark.timeout(300)
def test_scale_s27_engines_that_are_only_busy_are_not_ended(cluster: Cluster) -> None:
    """64 long prompts at once, for longer than an engine without a sign of work is given."""
    before = cluster.status()["engine"]
    ids = random.Random(3)

    def ask(number: int) -> Said:
        prompt = [ids.randrange(256) for _ in range(240)]
        return cluster.answer({"prompt": prompt, "max_tokens": 1, "stream": True})

    began = time.monotonic()
    with ThreadPoolExecutor(64) as threads:
        while time.monotonic() - began < 1.3 * STALL:
            assert len(list(threads.map(ask, range(64)))) == 64
    after = cluster.status()["engine"]
    assert {where: facts["pid"] for where, facts in after.items()} == {
        where: facts["pid"] for where, facts in before.items()
    }
    assert [facts["starts"] for facts in after.values()] == [
        facts["starts"] for facts in before.values()
    ]


@pytest.mark.timeout(1500)
def test_scale_y1_s39_streams_outlive_kills_and_scale(cluster: Cluster) -> None:
    """CUTAWAY_RAY_ROUNDS=5 is the whole bar: so often an engine is killed."""
    undisturbed = cluster.answers_during(lambda: None)
    assert len({str(said) for said in undisturbed}) == STREAMS
    told = cluster.status()
    for kind, count in (("engine", 2), ("front", 1)):
        assert sorted(facts["pid"] for facts in told[kind].values()) == sorted(cluster.pids(kind))
        assert len(told[kind]) == count
        niceness = {os.getpriority(os.PRIO_PROCESS, pid) for pid in cluster.pids(kind)}
        assert niceness == {os.getpriority(os.PRIO_PROCESS, 0)}, "they give way to all others"

    # Streams through a front that is killed end with it; those that come behind it do not notice.
    (front,) = cluster.pids("front")
    ended = cluster.answers_during(partial(kill, front), is_cut=True)
    assert all(said in (None, whole) for said, whole in zip(ended, undisturbed, strict=True))
    began = time.monotonic()
    cluster.await_front()
    print(f"another front after {time.monotonic() - began:.1f} s")
    wait_until(lambda: cluster.is_whole)
    assert front not in cluster.pids("front")
    assert cluster.answers_during(lambda: None) == undisturbed, "the next front"

    chance = random.Random(7)
    for number in range(int(os.environ.get("CUTAWAY_RAY_ROUNDS", "1"))):
        killed = chance.choice(cluster.pids("engine"))
        assert cluster.answers_during(partial(kill, killed)) == undisturbed, number
        wait_until(lambda: cluster.is_whole)
        print(f"round {number + 1}: {STREAMS} of {STREAMS} equal")

    engine = cluster.pids("engine")[1]
    for what, pid in (
        ("an engine's actor", parent_of(engine)),
        ("a worker of the raylet", find_actor("Roster")),
        ("the controller", find_actor("ServeController")),
    ):
        assert cluster.answers_during(partial(kill, pid)) == undisturbed, what
        wait_until(lambda: cluster.is_whole)
        print(f"{what} killed: {STREAMS} of {STREAMS} equal")
    assert not Path(f"/proc/{engine}").exists(), "nobody told it to end"

    fronts, engines = cluster.pids("front"), set(cluster.pids("engine"))
    assert cluster.answers_during(lambda: cluster.run("scale", "1")) == undisturbed
    cluster.run("scale", "2")
    assert cluster.pids("front") == fronts, "to scale starts no other anew"
    assert len(engines & set(cluster.pids("engine"))) == 1


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def command_of(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def listening(pid: int) -> list[str]:
    """Addresses at which a process listens by TCP."""
    inodes: set[str] = set()
    with suppress(OSError):
        for each in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                inodes.update(re.findall(r"socket:\[(\d+)\]", os.readlink(each)))
    found: list[str] = []
    for family, name in ((socket.AF_INET, "tcp"), (socket.AF_INET6, "tcp6")):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in inodes:
                host = bytes.fromhex(words[1].split(":")[0])
                parts = (host[i : i + 4][::-1] for i in range(0, len(host), 4))
                found.append(socket.inet_ntop(family, b"".join(parts)))
    return found


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 300
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.1)


def find_actor(name: str) -> int:
    """The process of an actor, by the title that Ray gives it."""
    for each in Path("/proc").iterdir():
        if each.name.isdecimal() and command_of(int(each.name)).startswith(f"ray::{name}".encode()):
            return int(each.name)
    raise AssertionError(f"there is no {name}")
