"""A run that was killed anywhere goes on with the bits that it would have had."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from smallest_shape import model_table

from cutaway import LLM, SamplingParams
from cutaway.core.errors import ConfigError
from cutaway.host import whole_file
from cutaway.host.run_record import read_record
from cutaway.tokens.files.tokenizer_files import load_folder
from cutaway.train import checkpoint, pretrain, sft
from cutaway.train.rollouts.rollouts import derived_seed
from cutaway.train.shown_example import scored_sequences
from cutaway.train.stage_config import read_settings
from cutaway.train.vocabulary import VocabularySettings, learn
from cutaway.weights.files.safetensors import SafetensorsWeights

TEXT = "It is a truth universally acknowledged, that a single man must be in want of a wife. "
PRETRAIN = """
updates = 6
rate = 1e-2
context = 16
tokens = 64
step_tokens = 32
save_every = 2
measure_every = 3
"""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a text, a vocabulary and the settings of a small run."""
    folder = tmp_path_factory.mktemp("train")
    lines = [json.dumps({"text": TEXT[start:] + TEXT[:start]}) for start in range(0, 80, 5)]
    (folder / "text.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (folder / "held.txt").write_text(TEXT[::-1], encoding="utf-8")
    learn(VocabularySettings(out=folder / "vocab", data=(folder / "text.jsonl",), size=300))
    paths = "".join(
        f'{key} = "{folder / name}"\n'
        for key, name in (
            ("data", "text.jsonl"),
            ("held_out", "held.txt"),
            ("vocabulary", "vocab"),
        )
    )
    (folder / "pretrain.toml").write_text(PRETRAIN + paths + model_table(), encoding="utf-8")
    return folder


ON_A_GPU = (
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
)


def stage(folder: Path, out: Path, *overrides: str) -> Any:
    settings = read_settings(
        pretrain.PretrainSettings, folder / "pretrain.toml", (f"out={out}", *overrides)
    )
    return pretrain.prepare(settings)


def bits(path: Path) -> dict[str, torch.Tensor]:
    stored = SafetensorsWeights(path)
    return {name: stored.part(name) for name in stored.names()}


def untimed(path: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k != "seconds"} for row in read_record(path)]


def same(one: Path, other: Path) -> bool:
    left, right = bits(one), bits(other)
    return left.keys() == right.keys() and all(torch.equal(left[n], right[n]) for n in left)


