"""Settings and data that no run can come to its end with are refused before its first update."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from preference_stages import SHAPE, pairs, talks, tasks, tuned, write_lines

from cutaway.core.errors import ConfigError
from cutaway.tokens.files.tokenizer_files import load_folder
from cutaway.train import checkpoint, distill, dpo, grpo, pretrain, reward, sft
from cutaway.train.loop import clip
from cutaway.train.model.model_folder import new_model, open_model
from cutaway.train.model.value_head import with_scores
from cutaway.train.optimizers import Optimizers, OptimizerSettings
from cutaway.train.rollouts.rewards import choose_rewards, total
from cutaway.train.schedules import Schedule
from cutaway.train.stage_config import read_settings
from cutaway.train.vocabulary import VocabularySettings, learn


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tuned model with tasks, pairs and conversations beside it."""
    path = tmp_path_factory.mktemp("refusals")
    tuned(path)
    write_lines(path / "tasks.jsonl", tasks(10))
    write_lines(path / "pairs.jsonl", pairs(8))
    write_lines(path / "talks.jsonl", talks(8))
    return path


def told(folder: Path, out: Path, **changes: Any) -> dict[str, Any]:
    common = {"out": out, "model": str(folder / "tuned"), "updates": 2, "rate": 1e-3}
    return {**common, "device": "cpu", **changes}


def rounds(folder: Path, out: Path, **changes: Any) -> grpo.GrpoSettings:
    own = {"data": (folder / "tasks.jsonl",), "rewards": "final", "answers": 2, "prompts": 4}
    made = told(folder, out, **own, max_tokens=8, save_every=2, measure_every=2)
    return grpo.GrpoSettings(**{**made, **changes})


def long_words(count: int) -> str:
    return " ".join(["red green"] * count)


def test_no_round_is_smaller_than_its_parts(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="10 tasks by 4 prompts leave a round of 2"):
        grpo.prepare(
            rounds(folder, tmp_path / "x", parts=4, updates=4, save_every=4, measure_every=4)
        )
    grpo.prepare(rounds(folder, tmp_path / "x", parts=2))


@pytest.mark.parametrize("name", ["data", "held_out"])
def test_a_prompt_that_leaves_no_room_is_named(folder: Path, tmp_path: Path, name: str) -> None:
    rows = [*tasks(3), {"prompt": long_words(60), "answer": "red"}]
    path = write_lines(tmp_path / "long.jsonl", rows)
    with pytest.raises(
        ConfigError, match=r"long.jsonl, line 4: the prompt has \d+ tokens, and max"
    ):
        grpo.prepare(rounds(folder, tmp_path / "x", **{name: (path,)}))


def test_a_verifier_that_compares_needs_an_answer(folder: Path, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "bare.jsonl", [{"prompt": "red"}])
    with pytest.raises(ConfigError, match="line 1: answer is null; final compares with it"):
        grpo.prepare(rounds(folder, tmp_path / "x", data=(path,), prompts=1))
    grpo.prepare(rounds(folder, tmp_path / "x", data=(path,), prompts=1, rewards="ended"))
    with pytest.raises(ConfigError, match='verifier has "bogus"'):
        grpo.prepare(rounds(folder, tmp_path / "x", verifier="bogus"))
    path = write_lines(tmp_path / "typo.jsonl", [{"promt": "red", "answer": "red"}])
    with pytest.raises(ConfigError, match="line 1: prompt is missing"):
        grpo.prepare(rounds(folder, tmp_path / "x", data=(path,), prompts=1))


def test_tasks_may_lie_in_parquet_and_must_be_objects(folder: Path, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(tasks(10)), tmp_path / "tasks.parquet")
    found = [
        grpo.prepare(rounds(folder, tmp_path / "x", data=(path,))).data
        for path in (folder / "tasks.jsonl", tmp_path / "tasks.parquet")
    ]
    assert found[0] == found[1]
    path = write_lines(tmp_path / "list.jsonl", [[1]])
    with pytest.raises(ConfigError, match=r"line 1: the line is \[1\]; it must be a JSON object"):
        grpo.prepare(rounds(folder, tmp_path / "x", data=(path,)))


def test_a_reward_model_of_another_vocabulary_is_refused(folder: Path, tmp_path: Path) -> None:
    """Even one of the same size: its ids mean other words."""
    text = tmp_path / "text.txt"
    text.write_text("one two three four five six " * 20)
    learn(VocabularySettings(out=tmp_path / "bpe", data=(text,), size=270))
    other = new_model(SHAPE, tmp_path / "bpe", load_folder(tmp_path / "bpe"), seed=0)
    (tmp_path / "judge").mkdir()
    with_scores(other, seed=0).write(tmp_path / "judge")
    with pytest.raises(ConfigError, match="has another vocabulary than model"):
        grpo.prepare(rounds(folder, tmp_path / "x", reward_model=str(tmp_path / "judge")))


