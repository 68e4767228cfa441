"""A cluster as its operator has it: joined by the token, deployed, told of, ended.

Needs cutaway[ray], and says what to install where it is missing.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
import sys
import time
import urllib.request
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, cast

from cutaway.core.errors import ConfigError
from cutaway.server.clusters.cluster_config import ClusterConfig
from cutaway.server.clusters.cluster_head import ClusterFolder, environment, start_head
from cutaway.server.clusters.cluster_placement import ClusterHost, tell_missing

LEAST, BELOW = (2, 56), (3, 0)  # versions of Ray
ANSWER_SECONDS: Final = 30.0  # of the roster, which may be started anew
WORD_SECONDS: Final = 10.0  # of waiting for room, after which it is said what is missing


def check_ray() -> str:
    """The version of Ray that is installed. Raises: ConfigError where none, or another, is."""
    try:
        found = version("ray")
    except PackageNotFoundError:
        raise ConfigError(
            "Ray is not installed here. Install it: pip install 'cutaway[ray]'."
        ) from None
    numbers = tuple(int(each) for each in re.findall(r"\d+", found)[:2])
    if not LEAST <= numbers < BELOW:
        raise ConfigError(
            f"Ray {found} is installed; it must be from {LEAST[0]}.{LEAST[1]} and below "
            f"{BELOW[0]}. Install one: pip install 'cutaway[ray]'."
        )
    return found


class JoinedCluster:
    """A cluster that this process has joined."""

    def __init__(self, folder: ClusterFolder, state: dict[str, object]) -> None:
        self._folder, self._state = folder, state
        self._ray: Any = importlib.import_module("ray")
        self._serve: Any = importlib.import_module("ray.serve")

    @property
    def config(self) -> ClusterConfig:
        """What is deployed. Raises: ConfigError where nothing is."""
        table = cast("dict[str, object] | None", self._state.get("config"))
        if table is None:
            raise ConfigError("no model is served here. Begin with `cutaway cluster up FILE`.")
        return ClusterConfig.parse(table, where=str(self._folder.path))

    @property
    def generation(self) -> int:
        """How often all was started anew."""
        found = self._state.get("generation", 0)
        return found if isinstance(found, int) else 0

    @property
    def url(self) -> str:
        """Where a front answers."""
        return next(iter(sorted(self.tell()["front"])), "nowhere yet")

    def deploy(
        self, config: ClusterConfig, *, generation: int, tell: Callable[[str], None]
    ) -> None:
        """Have Ray bring about what a configuration says, and wait until it is so.

        Raises: ConfigError where there is no room in place_seconds, or what is started ends again.
        """
        from cutaway.server.clusters import ray_app

        if not config.link_key_file:  # of a cluster of this machine alone
            config = replace(config, link_key_file=str(self._folder.link_key_file))
        self._state |= {"config": config.as_table(), "generation": generation}
        self._folder.keep(self._state)
        table = {**config.as_table(), "generation": generation}
        api: Any = importlib.import_module("ray.serve.api")
        ray_app.find_roster()
        self._serve.start(proxy_location="Disabled")
        api.run_many(
            [
                api.RunTarget(build(table), name=name, route_prefix=None)
                for build, name in (
                    (ray_app.build_engines, ray_app.ENGINES),
                    (ray_app.build_fronts, ray_app.FRONTS),
                )
            ],
            wait_for_ingress_deployment_creation=False,
            wait_for_applications_running=False,
        )
        self._wait(config, generation, tell)

    def _wait(self, config: ClusterConfig, generation: int, tell: Callable[[str], None]) -> None:
        from cutaway.server.clusters import ray_app

        began, told = time.monotonic(), ""
        while True:
            waited = time.monotonic() - began
            applications = self._serve.status().applications
            states = [applications.get(name) for name in (ray_app.ENGINES, ray_app.FRONTS)]
            for each in states:
                if each is not None and each.status == "DEPLOY_FAILED":
                    raise ConfigError(f"the cluster cannot be brought about: {each.message}")
            is_up = all(each is not None and each.status == "RUNNING" for each in states)
            if is_up and self._is_all_there(config, generation):
                return
            if waited >= WORD_SECONDS:
                missing = self._tell_missing(config)
                if missing and missing != told:
                    tell(f"An engine waits for room for {waited:.0f} seconds.\n{missing}")
                    told = missing
                if missing and waited >= config.place_seconds:
                    raise ConfigError(
                        f"an engine found no room in place_seconds, {config.place_seconds:g}.\n"
                        f"{missing}\nAsk for less in cpus, gpus or memory, or add a host."
                    )
            time.sleep(0.25)

    def _is_all_there(self, config: ClusterConfig, generation: int) -> bool:
        told = self.tell()
        counts = [
            sum(facts["generation"] == generation for facts in told[kind].values())
            for kind in ("engine", "front")
        ]
        is_small = len(told["engine"]) == config.engines
        return (
            counts == [config.engines, config.fronts]
            and is_small
            and all(is_ready(url) for url in told["front"])
        )

    def _tell_missing(self, config: ClusterConfig) -> str:
        """Why an engine that is wanted has no host, if one has none."""
        from cutaway.server.clusters import ray_app

        groups = importlib.import_module("ray.util").placement_group_table().values()
        if not any(group["state"] in ("PENDING", "RESCHEDULING") for group in groups):
            return ""
        available = importlib.import_module("ray._private.state").available_resources_per_node()
        hosts = [
            ClusterHost(
                node["NodeManagerAddress"],
                node["Resources"],
                available.get(node["NodeID"], {}),
            )
            for node in self._ray.nodes()
            if node["Alive"]
        ]
        return tell_missing(ray_app.bundle_of(config), hosts)

    def tell(self) -> dict[str, Any]:
        """Engines and fronts by address, and what Ray says of each deployment."""
        from cutaway.server.clusters import ray_app

        roster = ray_app.find_roster()
        asked = [roster.list.remote(kind) for kind in ("engine", "front")]
        engines, fronts = self._ray.get(asked, timeout=ANSWER_SECONDS)
        applications = self._serve.status().applications
        return {
            "engine": engines,
            "front": fronts,
            "deployments": {
                name: f"{each.status}{': ' if each.message else ''}{each.message}"
                for app in (ray_app.ENGINES, ray_app.FRONTS)
                if app in applications
                for name, each in applications[app].deployments.items()
            },
        }

    def end(self) -> None:
        """End fronts and engines; Ray itself stays."""
        self._serve.shutdown()


def is_ready(url: str) -> bool:
    """Whether a front takes requests in."""
    with suppress(OSError), urllib.request.urlopen(f"{url}/ready", timeout=2) as reply:
        return reply.status == 200
    return False


@contextmanager
def join(folder: ClusterFolder, config: ClusterConfig | None = None) -> Generator[JoinedCluster]:
    """Join the cluster that is kept in a folder, or start one where a configuration says so.

    Raises: ConfigError where Ray is missing, another, or does not let this process in.
    """
    ours = check_ray()
    state = folder.state
    if not state:
        if config is None:
            raise ConfigError(
                f"no cluster is up; {folder.path} knows of none. Begin with `cutaway cluster up "
                "FILE`."
            )
        state = _begin(folder, config)
    is_local = "head" in state
    os.environ.update(environment(folder, is_local=is_local))
    ray: Any = importlib.import_module("ray")
    try:
        ray.init(
            address=state["address"],
            namespace="cutaway",
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=False,
        )
    except Exception as error:
        raise ConfigError(_why_out(str(error), ours, str(state["address"]))) from None
    try:
        yield JoinedCluster(folder, state)
    finally:
        ray.shutdown()


def _begin(folder: ClusterFolder, config: ClusterConfig) -> dict[str, object]:
    folder.make()
    if not config.is_local:
        return {"address": config.address}
    cpus = max(config.engines * config.cpus, os.cpu_count() or 1)
    head, address, files = start_head(folder, cpus=cpus, gpus=config.engines * config.gpus)
    state: dict[str, object] = {"address": address, "head": head, "files": files}
    folder.keep(state)
    return state


def _why_out(words: str, ours: str, address: str) -> str:
    """Why Ray did not let this process in, in words that say what to do."""
    if "ersion" in words and "mismatch" in words:
        # Ray tells its cluster's versions first, then those of this process.
        told = [f"{name} {number}" for name, number in re.findall(r"(Ray|Python): ([\w.]+)", words)]
        if len(told) != 4:
            own = f"Ray {ours}, Python {'.'.join(map(str, sys.version_info[:3]))}"
            return f"{address} has other versions than this host ({own}): {words}"
        return (
            f"{address} was started with {told[0]} and {told[1]}; this host has {told[2]} and "
            f"{told[3]}. Install the same on all hosts."
        )
    if "token" in words.lower() or "auth" in words.lower():
        return (
            f"{address} does not take the token of this host. Set RAY_AUTH_TOKEN_PATH to the file "
            "that the head was started with."
        )
    # Ray says of a wrong token on stderr alone, and then that nobody is there.
    return (
        f"Ray at {address} cannot be reached, or does not take the token of this host: "
        f"{words.splitlines()[0] if words else 'no reason'}. Look whether it runs, and set "
        "RAY_AUTH_TOKEN_PATH to the file that it was started with."
    )
