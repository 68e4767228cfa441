"""`cutaway bench cpu`: paired ratios from scripted peers, and our own side on the real model."""

from __future__ import annotations

import json
import signal
import statistics
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cutaway.bench import cpu, model_files
from cutaway.bench.peers.peer_process import Peer, PeerError, has_module
from oracles import smollm2_gguf
from program import Cutaway

SCRIPT = """
import json, sys
print(json.dumps({"versions": "scripted " + sys.argv[1]}), flush=True)
for number, line in enumerate(sys.stdin):
    question = json.loads(line)
    if question["ask"] == "prefill":
        print(json.dumps({"error": "no prefill here"}), flush=True)
    else:
        print(json.dumps({"value": float(sys.argv[1]) * (1 + number)}), flush=True)
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    (tmp_path / "peer.py").write_text(SCRIPT, encoding="utf-8")
    return str(tmp_path / "peer.py")


def test_a_peer_answers_refuses_and_ends(script: str) -> None:
    peer = Peer(script, ["0.5"], python=sys.executable)
    assert peer.versions == "scripted 0.5"
    assert peer.ask("decode", context=1, sequences=1, steps=1) == 0.5
    with pytest.raises(PeerError, match="no prefill here"):
        peer.ask("prefill", tokens=3)
    peer.close()


def test_a_peer_that_does_not_start_says_its_last_line(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise RuntimeError('no such model')", encoding="utf-8")
    with pytest.raises(PeerError, match=r"broken\.py ended: RuntimeError: no such model"):
        Peer(str(tmp_path / "broken.py"), [], python=sys.executable)


def test_a_peer_that_is_asked_ends_at_once_after_ctrl_c(tmp_path: Path) -> None:
    (tmp_path / "busy.py").write_text(
        """
import json, threading
print(json.dumps({"versions": "busy"}), flush=True)
threading.Event().wait()
""",
        encoding="utf-8",
    )
    with (
        pytest.raises(KeyboardInterrupt),
        Peer(str(tmp_path / "busy.py"), [], python=sys.executable) as peer,
    ):
        signal.raise_signal(signal.SIGINT)
    assert peer._process.returncode == -signal.SIGKILL


def test_modules_are_looked_for_in_the_named_interpreter() -> None:
    assert has_module(sys.executable, "torch")
    assert not has_module(sys.executable, "no_such_module")


class Timed:
    """A side that gives prepared seconds, one a question."""

    def __init__(self, seconds: list[float]) -> None:
        self._seconds = iter(seconds)

    def ask(self, question: str, **_: object) -> float:
        return 1e9 if question == "bandwidth" else next(self._seconds)


class Sides:
    """Our side and one peer in two variants, of which the faster counts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # The first round warms up and is not counted.
        self.ours = Timed([9.0, 1.0, 2.0, 4.0, 1.0])
        self.peers = {"llama.cpp": [Timed([9, 2, 9, 6, 9]), Timed([9, 9, 3, 9, 4])]}


@pytest.mark.oracle
def test_ratios_are_of_one_round_and_their_lower_quartile_is_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cpu, "_REST", 0)
    case = cpu.Case("decode", "q4_1", {"llama.cpp": 1.9, "OpenVINO": None}, limit=0.9)
    report = cpu.CpuReport()
    cpu._measure(case, Sides(smollm2_gguf()), rounds=4, steps=1, report=report)
    (row,) = report.rows
    ratios = [2.0, 1.5, 1.5, 4.0]
    assert row.ratio == 1.5 and row.ratio_median == statistics.median(ratios)
    assert (row.ours, row.peer, row.peer_value) == (1 / 1.5, "llama.cpp", 1 / 3.5)
    # 96.6 MB of weights and 16 tokens of 22.5 KiB, at 1 GB/s.
    num_bytes = 96.6e6 + 16 * 23040
    shares = [num_bytes / 1e9 / seconds for seconds in (1.0, 2.0, 4.0, 1.0)]
    assert row.limit_share == pytest.approx(statistics.median(shares), rel=0.01)
    assert [each.name for each in cpu.misses(report)] == ["decode"]


def test_where_the_limit_suffices_one_of_both_is_enough() -> None:
    rows = [
        cpu.CpuRow(name, 1.0, ratio=ratio, target=2.0, limit_share=share, limit_target=0.75)
        for name, ratio, share in (("both", 2.0, 0.75), ("ratio", 2.0, 0.7), ("limit", 1.9, 0.75))
    ]
    rows += [cpu.CpuRow("alone", 1.0, limit_share=0.7, limit_target=0.75)]
    rows += [replace(rows[2], name="neither", limit_share=0.7)]
    assert [each.name for each in cpu.misses(cpu.CpuReport(rows))] == [
        "ratio", "limit", "alone", "neither",
    ]  # fmt: skip
    either = cpu.CpuReport([replace(row, suffices=True) for row in rows])
    assert [each.name for each in cpu.misses(either)] == ["alone", "neither"]


