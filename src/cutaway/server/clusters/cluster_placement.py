"""Where a cluster's engines could be, and in words why one finds no room. Free of Ray."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

RESOURCES: Final = ("CPU", "GPU", "memory")


@dataclass(frozen=True)
class ClusterHost:
    """A host as Ray counts it: what it has, and what of it is free, by resource."""

    name: str
    total: Mapping[str, float]
    free: Mapping[str, float]


def tell_missing(wanted: Mapping[str, float], hosts: Sequence[ClusterHost]) -> str:
    """Why no host has room for one more engine, host by host; empty where one has."""
    lines: list[str] = []
    for host in hosts:
        lacking = [
            _tell_one(name, wanted[name], host)
            for name in RESOURCES
            if host.free.get(name, 0.0) + 1e-9 < wanted.get(name, 0.0)
        ]
        if not lacking:
            return ""
        lines.append(f"{host.name}: {'; '.join(lacking)}")
    return "\n".join(lines) or "Ray has no host."


def _tell_one(name: str, wanted: float, host: ClusterHost) -> str:
    total, free = host.total.get(name, 0.0), host.free.get(name, 0.0)
    return f"{_amount(name, wanted)} wanted, {_amount(name, free)} of {_amount(name, total)} free"


def _amount(name: str, value: float) -> str:
    return f"{value / 2**30:.1f} GiB" if name == "memory" else f"{value:g} {name}"
