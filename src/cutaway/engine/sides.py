"""A recorded answer and one change, as two sides to run: where each lever is pulled.

Most levers share the engine's pages. Some need another pool, or another model beside; what that
takes is told before it is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from cutaway.cache.table import pages_for
from cutaway.core.arithmetic import cache_bytes_per_token, weight_bytes
from cutaway.core.errors import ConfigError, RequestError
from cutaway.core.limits import INT64_MAX, LIMITS
from cutaway.core.request import SamplingParams
from cutaway.core.step import Sink
from cutaway.engine.allowance import Allowance
from cutaway.engine.build import device_of, load_model, numbers_of
from cutaway.engine.config import EngineConfig
from cutaway.engine.drafters import NGramDrafter
from cutaway.engine.engine import Engine
from cutaway.engine.intervene import ablation_of, patch_of, untouched
from cutaway.engine.levers import (
    DRAWS,
    ENGINES,
    MODELS,
    MODULES,
    MOST_COPIES,
    MOST_TOKENS,
    RUNS,
    Change,
)
from cutaway.engine.model import LoadedModel
from cutaway.engine.side import Side
from cutaway.engine.variant import (
    with_experts,
    with_naive_attention,
    with_window,
    without_positions,
)
from cutaway.quantize.schemes import scheme_of
from cutaway.text.messages import Message, Text
from cutaway.text.prompt import encode
from cutaway.trace.records import AnswerRecord
from cutaway.weights.find import Found, find

Of = Literal["model", "draw"]

_DTYPE_BITS = {"float32": 32, "float64": 64, "bfloat16": 16, "float16": 16}


@dataclass(frozen=True)
class Source:
    """What there is to start from.

    engine:   nobody else uses it meanwhile.
    name:     under which the model was loaded, to load it again in another form.
    messages: the conversation behind the prompt, where there is one.
    """

    engine: Engine
    answer: AnswerRecord
    name: str
    messages: tuple[Message, ...] | None
    allowance: Allowance

    @property
    def params(self) -> SamplingParams:
        """The answer's own, with the seed and the length that it had."""
        given = self.answer.request.params
        most = self._most(given.max_tokens or len(self.answer.tokens))
        return replace(
            given,
            seed=self.answer.seed,
            max_tokens=most,
            min_tokens=min(given.min_tokens, most),
            n=1,
            logprobs=None,
            prompt_logprobs=None,
        )

    @property
    def prompt(self) -> tuple[int, ...]:
        return self.answer.request.prompt_token_ids

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Of the answer, as far as it is compared."""
        tokens = self.answer.tokens
        return tuple(token.token_id for token in tokens[: self._most(len(tokens))])

    def _most(self, count: int) -> int:
        bound = self.allowance.max_tokens
        return count if bound is None else min(count, bound)


@dataclass(frozen=True)
class Pair:
    """Both sides, and how their steps can be compared.

    of:     whose chances moved; None where the model's rows are the same ones by intent, and
            their recorded bits are compared.
    forced: tokens put in the mouth of the changed side; None where it does not know them.
    """

    recorded: Side
    changed: Side
    of: Of | None = "model"
    forced: tuple[int, ...] | None = None
    notes: tuple[str, ...] = ()


def pair_of(source: Source, change: Change) -> Pair:
    """Raises: RequestError for a value that does not fit; errors of models that are opened."""
    if source.answer.choice != 0:
        raise RequestError("only the first answer of a request can be compared.", param="change")
    if not source.token_ids:
        raise RequestError("the answer has no tokens; there is nothing to compare.", param="change")
    base = Side(source.engine, source.prompt, source.params, source.allowance)
    for levers, make in (
        (DRAWS, _draw),
        (MODULES, _modules),
        (RUNS, _runs),
        (ENGINES, _engines),
        (MODELS, _models),
    ):
        if change.lever in levers:
            return make(source, change, base)
    return _token(source, change, base) if change.lever == "token" else _words(source, change, base)


def _draw(source: Source, change: Change, base: Side) -> Pair:
    limit = LIMITS[change.lever]
    try:
        value = int(change.value) if limit.kind == "int" else float(change.value)
    except ValueError:
        raise change.refusal(f"it must be {limit.describe()}") from None
    params = replace(base.params, **_setting(change.lever, value))
    return Pair(base, replace(base, params=params), of="draw")


def _token(source: Source, change: Change, base: Side) -> Pair:
    known = source.token_ids
    if change.place is None or change.place >= len(known):
        raise RequestError(
            f"token@{change.place} is behind the answer; its steps are 0 to {len(known) - 1}.",
            param="change",
        )
    _check_prompt_can_hold_answer(source.params, change)
    model = source.engine.model
    if change.value.isdigit():
        most = model.facts.vocab_size - 1
        ids = [replace(change, lever="token").whole(least=0, most=most)]
    else:
        ids = model.tokenizer.encode(change.value, is_start=False)
    if not ids:
        raise change.refusal("it must be a token's id, or a text in its place")
    lead = (*known[: change.place], *ids)
    if len(lead) >= (base.params.max_tokens or 0):
        raise RequestError(
            f"{change} leaves nothing to be drawn: the answer has at most "
            f"{base.params.max_tokens} tokens. Change an earlier one, or raise max_tokens.",
            param="change",
        )
    forced = (*lead, *known[len(lead) :])[: len(known)]
    return Pair(base, replace(base, lead=lead), forced=forced)


def _check_prompt_can_hold_answer(params: SamplingParams, change: Change) -> None:
    """Known tokens of the answer go in as prompt, where some settings would count them apart."""
    if params.grammar is not None or params.presence_penalty or params.frequency_penalty:
        raise RequestError(
            f"{change.lever} cannot be changed where a grammar, presence_penalty or "
            "frequency_penalty looks at the answer so far. Ask without them.",
            param="change",
        )


def _words(source: Source, change: Change, base: Side) -> Pair:
    if change.lever == "context":
        kept = change.whole(least=1, most=len(source.prompt))
        return Pair(base, replace(base, prompt=source.prompt[-kept:]), forced=source.token_ids)
    model = source.engine.model
    if source.messages is None:
        if change.lever == "system":
            raise RequestError(
                "system is a message of a conversation; this answer has none. Add --chat.",
                param="change",
            )
        prompt = model.tokenizer.encode(change.value, bos=True)
    else:
        prompt = _encoded(model, _said(source.messages, change))
    return Pair(base, replace(base, prompt=tuple(prompt)), forced=source.token_ids)


def _said(messages: Sequence[Message], change: Change) -> tuple[Message, ...]:
    """The conversation with another system message, or with another last question."""
    said = (Text(change.value),)
    if change.lever == "system":
        rest = [each for each in messages if each.role != "system"]
        return tuple(rest) if not change.value else (Message("system", said), *rest)
    last = max(index for index, each in enumerate(messages) if each.role == "user")
    return (*messages[:last], Message("user", said), *messages[last + 1 :])


def _encoded(model: LoadedModel, messages: Sequence[Message]) -> list[int]:
    plain = model.tokenizer.encode
    prompt = model.template.render(tuple(messages))
    inner = partial(plain, is_start=False)
    return encode(prompt, plain, model.tokenizer.control_tokens, encode_inner=inner)


def _modules(source: Source, change: Change, base: Side) -> Pair:
    engine, model = source.engine, source.engine.model
    if change.lever in ("ablate", "patch"):
        # A sink counts tokens, and drafts that are refused would be counted too.
        if engine.config.draft != "off":
            base = replace(base, engine=_beside(source, model, engine.config, draft="off"))
        num_positions = len(source.prompt) + len(source.token_ids) - 1
        sink: Callable[[], Sink]
        if change.lever == "ablate":
            sink = ablation_of(change, model.facts).sink
        else:
            sink = patch_of(change, model.facts, num_positions=num_positions).sink
        plain = replace(base, sink_of=lambda: untouched)
        return Pair(plain, replace(base, sink_of=sink), forced=source.token_ids)
    if change.lever == "attention":
        return _attention(source, change, base)
    if change.lever == "positions":
        change.one_of("off")
        variant = without_positions(model)
    elif change.lever == "window":
        variant = with_window(model, change.whole(least=1, most=INT64_MAX))
    else:
        variant = with_experts(model, change.whole(least=1, most=INT64_MAX))
    other = replace(base, engine=_beside(source, variant, engine.config))
    if variant.transformer.can_record == model.transformer.can_record:
        return Pair(base, other, forced=source.token_ids)
    # Both as modules, so that nothing but the change tells them apart.
    plain, other = (replace(each, sink_of=lambda: untouched) for each in (base, other))
    return Pair(plain, other, forced=source.token_ids)


def _attention(source: Source, change: Change, base: Side) -> Pair:
    """Both as modules, one by one: a captured step knows one form alone."""
    engine, model = source.engine, source.engine.model
    fused = replace(base, sink_of=lambda: untouched)
    if change.one_of("naive", "fused") == "fused":
        return Pair(fused, fused, forced=source.token_ids)
    other = _beside(source, with_naive_attention(model), engine.config, graphs=False)
    longest = min(len(source.prompt), engine.config.prefill_chunk)
    scores = model.facts.num_heads * longest * len(source.prompt)
    note = (
        f"naive keeps up to {scores:,} scores of a layer at once ({4 * scores / 2**20:,.1f} MiB as "
        f"float32); fused reduces them as keys come."
    )
    return Pair(fused, replace(fused, engine=other), forced=source.token_ids, notes=(note,))


def _runs(source: Source, change: Change, base: Side) -> Pair:
    engine = source.engine
    if change.lever == "prefix_cache":
        is_on = change.one_of("on", "off") == "on"
        warm = replace(base, is_warm=True)
        if is_on == engine.config.prefix_cache:
            return Pair(warm, warm, of=None)
        other = _beside(source, engine.model, engine.config, prefix_cache=is_on)
        return Pair(warm, replace(warm, engine=other), of=None)
    if change.lever == "kv_cache":
        change.one_of("off")
        _check_prompt_can_hold_answer(source.params, change)
        note = "without a cache every token of prompt and answer is computed again for the next."
        return Pair(base, replace(base, has_cache=False), of=None, notes=(note,))
    if change.lever == "streaming":
        is_on = change.one_of("on", "off") == "on"
        note = "streaming changes nothing that is computed, only when it is seen."
        return Pair(base, replace(base, is_streamed=is_on), of=None, notes=(note,))
    copies = change.whole(least=1, most=MOST_COPIES)
    total = len(source.prompt) + (base.params.max_tokens or 0)
    if copies > engine.config.max_sequences or copies * total > engine.cache.capacity_tokens:
        other = _beside(source, engine.model, engine.config, copies=copies, max_sequences=copies)
        return Pair(replace(base, engine=other), replace(base, engine=other, batch=copies), of=None)
    return Pair(base, replace(base, batch=copies), of=None)


def _engines(source: Source, change: Change, base: Side) -> Pair:
    engine, model = source.engine, source.engine.model
    value: object = change.value
    if change.lever in ("prefill_chunk", "page_size"):
        value = change.whole(least=1, most=MOST_TOKENS)
    try:
        config = replace(engine.config, **_setting(change.lever, value))
    except ConfigError as error:
        raise RequestError(str(error), param="change") from None
    if change.lever == "kv_dtype":
        model = replace(model, cache_dtype=_cache_dtype(source, config))
        other = _beside(source, model, config)
        return Pair(base, replace(base, engine=other), forced=source.token_ids)
    return Pair(base, replace(base, engine=_beside(source, model, config)), of=None)


def _cache_dtype(source: Source, config: EngineConfig) -> Any:
    numbers = numbers_of(config.dtype, device_of(config.device), kv_dtype=config.kv_dtype)
    return source.engine.model.cache_dtype if config.kv_dtype == "auto" else numbers.cache


def _models(source: Source, change: Change, base: Side) -> Pair:
    engine, name = source.engine, source.name
    config = engine.config
    if change.lever == "model":
        name = change.value
        config = replace(config, override=(), quant="off")
    else:
        config = replace(config, **_setting(change.lever, change.value))
    found = find(name)
    needed = _needed(source, change, found)
    source.allowance.take(
        needed, f"a second model beside: about {needed / 2**20:,.0f} MiB of weights"
    )
    model = load_model(found, config)
    prompt, is_same = (
        source.prompt,
        model.tokenizer.fingerprint == engine.model.tokenizer.fingerprint,
    )
    if change.lever == "model":
        prompt = _asked_of(source, model)
    other = replace(base, engine=_beside(source, model, config), prompt=prompt)
    if is_same and model.facts.vocab_size == engine.model.facts.vocab_size:
        return Pair(base, other, forced=source.token_ids)
    note = "the models have other tokens: their chances cannot be set against one another."
    return Pair(base, other, of="model", forced=None, notes=(note,))


def _asked_of(source: Source, model: LoadedModel) -> tuple[int, ...]:
    """The same question in another model's tokens."""
    if source.messages is not None:
        return tuple(_encoded(model, source.messages))
    text = source.engine.model.tokenizer.decode(source.prompt)
    return tuple(model.tokenizer.encode(text, bos=True))


