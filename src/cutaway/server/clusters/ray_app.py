"""A cluster on Ray Serve: it places, watches, scales and rolls; no token passes through it.

Needs cutaway[ray]. A replica here starts one process of ours and watches it: `cutaway member` for
an engine, `cutaway serve` for a front. Those speak with one another by links of their own.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from cutaway.host.link_key import LinkAddress, read_link_key
from cutaway.server.clusters.cluster_config import ClusterConfig
from cutaway.server.clusters.ray_cluster import is_ready
from cutaway.server.server_config import host_in_url
from cutaway.service.bounds import ProcessConfig
from cutaway.service.links.link_service import LinkService

# Ray has no types of its own, and is not installed where the rest is checked.
ray: Any = importlib.import_module("ray")
serve: Any = importlib.import_module("ray.serve")

NAMESPACE: Final = "cutaway"
ROSTER: Final = "cutaway-roster"
ENGINES: Final = "cutaway-engines"
FRONTS: Final = "cutaway-fronts"
CHECK_SECONDS: Final = 2.0  # between two looks at a replica; each tells the roster that it lives
LEASE_SECONDS: Final = 15.0  # of an entry of the roster; who is not heard of for so long is gone
ORPHAN_SECONDS: Final = 30.0  # without any link, after which an engine ends


@ray.remote(num_cpus=0)
class Roster:
    """Who there is: engines by address, fronts by URL. A new one hears of all within seconds."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], tuple[float, dict[str, Any]]] = {}

    def note(self, kind: str, where: str, facts: dict[str, Any]) -> None:
        """Somebody lives."""
        self._seen[kind, where] = (time.monotonic(), facts)

    def drop(self, kind: str, where: str) -> None:
        """Somebody leaves."""
        self._seen.pop((kind, where), None)

    def list(self, kind: str) -> dict[str, dict[str, Any]]:
        """Who of a kind lives, and what was told of each."""
        oldest = time.monotonic() - LEASE_SECONDS
        self._seen = {key: told for key, told in self._seen.items() if told[0] >= oldest}
        return {where: facts for (each, where), (_, facts) in self._seen.items() if each == kind}


def find_roster() -> Any:
    """The roster of the cluster, made where there is none."""
    return Roster.options(
        name=ROSTER,
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        max_restarts=-1,
        scheduling_strategy="DEFAULT",  # not in the group of an engine, with which it would end
    ).remote()


class _Program:
    """A process of ours that ends with this one, and says on stdout where it is."""

    def __init__(self, process: asyncio.subprocess.Process, said: str) -> None:
        self._process, self.said = process, said

    @classmethod
    async def start(cls, *arguments: str, says: bool) -> _Program:
        """says: whether its first line tells where it is; it is waited for."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "cutaway", *arguments, "--end-with-stdin"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None, "it was asked for"
        said = (await process.stdout.readline()).decode().strip() if says else ""
        if says and not said:
            code = await process.wait()
            raise RuntimeError(
                f"cutaway {arguments[0]} ended with exit code {code} before it listened; its last "
                "words are in the log of this replica"
            )
        return cls(process, said)

    @property
    def pid(self) -> int:
        return self._process.pid

    def check(self) -> None:
        """Raise RuntimeError where it has ended."""
        if self._process.returncode is not None:
            raise RuntimeError(f"the process ended with exit code {self._process.returncode}")

    def end(self, seconds: float) -> None:
        """Ask it to end, and wait so long; nothing here is awaited, for Ray ends a replica so."""
        with suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGTERM)
        until = time.monotonic() + seconds
        while time.monotonic() < until and _lives(self._process.pid):
            time.sleep(0.05)
        with suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGKILL)


def _lives(pid: int) -> bool:
    with suppress(OSError):
        status = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        return status.rpartition(")")[2].split()[0] not in ("Z", "X")
    return False


async def _end_with(program: _Program, roster: Any, kind: str, where: str) -> None:
    """End this replica where its program has: Ray replaces a dead one at once.

    One that is only unwell it looks at twice more.
    """
    try:
        program.check()
    except RuntimeError as error:
        with suppress(ray.exceptions.RayError):
            await roster.drop.remote(kind, where)
        print(f"cutaway: {kind} {where}: {error}", file=sys.stderr, flush=True)
        os._exit(1)


class PlacedEngine:
    """An engine that Ray has placed: `cutaway member`, and a link by which it is watched."""

    async def __init__(self, table: Mapping[str, Any], generation: int) -> None:
        config = ClusterConfig.parse(table, where="the cluster's table")
        self._drain, self._stall = config.drain_seconds, config.stall_seconds
        self._roster, self._generation = find_roster(), generation
        key = read_link_key(Path(config.link_key_file), where="an engine of a cluster")
        self._program = await _Program.start(
            *("member", config.model, *config.flags),
            *("--listen", str(LinkAddress(ray.util.get_node_ip_address(), 0))),
            *("--link-key-file", config.link_key_file),
            *("--drain-seconds", str(config.drain_seconds)),
            *("--stall-seconds", str(config.stall_seconds)),
            *("--lease-seconds", str(ORPHAN_SECONDS)),
            says=True,
        )
        self._where = self._program.said
        self._link = LinkService(
            LinkAddress.parse(self._where),
            key,
            config=ProcessConfig(stall_seconds=config.stall_seconds),
            tell=lambda text: print(f"cutaway: {text}", file=sys.stderr, flush=True),
        )
        await self._link.start()
        self._note()

    def _note(self) -> None:
        facts = {
            "pid": self._program.pid,
            "host": ray.util.get_node_ip_address(),
            "state": self._link.state,
            "starts": self._link.num_starts,
            "silent_seconds": round(self._link.silent_seconds, 1),
            "generation": self._generation,
        }
        self._roster.note.remote("engine", self._where, facts)

    async def check_health(self) -> None:
        """Raise where the engine shows no sign of work; one that is busy shows some."""
        await _end_with(self._program, self._roster, "engine", self._where)
        # The member itself starts a hung engine anew at stall_seconds; this is for its own hang.
        if self._link.silent_seconds >= 2 * self._stall:
            raise RuntimeError(f"no sign of work for {self._link.silent_seconds:g} seconds")
        self._note()

    async def where(self) -> str:
        """The address of the engine."""
        return self._where

    def __del__(self) -> None:
        if hasattr(self, "_link"):
            self._roster.drop.remote("engine", self._where)
            self._program.end(self._drain + 5)


class PlacedFront:
    """A front that Ray has placed: `cutaway serve` over all engines of the roster."""

    async def __init__(self, table: Mapping[str, Any], generation: int) -> None:
        config = ClusterConfig.parse(table, where="the cluster's table")
        self._roster, self._generation = find_roster(), generation
        self._drain = config.drain_seconds
        self._folder = Path(tempfile.mkdtemp(prefix="cutaway-front-"))
        self._file = self._folder / "members"
        self._addresses: list[str] = []
        while not self._addresses:
            await self._look()
            await asyncio.sleep(0.2)
        keys = ["--api-key-file", config.api_key_file] if config.api_key_file else []
        self._program = await _Program.start(
            *("serve", config.model, "--host", config.host, "--port", str(config.port)),
            *(
                "--members-file",
                str(self._file),
                "--link-key-file",
                config.link_key_file,
            ),
            *("--drain-seconds", str(config.drain_seconds), *keys),
            says=False,
        )
        # Where it listens for all, this host is asked by its own address.
        is_any = config.host in ("0.0.0.0", "::")
        host = ray.util.get_node_ip_address() if is_any else config.host
        self._url = f"http://{host_in_url(host)}:{config.port}"
        self._watching = asyncio.create_task(self._watch())
        while not await asyncio.to_thread(is_ready, self._url):
            self._program.check()
            await asyncio.sleep(0.2)
        self._note()

    def _note(self) -> None:
        facts = {
            "pid": self._program.pid,
            "host": ray.util.get_node_ip_address(),
            "engines": len(self._addresses),
            "generation": self._generation,
        }
        self._roster.note.remote("front", self._url, facts)

    async def _look(self) -> None:
        addresses = sorted(await self._roster.list.remote("engine"))
        if addresses and addresses != self._addresses:
            self._addresses = addresses
            part = self._file.with_suffix(".part")
            part.write_text("".join(f"{each}\n" for each in addresses), encoding="ascii")
            part.replace(self._file)

    async def _watch(self) -> None:
        """Tell the front who is there. While the roster is away, who was there stays."""
        while True:
            with suppress(ray.exceptions.RayError):
                await self._look()
            await asyncio.sleep(0.5)

    async def check_health(self) -> None:
        """End where the front's process is gone."""
        await _end_with(self._program, self._roster, "front", self._url)
        self._note()

    def __del__(self) -> None:
        if hasattr(self, "_watching"):
            self._roster.drop.remote("front", self._url)
            self._program.end(self._drain + 5)


