"""Every place that reads a port: what can be none is refused with the range."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cutaway.bench import serve as bench_serve
from cutaway.core.errors import ConfigError
from cutaway.fleet.fleet_config import FleetConfig
from cutaway.fleet.members_file import MembersFile
from cutaway.host.link_key import LinkAddress
from cutaway.server.clusters.cluster_config import ClusterConfig
from cutaway.server.server_config import ServerConfig

FROM_ONE, FROM_ZERO = "from 1 to 65535", "from 0 to 65535"


def read_members(port: str, folder: Path) -> None:
    file = folder / "members"
    file.write_text(f"tcp://10.0.0.2:{port}\n", encoding="utf-8")
    MembersFile(file).read()


def send_spans(port: str) -> None:
    spans = pytest.importorskip("cutaway.server.watching.spans")
    spans.Spans(f"http://127.0.0.1:{port}", model="tiny")


def cluster(port: str = "1", **fields: Any) -> ClusterConfig:
    return ClusterConfig(model="x", link_key_file="k", port=int(port), **fields)


READERS: dict[str, tuple[str, Callable[[str, Path], object]]] = {
    "serve --port": (FROM_ZERO, lambda port, _: ServerConfig(port=int(port))),
    "member --listen": (
        FROM_ZERO,
        lambda port, _: LinkAddress.parse(f"tcp://127.0.0.1:{port}", takes_any=True),
    ),
    "serve --member": (FROM_ONE, lambda port, _: FleetConfig(members=(f"tcp://h:{port}",))),
    "members of IPv6": (FROM_ONE, lambda port, _: LinkAddress.parse(f"tcp://[::1]:{port}")),
    "a file of members": (FROM_ONE, read_members),
    "a cluster's fronts": (FROM_ONE, lambda port, _: cluster(port)),
    "Ray's head": (FROM_ONE, lambda port, _: cluster(address=f"10.0.0.2:{port}")),
    "an origin": (
        FROM_ONE,
        lambda port, _: ServerConfig(allowed_origins=(f"https://chat.example.org:{port}",)),
    ),
    "spans": (FROM_ONE, lambda port, _: send_spans(port)),
    "bench serve --url": (
        FROM_ONE,
        lambda port, _: bench_serve.run(f"http://127.0.0.1:{port}", bench_serve.ServeLoad()),
    ),
}


@pytest.mark.parametrize("port", ["65536", "99999", "18446744073709551615"])
@pytest.mark.parametrize("reader", READERS)
def test_a_port_that_cannot_be_is_refused_with_its_range(
    reader: str, port: str, tmp_path: Path
) -> None:
    allowed, read = READERS[reader]
    with pytest.raises(ConfigError, match=allowed) as told:
        read(port[:19], tmp_path)
    assert port[:19] in str(told.value)


@pytest.mark.parametrize("reader", READERS)
def test_zero_is_a_port_where_something_listens_and_nowhere_else(
    reader: str, tmp_path: Path
) -> None:
    allowed, read = READERS[reader]
    if allowed == FROM_ZERO:
        read("0", tmp_path)
        return
    with pytest.raises(ConfigError, match=allowed):
        read("0", tmp_path)


@pytest.mark.parametrize("url", ["http://[::1", "http://", "http://:80", "ftp://h:1", "http://h:x"])
def test_a_url_that_is_none_is_named(url: str) -> None:
    with pytest.raises(ConfigError, match=r'url is "(http|ftp)'):
        bench_serve.run(url, bench_serve.ServeLoad())
