"""What each engine of a fleet has of one machine: threads, a GPU, a part of the memory.

Free of torch: GPUs are counted by what the system shows.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from cutaway.core.errors import ConfigError
from cutaway.host.stored_size import stored_bytes
from cutaway.kernels.hardware import chosen_threads
from cutaway.service.bounds import FleetShare

_GPUS = "CUDA_VISIBLE_DEVICES"


def share_of(
    index: int,
    replicas: int,
    *,
    secret: bytes,
    device: str = "auto",
    environment: Mapping[str, str] = os.environ,
    root: Path = Path("/"),
) -> FleetShare:
    """What the engine of that number has, where so many share the machine.

    GPUs go round. Threads are divided: beside others an engine with all of them waits for cores
    that they hold.
    """
    threads = max(1, chosen_threads() // replicas)
    gpus = [] if device == "cpu" or ":" in device else visible_gpus(environment, root)
    if not gpus:
        return FleetShare(num_threads=threads, num_sharing=replicas, page_secret=secret)
    return FleetShare(
        num_threads=threads,
        num_sharing=-(-replicas // len(gpus)),
        page_secret=secret,
        variables={_GPUS: gpus[index % len(gpus)]},
    )


def has_gpus(device: str) -> bool:
    """Whether engines on a device, as settings name it, have GPUs here."""
    return device != "cpu" and bool(visible_gpus(os.environ, Path("/")))


def check_memory(replicas: int, model: Path, *, free: int | None) -> None:
    """Refuse engines whose weights alone do not fit into a machine's memory together.

    model: the file, or the folder of files, that each engine reads; what has none is not weighed.
    free:  bytes; None where the system does not say.
    Raises: ConfigError naming both.
    """
    each = stored_bytes(model)
    if free is None or replicas == 1 or replicas * each <= free:
        return
    raise ConfigError(
        f"replicas is {replicas}, and the weights of each take {each / 2**30:.1f} GiB as they are "
        f"stored, {replicas * each / 2**30:.1f} GiB together; {free / 2**30:.1f} GiB are free. At "
        f"most {free // each} fit here."
    )


def visible_gpus(environment: Mapping[str, str], root: Path) -> list[str]:
    """The GPUs that CUDA would show a process of this environment, as it names them."""
    named = environment.get(_GPUS)
    if named is not None:
        return [each.strip() for each in named.split(",") if each.strip()]
    folder = root / "proc/driver/nvidia/gpus"
    return [str(number) for number, _ in enumerate(folder.iterdir())] if folder.is_dir() else []
