"""What Linux says of the processor."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path


@cache
def read_fields() -> Mapping[str, str]:
    """Its description of the first core, names in lower case; empty elsewhere."""
    try:
        return parse(Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    except OSError:
        return {}


def parse(text: str) -> dict[str, str]:
    """The fields of the first core that a text describes, names in lower case."""
    pairs = (line.partition(":") for line in text.strip().split("\n\n")[0].splitlines())
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def model_name() -> str | None:
    """As its maker calls it; None where that is not told, as on ARM."""
    return read_fields().get("model name")


def features() -> frozenset[str]:
    """Instruction sets and other features, in Linux's words; empty where they are not told."""
    return frozenset((read_fields().get("flags") or read_fields().get("features") or "").split())


def is_amd() -> bool:
    """Whether AMD made it."""
    return read_fields().get("vendor_id") == "AuthenticAMD"
