"""torch's C++ library, loaded before torch is imported: Python's other threads run meanwhile."""

from __future__ import annotations

import ctypes
import os
import sys
from importlib.util import find_spec
from pathlib import Path

# Where one of these is, torch has a way of its own to find what they need.
_OF_DEVICES = ("libtorch_cuda.so", "libtorch_hip.so", "libtorch_xpu.so")


def load() -> bool:
    """Load what `import torch` would; tell whether that was done here.

    An import keeps the interpreter's lock until the dynamic linker is done, a foreign call gives
    it away. Where anything is unusual nothing is done, and the import says what is wrong.
    """
    spec = find_spec("torch")
    if sys.platform != "linux" or spec is None or spec.origin is None or "torch" in sys.modules:
        return False
    folder = Path(spec.origin).parent / "lib"
    if any((folder / name).exists() for name in _OF_DEVICES):
        return False
    # In torch's order, and as visible to other libraries as torch makes them.
    return _open(folder / "libtorch_global_deps.so", os.RTLD_NOW | os.RTLD_GLOBAL) and _open(
        folder / "libtorch_cpu.so", os.RTLD_NOW
    )


def _open(path: Path, mode: int) -> bool:
    linker = ctypes.CDLL(None).dlopen
    linker.restype, linker.argtypes = ctypes.c_void_p, (ctypes.c_char_p, ctypes.c_int)
    return linker(os.fsencode(path), mode) is not None
