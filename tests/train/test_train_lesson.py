"""The lesson: every stage begins where the one before ended, and what it teaches is learned."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cutaway.core.errors import ConfigError
from cutaway.host.run_record import read_example, read_record
from cutaway.train.lesson.lesson import STAGES, LessonSettings, prepare
from cutaway.train.lesson.puzzles import pair, phrase, questions, write_data
from cutaway.train.model.model_folder import tokenizer_of_model
from cutaway.train.shown_example import MOST_TOKENS, scored_sequences, write_example
from cutaway.train.stage_config import read_settings


def measured(out: Path) -> list[dict[str, float]]:
    return [row["measured"] for row in read_record(out / "record.jsonl") if row["measured"]]


@pytest.mark.slow
def test_each_stage_begins_where_the_one_before_ended(tmp_path: Path) -> None:
    settings = LessonSettings(out=tmp_path / "runs" / "l", device="cpu")
    made = list[str]()
    for stage in prepare(settings, lambda said: None):
        short = replace(stage, settings=replace(stage.settings, updates=4, measure_every=4))
        assert short.run(say=lambda said: None) == settings.folder(stage.name) / "model"
        made.append(stage.name)
        sequences = [each for batch in stage.feed(0) for each in scored_sequences(batch)]
        tokenizer = tokenizer_of_model(stage.model)
        told = read_example(settings.folder(stage.name))
        assert told == [
            [
                (tokenizer.token_text(token_id), is_scored)
                for token_id, is_scored in zip(each.token_ids, each.is_scored, strict=True)
            ]
            for each in sequences[:2]
        ], stage.name
        scored = "".join(text for text, is_scored in told[0] if is_scored)
        if stage.name == "pretrain":
            assert scored.startswith("Which word is last: "), "a base model learns all of a text"
        elif stage.name in ("sft", "reward", "dpo"):
            assert "Which" not in scored and scored, "of a conversation the answer alone"
    assert made == list(STAGES)
    assert measured(settings.folder("pretrain"))[0]["bits_per_byte"] < 8


def test_it_ends_where_it_is_told_and_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    settings = LessonSettings(out=tmp_path / "l", until="pretrain", device="cpu")
    (stage,) = prepare(settings, lambda said: None)
    assert stage.settings.rate == 3e-3
    assert {each.name for each in tmp_path.iterdir()} == {"l-data", "l-vocabulary"}
    for told, message in (
        ("until=tune", 'until is "tune"; it must be one of pretrain, sft, reward, ppo, dpo'),
        ("rewards=long", 'rewards is "long"; it must be one of final, length'),
        ("rate=-1", "rate is -1; it must be a number of at least 0"),
        ("words=4", "words is no setting of this stage"),
    ):
        with pytest.raises(ConfigError) as caught:
            read_settings(LessonSettings, None, (told,))
        assert message in str(caught.value)


def test_what_is_held_out_shares_no_question_with_the_rest(tmp_path: Path) -> None:
    write_data(tmp_path / "data")
    texts = {path.stem: path.read_text("utf-8").splitlines() for path in tmp_path.rglob("*.jsonl")}
    shown = {question for _, question in questions(1, 6000)}
    assert all(len(texts[name]) == 6000 for name in ("text", "sft", "pairs", "tasks"))
    for name, least in (("held_out_pairs", 400), ("held_out_tasks", 300), ("held_out_text", 90)):
        assert len(texts[name]) >= least
        assert not any(question in line for line in texts[name] for question in shown)
    assert phrase("oak", is_long=False) == "oak"
    with pytest.raises(FileExistsError):
        write_data(tmp_path / "data")


def test_a_pair_has_the_right_word_chosen() -> None:
    from random import Random

    for words, question in questions(5, 20):
        told = pair(words, question, Random(1))
        assert words[2] in told["chosen"] and words[2] not in told["rejected"]


def test_a_long_example_is_cut_and_what_is_none_is_empty(tmp_path: Path) -> None:
    settings = LessonSettings(out=tmp_path / "l", until="pretrain", device="cpu")
    (stage,) = prepare(settings, lambda said: None)
    (batch, *_) = stage.feed(0)
    sequence = batch.sequences[0]
    many = replace(
        sequence,
        token_ids=sequence.token_ids * 100,
        is_scored=(*sequence.is_scored, *[True] * (99 * len(sequence.token_ids))),
    )
    write_example(tmp_path, [type(batch)((many,))], tokenizer_of_model(stage.model))
    assert [len(each) for each in read_example(tmp_path)] == [MOST_TOKENS]
    for text in ("[1", "1", "[[1]]", '[[["a"]]]', "[" * 100_000):
        (tmp_path / "example.json").write_text(text, encoding="utf-8")
        assert read_example(tmp_path) == []


def test_it_ends_with_who_started_it(tmp_path: Path) -> None:
    words = (sys.executable, "-P", "-m", "cutaway", "train", "lesson", "--end-with-stdin")
    process = subprocess.Popen(
        (*words, f"out={tmp_path / 'l'}", "device=cpu", "until=pretrain"),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.stdin is not None and process.stderr is not None
    assert process.stderr.readline().startswith(b"pretrain: From random numbers")
    process.stdin.close()
    assert process.wait(timeout=60) == -15
    process.stderr.close()


@pytest.mark.slow
def test_what_the_lesson_teaches_is_learned(tmp_path: Path) -> None:
    """From letters at random to right answers, stage by stage, as the room Training shows it."""
    settings = LessonSettings(out=tmp_path / "l", until="ppo", device="cpu")
    for stage in prepare(settings, lambda said: None):
        stage.run(say=lambda said: None)
    written = [
        row["samples"]
        for row in read_record(settings.folder("pretrain") / "record.jsonl")
        if row.get("samples")
    ]
    assert not written[0][0][1].startswith(" last:"), "at first it writes what is no text"
    assert written[-1][0][1].startswith(" last: "), "a base model goes on with the question"
    assert measured(settings.folder("pretrain"))[-1]["bits_per_byte"] < 0.5
    tuned = read_record(settings.folder("sft") / "record.jsonl")[-1]["samples"]
    assert not any(text.startswith(" last:") for _, text in tuned), "a tuned one answers"
    assert measured(settings.folder("reward"))[-1]["accuracy"] > 0.75
    failed = [each["failed"] for each in measured(settings.folder("ppo"))]
    assert failed[-1] < failed[0] - 0.2
