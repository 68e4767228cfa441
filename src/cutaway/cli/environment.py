"""What this machine gives a program: cores, memory, instruction sets, torch. Looks, never changes.

Every figure is what this process may use: affinity and control groups count, not the machine alone.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from cutaway import __version__
from cutaway.cli.settings.setting_keys import CHAT, KEYS
from cutaway.host import processor

# What decides speed here: vector width, and units for bfloat16 and int8.
FLAGS = (
    *("sse4_2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_vnni", "avx_vnni"),
    *("avx512_bf16", "amx_bf16", "amx_int8", "asimd", "asimddp", "bf16", "i8mm", "sve"),
)
PACKAGES = (
    *("torch", "numpy", "regex", "jinja2", "pydantic", "pydantic-settings", "typer", "rich"),
    *("huggingface-hub", "platformdirs", "filelock", "msgspec", "fastapi", "starlette", "uvicorn"),
    *("httptools", "prometheus-client"),
)
# Extras, what each brings, and what it is for; docs/development.md installs all of them.
EXTRAS: Mapping[str, tuple[str, str]] = {
    "chat": ("prompt-toolkit", "editing and history in `cutaway chat`"),
    "grammar": ("llguidance", "answers of a given form, and forced tool calls"),
    "gpu": ("triton", "kernels for NVIDIA GPUs"),
    "otel": ("opentelemetry-sdk", "spans of requests"),
    "parquet": ("pyarrow", "training data in Parquet"),
    "ray": ("ray", "engines over many hosts, `cutaway cluster`"),
    "tensorboard": ("tensorboard", "training runs in TensorBoard"),
    "trackio": ("trackio", "training runs in Trackio"),
    "wandb": ("wandb", "training runs in Weights & Biases"),
}
VARIABLES = (
    *(
        "CUTAWAY_CACHE",
        "CUTAWAY_CONFIG",
        "CUTAWAY_DEBUG",
        "CUDA_VISIBLE_DEVICES",
        "OMP_NUM_THREADS",
        "MKL_NUM_THREADS",
        "HF_HOME",
        "HF_HUB_OFFLINE",
    ),
    *("HF_ENDPOINT", "NO_COLOR"),
)

ReportSection = dict[str, object]


def versions() -> ReportSection:
    """Cutaway, Python and what Cutaway stands on; None for what is not installed."""
    return {
        "cutaway": __version__,
        "python": platform.python_version(),
        **{package: _version(package) for package in PACKAGES},
    }


def extras() -> ReportSection:
    """What each extra brings, by its name; None where it is not installed."""
    return {name: _version(package) for name, (package, _) in EXTRAS.items()}


def system() -> ReportSection:
    """Operating system and processor."""
    found = processor.features()
    return {
        "platform": platform.platform(),
        "processor": processor.model_name() or platform.machine(),
        "cpu_flags": [flag for flag in FLAGS if flag in found],
        "cores": os.cpu_count(),
        "usable_cores": usable_cores(),
    }


def usable_cores() -> float:
    """Cores that this process may use, by affinity and by its control group's quota."""
    affinity = getattr(os, "sched_getaffinity", None)
    allowed = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    quota = _cpu_quota()
    return allowed if quota is None else min(allowed, quota)


def memory() -> ReportSection:
    """Bytes of memory: in all, free for use, and the control group's limit."""
    total = _meminfo("MemTotal")
    limit = _first_integer(
        "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"
    )
    # Version 1 of control groups says "no limit" by a number larger than any memory.
    has_limit = limit is not None and (total is None or limit < total)
    return {
        "total_bytes": total,
        "available_bytes": _meminfo("MemAvailable"),
        "limit_bytes": limit if has_limit else None,
    }


def variables() -> ReportSection:
    """Variables that change what happens, where they are set; none that may hold a secret."""
    own = [key.variable for key in KEYS if key.panel != CHAT]
    return {name: os.environ[name] for name in (*own, *VARIABLES) if name in os.environ}


def torch_report() -> ReportSection:
    """How torch was built and what it sees. Raises: whatever its import raises."""
    import torch

    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    return {
        "version": str(torch.__version__),
        "cuda_build": torch.version.cuda,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "gpus": [
            {
                "name": torch.cuda.get_device_name(device),
                "capability": ".".join(map(str, torch.cuda.get_device_capability(device))),
                "total_bytes": torch.cuda.get_device_properties(device).total_memory,
            }
            for device in devices
        ],
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu_quota() -> float | None:
    """Cores by the control group's quota, version 2 and then 1; None without one."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="utf-8").split()
    except (OSError, ValueError):
        quota = str(_first_integer("/sys/fs/cgroup/cpu/cpu.cfs_quota_us") or "max")
        period = str(_first_integer("/sys/fs/cgroup/cpu/cpu.cfs_period_us") or 100_000)
    return None if quota in ("max", "-1") else int(quota) / int(period)


def _meminfo(name: str) -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith(f"{name}:")]
    return int(found[0]) * 1024 if found else None


def _first_integer(*paths: str) -> int | None:
    """The number in the first of these files that can be read; None for `max`."""
    for path in paths:
        try:
            text = Path(path).read_text(encoding="utf-8").strip()
        except OSError:
            continue
        return int(text) if text.lstrip("-").isdigit() else None
    return None
