"""How much may still be taken, by files as a kernel writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cutaway.host.free_memory import free_memory

MIB = 2**20


@pytest.mark.parametrize(
    ("group", "free"),
    [
        ({}, 900),  # no control group
        ({"memory.max": "max", "memory.current": f"{700 * MIB}"}, 900),
        ({"memory.max": f"{1000 * MIB}", "memory.current": f"{700 * MIB}"}, 300),
        # Files that were read fill a group's memory; those that nobody uses make room.
        (
            {
                "memory.max": f"{1000 * MIB}",
                "memory.current": f"{700 * MIB}",
                "memory.stat": f"anon 9\ninactive_file {500 * MIB}\nactive_file 9\n",
            },
            800,
        ),
        ({"memory.max": f"{1000 * MIB}", "memory.current": f"{1200 * MIB}"}, 0),
        ({"memory.max": f"{9000 * MIB}", "memory.current": f"{700 * MIB}"}, 900),
    ],
)
def test_the_machine_and_its_control_group_both_count(
    tmp_path: Path, group: dict[str, str], free: int
) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(f"MemTotal: 9 kB\nMemAvailable: {900 * 1024} kB\n")
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    for name, text in group.items():
        (tmp_path / "sys/fs/cgroup" / name).write_text(text)
    assert free_memory(tmp_path) == free * MIB
