"""Puts the compiled CPU kernels into the wheel, and the platform into its name.

Without a C++ compiler, or with CUTAWAY_PURE=1, the wheel is pure Python and serves every platform,
on torch; an index offers it where no native one fits. An editable
installation compiles nothing: there `make native` does.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import platform_tags

LIBRARY = "cutaway/kernels/_native.so"
PAGE = "cutaway/_web/index.html"
NO_COMPILER = 3  # exit status of native/build.py


class NativeKernels(BuildHookInterface):
    """Called by hatchling before it packs a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile unless the library is newer than its sources, and add it."""
        if version != "editable" and not Path(self.root, "src", PAGE).is_file():
            self.app.display_warning("The page is not built (make web): the wheel goes without it.")
        library = Path(self.root, "src", LIBRARY)
        if version == "editable" or os.environ.get("CUTAWAY_PURE"):
            return
        if not is_current(library, sources=Path(self.root, "native")):
            script = str(Path(self.root, "native", "build.py"))
            status = subprocess.run([sys.executable, script], check=False).returncode
            if status == NO_COMPILER:
                self.app.display_warning("No C++ compiler: the wheel runs on torch alone.")
                return
            if status:
                raise RuntimeError(f"native/build.py ended with status {status}; see above.")
        build_data["force_include"][str(library)] = LIBRARY
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{next(platform_tags())}"


def is_current(library: Path, *, sources: Path) -> bool:
    """Whether the library is there and no source was written after it."""
    newest = max(path.stat().st_mtime for path in sources.rglob("*") if path.suffix != ".pyc")
    return library.is_file() and library.stat().st_mtime >= newest
