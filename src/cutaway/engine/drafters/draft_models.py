"""The drafters of an engine: n-grams, a smaller model if one is named, the model's early layers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torch import nn

from cutaway.blocks.transformer import Transformer
from cutaway.core.errors import ConfigError
from cutaway.core.limits import quote
from cutaway.engine.config import EngineConfig
from cutaway.engine.drafters import Controller, Drafter, GuessSource, NGramDrafter
from cutaway.engine.drafters.model_drafter import ModelDrafter
from cutaway.engine.drafters.streams import Streams
from cutaway.engine.drafters.trained_drafter import TrainedDrafter
from cutaway.engine.drafting import Drafting
from cutaway.engine.loading.loaded_model import LoadedModel
from cutaway.engine.loading.speculator_folder import TargetShape, load_speculator
from cutaway.tokens.tokenizer import Tokenizer


def drafting_of(
    config: EngineConfig,
    model: LoadedModel,
    *,
    num_pages: int,
    draft_model: LoadedModel | None = None,
) -> Drafting:
    """What a configuration asks for; a request may ask for guesses where it does not.

    num_pages:   of the model's cache; a drafter's own has as many.
    draft_model: the one that the configuration names.
    Raises: ConfigError for a draft model or a number of layers that does not fit the model.
    """
    drafters: dict[str, Drafter] = {"ngram": NGramDrafter()}
    if draft_model is not None:
        check_vocabulary(model, draft_model)
        drafters["model"] = _drafter(draft_model, model, config, kind="model", num_pages=num_pages)
    if config.draft_layers is not None:
        early = early_layers(model, config.draft_layers)
        drafters["early"] = _drafter(early, model, config, kind="early", num_pages=num_pages)
    streams = None
    if config.draft_speculator is not None:
        trained = trained_drafter(Path(config.draft_speculator), model, config, num_pages=num_pages)
        drafters["trained"], streams = trained, Streams(trained.layers)
    sources = {name: GuessSource(drafter, Controller()) for name, drafter in drafters.items()}
    return Drafting(
        sources,
        default=config.draft,
        model_name=None if draft_model is None else draft_model.name,
        streams=streams,
    )


def drafting_beside(
    drafting: Drafting | None, model: LoadedModel, config: EngineConfig, *, num_pages: int
) -> Drafting:
    """The same drafters for another engine: over the same draft model, where it fits the model."""
    drafter = None if drafting is None else drafting.drafter("model")
    draft = drafter.model if isinstance(drafter, ModelDrafter) else None
    if draft is not None and _first_difference(model.tokenizer, draft.tokenizer) is not None:
        draft, config = None, replace(config, draft="off", draft_model=None)
    if config.draft_layers is not None and config.draft_layers >= model.facts.num_layers:
        config = replace(config, draft="off", draft_layers=None)
    return drafting_of(config, model, num_pages=num_pages, draft_model=draft)


def trained_drafter(
    folder: Path, model: LoadedModel, config: EngineConfig, *, num_pages: int
) -> TrainedDrafter:
    """The drafter of a speculator's folder. Raises: ConfigError where it does not fit."""
    embedding = model.transformer.embedding
    target = TargetShape(
        name=model.name,
        width=embedding.width,
        num_layers=model.facts.num_layers,
        vocab_size=model.facts.vocab_size,
    )
    speculator = load_speculator(
        folder, target, embedding, model.transformer.unembedding.table, device=model.device
    )
    return TrainedDrafter(
        speculator,
        config,
        num_pages=num_pages,
        vocab_size=model.facts.vocab_size,
        max_length=model.facts.max_length,
        end_token_ids=model.end_token_ids,
    )


def _drafter(
    draft: LoadedModel, model: LoadedModel, config: EngineConfig, *, kind: str, num_pages: int
) -> ModelDrafter:
    return ModelDrafter(
        draft, config, kind=kind, num_pages=num_pages, vocab_size=model.facts.vocab_size
    )


def check_vocabulary(model: LoadedModel, draft: LoadedModel) -> None:
    """Raise ConfigError unless both models mean the same by each id that both have a token for.

    One may have more ids than the other: those are never guessed, or never known to the drafter.
    """
    first = _first_difference(model.tokenizer, draft.tokenizer)
    if first is None:
        return
    told = [each.tokenizer.token_bytes(first) for each in (model, draft)]
    raise ConfigError(
        f"draft_model {draft.name} has another vocabulary than {model.name}: "
        f"{draft.tokenizer.vocab_size:,} and {model.tokenizer.vocab_size:,} tokens, and id {first} "
        f"is {quote(told[1])} there and {quote(told[0])} here. Take a draft model of the same "
        "family."
    )


def _first_difference(ours: Tokenizer, theirs: Tokenizer) -> int | None:
    """The first id that means another token; None where all that both have are equal."""
    if ours.fingerprint == theirs.fingerprint:
        return None
    for token_id in range(min(ours.vocab_size, theirs.vocab_size)):
        is_equal = ours.token_bytes(token_id) == theirs.token_bytes(token_id)
        is_control = token_id in ours.control_ids
        if not is_equal or is_control != (token_id in theirs.control_ids):
            return token_id
    return None


def early_layers(model: LoadedModel, num_layers: int) -> LoadedModel:
    """The model's first layers, from which the final norm and the unembedding read: same tensors.

    Raises: ConfigError where there are not more layers than that.
    """
    if not 1 <= num_layers < model.facts.num_layers:
        raise ConfigError(
            f"draft_layers is {num_layers}, but {model.name} has {model.facts.num_layers} layers; "
            f"it must be from 1 to {model.facts.num_layers - 1}. Leave it out for no guesses by "
            "early layers."
        )
    whole = model.transformer
    first: nn.ModuleList = whole.blocks[:num_layers]  # pyright: ignore[reportAssignmentType]
    transformer = Transformer(
        embedding=whole.embedding,
        blocks=first,  # pyright: ignore[reportArgumentType]
        unembedding=whole.unembedding,
        layer_inputs=whole.layer_inputs,
    )
    facts = replace(
        model.facts, num_layers=num_layers, cache_specs=model.facts.cache_specs[:num_layers]
    )
    name = f"{model.name}, {num_layers} layers"
    return replace(model, name=name, facts=facts, transformer=transformer.eval())
