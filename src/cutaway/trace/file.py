"""The trace file: an answer with its steps and views in one zip, readable without its model.

    manifest.json           what ran: schema, versions, model, settings, machine, privacy
    events.ndjson           one JSON object a line: prompt, tokens, steps, the end
    views/NAME.json         a view: question, proof, its picture's lines, its plain values; and
                            the places beyond its own at which it was saved, as what differs there
    tensors/NAME.safetensors  the view's arrays, by the paths that its values name

A file is a stranger's until it is proven: sizes, names and numbers of entries are bounded, and
nothing is ever unpacked to disk. Free of torch.
"""

from __future__ import annotations

import io
import json
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, cast

from cutaway.core.errors import TraceFileError
from cutaway.host.whole_file import write_whole
from cutaway.trace.tensors import Array, pack, unpack

SCHEMA = 1
MINOR = 1  # 1: views at several places; what a reader does not know it leaves unread
MAX_FILE_BYTES = MAX_TOTAL_BYTES = 256 * 2**20
MAX_ENTRY_BYTES, MAX_ENTRIES, MAX_EVENTS = 64 * 2**20, 256, 1_000_000

_FORMAT = "cutaway trace"
_NAME = re.compile(r"manifest\.json|events\.ndjson|(views|tensors)/[a-z][a-z_]{0,40}\.[a-z]{4,11}")
_SUFFIXES = {"views": ".json", "tensors": ".safetensors"}
_END = struct.Struct("<10sH10s")  # what ends a zip; in its middle, how many entries there are
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the same answer gives the same bytes

Values = Mapping[str, object]


@dataclass(frozen=True)
class SavedPlace:
    """A view at a further place.

    query:  the fields of views/parts/query.py that led there.
    values: those that differ from the view's own; their arrays are among the view's.
    is_whole: whether there are no others, as where a view shows another kind of thing.
    """

    query: Values
    proof: str | None
    values: Values
    is_whole: bool = False


@dataclass(frozen=True)
class SavedView:
    """A view as it was: its picture's lines of (words, style), its values, its arrays.

    query: the place that it shows, as far as its values tell one.
    """

    name: str
    question: str
    proof: str | None
    lines: tuple[tuple[tuple[str, str], ...], ...]
    values: Values
    arrays: Mapping[str, Array] = field(default_factory=dict[str, Array])
    query: Values = field(default_factory=dict[str, object])
    places: tuple[SavedPlace, ...] = ()


@dataclass(frozen=True)
class TraceFile:
    """All that a file holds."""

    manifest: Values
    events: tuple[Values, ...]
    views: tuple[SavedView, ...]

    def of_kind(self, kind: str) -> list[Values]:
        """Events of one type, in their order."""
        return [event for event in self.events if event.get("type") == kind]

    def section(self, name: str) -> Values:
        """An object of the manifest; empty where it is not there."""
        found = self.manifest.get(name)
        return cast("Values", found) if isinstance(found, dict) else {}


# What turns the manifest and events of a schema into those of the next: the first of schema 1.
Upgrade = Callable[[dict[str, object], list[Values]], tuple[dict[str, object], list[Values]]]
UPGRADES: tuple[Upgrade, ...] = ()


def write(path: Path, trace: TraceFile) -> None:
    """Write a trace whole, for its owner alone to read: it holds prompts. Raises: OSError."""
    write_whole(path, encode_trace(trace), is_private=True)


def encode_trace(trace: TraceFile) -> bytes:
    """A trace as the bytes of its file; equal traces give equal ones."""
    manifest = {"format": _FORMAT, "schema": SCHEMA, "minor": MINOR, **trace.manifest}
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as out:

        def put(name: str, data: bytes) -> None:
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            out.writestr(entry, data)

        put("manifest.json", _json(manifest, indent=2))
        put("events.ndjson", b"".join(_json(event) + b"\n" for event in trace.events))
        for view in trace.views:
            saved = {
                "question": view.question,
                "proof": view.proof,
                "lines": view.lines,
                "values": view.values,
                "query": view.query,
                "places": [vars(place) for place in view.places],
            }
            put(f"views/{view.name}.json", _json(saved))
            if view.arrays:
                put(f"tensors/{view.name}.safetensors", pack(view.arrays))
    return whole.getvalue()


def read(path: Path) -> TraceFile:
    """The trace of a file.

    Raises: TraceFileError saying what is wrong with the file; OSError.
    """
    if path.stat().st_size > MAX_FILE_BYTES:
        raise TraceFileError(
            f"has {path.stat().st_size:,} bytes; at most {MAX_FILE_BYTES:,} are read.",
            file=str(path),
        )
    with path.open("rb") as raw:
        try:
            with zipfile.ZipFile(raw) as opened:
                _check_count(raw, opened)
                return _read(opened, _Budget())
        except _FAULTS as error:
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise TraceFileError(
                f"is no trace file of Cutaway, or damaged: {reason}.", file=str(path)
            ) from None


# What reading a zip, its streams and its JSON can raise for a file that lies.
_FAULTS = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
    ValueError,
    LookupError,
    RecursionError,
    OverflowError,
    OSError,  # a place that lies before the file's first byte
)