def _needed(source: Source, change: Change, found: Found) -> int:
    """Bytes of the weights of a second model, as far as they are known before it is loaded."""
    facts = source.engine.model.facts
    mode = source.engine.config.dtype if change.lever == "quant" else change.value
    if change.lever == "quant" and mode == "auto" and change.value != "off":
        scheme = scheme_of(change.value)  # other modes round, and keep what was rounded as floats
        scale_bits = 16 / scheme.group_size if scheme.group_size else 0
        return weight_bytes(facts, (scheme.bits + scale_bits) / 8)
    if change.lever != "model" and mode in _DTYPE_BITS:
        return weight_bytes(facts, _DTYPE_BITS[mode] / 8)
    if found.path.is_dir():
        return sum(each.stat().st_size for each in found.path.glob("*.safetensors"))
    return found.path.stat().st_size if found.path.suffix == ".gguf" else weight_bytes(facts, 4)


def _beside(
    source: Source, model: LoadedModel, config: EngineConfig, *, copies: int = 1, **settings: Any
) -> Engine:
    """An engine with a pool of its own, no larger than the answer needs."""
    config = replace(config, **settings)
    given = source.params.max_tokens or 0
    # Room for a prompt that another tokenizer cuts in more pieces.
    total = 2 * len(source.prompt) + given + config.page_size
    num_pages = 1 + copies * pages_for(total, config.page_size)
    dtype = str(model.cache_dtype).removeprefix("torch.")
    num_bytes = num_pages * config.page_size * cache_bytes_per_token(model.facts, dtype)
    words = f"a second pool beside: {num_bytes / 2**20:,.1f} MiB of keys and values"
    source.allowance.take(num_bytes, words)
    drafter = NGramDrafter() if config.draft == "ngram" else None
    return Engine(model, config, num_pages=num_pages, drafter=drafter)


def apart(source: Source) -> Source:
    """The same over pages of its own, where others go on using the engine."""
    engine = source.engine
    return replace(source, engine=_beside(source, engine.model, engine.config))


def _setting(name: str, value: object) -> dict[str, Any]:
    """A field whose name is known when it runs, for dataclasses.replace."""
    return {name: value}
