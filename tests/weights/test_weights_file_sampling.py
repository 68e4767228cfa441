"""general.sampling of a GGUF file: what its makers recommend acts as for a folder."""

from __future__ import annotations

import struct
import warnings
from pathlib import Path

import pytest

from cutaway.core.errors import ModelFormatError
from cutaway.weights.find.find import find
from gguf_bytes import gguf, key, u32

U32, I32, F32, STRING = 4, 5, 6, 8


def number(value: float) -> bytes:
    return struct.pack("<f", value)


def integer(value: int) -> bytes:
    return struct.pack("<i", value)


def recommended(folder: Path, *entries: bytes) -> dict[str, float]:
    path = folder / "model.gguf"
    path.write_bytes(gguf(entries, []))
    return dict(find(str(path)).sampling)


def of(name: str, kind: int, payload: bytes) -> bytes:
    return key(f"general.sampling.{name}", kind, payload)


def test_what_a_file_recommends_is_what_acts(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sampling = recommended(
            tmp_path,
            of("temp", F32, number(0.6)),
            of("top_k", I32, integer(20)),
            of("top_p", F32, number(0.95)),
            of("min_p", F32, number(0)),
            of("penalty_repeat", F32, number(1.05)),
            of("xtc_probability", F32, number(0)),
            of("mirostat", I32, integer(0)),
            of("mirostat_tau", F32, number(5)),
        )
    assert sampling == {
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
        "min_p": 0,
        "repetition_penalty": 1.05,
    }


def test_a_stage_that_is_not_here_is_told(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"general\.sampling\.mirostat 2"):
        sampling = recommended(
            tmp_path, of("mirostat", I32, integer(2)), of("temp", F32, number(1))
        )
    assert sampling == {"temperature": 1.0}


@pytest.mark.parametrize(
    ("name", "kind", "payload"),
    [
        ("temp", F32, number(-1)),
        ("temp", F32, number(float("nan"))),
        ("top_p", F32, number(1.5)),
        ("top_k", F32, number(2.5)),
        ("top_k", STRING, u32(0) + u32(0)),
    ],
)
def test_a_recommendation_out_of_range_names_its_key(
    tmp_path: Path, name: str, kind: int, payload: bytes
) -> None:
    with pytest.raises(ModelFormatError, match=f"general.sampling.{name}"):
        recommended(tmp_path, of(name, kind, payload))


def test_a_file_that_says_nothing_recommends_nothing(tmp_path: Path) -> None:
    assert recommended(tmp_path) == {}
    (tmp_path / "cut.gguf").write_bytes(b"GGUF")
    assert dict(find(str(tmp_path / "cut.gguf")).sampling) == {}
