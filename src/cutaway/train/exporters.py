"""A run's record for those who watch runs elsewhere: TensorBoard, Trackio, Weights & Biases.

Each is an extra, and gets what the record has: nothing is computed for it, and a run is the same
with it and without.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from cutaway.core.errors import ConfigError

NAMES = ("off", "tensorboard", "trackio", "wandb")
_MODULES = {"tensorboard": "torch.utils.tensorboard", "trackio": "trackio", "wandb": "wandb"}
_PLAIN = ("loss", "norm", "rate", "count", "seconds")


class Exporter(Protocol):
    """What is told of each update."""

    def add(self, row: Mapping[str, object]) -> None:
        """One row of a record."""
        ...

    def close(self) -> None:
        """There are no more."""
        ...


def exporter_of(name: str, out: Path, settings: Mapping[str, object]) -> Exporter | None:
    """The exporter of a name; None for off.

    out: the run's folder, whose name is the run's there.
    Raises: ConfigError where the extra is not installed.
    """
    if name == "off":
        return None
    try:
        module: Any = importlib.import_module(_MODULES[name])
    except ImportError:
        raise ConfigError(
            f"export is {name!r}, and {name} is not installed. Install it: pip install "
            f"'cutaway[{name}]'."
        ) from None
    if name == "tensorboard":
        return _TensorBoard(module.SummaryWriter(str(out / "tensorboard")))
    told = {key: str(value) for key, value in settings.items()}
    module.init(project="cutaway", name=out.name, config=told)
    return _Logged(module)


def numbers(row: Mapping[str, object]) -> dict[str, float]:
    """The numbers of a row by flat names, as loss, measured/bits_per_byte, norms/blocks.0."""
    found = {name: row[name] for name in _PLAIN if name in row}
    for group in ("figures", "measured", "norms"):
        part = row.get(group)
        if isinstance(part, Mapping):
            found |= {f"{group}/{name}": value for name, value in part.items()}  # type: ignore[misc]
    return {name: float(value) for name, value in found.items() if isinstance(value, int | float)}


class _TensorBoard:
    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def add(self, row: Mapping[str, object]) -> None:
        for name, value in numbers(row).items():
            self._writer.add_scalar(name, value, row["update"])

    def close(self) -> None:
        self._writer.close()


class _Logged:
    """Trackio has the functions of Weights & Biases."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def add(self, row: Mapping[str, object]) -> None:
        self._module.log(numbers(row), step=row["update"])

    def close(self) -> None:
        self._module.finish()
