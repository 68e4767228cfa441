"""Models in several GGUF files: any part stands for all, and what is absent is said."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

import gguf_bytes as b
from cutaway.core.errors import ModelFormatError, UnsupportedModelError
from cutaway.host import gguf_file

UINT16, INT32 = 2, 5


def part(number: int, count: int, *, tensors: int = 2, name: str | None = None) -> bytes:
    """One part with one tensor of four numbers, all of them its number."""
    keys = [
        b.key("split.no", UINT16, struct.pack("<H", number)),
        b.key("split.count", UINT16, struct.pack("<H", count)),
        b.key("split.tensors.count", INT32, struct.pack("<i", tensors)),
    ]
    if number == 0:
        keys.append(b.key("general.architecture", b.STRING, b.string("llama")))
    own = b.tensor(name or f"w.{number}", [4])
    return b.gguf(keys, [own], struct.pack("<4f", *[number] * 4))


def written(folder: Path, *parts: bytes) -> list[Path]:
    paths = [
        folder / f"m-{number:05}-of-{len(parts):05}.gguf" for number in range(1, len(parts) + 1)
    ]
    for path, raw in zip(paths, parts, strict=True):
        path.write_bytes(raw)
    return paths


@pytest.mark.parametrize("named", [0, 1])
def test_n12_any_part_stands_for_all(tmp_path: Path, named: int) -> None:
    paths = written(tmp_path, part(0, 2), part(1, 2))
    opened = gguf_file.read(paths[named])
    assert opened.text("general.architecture") == "llama"
    assert [opened.vector(f"w.{number}") for number in (0, 1)] == [(0.0,) * 4, (1.0,) * 4]
    for number in (0, 1):
        opened.release(f"w.{number}")
    assert opened.vector("w.1") == (1.0,) * 4
    with pytest.raises(UnsupportedModelError, match="join them first"):
        opened.stored_metadata()


def test_n12_an_absent_part_is_named(tmp_path: Path) -> None:
    first, second = written(tmp_path, part(0, 2), part(1, 2))
    second.unlink()
    with pytest.raises(ModelFormatError, match=r"part 1 of 2, and m-00002-of-00002\.gguf is not"):
        gguf_file.read(first)


def test_n12_a_part_whose_name_does_not_say_so_is_told_how(tmp_path: Path) -> None:
    first, _ = written(tmp_path, part(0, 2), part(1, 2))
    renamed = first.rename(tmp_path / "m.gguf")
    with pytest.raises(ModelFormatError, match=r"part 1 of 2.*NAME-00001-of-00002\.gguf"):
        gguf_file.read(renamed)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ((part(0, 2), part(1, 2, name="w.0")), "stands in two parts"),
        ((part(0, 2, tensors=3), part(1, 2, tensors=3)), "is 3; all parts together have 2"),
        ((part(0, 2), part(0, 2)), "must be 2, and split.no 1"),
    ],
)
def test_n12_parts_that_contradict_each_other_are_refused(
    tmp_path: Path, parts: tuple[bytes, bytes], words: str
) -> None:
    first, _ = written(tmp_path, *parts)
    with pytest.raises(ModelFormatError, match=words):
        gguf_file.read(first)


def test_a_model_in_one_part_is_as_any_other(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(part(0, 1, tensors=1))
    assert gguf_file.read(path).vector("w.0") == (0.0,) * 4