class _Budget:
    """Bytes that may still be unpacked, whatever the zip's directory says."""

    def __init__(self) -> None:
        self.left = MAX_TOTAL_BYTES

    def take(self, opened: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
        most = min(self.left, MAX_ENTRY_BYTES)
        with opened.open(info) as stream:
            data = stream.read(most + 1)
        if len(data) > most:
            raise ValueError(f"{info.filename} unpacks to more than {most:,} bytes")
        self.left -= len(data)
        return data


def _check_count(raw: BinaryIO, opened: zipfile.ZipFile) -> None:
    """One flipped bit of a length in the zip's directory hides the entries that follow."""
    raw.seek(-_END.size - len(opened.comment), io.SEEK_END)
    _, count, _ = _END.unpack(raw.read(_END.size))
    if count != len(opened.infolist()):
        raise ValueError(f"its directory has {len(opened.infolist())} of {count} entries")


def _read(opened: zipfile.ZipFile, budget: _Budget) -> TraceFile:
    infos = _checked(opened.infolist())
    if "manifest.json" not in infos or "events.ndjson" not in infos:
        raise ValueError("manifest.json or events.ndjson is missing")
    manifest = _object(budget.take(opened, infos["manifest.json"]), "manifest.json")
    schema = manifest.get("schema")
    if manifest.get("format") != _FORMAT or not isinstance(schema, int) or schema < 1:
        raise ValueError("manifest.json names no format and schema of ours")
    if schema > SCHEMA:
        raise ValueError(f"schema {schema} is newer than {SCHEMA}: read it with a newer Cutaway")
    lines = budget.take(opened, infos["events.ndjson"]).splitlines()
    if len(lines) > MAX_EVENTS:
        raise ValueError(f"{len(lines):,} events; at most {MAX_EVENTS:,} are read")
    events: list[Values] = [_object(line, "an event") for line in lines]
    for upgrade in UPGRADES[schema - 1 :]:
        manifest, events = upgrade(manifest, events)
    views: list[SavedView] = []
    for name, info in infos.items():
        if name.startswith("views/"):
            stem = name.removeprefix("views/").removesuffix(".json")
            beside = infos.get(f"tensors/{stem}.safetensors")
            arrays = {} if beside is None else unpack(budget.take(opened, beside))
            views.append(_view(stem, _object(budget.take(opened, info), name), arrays))
    return TraceFile(manifest, tuple(events), tuple(views))


def _checked(infos: Sequence[zipfile.ZipInfo]) -> dict[str, zipfile.ZipInfo]:
    """Entries by name; each is one that a trace file has, and there once."""
    if len(infos) > MAX_ENTRIES:
        raise ValueError(f"{len(infos)} entries; at most {MAX_ENTRIES} are read")
    found: dict[str, zipfile.ZipInfo] = {}
    for info in infos:
        name, (folder, _, rest) = info.filename, info.filename.partition("/")
        suffix = _SUFFIXES.get(folder, "")
        if not _NAME.fullmatch(name) or (rest and not rest.endswith(suffix)) or name in found:
            raise ValueError(f"an entry {name[:80]!r} belongs in no trace file, or is there twice")
        found[name] = info
    for name in found:
        folder, _, stem = name.partition("/")
        if folder == "tensors" and f"views/{stem.partition('.')[0]}.json" not in found:
            raise ValueError(f"{name} belongs to no view")
    return found


def _view(name: str, saved: Mapping[str, object], arrays: Mapping[str, Array]) -> SavedView:
    question, proof, values = saved["question"], saved["proof"], saved["values"]
    if not isinstance(question, str) or not isinstance(proof, str | None):
        raise ValueError(f"view {name} has no question and proof")
    if not isinstance(values, dict):
        raise ValueError(f"view {name} has no values")
    lines = tuple(
        tuple(_span(name, span) for span in _list(name, line))
        for line in _list(name, saved["lines"])
    )
    query = _fields(name, saved.get("query", {}))
    places = tuple(_place(name, each) for each in _list(name, saved.get("places", [])))
    return SavedView(name, question, proof, lines, cast("Values", values), arrays, query, places)


def _place(view: str, value: object) -> SavedPlace:
    saved = _fields(view, value)
    proof = saved["proof"]
    if not isinstance(proof, str | None):
        raise ValueError(f"view {view} has a place without a proof")
    query, values = _fields(view, saved["query"]), _fields(view, saved["values"])
    return SavedPlace(query, proof, values, saved.get("is_whole") is True)


def _fields(view: str, value: object) -> Values:
    if not isinstance(value, dict):
        raise ValueError(f"view {view} has a place that is no object")
    return cast("Values", value)


def _list(view: str, value: object) -> list[object]:
    if not isinstance(value, list):
        raise ValueError(f"view {view} has no lines, or no places")
    return cast("list[object]", value)


def _span(view: str, value: object) -> tuple[str, str]:
    match value:
        case [str() as text, str() as style]:
            return text, style
        case _:
            raise ValueError(f"view {view} has a line that is not words and styles")


def _object(data: bytes, name: str) -> dict[str, object]:
    value = json.loads(data)
    if not isinstance(value, dict):
        raise ValueError(f"{name} is no JSON object")
    return cast("dict[str, object]", value)


def _json(value: object, *, indent: int | None = None) -> bytes:
    separators = None if indent else (",", ":")
    return json.dumps(
        value, ensure_ascii=False, allow_nan=False, indent=indent, separators=separators
    ).encode("utf-8", "surrogatepass")
