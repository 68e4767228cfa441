"""What a run needs to go on to the bit, in folders that are there whole or not at all.

A checkpoint is a model's folder, which opens as it is, with the optimizer's state, a few numbers
and a list of checksums beside it. Files are written aside, flushed and renamed; whatever stops a
save leaves the checkpoint before it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from cutaway.core.errors import ConfigError
from cutaway.host.whole_file import remove_stale, whole_folder
from cutaway.weights.files.safetensors import SafetensorsWeights
from cutaway.weights.files.safetensors_writer import write_safetensors

STATE, OPTIMIZER, MANIFEST = "state.json", "optimizer", "manifest.json"
_DIGITS = 6


@dataclass(frozen=True)
class Checkpoint:
    """One that verified. update: the next one to be done."""

    path: Path
    update: int
    state: Mapping[str, Any]

    def optimizer_state(self) -> dict[str, Tensor]:
        """Moments by the name of their parameter.

        Raises: ConfigError when there are none: weights alone cannot go on.
        """
        folder = self.path / OPTIMIZER
        if not folder.is_dir():
            raise ConfigError(
                f"{self.path} has weights and no state of the optimizer; a run cannot go on from "
                "it. Begin another with model set to this folder."
            )
        stored = SafetensorsWeights(folder)
        return {name: stored.part(name) for name in stored.names()}


def write(
    folder: Path,
    update: int,
    *,
    write_model: Callable[[Path], None],
    optimizer: Mapping[str, Tensor],
    state: Mapping[str, object],
) -> Path:
    """Save what was reached before an update, as a new folder in folder.

    write_model: writes the model's own files into a folder.
    Raises: OSError.
    """
    path = folder / f"{update:0{_DIGITS}}"
    if path.exists():  # one that did not verify: a run that goes on makes it anew
        shutil.rmtree(path)
    with whole_folder(path) as half:
        write_model(half)
        (half / OPTIMIZER).mkdir()
        write_safetensors(half / OPTIMIZER / "model.safetensors", optimizer)
        (half / STATE).write_text(json.dumps({**state, "update": update}), encoding="utf-8")
        files = sorted(each for each in half.rglob("*") if each.is_file())
        sums = {each.relative_to(half).as_posix(): _sum(each) for each in files}
        (half / MANIFEST).write_text(json.dumps(sums, indent=1), encoding="utf-8")
    return path


def write_model(path: Path, write_files: Callable[[Path], None]) -> None:
    """A model's folder that is there whole or not at all. Raises: OSError."""
    with whole_folder(path) as half:
        write_files(half)


def newest(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that verifies, and what is wrong with those that were skipped."""
    skipped: list[str] = []
    for path in reversed(_folders(folder)):
        fault = _fault(path)
        if fault is None:
            state = cast("dict[str, Any]", json.loads((path / STATE).read_bytes()))
            return Checkpoint(path, int(path.name), state), skipped
        skipped.append(f"{path}: {fault}")
    return None, skipped


def remove_unfinished(folder: Path) -> None:
    """Delete what killed saves left in a folder that nobody else writes to now."""
    remove_stale(folder)
    for stale in folder.glob(".*.part"):
        shutil.rmtree(stale, ignore_errors=True)


def sweep(folder: Path, *, keep: int, best: int | None = None) -> None:
    """Delete all but the newest checkpoints and the best."""
    for path in _folders(folder)[:-keep]:
        if int(path.name) != best:
            shutil.rmtree(path)


def _folders(folder: Path) -> list[Path]:
    """Of all checkpoints, the oldest first."""
    if not folder.is_dir():
        return []
    found = [each for each in folder.iterdir() if each.is_dir() and each.name.isdecimal()]
    return sorted(found, key=lambda each: int(each.name))


def _fault(path: Path) -> str | None:
    """What is wrong with a checkpoint; None where every file is the one that was written."""
    try:
        sums: object = json.loads((path / MANIFEST).read_bytes())
        if not isinstance(sums, dict) or STATE not in sums:
            return f"{MANIFEST} is no list of checksums"
        for name, wanted in cast("dict[str, object]", sums).items():
            if _sum(path / name) != wanted:
                return f"{name} is not what was written"
    except (OSError, ValueError) as error:
        return f"{error}"
    return None


def _sum(path: Path) -> str:
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
