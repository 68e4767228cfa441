"""Supervised fine-tuning: a model learns to answer as the assistant of given conversations does."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from cutaway.core.errors import ConfigError, RequestError, TemplateError
from cutaway.engine.build import device_of
from cutaway.engine.loading.template_of import compiled_template
from cutaway.text.chat_messages import from_dicts, to_dicts
from cutaway.text.template import ChatTemplate
from cutaway.tokens.tokenizer import Tokenizer
from cutaway.train.data.examples import Conversation, encode_prompt, read_conversations
from cutaway.train.data.masks import score
from cutaway.train.data.packing import MicroBatch, ScoredSequence, UpdatePlan, micro_batches
from cutaway.train.losses.anchored import PartBatch, join, loss_of
from cutaway.train.losses.likelihood import likelihood
from cutaway.train.losses.losses import Loss, cross_entropy
from cutaway.train.model.adapted_model import AdapterSettings, Reference, with_adapter
from cutaway.train.model.model_folder import TrainedModel, open_model, text_side
from cutaway.train.samples import Samples
from cutaway.train.stage import StageSettings, TrainingStage, check_context, fit_context
from cutaway.train.stage_config import option

# For a model that has no template yet: ChatML's turns, and answers marked for whoever trains on.
CHAT_TEMPLATE = """\
{% for message in messages %}
{{ '<|im_start|>' + message['role'] + '\\n' -}}
{% if message['role'] == 'assistant' -%}
{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{{ '\\n' -}}
{% else -%}
{{ message['content'] + '<|im_end|>\\n' -}}
{% endif -%}
{% endfor %}
{% if add_generation_prompt -%}
{{ '<|im_start|>assistant\\n' -}}
{% endif %}"""
_CLOSING = "<|im_end|>"


@dataclass(frozen=True, kw_only=True)
class SftSettings(AdapterSettings, StageSettings):
    """What fine-tuning is told."""

    model: str = option(help="the folder of the model that is tuned", names_model=True)
    data: tuple[Path, ...] = option(help=".jsonl files with messages a line", changes_run=False)
    held_out: tuple[Path, ...] = option(
        (), help=".jsonl files to measure the loss on", changes_run=False
    )
    template: Path | None = option(None, help="a chat template, in place of the model's")
    context: int = option(512, help="tokens of a conversation; longer ones are cut", least=2)
    tokens: int = option(4096, help="tokens of an update", least=2)
    anchors: tuple[Path, ...] = option(
        (), help=".jsonl files of answers on which it is to stay as it was", changes_run=False
    )
    anchor_weight: float = option(1.0, help="of the KL to the model as it was", least=0.0)
    anchor_tokens: int | None = option(
        None, help="tokens of anchors in an update; else as many as of data", least=2
    )
    samples: tuple[str, ...] = option(
        (), help="messages that the model answers at each measurement", changes_run=False
    )
    step_tokens: int = option(16384, help="tokens of one forward", least=2, changes_run=False)


@dataclass(frozen=True)
class Talks:
    """Scored conversations. dropped: why some were left out, and how many. data: a checksum.

    num_cut: that were longer than may be, and lost their end.
    """

    sequences: tuple[ScoredSequence, ...]
    dropped: Mapping[str, int]
    data: str
    num_cut: int = 0


def prepare(settings: SftSettings, say: Callable[[str], None] = print) -> TrainingStage[PartBatch]:
    """The stage that settings describe, ready to run. say: a sentence for a person.

    Raises: ConfigError, ModelError and its kinds, TemplateError.
    """
    model = open_model(
        settings.model, device=device_of(settings.device), is_base=settings.lora_rank > 0
    )
    tokenizer, own = text_side(settings.model)
    source = _template_source(settings, own)
    template = compiled_template(source, name=settings.model, tokenizer=tokenizer)
    if model.gguf is None:
        model = _with_template(model, source, tokenizer)
    model = with_adapter(model, settings, base=settings.model, seed=settings.seed)
    context = fit_context(settings.context, model, say)
    check_context(context, settings.tokens, model)
    talks = read_talks(settings.data, template, tokenizer, context=context)
    held_out = read_talks(settings.held_out, template, tokenizer, context=context)
    check_talks(settings.data, talks, say, name="data")
    check_talks(settings.held_out, held_out, say, name="held_out")
    lengths = [len(each.token_ids) for each in talks.sequences]
    plan = UpdatePlan(lengths, seed=settings.seed, budget=settings.tokens)
    anchors = read_talks(settings.anchors, template, tokenizer, context=context)
    check_talks(settings.anchors, anchors, say, name="anchors")
    kept = _plan_anchors(settings, anchors)
    reference = Reference.of(model) if kept is not None else None

    def feed(update: int) -> list[PartBatch]:
        members = [talks.sequences[index] for index in plan.members(update)]
        learned, held = micro_batches(members, settings.step_tokens), list[MicroBatch]()
        if kept is not None:
            members = [anchors.sequences[index] for index in kept.members(update)]
            held = micro_batches(members, settings.step_tokens)
        return join(learned, held, weight=settings.anchor_weight)

    def objective(batch: PartBatch) -> Loss:
        if reference is None:
            return cross_entropy(likelihood(model.transformer, batch))
        return loss_of(model.transformer, batch, reference.transformer, reference.use)

    asked = [
        encode_prompt(from_dicts([{"role": "user", "content": text}]), template, tokenizer)
        for text in settings.samples
    ]
    samples = Samples(model, asked, seed=settings.seed) if asked else None

    @torch.no_grad()
    def measure() -> Mapping[str, float]:
        batches = micro_batches(held_out.sequences, settings.step_tokens)
        losses = [
            cross_entropy(likelihood(model.transformer, batch)) for batch in batches if batch.count
        ]
        total = sum(float(loss.total) for loss in losses)
        return {"held_out_loss": total / sum(loss.count for loss in losses)}

    return TrainingStage(
        name="sft",
        settings=settings,
        model=model,
        data=talks.data if kept is None else f"{talks.data}+{anchors.data}",
        feed=feed,
        objective=objective,
        measure=measure if held_out.sequences else None,
        prompts=settings.samples,
        samples=samples,
    )


def read_talks(
    paths: Sequence[Path], template: ChatTemplate, tokenizer: Tokenizer, *, context: int
) -> Talks:
    """Every conversation of some files, cut at a token; those with nothing scored are left out.

    Raises: ConfigError naming a file and a line.
    """
    sequences: list[ScoredSequence] = []
    dropped: dict[str, int] = {}
    num_cut = 0
    digest = hashlib.sha256(tokenizer.fingerprint.encode())
    for path in paths:
        for conversation in read_conversations(path):
            digest.update(_written(conversation))
            try:
                whole = score(conversation, template, tokenizer)
                scored = truncate(whole, context)
            except (TemplateError, RequestError) as error:
                reason = f"{error}"
            else:
                if scored.count:
                    num_cut += len(whole.token_ids) > context
                    sequences.append(scored)
                    digest.update(repr(scored.token_ids).encode())
                    continue
                reason = f"nothing is scored within {context} tokens."
            dropped[reason] = dropped.get(reason, 0) + 1
    return Talks(tuple(sequences), dropped, digest.hexdigest(), num_cut)


def check_talks(
    paths: Sequence[Path], talks: Talks, say: Callable[[str], None], *, name: str
) -> None:
    """Say what was left out or cut. name: of the setting.

    Raises: ConfigError where files were named and nothing is left.
    """
    for reason, count in talks.dropped.items():
        say(f"{count} conversations of {name} were left out: {reason}")
    if talks.num_cut:
        say(f"{talks.num_cut} conversations of {name} are longer than context, and were cut")
    if paths and not talks.sequences:
        raise ConfigError(
            f"{name} has no conversation with a scored token: {', '.join(map(str, paths))}."
        )


def truncate(sequence: ScoredSequence, context: int) -> ScoredSequence:
    """The first tokens of a sequence, at most context of them."""
    return ScoredSequence(sequence.token_ids[:context], sequence.is_scored[:context])


def _written(conversation: Conversation) -> bytes:
    return json.dumps([to_dicts(conversation.messages), conversation.tools]).encode()


def _plan_anchors(settings: SftSettings, anchors: Talks) -> UpdatePlan | None:
    """Which anchors each update has; None without any."""
    if not settings.anchors:
        return None
    budget = settings.anchor_tokens or settings.tokens
    lengths = [len(each.token_ids) for each in anchors.sequences]
    if budget < max(lengths):
        raise ConfigError(
            f"anchor_tokens is {budget}; it must be at least context, {max(lengths)}."
        )
    return UpdatePlan(lengths, seed=settings.seed, budget=budget)


def _template_source(settings: SftSettings, own: str | None) -> str:
    if settings.template is not None:
        try:
            return settings.template.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"template {settings.template} cannot be read: {error}.") from None
    return own or CHAT_TEMPLATE


def _with_template(model: TrainedModel, source: str, tokenizer: Tokenizer) -> TrainedModel:
    """The model with its template beside it, ending answers as the template closes them."""
    files = {**model.small_files, "chat_template.jinja": source.encode()}
    config = dict(model.config)
    closing = tokenizer.control_tokens.get(_CLOSING)
    if source == CHAT_TEMPLATE:
        if closing is None:
            raise ConfigError(
                f"{_CLOSING} is no control token of the vocabulary; give a template that the "
                "vocabulary can write."
            )
        config["eos_token_id"] = closing
        named = json.loads(files.get("tokenizer_config.json", b"{}"))
        named |= {"eos_token": _CLOSING, "add_bos_token": False}
        files["tokenizer_config.json"] = json.dumps(named, indent=1).encode()
    return replace(model, config=config, small_files=files)