def test_what_an_answer_without_an_end_is_worth_can_be_told() -> None:
    assert total([], choose_rewards(["ended"], [], None), unended=-3.0) == []


@pytest.mark.parametrize("kind", ["dpo", "reward"])
def test_pairs_longer_than_the_model_are_left_out(folder: Path, tmp_path: Path, kind: str) -> None:
    long = {"prompt": long_words(60), "chosen": "red", "rejected": "green"}
    same = {"prompt": "red green", "chosen": "red", "rejected": "red"}
    path = write_lines(tmp_path / "pairs.jsonl", [*pairs(4), long, same])
    said: list[str] = []
    given = told(folder, tmp_path / "x", data=(path,))
    if kind == "dpo":
        stage: Any = dpo.prepare(dpo.DpoSettings(**given), said.append)
    else:
        stage = reward.prepare(reward.RewardSettings(**given), said.append)
    assert sum(batch.count for batch in stage.feed(0)) == 4
    assert said == [
        "context is 96, the model's longest sequence, in place of 512",
        "1 pairs were left out: it is longer than 96 tokens, or an answer is empty.",
        "1 pairs were left out: both answers are the same, so neither is better.",
    ]


def test_distillation_looks_at_its_data_first(folder: Path, tmp_path: Path) -> None:
    long = {"messages": [{"role": "user", "content": "red"}, *_answer(long_words(60))]}
    path = write_lines(tmp_path / "talks.jsonl", [*talks(4), long])
    said: list[str] = []

    def prepare(**changes: Any) -> None:
        given = {"data": (path,), "teacher": str(folder / "tuned"), **changes}
        settings = distill.DistillSettings(**told(folder, tmp_path / "x", **given))
        distill.prepare(settings, said.append)

    prepare()
    assert said[1] == "1 conversations of data are longer than context, and were cut"
    with pytest.raises(ConfigError, match="tokens is 20; it must be at least context, 96"):
        prepare(tokens=20)
    silent = write_lines(tmp_path / "silent.jsonl", [{"messages": [*_asked("red")]}])
    with pytest.raises(ConfigError, match="held_out has no conversation with a scored token"):
        prepare(held_out=(silent,))


def _asked(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def _answer(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


def pretraining(folder: Path, out: Path, data: Path, **changes: Any) -> pretrain.PretrainSettings:
    own = {"vocabulary": folder / "bpe", "context": 16, "tokens": 32}
    return pretrain.PretrainSettings(
        **{**told(folder, out, data=(data,), save_every=1), **own, "model": SHAPE, **changes}
    )


def test_texts_without_a_character_are_refused(folder: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_text("")
    text = folder / "text.txt"
    with pytest.raises(ConfigError, match=r"data has no text: .*empty.txt"):
        pretrain.prepare(pretraining(folder, tmp_path / "x", empty))
    with pytest.raises(ConfigError, match=r"held_out has no text to measure on: .*empty.txt"):
        pretrain.prepare(pretraining(folder, tmp_path / "x", text, held_out=(empty,)))
    with pytest.raises(ConfigError, match=r"data has no text: .*empty.txt"):
        learn(VocabularySettings(out=tmp_path / "bpe", data=(empty,)))
    half = write_lines(tmp_path / "half.jsonl", [{"text": "red \ud800"}])
    with pytest.raises(ConfigError, match=r"half.jsonl, line 1: text has half of a surrogate pair"):
        pretrain.prepare(pretraining(folder, tmp_path / "x", half))
    with pytest.raises(ConfigError, match=r"vocabulary is .*text.txt; it must be the folder"):
        pretrain.prepare(pretraining(folder, tmp_path / "x", text, vocabulary=text))


def test_where_one_document_ends_belongs_to_the_data(folder: Path, tmp_path: Path) -> None:
    texts = [("red and", " green"), ("red", " and green")]
    sums = [
        pretrain.prepare(
            pretraining(
                folder,
                tmp_path / "x",
                write_lines(tmp_path / f"{at}.jsonl", [{"text": each} for each in pair]),
            )
        ).data
        for at, pair in enumerate(texts)
    ]
    assert sums[0] != sums[1]


def test_a_misspelt_field_of_a_new_model_is_refused(folder: Path) -> None:
    tokenizer = load_folder(folder / "bpe")
    shape = {name: value for name, value in SHAPE.items() if name != "num_key_value_heads"}
    with pytest.raises(ConfigError, match="did you mean num_key_value_heads"):
        new_model({**shape, "num_key_value_head": 1}, folder / "bpe", tokenizer, seed=0)
    new_model({**SHAPE, "initializer_range": 0.02}, folder / "bpe", tokenizer, seed=0)


def test_a_warmup_as_long_as_the_run_is_refused() -> None:
    with pytest.raises(ConfigError, match="warmup is 6; it must be below updates, 6"):
        Schedule("wsd", 6, 6)


def test_a_largest_norm_of_zero_cuts_nothing() -> None:
    model = torch.nn.Linear(2, 2)
    optimizers = Optimizers(model, OptimizerSettings(rate=1e-3, max_norm=0.0))
    model.weight.grad = torch.ones(2, 2)
    clip(optimizers, 2.0)
    assert torch.equal(model.weight.grad, torch.ones(2, 2))


def test_a_list_of_nothing_is_no_data() -> None:
    with pytest.raises(ConfigError, match=r"data is .*; it must be a path or a list of paths"):
        read_settings(VocabularySettings, None, ("out=x", "data=[]"))


def test_another_base_under_the_same_name_is_noticed(folder: Path, tmp_path: Path) -> None:
    model = open_model(str(folder / "tuned"))
    base = tmp_path / "base"
    base.mkdir()
    model.write(base)
    (base / "chat_template.jinja").write_bytes(
        (folder / "tuned" / "chat_template.jinja").read_bytes()
    )

    def stage() -> Any:
        own = {"data": (folder / "talks.jsonl",), "lora_rank": 2, "tokens": 128}
        given = {**told(folder, tmp_path / "run", **own, context=96), "model": str(base)}
        return sft.prepare(sft.SftSettings(**given), lambda words: None)

    stage().run(say=lambda words: None)
    with torch.no_grad():
        model.transformer.embedding.table.weight.add_(0.1)  # type: ignore[operator]
    model.write(base)
    with pytest.raises(ConfigError, match=r"began with other weights than model .* has now"):
        stage().run(say=lambda words: None)


Damage = Callable[[Path], object]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda path: path.write_text("{"), "is damaged"),
        (lambda path: path.write_text("[]"), "is damaged"),
    ],
)
def test_a_damaged_run_is_told(folder: Path, tmp_path: Path, damage: Damage, words: str) -> None:
    def stage(**changes: Any) -> Any:
        return pretrain.prepare(
            pretraining(folder, tmp_path / "run", folder / "text.txt", **changes)
        )

    stage().run(say=lambda said: None)
    damage(tmp_path / "run" / "run.json")
    with pytest.raises(ConfigError, match=words):
        stage().run(say=lambda said: None)


