"""What exporters are told is what the record has, and Parquet gives what lines of JSON give."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from cutaway.core.errors import ConfigError
from cutaway.train.data.examples import read_conversations, read_documents, without_nothing
from cutaway.train.exporters import exporter_of, numbers

ROW: dict[str, object] = {
    "update": 7,
    "loss": 2.5,
    "count": 128,
    "norm": 0.5,
    "rate": 1e-3,
    "seconds": 0.25,
    "figures": {"nats": 2.5},
    "norms": {"blocks.0": 0.25},
    "measured": {"bits_per_byte": 1.5},
}


def test_a_row_is_told_by_flat_names() -> None:
    told = numbers(ROW)
    assert told["loss"] == 2.5 and told["norms/blocks.0"] == 0.25
    assert told["measured/bits_per_byte"] == 1.5 and "update" not in told


@pytest.mark.parametrize("name", ["trackio", "wandb"])
def test_updates_are_logged_with_their_index(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[Any] = []
    module = types.ModuleType(name)
    module.init = lambda **given: heard.append(given)  # type: ignore[attr-defined]
    module.log = lambda row, step: heard.append((step, row["loss"]))  # type: ignore[attr-defined]
    module.finish = lambda: heard.append("finish")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, name, module)
    made = exporter_of(name, tmp_path / "mine", {"rate": 1e-3})
    assert made is not None
    made.add(ROW)
    made.close()
    start = {"project": "cutaway", "name": "mine", "config": {"rate": "0.001"}}
    assert heard == [start, (7, 2.5), "finish"]


def test_tensorboard_reads_what_was_told(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    made = exporter_of("tensorboard", tmp_path, {})
    assert made is not None
    made.add(ROW)
    made.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    (found,) = events.Scalars("measured/bits_per_byte")
    assert (found.step, found.value) == (7, 1.5)


def test_what_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=r"pip install 'cutaway\[wandb\]'"):
        exporter_of("wandb", tmp_path, {})
    assert exporter_of("off", tmp_path, {}) is None
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ConfigError, match=r"pip install 'cutaway\[parquet\]'"):
        read_documents(tmp_path / "text.parquet")


def test_rows_of_parquet_are_lines_of_json(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = [
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
        {"messages": [{"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]},
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "talks.parquet")
    (tmp_path / "talks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read_conversations(tmp_path / "talks.parquet") == read_conversations(
        tmp_path / "talks.jsonl"
    )
    (tmp_path / "bad.parquet").write_bytes(b"no")
    with pytest.raises(ConfigError, match="cannot be read as Parquet"):
        read_documents(tmp_path / "bad.parquet")


def test_fields_that_a_row_lacks_are_left_out() -> None:
    row = {"messages": [{"role": "user", "content": "a", "tool_calls": None}], "tools": None}
    assert without_nothing(row) == {"messages": [{"role": "user", "content": "a"}]}
