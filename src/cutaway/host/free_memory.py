"""How much memory of the machine may still be taken: what is free, or what a control group leaves.

Free of torch; of devices nothing is known here.
"""

from __future__ import annotations

import os
from pathlib import Path


def free_memory(root: Path = Path("/")) -> int | None:
    """Bytes that could still be allocated; None where the system does not say."""
    limits = [_meminfo("MemAvailable", root), _cgroup_left(root)]
    known = [limit for limit in limits if limit is not None]
    return min(known) if known else None


def _meminfo(name: str, root: Path) -> int | None:
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        return _from_sysconf()
    for line in lines:
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    return None


def _from_sysconf() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None  # not POSIX


def _cgroup_left(root: Path) -> int | None:
    """What the group may still take. Files that it read and uses no more are given back first."""
    folder = root / "sys/fs/cgroup"
    try:
        limit = (folder / "memory.max").read_text().strip()
        used = int((folder / "memory.current").read_text())
    except OSError:
        return None
    return None if limit == "max" else max(0, int(limit) - max(0, used - _files_unused(folder)))


def _files_unused(folder: Path) -> int:
    try:
        lines = (folder / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))
