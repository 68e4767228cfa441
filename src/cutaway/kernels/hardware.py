"""What this process may use of the machine: CPU threads, instruction sets, memory bandwidth.

Threads follow affinity and the quota of control groups, so that a container gets its share and no
more. Free of torch until the native library is asked.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

from cutaway.core.whole_numbers import whole_number

_READ_BYTES = 1 << 28  # far beyond what a core's own caches hold


def available_threads(root: Path = Path("/")) -> int:
    """Cores that this process may run on, cut to the CPU time that its control group allows.

    Two threads of one core count once: they share its multipliers and its path to memory.
    """
    cores = {_core(root, cpu) for cpu in _cpus()}
    quota = min(_quotas(root), default=math.inf)
    return max(1, min(len(cores), math.ceil(quota) if quota < math.inf else len(cores)))


def chosen_threads() -> int:
    """Threads to compute with: those available, or fewer where OMP_NUM_THREADS says so."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    available = available_threads()
    number = whole_number(asked)
    return min(number, available) if number else available


def instruction_sets() -> tuple[str, ...]:
    """Those that native kernels can run on here, best first; none where they are not built."""
    from cutaway.kernels.native import library

    return library.isas() if library.is_available() else ()


def read_bandwidth(*, rounds: int = 5, num_bytes: int = 0) -> float:
    """Bytes per second at which the native threads read memory together: the median of rounds.

    num_bytes: of what else is read meanwhile, such as a model's weights, where that is more than
    256 MiB. A buffer that is smaller may stay in a cache that they do not fit.
    """
    import numpy

    from cutaway.kernels.native import library

    # Written once, or all pages would be one page of zeros.
    buffer = numpy.full(max(_READ_BYTES, num_bytes), 1, numpy.uint8)
    return library.library().cw_read_bandwidth(buffer.ctypes.data, buffer.nbytes, rounds)


def _cpus() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _core(root: Path, cpu: int) -> str:
    """A name that the threads of one core share."""
    topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
    return _text(topology) or str(cpu)


def _quotas(root: Path) -> Iterator[float]:
    """CPUs that each control group above this process allows, in both versions of the interface."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        folders = [Path(path.lstrip("/")), *Path(path.lstrip("/")).parents]
        if not controllers:
            for folder in folders:
                limit = _text(root / "sys/fs/cgroup" / folder / "cpu.max").split()
                if len(limit) == 2 and limit[0] != "max":
                    yield int(limit[0]) / int(limit[1])
        elif "cpu" in controllers.split(","):
            for folder in folders:
                place = root / "sys/fs/cgroup/cpu" / folder
                quota = int(_text(place / "cpu.cfs_quota_us") or -1)
                if quota > 0:
                    yield quota / int(_text(place / "cpu.cfs_period_us"))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""