def build_engines(table: Mapping[str, Any]) -> Any:
    """The application of a cluster's engines, for serve.run_many and for a RayService of KubeRay.

    table: as ClusterConfig.as_table gives it, and `generation`: another one starts all anew.
    """
    config, generation = _read(table)
    return (
        serve.deployment(PlacedEngine)
        .options(
            name="Engine",
            num_replicas=config.engines,
            placement_group_bundles=[bundle_of(config)],
            placement_group_strategy="STRICT_PACK",
            ray_actor_options={
                "num_cpus": config.cpus,
                "num_gpus": config.gpus,
                "memory": config.memory or 0,
            },
            **_common(config, generation),
        )
        .bind(_made(config), generation)
    )


def build_fronts(table: Mapping[str, Any]) -> Any:
    """The application of a cluster's fronts, at most one a host. table: as for build_engines."""
    config, generation = _read(table)
    return (
        serve.deployment(PlacedFront)
        .options(
            name="Front",
            num_replicas=config.fronts,
            max_replicas_per_node=1,
            ray_actor_options={"num_cpus": 0},
            **_common(config, generation),
        )
        .bind(_made(config), generation)
    )


def _read(table: Mapping[str, Any]) -> tuple[ClusterConfig, int]:
    plain = dict(table)
    generation = int(plain.pop("generation", 0))
    return ClusterConfig.parse(plain, where="the cluster's table"), generation


def _made(config: ClusterConfig) -> dict[str, Any]:
    """What a replica is made with; not how many there are, for to scale starts none anew."""
    return {**config.as_table(), "engines": 1, "fronts": 1}


def _common(config: ClusterConfig, generation: int) -> dict[str, Any]:
    """Options of both deployments.

    Their version follows from what a replica is made with. Without one Ray takes another at each
    deploy, and to scale would start all anew, and end the streams through every front.
    """
    made = json.dumps([_made(config), generation], sort_keys=True)
    return {
        "version": hashlib.sha256(made.encode()).hexdigest()[:16],
        "_internal": True,  # lets it be set
        "health_check_period_s": CHECK_SECONDS,
        "health_check_timeout_s": config.stall_seconds,
        "graceful_shutdown_timeout_s": config.drain_seconds + 10,
        "graceful_shutdown_wait_loop_s": 0.1,
    }


def bundle_of(config: ClusterConfig) -> dict[str, float]:
    """What Ray keeps for an engine, by resource."""
    return {"CPU": config.cpus, "GPU": config.gpus, "memory": float(config.memory or 0)}