def test_an_unknown_model_is_named(cutaway: Cutaway) -> None:
    ended = cutaway("bench", "cpu", "--models", "q4_1,q5")
    assert ended.code == 2
    assert 'models holds "q5"; it must be of q4_1, q4_0, q8_0, 1b, experts, gemma.' in ended.err
    ended = cutaway("bench", "cpu", "--only", "training")
    assert ended.code == 2
    assert 'only is "training"; no case has it. Cases are decode, SmolLM2 Q4_1, ' in ended.err


class Interrupted:
    """Our side alone; the second case meets a signal."""

    number = signal.SIGINT

    def __init__(self, path: Path, wanted: set[str], **_: object) -> None:
        self.path, self.versions, self.peers = path, {"cutaway": "scripted"}, {}
        self.ours = self

    def ask(self, question: str, **values: object) -> float:
        if values.get("context") == 1024:
            signal.raise_signal(self.number)
        return 1e9 if question == "bandwidth" else 0.5


@pytest.mark.oracle
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_was_measured_before_a_signal_is_printed(
    cutaway: Cutaway, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setattr(cpu, "_REST", 0)
    monkeypatch.setattr(cpu, "_Sides", Interrupted)
    monkeypatch.setattr(Interrupted, "number", number)
    monkeypatch.setitem(cpu.MODELS, "q4_1", smollm2_gguf)
    before = signal.getsignal(signal.SIGTERM)
    ended = cutaway("bench", "cpu", "--models", "q4_1", "--json")
    assert ended.code == 130, ended.err
    report = json.loads(ended.out)
    assert [row["name"] for row in report["rows"]] == ["decode, SmolLM2 Q4_1"]
    assert report["rows"][0]["ours"] == 2.0 and not report["is_whole"]
    assert "interrupted; rows of cases that were done before: 1" in ended.err
    shown = cutaway("bench", "cpu", "--models", "q4_1")
    assert shown.code == 130 and "decode, SmolLM2 Q4_1" in shown.out
    assert "every target was reached" not in shown.err
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_peer_that_cannot_start_is_left_out_of_the_start_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def peak_memory(command: list[str]) -> float:
        if command[1].endswith("first_llama_cpp.py"):
            raise PeerError("first_llama_cpp.py ended with -11")
        return 3e8

    monkeypatch.setattr(cpu, "_peak_memory", peak_memory)
    monkeypatch.setattr(cpu, "has_module", lambda *_: True)
    report, said = cpu.CpuReport(), list[str]()
    cpu._measure_start(Path("model.gguf"), 2, 1, sys.executable, report, said.append)
    start, memory = report.rows
    assert (start.peer, start.ratio, memory.ours) == (None, None, 300.0)
    assert said[1:] == ["llama.cpp is left out: first_llama_cpp.py ended with -11"]


@pytest.mark.oracle
@pytest.mark.slow
def test_our_side_is_measured_on_the_real_model(
    cutaway: Cutaway, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # An interpreter without peers: only ours runs.
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n', encoding="utf-8")
    bare.chmod(0o755)
    monkeypatch.setitem(cpu.MODELS, "q4_1", smollm2_gguf)
    monkeypatch.setattr(cpu, "CASES", cpu.CASES[:1])  # others differ in their numbers alone
    ended = cutaway(
        "bench", "cpu", "--models", "q4_1", "--rounds", "2", "--json", "--python", str(bare)
    )
    assert ended.code == 0, ended.err
    report = json.loads(ended.out)
    rows = {row["name"]: row for row in report["rows"]}
    decode = rows["decode, SmolLM2 Q4_1"]
    assert decode["ours"] > 1 and 0 < decode["limit_share"] < 1.5
    assert decode["peer"] is None and decode["ratio"] is None
    assert set(decode) >= {"name", "ours", "peer", "peer_value", "ratio", "target", "limit_share"}
    assert 50 < rows["peak resident memory"]["ours"] < 2000
    assert rows["process start to first token"]["ours"] > 0
    assert report["bandwidth"] > 1e8


@pytest.mark.oracle
def test_a_conversion_keeps_what_it_does_not_convert(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from cutaway.host import gguf_file

    monkeypatch.setattr(model_files, "smollm2", smollm2_gguf)
    monkeypatch.setattr(model_files, "cache_folder", lambda: tmp_path)
    before, after = gguf_file.read(smollm2_gguf()), gguf_file.read(model_files.convert("Q4_0"))
    assert before.tensors.keys() == after.tensors.keys()
    kinds = {"Q4_1": "Q4_0"}
    for name, tensor in before.tensors.items():
        assert after.tensors[name].shape == tensor.shape
        assert after.tensors[name].type == kinds.get(tensor.type, tensor.type)
    assert before.data("token_embd.weight") == after.data("token_embd.weight")
    assert after.strings("tokenizer.ggml.tokens") == before.strings("tokenizer.ggml.tokens")
