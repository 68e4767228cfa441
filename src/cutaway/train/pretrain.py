"""Pretraining: a model of random weights learns to go on with plain text.

Documents become sequences between two control tokens, cut at the context; each epoch has its own
order of them; an update takes as many as its budget of tokens holds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cutaway.core.errors import ConfigError
from cutaway.engine.build import device_of
from cutaway.tokens.files.tokenizer_files import load_folder
from cutaway.tokens.tokenizer import Tokenizer
from cutaway.train.data.examples import read_documents
from cutaway.train.data.packing import MicroBatch, ScoredSequence, UpdatePlan, cut, micro_batches
from cutaway.train.losses import bits
from cutaway.train.losses.likelihood import likelihood
from cutaway.train.losses.losses import Loss, cross_entropy
from cutaway.train.model.model_folder import TrainedModel, new_model, open_model
from cutaway.train.samples import Samples
from cutaway.train.stage import StageSettings, TrainingStage, check_context
from cutaway.train.stage_config import option


@dataclass(frozen=True, kw_only=True)
class PretrainSettings(StageSettings):
    """What pretraining is told."""

    data: tuple[Path, ...] = option(
        help="files of text, or .jsonl with a text a line", changes_run=False
    )
    held_out: tuple[Path, ...] = option(
        (), help="files to measure bits per byte on", changes_run=False
    )
    vocabulary: Path | None = option(
        None, help="a tokenizer's folder, for a new model", changes_run=False
    )
    model: Mapping[str, object] | str = option(
        help="fields of config.json for a new model, or a model's folder to go on from",
        names_model=True,
    )
    context: int = option(512, help="tokens of a sequence", least=2)
    tokens: int = option(4096, help="tokens of an update", least=2)
    step_tokens: int = option(16384, help="tokens of one forward", least=2, changes_run=False)
    samples: tuple[str, ...] = option(
        (), help="texts that the model goes on from at each measurement", changes_run=False
    )
    z_loss: float = option(0.0, help="weight of the squared log-sum", least=0.0)


@dataclass(frozen=True)
class Corpus:
    """Sequences of all documents. data: a checksum of the texts."""

    sequences: tuple[ScoredSequence, ...]
    data: str


def prepare(settings: PretrainSettings) -> TrainingStage[MicroBatch]:
    """The stage that settings describe, ready to run.

    Raises: ConfigError, ModelError and its kinds.
    """
    model, tokenizer = _opened(settings)
    corpus = read_corpus(settings.data, tokenizer, context=settings.context)
    held_out = read_corpus(settings.held_out, tokenizer, context=settings.context)
    check_context(settings.context, settings.tokens, model)
    if not _has_text(corpus, tokenizer):
        raise ConfigError(f"data has no text: {_listed(settings.data)}.")
    if settings.held_out and not _has_text(held_out, tokenizer):
        raise ConfigError(f"held_out has no text to measure on: {_listed(settings.held_out)}.")
    lengths = [len(each.token_ids) for each in corpus.sequences]
    plan = UpdatePlan(lengths, seed=settings.seed, budget=settings.tokens)

    def feed(update: int) -> list[MicroBatch]:
        members = [corpus.sequences[index] for index in plan.members(update)]
        return micro_batches(members, settings.step_tokens)

    def objective(batch: MicroBatch) -> Loss:
        return cross_entropy(likelihood(model.transformer, batch), z_weight=settings.z_loss)

    def measure() -> Mapping[str, float]:
        batches = micro_batches(held_out.sequences, settings.step_tokens)
        return {"bits_per_byte": bits.measure(model.transformer, batches, tokenizer)}

    return TrainingStage(
        name="pretrain",
        settings=settings,
        model=model,
        data=corpus.data,
        feed=feed,
        objective=objective,
        measure=measure if held_out.sequences else None,
        prompts=settings.samples,
        samples=_samples(settings, model, tokenizer),
        reads_steps_alone=True,
    )


def _samples(
    settings: PretrainSettings, model: TrainedModel, tokenizer: Tokenizer
) -> Samples | None:
    """What writes on from the texts of the settings, as from the beginning of a document."""
    if not settings.samples:
        return None
    prompts = [_framed(tokenizer.encode(text), tokenizer, ends=False) for text in settings.samples]
    return Samples(model, prompts, seed=settings.seed)


def read_corpus(paths: Sequence[Path], tokenizer: Tokenizer, *, context: int) -> Corpus:
    """Every document of some files as sequences of at most context tokens.

    A document stands between the token that begins a text and one that ends it, where the
    tokenizer has them.

    Raises: ConfigError naming a file.
    """
    sequences: list[ScoredSequence] = []
    digest = hashlib.sha256()
    for path in paths:
        for document in read_documents(path):
            text = document.text.encode()
            digest.update(len(text).to_bytes(8, "little") + text)  # its borders count too
            token_ids = _framed(tokenizer.encode(document.text), tokenizer)
            if len(token_ids) > 1:
                sequences += cut(ScoredSequence.whole(token_ids), context)
    digest.update(tokenizer.fingerprint.encode())
    return Corpus(tuple(sequences), digest.hexdigest())


def _has_text(corpus: Corpus, tokenizer: Tokenizer) -> bool:
    return any(
        bits.num_bytes(bits.without_controls(s, tokenizer), tokenizer) for s in corpus.sequences
    )


def _listed(paths: Sequence[Path]) -> str:
    return ", ".join(map(str, paths))


def _framed(token_ids: Sequence[int], tokenizer: Tokenizer, *, ends: bool = True) -> list[int]:
    begin = tokenizer.bos_token_id
    end = min(tokenizer.eos_token_ids, default=None)
    front = [begin if begin is not None else end]
    back = [end] if ends else []
    return [each for each in (*front, *token_ids, *back) if each is not None]


def _opened(settings: PretrainSettings) -> tuple[TrainedModel, Tokenizer]:
    device = device_of(settings.device)
    if isinstance(settings.model, str):
        if settings.vocabulary is not None:
            raise ConfigError("vocabulary is set, and model is a folder that has its own.")
        return open_model(settings.model, device=device), load_folder(Path(settings.model))
    if settings.vocabulary is None:
        raise ConfigError("vocabulary is missing: a new model needs a tokenizer's folder.")
    if not settings.vocabulary.is_dir():
        raise ConfigError(
            f"vocabulary is {settings.vocabulary}; it must be the folder of a tokenizer, as "
            "`cutaway train bpe` writes one."
        )
    tokenizer = load_folder(settings.vocabulary)
    named = {"max_position_embeddings": settings.context, **settings.model}
    made = new_model(named, settings.vocabulary, tokenizer, seed=settings.seed, device=device)
    return made, tokenizer
