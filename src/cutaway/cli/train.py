"""`cutaway train`: learn a vocabulary, pretrain a model, tune it on conversations."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cutaway.cli.terminal.terminal import is_seen, note, print_data

if TYPE_CHECKING:
    from cutaway.tokens.tokenizer import Tokenizer
    from cutaway.train.data.packing import ScoredSequence
    from cutaway.train.stage import TrainingStage, UpdateReport

app = typer.Typer(
    name="train",
    help="Make models: a vocabulary, a base model, an assistant.",
)

Config = Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="settings of the stage")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="settings in place of the file's"),
]
Show = Annotated[
    int, typer.Option(min=0, help="print so many examples as they are learned, and end")
]


@app.callback()
def train() -> None:
    """Make models: a vocabulary, a base model, an assistant."""


@app.command()
def bpe(config: Config, overrides: Overrides = None) -> None:
    """Learn a byte-level BPE vocabulary from text, and write it as a tokenizer's folder."""
    from cutaway.train.stage_config import read_settings
    from cutaway.train.vocabulary import VocabularySettings, learn

    settings = read_settings(VocabularySettings, config, overrides or ())
    with _bar("merges") as advance:
        count = learn(settings, lambda done, total: advance(done, total, ""))
    print_data(f"{settings.out}: {count} tokens")


@app.command()
def pretrain(config: Config, overrides: Overrides = None, *, show: Show = 0) -> None:
    """Train a model to go on with text; a run that was stopped goes on where it was.

    The folder has a record of every update, checkpoints, and at the end the model.
    """
    from cutaway.train import pretrain as stage
    from cutaway.train import ranks
    from cutaway.train.stage_config import read_settings

    settings = read_settings(stage.PretrainSettings, config, overrides or ())
    ranks.join()
    _show_or_run(stage.prepare(settings), show)


@app.command()
def sft(config: Config, overrides: Overrides = None, *, show: Show = 0) -> None:
    """Tune a model on conversations; only what the assistant has to write is learned.

    --show prints ids, text and mask side by side, so that both can be looked at first.
    """
    _run_stage("sft", "SftSettings", config, overrides, show=show)


@app.command()
def reward(config: Config, overrides: Overrides = None, *, show: Show = 0) -> None:
    """Teach a model to score answers, from pairs of which one was preferred."""
    _run_stage("reward", "RewardSettings", config, overrides, show=show)


@app.command()
def dpo(config: Config, overrides: Overrides = None, *, show: Show = 0) -> None:
    """Make preferred answers likelier, from pairs and without a reward model."""
    _run_stage("dpo", "DpoSettings", config, overrides, show=show)


@app.command()
def ppo(config: Config, overrides: Overrides = None, *, show: Show = 0) -> None:
    """Let a model answer, and learn from what answers are worth; a leash holds it to its start."""
    _run_stage("ppo", "PpoSettings", config, overrides, show=show)


@app.command()
def grpo(config: Config, overrides: Overrides = None, *, show: Show = 0) -> None:
    """The same without a critic: answers to one prompt are compared with one another."""
    _run_stage("grpo", "GrpoSettings", config, overrides, show=show)


@app.command()
def distill(config: Config, overrides: Overrides = None, *, show: Show = 0) -> None:
    """Teach a model the whole distribution of another that has its vocabulary."""
    _run_stage("distill", "DistillSettings", config, overrides, show=show)


@app.command()
def speculator(config: Config, overrides: Overrides = None, *, show: Show = 0) -> None:
    """Train one layer to guess what a model says next; serve it with --draft-speculator."""
    _run_stage("speculator", "SpeculatorSettings", config, overrides, show=show)


