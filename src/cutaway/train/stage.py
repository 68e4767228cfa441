"""What every stage does around the loop: begin or go on, write down, measure, save, and end.

A stage gives a feed, an objective and what it measures. Everything random is a function of the
update's index, so a run that was killed at any moment goes on with the bits that it would have had.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from time import perf_counter
from typing import Any, Generic, TypeVar, cast

import torch
from filelock import FileLock, Timeout
from torch import nn

from cutaway.core.errors import ConfigError
from cutaway.core.limits import quote
from cutaway.core.version import __version__
from cutaway.host.file_digest import digest_files
from cutaway.host.run_record import Record, read_record
from cutaway.host.whole_file import write_whole
from cutaway.kernels.large_blocks import keep_freed_blocks
from cutaway.train import captured, checkpoint, exporters, ranks
from cutaway.train.loop import LossBatch, Updated, pull_back, run
from cutaway.train.losses.losses import Loss
from cutaway.train.model import compute_forms, weight_shards
from cutaway.train.model.model_folder import TrainedModel, tokenizer_of_model
from cutaway.train.optimizers import NAMES, Optimizers, OptimizerSettings
from cutaway.train.samples import Samples
from cutaway.train.schedules import COURSES, Schedule
from cutaway.train.shown_example import write_example
from cutaway.train.stage_config import models_of, option, plain, resolve_settings
from cutaway.weights.find.find import find

Batch = TypeVar("Batch", bound=LossBatch)

RUN, UPDATES, MODEL, LOCK = "run.json", "updates", "model", ".lock"


@dataclass(frozen=True, kw_only=True)
class StageSettings:
    """What all stages are told."""

    out: Path = option(help="the run's folder", changes_run=False)
    updates: int = option(help="steps of the optimizer", least=1)
    rate: float = option(help="the peak learning rate", least=0.0)
    schedule: str = option("wsd", help="the rate's course", choices=tuple(COURSES))
    warmup: int | None = option(None, help="updates until the peak", least=0)
    optimizer: str = option("adamw", help="what moves the weights", choices=NAMES)
    decay: float = option(0.1, help="weight decay of matrices", least=0.0)
    max_norm: float = option(
        1.0, help="the gradient's norm is cut to it; 0 cuts nothing", least=0.0
    )
    seed: int = option(0, help="of weights and order", least=0)
    device: str = option("auto", help="auto, cpu, cuda or cuda:N", changes_run=False)
    deterministic: bool = option(
        True, help="operations whose bits repeat; without, a GPU may use quicker ones"
    )
    precision: str = option("auto", help="of products", choices=("auto", "float32", "bfloat16"))
    compile: bool = option(False, help="compile blocks")
    shard: bool = option(
        False, help="divide weights and moments among torchrun's processes", changes_run=False
    )
    recompute: bool = option(False, help="compute blocks again for gradients, to save memory")
    capture: bool = option(
        True,
        help="launch forward and backward at once on a GPU, where lengths come again",
        changes_run=False,
    )
    save_every: int = option(200, help="updates between checkpoints", least=1, changes_run=False)
    keep: int = option(3, help="checkpoints to keep beside the best", least=1, changes_run=False)
    measure_every: int = option(
        200, help="updates between measurements", least=1, changes_run=False
    )
    export: str = option(
        "off", help="who is told the record too", choices=exporters.NAMES, changes_run=False
    )


@dataclass(frozen=True, kw_only=True)
class UpdateReport:
    """What is told after each update. measured: what a stage measured, if it did.

    samples: prompts and what the model wrote behind them, where it was asked to.
    """

    updated: Updated
    num_updates: int
    seconds: float
    measured: Mapping[str, float]
    samples: Sequence[tuple[str, str]] = ()


Report = Callable[[UpdateReport], None]


@dataclass(frozen=True, kw_only=True)
class TrainingStage(Generic[Batch]):
    """One stage of one run.

    name: of the stage. data: a checksum of what it learns from.
    feed: the micro-batches of an update. objective: the loss of one.
    measure: figures of the model as it is, smaller is better in the first; None measures nothing.
    prompts, samples: texts, and what writes an answer to each now and then; None writes none.
    module: what optimizers move, where it is more than the model's transformer.
    reads_steps_alone: whether the objective takes a MicroBatch, and of it nothing but its step,
        its targets and its count; so that a GPU can do the same again on other numbers.
    """

    name: str
    settings: StageSettings
    model: TrainedModel
    data: str
    feed: Callable[[int], Sequence[Batch]]
    objective: Callable[[Batch], Loss]
    measure: Callable[[], Mapping[str, float]] | None = None
    prompts: Sequence[str] = ()
    samples: Samples | None = None
    module: nn.Module | None = None
    reads_steps_alone: bool = False

    def run(
        self, report: Report = lambda progress: None, say: Callable[[str], None] = print
    ) -> Path:
        """Do all updates that are left, and give the folder of the model that came out.

        report: told of each update.   say: a sentence for a person.

        Raises: ConfigError when the folder holds another run or one of other data, or another
        process works in it; NumericsError.
        """
        with alone(self.settings.out) if ranks.rank() == 0 else nullcontext():
            return self._run(report, say)

    def _run(self, report: Report, say: Callable[[str], None]) -> Path:
        settings = self.settings
        is_first, is_divided = ranks.rank() == 0, settings.shard and ranks.size() > 1
        if is_divided:
            weight_shards.check(self.model, optimizer=settings.optimizer)
        if is_first:
            self._claim()
        module = self.model.transformer if self.module is None else self.module
        found = self._found(say)
        if is_divided:
            weight_shards.divide(self.model, module)
            here, all_of_it = (each / 1e6 for each in weight_shards.num_bytes(module))
            say(f"each of {ranks.size()} processes has {here:.2f} of {all_of_it:.2f} MB of weights")
        optimizers = Optimizers(module, self._optimizer_settings)
        if found is not None:
            optimizers.load_state(found.optimizer_state())
        first = 0 if found is None else found.update
        record = Record(settings.out)
        told = None
        if is_first:
            record.begin(first)
            told = exporters.exporter_of(settings.export, settings.out, resolve_settings(settings))
        schedule = Schedule(settings.schedule, settings.updates, settings.warmup)
        self._form()
        if not next(module.parameters()).is_cuda:
            keep_freed_blocks()
        capturing = self._capturing(optimizers)
        began = perf_counter()

        def after(updated: Updated) -> None:
            nonlocal began
            if not is_first and not is_divided:
                return
            done = updated.update + 1
            is_last = done == settings.updates
            seconds = perf_counter() - began
            measured: Mapping[str, float] = {}
            samples: list[tuple[str, str]] = []
            if is_last or done % settings.measure_every == 0:
                if capturing is not None:
                    capturing.make_room()
                measured = {} if self.measure is None else self.measure()
                samples = self._sample(updated.update)
            row = _row(updated, seconds, measured) | ({"samples": samples} if samples else {})
            if is_first:
                record.add(row)
            if told is not None:
                told.add(row)
            if is_last or done % settings.save_every == 0:
                self._save(done, optimizers)
            report(
                UpdateReport(
                    updated=updated,
                    num_updates=settings.updates,
                    seconds=seconds,
                    measured=measured,
                    samples=samples,
                )
            )
            began = perf_counter()

        with deterministic() if settings.deterministic else nullcontext():
            run(
                self._told_feed if is_first else self.feed,
                self.objective,
                optimizers,
                schedule=schedule,
                first=first,
                after=after,
                pull=pull_back if capturing is None else capturing,
            )
        if told is not None:
            told.close()
        path = self._finish()
        ranks.wait()
        return path

    def _told_feed(self, update: int) -> Sequence[Batch]:
        """The feed, of whose first update an example is written down."""
        batches = self.feed(update)
        if update == 0:
            write_example(self.settings.out, batches, tokenizer_of_model(self.model))
        return batches

    def _capturing(self, optimizers: Optimizers) -> captured.CapturedPull | None:
        """What captures forward and backward; None where they are launched kernel by kernel."""
        settings, transformer = self.settings, self.model.transformer
        is_alone = ranks.size() == 1 and self.module is None
        # What is compiled may be compiled again at any call.
        if not (settings.capture and self.reads_steps_alone and is_alone) or settings.compile:
            return None
        device = next(transformer.parameters()).device
        if device.type not in captured.CAPTURES_ON or not compute_forms.can_capture(transformer):
            return None
        return captured.CapturedPull(list(optimizers.parameters.values()))

    def _sample(self, update: int) -> list[tuple[str, str]]:
        """Each prompt and what the model writes behind it now."""
        if self.samples is None:
            return []
        model = weight_shards.gather_whole(self.model)
        if ranks.rank() > 0:
            return []
        samples = self.samples if model is self.model else self.samples.of(model)
        return list(zip(self.prompts, samples.write(update), strict=True))

    @property
    def _optimizer_settings(self) -> OptimizerSettings:
        settings = self.settings
        return OptimizerSettings(
            name=settings.optimizer,
            rate=settings.rate,
            decay=settings.decay,
            max_norm=settings.max_norm,
        )

    @property
    def _updates(self) -> Path:
        return self.settings.out / UPDATES

    def _claim(self) -> None:
        """Write down what run this is, or see that it is the one that is there."""
        path = self.settings.out / RUN
        mine = {
            "stage": self.name,
            "settings": resolve_settings(self.settings, of_the_run=True),
            "data": self.data,
            "device": next(self.model.transformer.parameters()).device.type,
            "weights": {
                name: digest_files(find(each).path)
                for name, each in models_of(self.settings).items()
            },
        }
        has_begun = any(each.exists() for each in (self._updates, self.settings.out / MODEL))
        if path.is_file() and has_begun:  # a start that failed holds nobody to its settings
            _check_same(path, _read_run(path), mine, type(self.settings))
            return
        told = {**mine, "version": __version__, "torch": torch.__version__}
        write_whole(path, json.dumps(told, indent=1, ensure_ascii=False) + "\n")

    def _found(self, say: Callable[[str], None]) -> checkpoint.Checkpoint | None:
        """The newest checkpoint, whose weights the model then has."""
        if ranks.rank() == 0:
            for folder in (self.settings.out, self._updates):
                checkpoint.remove_unfinished(folder)
        ranks.wait()
        found, skipped = checkpoint.newest(self._updates)
        for each in skipped:
            say(f"skipped {each}")
        if found is not None:
            self.model.load(found.path)
            say(f"going on at update {found.update} of {self.settings.updates}")
        return found

    def _form(self) -> None:
        transformer = self.model.transformer
        set_precision(transformer, self.settings)
        if self.settings.recompute:
            compute_forms.recompute_blocks(transformer)
        if self.settings.compile:
            compute_forms.compile_blocks(transformer, rows=self._rows)

    @property
    def _rows(self) -> int:
        """Tokens of a forward, for which blocks are compiled; never what comes first."""
        told = [getattr(self.settings, name, None) for name in ("tokens", "step_tokens")]
        return max(3, min(compute_forms.MOST_FIRST, *(each for each in told if each)))

    def _save(self, update: int, optimizers: Optimizers) -> None:
        model, state = weight_shards.gather_whole(self.model), optimizers.state()
        if ranks.rank() > 0:
            return
        checkpoint.write(
            self._updates,
            update,
            write_model=model.write,
            optimizer=state,
            state={"stage": self.name, "data": self.data, "version": __version__},
        )
        checkpoint.sweep(self._updates, keep=self.settings.keep, best=self._best())

    def _best(self) -> int | None:
        """The checkpoint whose first measured figure is the lowest."""
        rows = [row for row in read_record(self.settings.out / "record.jsonl") if row["measured"]]
        saved = [row for row in rows if (row["update"] + 1) % self.settings.save_every == 0]
        if not saved:
            return None
        return min(saved, key=lambda row: next(iter(row["measured"].values())))["update"] + 1

    def _finish(self) -> Path:
        """The model alone, as a folder of its own that chat and serve open."""
        path = self.settings.out / MODEL
        model = weight_shards.gather_whole(self.model)
        if ranks.rank() == 0 and not path.exists():
            checkpoint.write_model(path, model.finish)
        return path


def fit_context(context: int, model: TrainedModel, say: Callable[[str], None]) -> int:
    """Tokens that a sequence may have: as many as are told, or as the model's longest has."""
    longest = model.architecture.facts.max_length
    if context > longest:
        say(f"context is {longest}, the model's longest sequence, in place of {context}")
    return min(context, longest)


