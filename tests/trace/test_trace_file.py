"""Trace files: what is written comes back, and a file that lies is refused in one line."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cutaway.core.errors import TraceFileError
from cutaway.trace import file as trace_file
from cutaway.trace.export import FORMATS
from cutaway.trace.file import SavedPlace, SavedView, TraceFile, read, write
from cutaway.trace.tensors import pack, unpack
from trials import ran, seed, trials

MANIFEST = {"format": "cutaway trace", "schema": 1}


def some(**manifest: object) -> TraceFile:
    arrays = {
        "rows": np.arange(6, dtype=np.float32).reshape(2, 3),
        "parts.0.ids": np.array([-1, 2**40], np.int64),
    }
    lines = ((("a <b>", "plain"), ("c", "strong")), ())
    view = SavedView("some", "What?", None, lines, {"rows": {"array": "rows"}}, arrays)
    events = ({"type": "step", "number": 3, "count": 1}, {"type": "end", "reason": "stop"})
    return TraceFile(manifest, events, (view,))


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "a.cutaway"
    write(path, some(model={"name": "m"}))
    again = read(path)
    assert again.manifest == {**MANIFEST, "minor": 1, "model": {"name": "m"}}
    assert again.events == some().events and again.of_kind("step")[0]["number"] == 3
    (view,) = again.views
    assert (view.name, view.question, view.lines) == ("some", "What?", some().views[0].lines)
    for name, array in some().views[0].arrays.items():
        np.testing.assert_array_equal(view.arrays[name], array)
        assert view.arrays[name].dtype == array.dtype
    twin = tmp_path / "b.cutaway"
    write(twin, some(model={"name": "m"}))
    assert twin.read_bytes() == path.read_bytes(), "equal traces are equal files"


def test_places_come_back_and_files_from_before_them_have_none(tmp_path: Path) -> None:
    place = SavedPlace({"token": 3}, "exact", {"rows": {"array": "rows@1"}})
    view = some().views[0]
    arrays = {**view.arrays, "rows@1": np.ones(3, np.float32)}
    with_places = replace(view, arrays=arrays, query={"token": 0}, places=(place,))
    path = tmp_path / "a.cutaway"
    write(path, replace(some(), views=(with_places,)))
    (again,) = read(path).views
    assert again.query == {"token": 0} and again.places == (place,)
    np.testing.assert_array_equal(again.arrays["rows@1"], arrays["rows@1"])
    (old,) = read(made(path, entries())).views
    assert old.query == {} and old.places == ()


def entries(**changed: Any) -> dict[str, bytes]:
    view = {"question": "q", "proof": None, "lines": [[["x", "plain"]]], "values": {}}
    found: dict[str, bytes | None] = {
        "manifest.json": json.dumps(MANIFEST).encode(),
        "events.ndjson": b'{"type":"end"}\n',
        "views/some.json": json.dumps(view).encode(),
        "tensors/some.safetensors": pack({"a": np.ones(3, np.float32)}),
        **changed,
    }
    return {name: data for name, data in found.items() if data is not None}


def made(path: Path, found: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        for name, data in found.items():
            out.writestr(name, data)
    return path


def test_a_sound_zip_made_elsewhere_is_read(tmp_path: Path) -> None:
    found = read(made(tmp_path / "a.cutaway", entries()))
    assert [view.name for view in found.views] == ["some"]


BAD: dict[str, dict[str, bytes | None]] = {
    "belongs in no trace file": {"../../etc/passwd": b"x"},
    "'/etc/passwd' belongs in no trace file": {"/etc/passwd": b"x"},
    "'views/../x.json' belongs": {"views/../x.json": b"{}"},
    "'views/some.safetensors' belongs": {"views/some.safetensors": b""},
    "'c:\\\\\\\\x' belongs": {"c:\\x": b""},
    "is missing": {"events.ndjson": None},
    "manifest.json is no JSON object": {"manifest.json": b"[]"},
    "names no format": {"manifest.json": b'{"format":"zip","schema":1}'},
    "schema 2 is newer than 1": {"manifest.json": b'{"format":"cutaway trace","schema":2}'},
    "an event is no JSON object": {"events.ndjson": b"{}\n3\n"},
    "Expecting value": {"events.ndjson": b"{}\n\x00\n"},
    "has no question": {"views/some.json": b'{"question":1,"proof":null,"lines":[],"values":{}}'},
    "'lines'": {"views/some.json": b'{"question":"q","proof":null,"values":{}}'},
    "no lines, or no places": {
        "views/some.json": b'{"question":"q","proof":null,"lines":[],"values":{},"places":3}'
    },
    "a place that is no object": {
        "views/some.json": b'{"question":"q","proof":null,"lines":[],"values":{},"places":[3]}'
    },
    "a place without a proof": {
        "views/some.json": b'{"question":"q","proof":null,"lines":[],"values":{},'
        b'"places":[{"query":{},"values":{},"proof":3}]}'
    },
    "not words and styles": {
        "views/some.json": b'{"question":"q","proof":null,"lines":[[["x",1]]],"values":{}}'
    },
    "does not fit": {"tensors/some.safetensors": b"\xff" * 40},
    "does not lie where": {"tensors/some.safetensors": pack({"a": np.ones(3, np.float32)})[:-4]},
    "belong to no array": {
        "tensors/some.safetensors": pack({"a": np.ones(3, np.float32)}) + b"more"
    },
    "belongs to no view": {"tensors/other.safetensors": b""},
    "recursion": {"events.ndjson": b'{"a":' + b"[" * 100_000 + b"\n"},
}


@pytest.mark.parametrize("words", BAD)
def test_a_file_that_lies_is_one_line(words: str, tmp_path: Path) -> None:
    path = made(tmp_path / "bad.cutaway", entries(**BAD[words]))
    with pytest.raises(TraceFileError, match=words) as caught:
        read(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: is no trace file of Cutaway, or damaged: ")
    assert "\n" not in message and len(message) < 500


def test_more_than_the_bounds_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = made(tmp_path / "a.cutaway", entries(**{"events.ndjson": b"{}\n" * 50_000}))
    for name, bound, words in (
        ("MAX_ENTRY_BYTES", 100_000, "events.ndjson unpacks to more than 100,000 bytes"),
        ("MAX_TOTAL_BYTES", 100_000, "events.ndjson unpacks to more than 99,9"),
        ("MAX_EVENTS", 49_999, "50,000 events; at most 49,999"),
        ("MAX_ENTRIES", 3, "4 entries; at most 3"),
        ("MAX_FILE_BYTES", 100, "at most 100 are read"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(trace_file, name, bound)
            with pytest.raises(TraceFileError, match=words):
                read(path)
    read(path)


def test_an_entry_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    path = made(tmp_path / "a.cutaway", entries())
    with (
        zipfile.ZipFile(path, "a") as out,
        pytest.warns(UserWarning, match="Duplicate name"),
    ):
        out.writestr("manifest.json", b"{}")
    with pytest.raises(TraceFileError, match="there twice"):
        read(path)


def test_damage_anywhere_is_told_or_harmless(tmp_path: Path) -> None:
    sound = tmp_path / "sound.cutaway"
    write(sound, some())
    data, chance = sound.read_bytes(), random.Random(0)
    path = tmp_path / "damaged.cutaway"
    num_refused = 0
    for _ in range(300):
        changed = bytearray(data)
        for _ in range(chance.randint(1, 4)):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        path.write_bytes(bytes(changed[: chance.choice([len(data), chance.randrange(len(data))])]))
        try:
            read(path)
        except TraceFileError:
            num_refused += 1
    assert num_refused > 200


def told_or_harmless(path: Path, data: bytes, at: int, bit: int, whole: bytes) -> bool:
    """Whether a file with that bit flipped is refused; else it must hold what it held."""
    path.unlink(missing_ok=True)  # a file that is overwritten is flushed to disk
    path.write_bytes(data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :])
    try:
        found = read(path)
    except TraceFileError:
        return True
    assert trace_file.encode_trace(found) == whole, f"bit {bit} of byte {at} of {len(data)}"
    return False


def test_every_bit_of_the_directory_is_told_or_carries_no_data(tmp_path: Path) -> None:
    """A flipped length there once hid the entries that follow, a flipped name the arrays."""
    path = made(tmp_path / "a.cutaway", entries())
    data, whole = path.read_bytes(), trace_file.encode_trace(read(path))
    with zipfile.ZipFile(path) as opened:
        directory = range(opened.start_dir, len(data))
    places = [(at, bit) for at in directory for bit in range(8)]
    refused = sum(told_or_harmless(path, data, *place, whole) for place in places)
    assert len(places) // 2 < refused < len(places)


def test_a_bit_that_flipped_anywhere_is_told_or_carries_no_data(tmp_path: Path) -> None:
    """What carries none: times, versions and attributes, and what the directory says again."""
    sound = Path(__file__).parent / "files" / "schema_1.cutaway"
    data, whole = sound.read_bytes(), trace_file.encode_trace(read(sound))
    with zipfile.ZipFile(sound) as opened:
        headers = [range(each.header_offset, each.header_offset + 30) for each in opened.filelist]
        own = {at for header in headers for at in header} | {*range(opened.start_dir, len(data))}
    chance, count, refused, stored, unseen = random.Random(seed(29)), trials(300), 0, 0, 0
    for _ in range(count):
        at, bit = chance.randrange(len(data)), chance.randrange(8)
        is_told = told_or_harmless(tmp_path / "flipped.cutaway", data, at, bit, whole)
        refused += is_told
        stored += at not in own
        unseen += at not in own and not is_told  # of a stream that unpacks to the same bytes
    assert stored > count // 2 and unseen <= stored // 50
    ran(count, total_refused=refused, total_in_packed_bytes=stored, total_packed_alike=unseen)


def test_an_older_schema_is_brought_forward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "old.cutaway"
    write(path, some(answer={"count": 3}))
    monkeypatch.setattr(trace_file, "SCHEMA", 2)
    renamed = lambda manifest, events: ({**manifest, "schema": 2}, [*events, {"type": "new"}])  # noqa: E731
    monkeypatch.setattr(trace_file, "UPGRADES", (renamed,))
    again = read(path)
    assert again.manifest["schema"] == 2 and again.events[-1] == {"type": "new"}
    write(path, some())
    assert read(path).events == some().events, "a file of our own schema is left as it is"


def test_arrays_pack_as_safetensors_do() -> None:
    from safetensors.numpy import load, save

    arrays = some().views[0].arrays
    for name, array in load(pack(arrays)).items():
        np.testing.assert_array_equal(array, arrays[name])
    for name, array in unpack(save(dict(arrays))).items():
        np.testing.assert_array_equal(array, arrays[name])


def test_reading_needs_no_torch(tmp_path: Path) -> None:
    path = tmp_path / "a.cutaway"
    write(path, some())
    code = (
        "import sys; from pathlib import Path; from cutaway.trace.file import read; "
        f"read(Path({str(path)!r})); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_file_of_every_minor_version_opens() -> None:
    """Its views are at several places; those of files from before them are at one."""
    found = read(Path(__file__).parent / "files" / "schema_1_minor_1.cutaway")
    assert found.manifest["minor"] == trace_file.MINOR
    places = {view.name: [place.query for place in view.places] for view in found.views}
    assert places["probabilities"] == [{"token": step} for step in range(1, 8)]
    assert {"layer": 1, "head": 2} in [
        {name: query[name] for name in ("layer", "head")} for query in places["attention"]
    ]


def test_a_file_of_every_schema_that_was_ever_written_opens(tmp_path: Path) -> None:
    """Files of the schema's own time, kept in the tree: what was saved must open for ever."""
    assert len(trace_file.UPGRADES) == trace_file.SCHEMA - 1, "one function per older schema"
    for number in range(1, trace_file.SCHEMA + 1):
        old = Path(__file__).parent / "files" / f"schema_{number}.cutaway"
        found = read(old)
        assert found.section("answer")["num_tokens"] == len(found.of_kind("token")) == 6
        assert found.of_kind("message")[0]["content"] == "What is gravity?"
        names = [view.name for view in found.views]
        assert names == ["tokens", "attention", "timeline", "pages", "cost"]
        assert all(view.lines for view in found.views)
        assert found.views[2].arrays["tokens"].shape == (6,)
        for name, form in FORMATS.items():
            assert form(found), name
        again, twin = tmp_path / "again.cutaway", tmp_path / "twin.cutaway"
        write(again, found)
        write(twin, read(again))
        assert twin.read_bytes() == again.read_bytes()