@app.command()
def lesson(
    overrides: Overrides = None,
    *,
    end_with_stdin: Annotated[
        bool,
        typer.Option(
            "--end-with-stdin", help="end as well when nobody holds the other end of stdin"
        ),
    ] = False,
) -> None:
    """Make a tiny model through every stage in a few minutes, to see a whole training.

    It learns which of three words is last; each stage is a run in the folder runs, which the page's
    room Training shows while it is made. The same command goes on with one that was stopped.
    """
    from cutaway.host.end_of_stdin import follow_stdin
    from cutaway.train.lesson.lesson import STAGES, LessonSettings, prepare
    from cutaway.train.stage_config import read_settings

    settings = read_settings(LessonSettings, None, overrides or ())
    if end_with_stdin:
        follow_stdin()
    for stage in prepare(settings, note):
        note(f"{stage.name}: {STAGES[stage.name]}")
        _run(stage)


def _run_stage(
    module: str, settings: str, config: Path, overrides: list[str] | None, *, show: int = 0
) -> None:
    """Read a stage's settings and run it, or show what it learns from."""
    from importlib import import_module

    from cutaway.train import ranks
    from cutaway.train.stage_config import read_settings

    stage: Any = import_module(f"cutaway.train.{module}")
    ranks.join()
    say = note if ranks.rank() == 0 else _say_nothing
    prepared = stage.prepare(read_settings(getattr(stage, settings), config, overrides or ()), say)
    _show_or_run(prepared, show, sides=2 if settings in ("RewardSettings", "DpoSettings") else 1)


def _show_or_run(prepared: TrainingStage[Any], show: int, *, sides: int = 1) -> None:
    """Print so many examples, each of so many sequences; run the stage where none are wanted."""
    from cutaway.train.model.model_folder import tokenizer_of_model
    from cutaway.train.shown_example import scored_sequences

    if not show:
        _run(prepared)
        return
    sequences = (each for batch in prepared.feed(0) for each in scored_sequences(batch))
    _show(islice(sequences, sides * show), tokenizer_of_model(prepared.model))


def _say_nothing(words: str) -> None:
    """What processes beside the first say."""


def _run(stage: TrainingStage[Any]) -> None:
    from cutaway.train import ranks

    if ranks.rank() > 0:
        stage.run(say=_say_nothing)
        ranks.leave()
        return
    with _bar(stage.name) as advance:

        def report(progress: UpdateReport) -> None:
            updated = progress.updated
            words = f"loss {updated.loss:.4f}"
            for name, value in progress.measured.items():
                note(f"update {updated.update + 1}: {name} {value:.4f}")
            for prompt, text in progress.samples:
                note(f"update {updated.update + 1}: {prompt!r} goes on {text!r}")
            advance(updated.update + 1, progress.num_updates, words)

        path = stage.run(report, note)
    ranks.leave()
    print_data(f"{path}")


def _show(sequences: Iterator[ScoredSequence], tokenizer: Tokenizer) -> None:
    """Each token on a line: its id, whether it is scored, its text."""
    for number, sequence in enumerate(sequences, start=1):
        print_data(f"example {number}: {len(sequence.token_ids)} tokens, {sequence.count} scored")
        for token_id, is_scored in zip(sequence.token_ids, sequence.is_scored, strict=True):
            mark = "scored" if is_scored else "      "
            print_data(f"{token_id:>8}  {mark}  {tokenizer.token_text(token_id)!r}")


@contextmanager
def _bar(what: str) -> Generator[Callable[[int, int, str], None]]:
    """What to call with done, all and a few words; a bar where a person looks, else lines."""
    if not is_seen(sys.stderr):
        yield _lines(what)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    bar = Progress(
        "{task.description}",
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
    task = bar.add_task(what)

    def advance(done: int, total: int, words: str) -> None:
        bar.update(task, completed=done, total=total, description=f"{what} {words}".rstrip())

    with bar:
        yield advance


def _lines(what: str) -> Callable[[int, int, str], None]:
    """A line at every tenth of the way."""
    told = 0

    def advance(done: int, total: int, words: str) -> None:
        nonlocal told
        tenth = 10 * done // max(1, total)
        if tenth > told or done == total:
            told = tenth
            note(f"{what}: {done} of {total} {words}".rstrip())

    return advance