def check_context(context: int, tokens: int, model: TrainedModel) -> None:
    """Raise ConfigError unless a sequence fits into an update and into the model."""
    longest = model.architecture.facts.max_length
    if context > longest:
        raise ConfigError(
            f"context is {context}; it must be at most {longest}, the model's longest sequence."
        )
    if tokens < context:
        raise ConfigError(f"tokens is {tokens}; it must be at least context, {context}.")


def set_precision(transformer: nn.Module, settings: StageSettings) -> None:
    """Let a model multiply as its settings say; a reference is asked in the same arithmetic."""
    is_half = settings.precision == "bfloat16"
    if settings.precision == "auto":
        is_half = next(transformer.parameters()).is_cuda
    if is_half:
        compute_forms.multiply_in(transformer, torch.bfloat16)


@contextmanager
def alone(out: Path) -> Generator[None]:
    """Keep other processes out of a run's folder for as long as the block runs.

    Raises: ConfigError when one is at work there.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"out is {out}; it must be a folder: {error.strerror}.") from None
    lock = FileLock(out / LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise ConfigError(
            f"out is {out}, where another process trains; wait for it, or name another folder."
        ) from None
    try:
        yield
    finally:
        lock.release()


@contextmanager
def deterministic() -> Generator[None]:
    """Operations whose bits repeat, for as long as the block runs."""
    told = cast(Any, torch.utils.deterministic)
    before = torch.are_deterministic_algorithms_enabled(), told.fill_uninitialized_memory
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    # What is made empty is written whole before it is read: to fill it first is a pass for nothing.
    told.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        told.fill_uninitialized_memory = before[1]


def _row(updated: Updated, seconds: float, measured: Mapping[str, float]) -> dict[str, object]:
    return {
        "update": updated.update,
        "loss": updated.loss,
        "count": updated.count,
        "norm": updated.norm,
        "rate": updated.rate,
        "seconds": round(seconds, 4),
        "figures": dict(updated.figures),
        "norms": {name: float(f"{norm:.6g}") for name, norm in updated.norms.items()},
        "weight": dict(updated.weight),
        "measured": dict(measured),
    }


def _read_run(path: Path) -> Mapping[str, Any]:
    try:
        found: object = json.loads(path.read_bytes())
        if isinstance(found, dict) and isinstance(found.get("settings"), dict):
            return cast("dict[str, Any]", found)
    except (OSError, ValueError):
        pass
    raise ConfigError(
        f"{path} is damaged, so whether this run is the one that is there cannot be told. Take "
        "another out, or delete the file to go on with these settings."
    )


def _check_same(
    path: Path, theirs: Mapping[str, Any], mine: Mapping[str, Any], kind: type[StageSettings]
) -> None:
    """Raise ConfigError naming the first thing in which a run differs from the one that is there.

    What was written down went through JSON, so mine goes through it too. A setting that was not
    there yet had the value that it has by default now.
    """
    mine = cast("dict[str, Any]", json.loads(json.dumps(mine)))
    for name in ("stage", "data", "device"):
        if theirs.get(name) != mine[name]:
            raise _another(path, name, theirs.get(name), mine[name])
    defaults = {each.name: each.default for each in fields(kind)}
    for name, value in mine["settings"].items():
        had = theirs["settings"].get(name, plain(defaults[name]))
        if had != value:
            raise _another(path, name, had, value)
    for name, digest in mine["weights"].items():
        if theirs.get("weights", {}).get(name, digest) != digest:
            raise ConfigError(
                f"{path.parent} holds a run that began with other weights than {name} "
                f"{quote(mine['settings'][name])} has now. Put them back, or take another out."
            )


def _another(path: Path, name: str, theirs: object, mine: object) -> ConfigError:
    return ConfigError(
        f"{path.parent} holds a run whose {name} is {quote(theirs)}, and this one's is "
        f"{quote(mine)}. "
        "Take another out, or the same value to go on."
    )
