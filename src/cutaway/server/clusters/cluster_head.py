"""Ray's head on this machine, for a cluster of this machine alone: started, found again, ended.

Free of Ray itself: its own program is run. What is kept of a cluster lies in one folder.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cutaway.core.errors import ConfigError

START_SECONDS: Final = 60.0
END_SECONDS: Final = 4.0  # of a head that is asked to end; nothing in it is worth saving
STORE_BYTES: Final = 80 * 2**20  # of Ray's object store, about its least: nothing lies in it
_TAIL: Final = 2000


@dataclass(frozen=True)
class ClusterFolder:
    """What is kept of one cluster: the token, the key of links, and what `up` was told."""

    path: Path

    @property
    def token_file(self) -> Path:
        """Of Ray's authentication; who has it may run anything on every host of the cluster."""
        return self.path / "ray.token"

    @property
    def link_key_file(self) -> Path:
        """Of the links between fronts and engines."""
        return self.path / "link.key"

    @property
    def state(self) -> dict[str, object]:
        """What `up` was told and has started; empty where nothing is up."""
        with suppress(OSError, ValueError):
            return json.loads((self.path / "cluster.json").read_text(encoding="utf-8"))
        return {}

    def make(self) -> None:
        """Make the folder and its secrets, for their owner alone."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path.chmod(0o700)
        for file in (self.token_file, self.link_key_file):
            if not file.exists():
                with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as new:
                    new.write(secrets.token_hex(32))

    def keep(self, state: Mapping[str, object]) -> None:
        """Keep what is up."""
        part = self.path / "cluster.part"
        part.write_text(json.dumps(state, indent=1), encoding="utf-8")
        part.replace(self.path / "cluster.json")

    def forget(self) -> None:
        """Nothing is up any more; the secrets stay."""
        (self.path / "cluster.json").unlink(missing_ok=True)


def environment(folder: ClusterFolder, *, is_local: bool) -> dict[str, str]:
    """Variables by which Ray asks for a token, sends one, and tells nobody of its use.

    Its actors are as nice as any program: by Ray's own setting they give way to all others (15),
    and on a host that does anything else engines then get a thirtieth of a core.

    is_local: of a cluster of this machine alone, whose address is then the loopback one. Without a
    word Ray takes another address of the machine in its place, and listens on all of them.
    """
    found = {
        "RAY_AUTH_MODE": "token",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",
    }
    if is_local:
        found["RAY_AUTH_TOKEN_PATH"] = str(folder.token_file)
        found["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    return found


def start_head(folder: ClusterFolder, *, cpus: float, gpus: float) -> tuple[int, str, str]:
    """Start a head that listens on this machine alone.

    Returns: its process, its address, and the folder of its files.
    Raises: ConfigError with its last words where it does not come.
    """
    with (
        socket.create_server(("127.0.0.1", 0)) as free,
        socket.create_server(("127.0.0.1", 0)) as other,
    ):
        port, client_port = free.getsockname()[1], other.getsockname()[1]
    files = tempfile.mkdtemp(prefix="cutaway-ray-")  # short: sockets lie in it
    log = folder.path / "head.log"
    options = {
        "port": port,
        "node-ip-address": "127.0.0.1",
        "num-cpus": max(1, round(cpus)),
        "num-gpus": round(gpus),
        "object-store-memory": STORE_BYTES,
        "include-dashboard": "false",
        "temp-dir": files,
        # Ray has no way to leave its client server out; it asks for the token as all else does.
        "ray-client-server-port": client_port,
    }
    with log.open("w", encoding="utf-8") as out:
        head = subprocess.Popen(
            [
                *(
                    sys.executable,
                    "-m",
                    "ray.scripts.scripts",
                    "start",
                    "--head",
                    "--block",
                ),
                *(f"--{name}={value}" for name, value in options.items()),
                "--disable-usage-stats",
            ],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment(folder, is_local=True)},
            start_new_session=True,
        )
    address = f"127.0.0.1:{port}"
    until = time.monotonic() + START_SECONDS
    while "--block" not in log.read_text(encoding="utf-8", errors="replace"):
        if head.poll() is not None or time.monotonic() > until:
            end_head(head.pid)
            words = log.read_text(encoding="utf-8", errors="replace")[-_TAIL:]
            raise ConfigError(f"Ray's head did not start; its last words:\n{words}")
        time.sleep(0.1)
    return head.pid, address, files


def end_head(pid: int) -> bool:
    """End a head and all that it started, by the session that is its own; whether all is gone."""
    for number, seconds in ((signal.SIGTERM, END_SECONDS), (signal.SIGKILL, 3.0)):
        until = time.monotonic() + seconds
        members = find_session(pid)
        for each in members if number == signal.SIGKILL else [pid]:
            with suppress(ProcessLookupError):
                os.kill(each, number)
        while time.monotonic() < until:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
            if not find_session(pid):
                return True
            time.sleep(0.1)
    return not find_session(pid)


def find_session(session: int) -> list[int]:
    """Living processes of a session."""
    found: list[int] = []
    for each in Path("/proc").iterdir():
        if each.name.isdecimal():
            with suppress(OSError, ValueError, IndexError):
                words = (each / "stat").read_text(errors="replace").rpartition(")")[2].split()
                if int(words[3]) == session and words[0] not in ("Z", "X"):
                    found.append(int(each.name))
    return found
