"""Memory, bandwidth and dense peaks of devices, as their makers publish them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# what stands in where a device has no units for a type
_NEXT = {"fp8": "bfloat16", "int8": "bfloat16", "float16": "bfloat16", "bfloat16": "float32"}


@dataclass(frozen=True, kw_only=True)
class Device:
    """One accelerator. peaks: operations a second by type, dense, sums in float32 or int32.

    Units: memory_bytes in bytes (makers count 10^9), bandwidth in bytes a second.
    """

    name: str
    memory_bytes: float
    bandwidth: float
    peaks: Mapping[str, float]
    source: str
    facts: Mapping[str, object] = field(default_factory=dict[str, object])  # of a measured one

    def peak(self, computes: str) -> tuple[str, float]:
        """The type that does such multiplications here, and its operations a second."""
        while computes not in self.peaks:
            computes = _NEXT[computes]
        return computes, self.peaks[computes]


def _device(
    name: str, gigabytes: float, bandwidth: float, peaks: Mapping[str, float], source: str
) -> Device:
    return Device(
        name=name,
        memory_bytes=gigabytes * 1e9,
        bandwidth=bandwidth * 1e9,
        peaks={kind: teraflops * 1e12 for kind, teraflops in peaks.items()},
        source=source,
    )


_HOPPER = {"float32": 67, "bfloat16": 989.4, "float16": 989.4, "fp8": 1978.9, "int8": 1978.9}
_AMPERE = {"float32": 19.5, "bfloat16": 312, "float16": 312, "int8": 624}
_ADA = {"float32": 82.6, "bfloat16": 165.2, "float16": 165.2, "fp8": 330.3, "int8": 660.6}
_L4 = {"float32": 30.3, "bfloat16": 121, "float16": 121, "fp8": 242.5, "int8": 242.5}

DEVICES: Mapping[str, Device] = {
    device.name: device
    for device in (
        _device("H100", 80, 3350, _HOPPER, "NVIDIA H100 data sheet, SXM; half of sparse"),
        _device("H200", 141, 4800, _HOPPER, "NVIDIA H200 data sheet, SXM; half of sparse"),
        _device("A100", 80, 2039, _AMPERE, "NVIDIA A100 data sheet, SXM 80 GB"),
        _device("RTX-4090", 24, 1008, _ADA, "NVIDIA Ada architecture paper, appendix A"),
        _device("L4", 24, 300, _L4, "NVIDIA L4 data sheet; half of sparse"),
    )
}
