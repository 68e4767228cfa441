"""Two processes train one model: losses, norms and weights are those of one (T02, T05, T17)."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from preference_stages import tuned, write_lines

from cutaway.core.errors import ConfigError
from cutaway.host.run_record import read_record
from cutaway.train import grpo, ranks, sft
from cutaway.train.stage_config import read_settings
from cutaway.weights.files.safetensors import SafetensorsWeights
from cutaway.weights.files.safetensors_index import SINGLE

SETTINGS = (
    "updates=4 rate=1e-2 tokens=200 context=96 step_tokens=8 save_every=2 measure_every=2 "
    "device=cpu"
).split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model, and three answers of very different lengths."""
    path = tmp_path_factory.mktemp("ranks")
    tuned(path)
    talks = [("red", "blue"), ("blue", "green red " * 4), ("green", "red")]
    messages = [
        [{"role": "user", "content": asked}, {"role": "assistant", "content": told}]
        for asked, told in talks
    ]
    write_lines(path / "talks.jsonl", [{"messages": each} for each in messages])
    return path


def told(folder: Path, out: str) -> list[str]:
    data = folder / "talks.jsonl"
    own = [f"out={folder / out}", f"model={folder / 'tuned'}", f"data={data}", f"held_out={data}"]
    return [*SETTINGS, *own]


def prepared(folder: Path, out: str) -> Any:
    return sft.prepare(read_settings(sft.SftSettings, None, told(folder, out)))


def by_two(folder: Path, out: str, *more: str) -> str:
    """The command in two processes, as torchrun starts them. more: settings.

    Returns: what the first says to a person.
    """
    config = folder / "empty.toml"
    config.write_text("")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    both: list[subprocess.Popen[str]] = []
    for rank in range(2):
        names = {"RANK": f"{rank}", "LOCAL_RANK": f"{rank}", "WORLD_SIZE": "2"}
        names |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{port}"}
        command = [sys.executable, "-m", "cutaway", "train", "sft", str(config)]
        both.append(
            subprocess.Popen(
                [*command, *told(folder, out), *more],
                env={**os.environ, **names},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    said = [process.communicate(timeout=600) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert said[0][0].strip() == str(folder / out / "model")
    assert said[1] == ("", ""), "the first alone speaks"
    return said[0][1]


def rows_of(folder: Path, out: str) -> list[dict[str, Any]]:
    return read_record(folder / out / "record.jsonl")


def moments(folder: Path, out: str) -> list[float]:
    """The optimizer's numbers of the last checkpoint, one behind the other."""
    stored = SafetensorsWeights(folder / out / "updates" / "000004" / "optimizer")
    return torch.cat([stored.part(name).flatten() for name in sorted(stored.names())]).tolist()


def assert_alike(folder: Path, one: str, other: str) -> None:
    pairs = list(zip(rows_of(folder, one), rows_of(folder, other), strict=True))
    assert len(pairs) == 4
    for left, right in pairs:
        assert left["count"] == right["count"]
        for name in ("loss", "norm"):
            assert left[name] == pytest.approx(right[name], rel=1e-6, abs=1e-6)
        assert left["norms"] == pytest.approx(right["norms"], rel=1e-4)
        assert left["figures"] == pytest.approx(right["figures"], rel=1e-6)
        assert left["measured"] == pytest.approx(right["measured"], rel=1e-5)
    stored = [SafetensorsWeights(folder / each / "model") for each in (one, other)]
    for name in stored[0].names():
        torch.testing.assert_close(stored[0].part(name), stored[1].part(name), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_t02_t05_t17_two_processes_make_the_updates_of_one(folder: Path) -> None:
    """A process with few tokens weighs as little as they do; another number of them may go on."""
    whole = prepared(folder, "one")
    counts = [batch.count for batch in whole.feed(0)]
    assert len(counts) == 3 and max(counts) > 3 * min(counts)
    whole.run(say=lambda words: None)
    by_two(folder, "two")
    assert_alike(folder, "one", "two")

    def kill(progress: Any) -> None:
        if progress.updated.update == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepared(folder, "then").run(kill, lambda words: None)
    by_two(folder, "then")
    assert_alike(folder, "one", "then")


def test_t05_two_processes_with_rows_of_matrices_make_the_updates_of_one(folder: Path) -> None:
    """Each has half of the weights; of three micro-batches the second has one alone."""
    prepared(folder, "whole").run(say=lambda words: None)
    said = by_two(folder, "divided", "shard=true")
    assert_alike(folder, "whole", "divided")
    found = re.search(r"each of 2 processes has ([0-9.]+) of ([0-9.]+) MB of weights", said)
    assert found is not None
    here, all_of_it = map(float, found.groups())
    assert here == pytest.approx(all_of_it / 2, rel=0.1)
    assert moments(folder, "divided") == pytest.approx(moments(folder, "whole"), abs=1e-5)


@pytest.mark.slow
def test_t17_divided_runs_go_on_to_the_bit_and_from_another_number_of_processes(
    folder: Path,
) -> None:
    by_two(folder, "never", "shard=true")
    killed = folder / "killed"
    shutil.copytree(folder / "never", killed)
    shutil.rmtree(killed / "model")
    shutil.rmtree(killed / "updates" / "000004")  # as one killed after its second update
    assert "going on at update 2 of 4" in by_two(folder, "killed", "shard=true")
    for name in ("model", "updates/000004", "updates/000004/optimizer"):
        left, right = ((folder / each / name / SINGLE).read_bytes() for each in ("never", "killed"))
        assert left == right
    one = folder / "by_one"
    shutil.copytree(folder / "never", one)
    shutil.rmtree(one / "model")
    shutil.rmtree(one / "updates" / "000004")
    prepared(folder, "by_one").run(say=lambda words: None)
    assert_alike(folder, "never", "by_one")


@pytest.mark.parametrize("more", ["lora_rank=2", "optimizer=muon"])
def test_what_cannot_be_divided_is_refused(
    more: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "size", lambda: 2)
    settings = read_settings(sft.SftSettings, None, [*told(folder, "no"), "shard=true", more])
    with pytest.raises(ConfigError, match="shard is true"):
        sft.prepare(settings, lambda words: None).run(say=lambda words: None)
    assert not (folder / "no" / "run.json").exists()


def test_alone_nothing_is_divided_or_waited_for() -> None:
    ranks.join()
    assert (ranks.rank(), ranks.size()) == (0, 1)
    assert ranks.own([1, 2, 3]) == [1, 2, 3]
    assert ranks.add_up({"nats": (2.0, 3)}) == {"nats": (2.0, 3)}
    parameter = torch.nn.Parameter(torch.ones(2))
    ranks.add_up_gradients({"one": parameter})
    assert parameter.grad is None
    ranks.wait()
    ranks.leave()


def test_rounds_of_answers_are_made_by_one_process(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "size", lambda: 2)
    tasks = write_lines(folder / "tasks.jsonl", [{"prompt": "red", "answer": "red"}])
    told = [f"out={folder / 'grpo'}", f"model={folder / 'tuned'}", f"data={tasks}"]
    settings = read_settings(
        grpo.GrpoSettings, None, [*told, "updates=1", "rate=1e-3", "rewards=exact", "device=cpu"]
    )
    with pytest.raises(ConfigError, match="2 processes were started"):
        grpo.prepare(settings)
