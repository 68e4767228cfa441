"""What a model's files take on disk, to be weighed before any of it is read."""

from __future__ import annotations

from pathlib import Path


def stored_bytes(model: Path) -> int:
    """Of the file, or of the folder's safetensors files; 0 where there are none."""
    files = model.glob("*.safetensors") if model.is_dir() else [model]
    return sum(file.stat().st_size for file in files)
