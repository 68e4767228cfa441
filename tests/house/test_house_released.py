"""What is released: small, and the very files that its cards tell of."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from house_tree import ROOT

FOLDERS = sorted(each for each in (ROOT / "released").iterdir() if each.is_dir())
MOST_BYTES = 10e6  # of all together, in a repository that everybody fetches


def test_all_of_it_is_small() -> None:
    files = [each for each in (ROOT / "released").rglob("*") if each.is_file()]
    assert sum(each.stat().st_size for each in files) <= MOST_BYTES


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_card_tells_of_the_file_that_is_there(folder: Path) -> None:
    """Its own card, or its part of the one for all: commands, data, licence, checksum."""
    card = folder / "README.md"
    if card.is_file():
        told = card.read_text("utf-8")
    else:
        _, _, told = (
            (ROOT / "released" / "README.md").read_text("utf-8").partition(f"## {folder.name}\n")
        )
        told = told.partition("\n## ")[0]
    for word in ("| data |", "| licence |"):
        assert word in told
    assert hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest() in told