def test_a_start_that_failed_holds_nobody_to_its_settings(folder: Path, tmp_path: Path) -> None:
    settings = pretraining(folder, tmp_path / "run", folder / "text.txt")
    pretrain.prepare(settings).run(say=lambda said: None)
    (tmp_path / "other").mkdir()
    for name in ("run.json", "record.jsonl"):
        data = (tmp_path / "run" / name).read_bytes()
        (tmp_path / "other" / name).write_bytes(data)
    again = pretraining(folder, tmp_path / "other", folder / "text.txt", rate=2e-3)
    pretrain.prepare(again).run(say=lambda said: None)
    assert json.loads((tmp_path / "other" / "run.json").read_text())["settings"]["rate"] == 2e-3


def test_a_setting_that_is_new_had_its_default(folder: Path, tmp_path: Path) -> None:
    settings = pretraining(folder, tmp_path / "run", folder / "text.txt")
    pretrain.prepare(settings).run(say=lambda said: None)
    path = tmp_path / "run" / "run.json"
    found: Mapping[str, Any] = json.loads(path.read_text())
    older = {name: value for name, value in found["settings"].items() if name != "z_loss"}
    path.write_text(json.dumps({**found, "settings": older}))
    pretrain.prepare(settings).run(say=lambda said: None)


def test_a_file_in_place_of_the_runs_folder_is_named(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "file"
    out.write_text("")
    with pytest.raises(ConfigError, match=r"out is .*file; it must be a folder"):
        pretrain.prepare(pretraining(folder, out, folder / "text.txt")).run(say=lambda said: None)


def test_the_newest_of_a_million_checkpoints_is_the_newest(tmp_path: Path) -> None:
    for update in (999_999, 1_000_000):
        checkpoint.write(
            tmp_path, update, write_model=lambda folder: None, optimizer={}, state={"stage": "x"}
        )
    found, skipped = checkpoint.newest(tmp_path)
    assert found is not None and found.update == 1_000_000 and not skipped
    checkpoint.sweep(tmp_path, keep=1)
    assert [each.name for each in tmp_path.iterdir()] == ["1000000"]


def test_weights_that_are_written_are_told_as_float32_alone(folder: Path, tmp_path: Path) -> None:
    model = open_model(str(folder / "tuned"))
    model.config["dtype"] = "bfloat16"  # type: ignore[index]
    model.write(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["torch_dtype"] == "float32" and "dtype" not in config
