"""bench/faults.py as a module, for tests that plant faults with it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def load_planting() -> ModuleType:
    """The module."""
    path = Path(__file__).parents[1] / "bench" / "faults.py"
    spec = importlib.util.spec_from_file_location("planted_faults", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
