"""A user's machine for each test: empty folders, a clean environment, a tiny model."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path

import pytest

import tiny
from cutaway.cli.main import run
from program import Cutaway, Ended

TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"
)
KEPT = ("CUTAWAY_ORACLES", "CUTAWAY_REQUIRE_ORACLES")


@pytest.fixture(autouse=True)
def _own_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test reads or writes the settings, models and facts of whoever runs it."""
    for name in [each for each in os.environ if each.startswith("CUTAWAY_") and each not in KEPT]:
        monkeypatch.delenv(name)
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "CUTAWAY_CACHE", "HF_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.fixture
def cutaway(capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Cutaway:
    """Run one command in this process."""

    def called(*arguments: str, stdin: str | bytes = "") -> Ended:
        raw = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw), encoding="utf-8"))
        code = run(arguments)
        out, err = capfdbinary.readouterr()
        return Ended(code, out.decode(), err.decode())

    return called


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Configuration and chat template of a tiny model."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(tiny.config()), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return folder


@pytest.fixture
def tiny_model(tiny_folder: Path) -> str:
    """Random weights of it."""
    return f"random:{tiny_folder / 'config.json'}"