@pytest.fixture(scope="module")
def whole(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never stopped."""
    out = tmp_path_factory.mktemp("whole") / "run"
    stage(prepared, out).run(say=lambda words: None)
    return out


class KilledError(Exception):
    """The process ended here."""


@pytest.mark.parametrize("after", range(6))
def test_t11_t12_t14_killed_after_any_update(
    prepared: Path, whole: Path, tmp_path: Path, after: int
) -> None:
    """Weights, moments, order, rates and losses are those of a run that was never stopped."""
    out = tmp_path / "run"

    def kill(progress: Any) -> None:
        if progress.updated.update == after:
            raise KilledError

    with pytest.raises(KilledError):
        stage(prepared, out).run(kill, lambda words: None)
    stage(prepared, out).run(say=lambda words: None)
    assert same(out / "model", whole / "model")
    assert untimed(out / "record.jsonl") == untimed(whole / "record.jsonl")
    assert [row["update"] for row in read_record(out / "record.jsonl")] == list(range(6))


@pytest.mark.parametrize("form", ["compile=false", "compile=true", "optimizer=muon"])
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.filterwarnings("default")  # some versions of the compiler warn of themselves
def test_t11_killed_on_a_gpu(prepared: Path, tmp_path: Path, form: str) -> None:
    """Deterministic operations there too: bfloat16 products, blocks plain and compiled."""
    whole = tmp_path / "whole"
    stage(prepared, whole, "device=cuda", form).run(say=lambda words: None)
    for after in range(6) if form == "compile=false" else (0, 3):
        out = tmp_path / f"run-{after}"

        def kill(progress: Any, after: int = after) -> None:
            if progress.updated.update == after:
                raise KilledError

        with pytest.raises(KilledError):
            stage(prepared, out, "device=cuda", form).run(kill, lambda words: None)
        stage(prepared, out, "device=cuda", form).run(say=lambda words: None)
        assert same(out / "model", whole / "model")


def places_of_a_save(
    prepared: Path, out: Path, device: str, monkeypatch: pytest.MonkeyPatch
) -> int:
    """How many steps of the file system one run takes, all saves together."""
    count = 0
    for name in ("fsync", "rename", "replace", "mkdir"):
        real = getattr(os, name)

        def counted(*args: Any, real: Any = real, **named: Any) -> Any:
            nonlocal count
            count += 1
            return real(*args, **named)

        monkeypatch.setattr(os, name, counted)
    stage(prepared, out, device).run(say=lambda words: None)
    monkeypatch.undo()
    return count


@pytest.mark.slow
@pytest.mark.parametrize("device", ["device=cpu", pytest.param("device=cuda", marks=ON_A_GPU)])
def test_t15_killed_at_any_point_of_a_save(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    """At 20 points among the file system's steps: resuming finds a whole checkpoint."""
    whole = tmp_path / "counted"
    total = places_of_a_save(prepared, whole, device, monkeypatch)
    assert total > 40
    for place in range(1, total, max(1, total // 20)):
        out = tmp_path / f"at-{place}"
        left = place
        for name in ("fsync", "rename", "replace", "mkdir"):
            real = getattr(os, name)

            def dying(*args: Any, real: Any = real, **named: Any) -> Any:
                nonlocal left
                left -= 1
                if left <= 0:  # nothing works after a kill, cleaning up included
                    raise KilledError
                return real(*args, **named)

            monkeypatch.setattr(os, name, dying)
        monkeypatch.setattr(shutil, "rmtree", lambda *args, **named: None)
        with pytest.raises(KilledError):
            stage(prepared, out, device).run(say=lambda words: None)
        monkeypatch.undo()
        stage(prepared, out, device).run(say=lambda words: None)
        assert same(out / "model", whole / "model"), place
        assert not list(out.rglob(".*.part")), place


def test_a_real_kill_is_survived(prepared: Path, whole: Path, tmp_path: Path) -> None:
    """SIGKILL from inside, in the middle of writing the second checkpoint's weights."""
    out = tmp_path / "run"
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from cutaway.train import checkpoint, pretrain\n"
        "from cutaway.train.stage_config import read_settings\n"
        "real, saves = checkpoint.write_safetensors, []\n"
        "def dying(path, tensors):\n"
        "    saves.append(path)\n"
        "    real(path, tensors)\n"
        "    if len(saves) == 2:\n"
        "        os.truncate(path, 100)\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "checkpoint.write_safetensors = dying\n"
        "kind = pretrain.PretrainSettings\n"
        "settings = read_settings(kind, Path(sys.argv[1]), (f'out={sys.argv[2]}',))\n"
        "pretrain.prepare(settings).run()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(prepared / "pretrain.toml"), str(out)],
        capture_output=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert list(out.rglob(".*.part"))
    told: list[str] = []
    stage(prepared, out).run(say=told.append)
    assert told == ["going on at update 2 of 6"]
    assert same(out / "model", whole / "model")


def test_a_checkpoint_that_changed_is_skipped_and_told(
    prepared: Path, whole: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    shutil.copytree(whole, out)
    shutil.rmtree(out / "model")
    weights = out / "updates" / "000006" / "model.safetensors"
    damaged = bytearray(weights.read_bytes())
    damaged[-5] ^= 1
    weights.write_bytes(damaged)
    told: list[str] = []
    stage(prepared, out).run(say=told.append)
    assert "000006: model.safetensors is not what was written" in told[0]
    assert told[1] == "going on at update 4 of 6"
    assert same(out / "model", whole / "model")


def test_t16_weights_alone_cannot_go_on(prepared: Path, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(whole, out)
    newest = out / "updates" / "000006"
    shutil.rmtree(newest / "optimizer")
    sums = json.loads((newest / checkpoint.MANIFEST).read_bytes())
    kept = {name: value for name, value in sums.items() if not name.startswith("optimizer/")}
    (newest / checkpoint.MANIFEST).write_text(json.dumps(kept), encoding="utf-8")
    with pytest.raises(ConfigError, match="no state of the optimizer"):
        stage(prepared, out).run(say=lambda words: None)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("rate=2e-2", "holds a run whose rate is 0.01, and this one's is 0.02"),
        ("seed=1", "seed is 0, and this one's is 1"),
        ("updates=7", "updates is 6, and this one's is 7"),
    ],
)
def test_another_run_in_the_same_folder_is_refused(
    prepared: Path, whole: Path, override: str, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        stage(prepared, whole, override).run(say=lambda words: None)


def test_two_processes_never_train_in_one_folder(prepared: Path, tmp_path: Path) -> None:
    """What one of them would take for left behind is what the other is saving."""
    told: list[str] = []

    def meanwhile(progress: Any) -> None:
        with pytest.raises(ConfigError, match="where another process trains"):
            stage(prepared, tmp_path / "run").run(say=lambda words: None)
        told.append("refused")

    stage(prepared, tmp_path / "run").run(meanwhile, lambda words: None)
    assert len(told) == 6


def test_other_data_is_refused(prepared: Path, whole: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text(TEXT * 9, encoding="utf-8")
    settings = read_settings(
        pretrain.PretrainSettings, prepared / "pretrain.toml", (f"out={whole}", f"data={other}")
    )
    with pytest.raises(ConfigError, match="whose data is"):
        pretrain.prepare(settings).run(say=lambda words: None)


def test_what_changes_no_bit_may_change(prepared: Path, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    stage(prepared, out, "save_every=1", "keep=1", "measure_every=6").run(say=lambda words: None)
    assert same(out / "model", whole / "model")
    assert [path.name for path in sorted((out / "updates").iterdir())] == ["000006"]


def test_t14_a_run_from_weights_begins_its_schedule_anew(
    prepared: Path, whole: Path, tmp_path: Path
) -> None:
    settings = read_settings(
        pretrain.PretrainSettings,
        None,
        (
            *(f"out={tmp_path / 'run'}", f"data={prepared / 'text.jsonl'}", "updates=3"),
            *(f"model={whole / 'model'}", "rate=1e-3", "context=16", "tokens=64", "warmup=2"),
        ),
    )
    pretrain.prepare(settings).run(say=lambda words: None)
    rates = [row["rate"] for row in read_record(tmp_path / "run" / "record.jsonl")]
    assert rates[0] == pytest.approx(5e-4)


def test_the_first_loss_is_that_of_guessing(whole: Path) -> None:
    rows = read_record(whole / "record.jsonl")
    vocab_size = json.loads((whole / "model" / "config.json").read_bytes())["vocab_size"]
    assert rows[0]["loss"] == pytest.approx(math.log(vocab_size), abs=0.1)
    assert rows[-1]["loss"] < rows[0]["loss"] - 0.3
    assert [row["update"] for row in rows if row["measured"]] == [2, 5]


def test_a_torn_last_line_of_a_record_is_no_row(whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    path.write_bytes((whole / "record.jsonl").read_bytes() + b'{"update": 6, "lo')
    assert len(read_record(path)) == 6
    path.write_bytes(b"{}\n")
    with pytest.raises(ConfigError, match="line 1 is no update"):
        read_record(path)


def test_t06_small_updates_move_float32_masters(prepared: Path, tmp_path: Path) -> None:
    """Products in bfloat16, a rate of 1e-5: nearly all weights move, norms among them."""
    before = stage(prepared, tmp_path / "run", "rate=1e-5", "precision=bfloat16", "warmup=0")
    kept = {n: p.detach().clone() for n, p in before.model.transformer.named_parameters()}
    before.run(say=lambda words: None)
    after = dict(before.model.transformer.named_parameters())
    assert all(p.dtype == torch.float32 for p in after.values())
    used = [name for name in kept if "table" not in name]  # rows of absent tokens stay
    moved = sum(int((after[n] != kept[n]).sum()) for n in used)
    assert moved > 0.99 * sum(kept[n].numel() for n in used)
    norms = [after[n] for n in used if "norm" in n]
    assert all(bool((norm != 1.0).any()) for norm in norms)


def test_recomputed_blocks_change_no_bit(prepared: Path, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    stage(prepared, out, "recompute=true").run(say=lambda words: None)
    assert same(out / "model", whole / "model")


CHAT = [
    {"role": "user", "content": "wife?"},
    {"role": "assistant", "content": "a single man"},
]


def test_t20_a_tuned_model_answers_and_ends_by_the_ordinary_doors(
    prepared: Path, whole: Path, tmp_path: Path
) -> None:
    data = tmp_path / "talk.jsonl"
    data.write_text(json.dumps({"messages": CHAT}) + "\n", encoding="utf-8")
    settings = read_settings(
        sft.SftSettings,
        None,
        (
            *(f"out={tmp_path / 'run'}", f"data={data}", f"held_out={data}", "updates=60"),
            *(f"model={whole / 'model'}", "rate=2e-2", "context=64", "tokens=64"),
            *("measure_every=60", "save_every=60", "decay=0", f"samples={CHAT[0]['content']}"),
        ),
    )
    path = sft.prepare(settings).run(say=lambda words: None)
    rows = read_record(tmp_path / "run" / "record.jsonl")
    assert rows[-1]["loss"] < 0.05
    assert rows[-1]["samples"] == [[CHAT[0]["content"], "a single man"]]
    assert rows[-1]["measured"]["held_out_loss"] == pytest.approx(rows[-1]["loss"], abs=0.02)
    llm = LLM(str(path), dtype="float32", cache_tokens=256, page_size=8)
    answer = llm.chat(CHAT[:1], SamplingParams(temperature=0.0, max_tokens=20))
    assert (answer.text, answer.finish_reason) == ("a single man", "stop")


def test_t23_long_talks_are_cut_at_a_token_and_empty_ones_counted(
    prepared: Path, whole: Path, tmp_path: Path
) -> None:
    data = tmp_path / "talk.jsonl"
    lines = [{"messages": CHAT}, {"messages": CHAT[:1]}, {"messages": CHAT}]
    data.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    common = (f"out={tmp_path / 'run'}", f"data={data}", "updates=1", "rate=1e-3", "tokens=64")
    told: list[str] = []
    made = sft.prepare(
        read_settings(sft.SftSettings, None, (*common, f"model={whole / 'model'}", "context=20")),
        told.append,
    )
    assert told == [
        "1 conversations of data were left out: nothing is scored within 20 tokens.",
        "2 conversations of data are longer than context, and were cut",
    ]
    learned = [each for batch in made.feed(0) for each in scored_sequences(batch)]
    assert [len(each.token_ids) for each in learned] == [20, 20]
    with pytest.raises(ConfigError, match="no conversation with a scored token"):
        sft.prepare(
            read_settings(
                sft.SftSettings, None, (*common, f"model={whole / 'model'}", "context=3")
            ),
            told.append,
        )


def test_the_disk_is_written_through_whole_files_alone() -> None:
    assert checkpoint.whole_folder is whole_file.whole_folder


def test_what_is_written_meanwhile_changes_nothing_and_comes_again(
    prepared: Path, whole: Path, tmp_path: Path
) -> None:
    told = [tmp_path / name / "run" for name in ("once", "again")]
    for out in told:
        stage(prepared, out, 'samples=["It is a ", "wife"]').run(say=lambda words: None)
    assert same(whole / "model", told[0] / "model")
    rows = untimed(told[0] / "record.jsonl")
    assert rows == untimed(told[1] / "record.jsonl")
    written = [row.pop("samples", None) for row in rows]
    assert rows == untimed(whole / "record.jsonl")
    assert [each is not None for each in written] == [False, False, True] * 2
    assert [prompt for prompt, _ in written[2]] == ["It is a ", "wife"]
    assert written[2] != written[5], "another model, other words"


def test_a_sample_is_what_the_finished_model_says(prepared: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    stage(prepared, out, 'samples=["It is a truth"]').run(say=lambda words: None)
    ((_, text),) = read_record(out / "record.jsonl")[-1]["samples"]
    llm = LLM(str(out / "model"), dtype="float32")
    tokenizer = load_folder(out / "model")
    ids = tokenizer.encode("It is a truth")
    begin = tokenizer.bos_token_id
    assert begin is not None
    params = SamplingParams(temperature=0.7, max_tokens=48, seed=derived_seed(0, 5, 0))
    (said,) = llm.generate([[begin, *ids]], params)
    assert said.text == text


def test_a_sample_that_leaves_no_room_is_refused(prepared: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"samples has a text of \d+ tokens; .* fewer than 64"):
        stage(prepared, tmp_path / "run", f'samples=["{"zq" * 80}"]')
