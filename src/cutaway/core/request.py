"""What a client asks: sampling parameters and the request. Free of torch and of the model."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import cast

from cutaway.core import limits
from cutaway.core.errors import RequestError
from cutaway.core.grammar import Grammar
from cutaway.core.token_bias import TokenBias

# Where guesses of next tokens may come from: what was said before, a smaller model, the model's own
# early layers, or a layer that was trained for it.
DRAFTS = ("off", "ngram", "model", "early", "trained")
_NO_BIAS = TokenBias()


class FloatByModel(float):
    """In place of a number that nobody gave: the model may recommend another."""


class IntByModel(int):
    """As FloatByModel, for an integer."""


_BY_MODEL = (FloatByModel, IntByModel)

_DETECTION = "repetition_detection"
_DETECTION_FORM = "off, or an object of max_pattern_size, min_pattern_size and min_count"


@dataclass(frozen=True, kw_only=True)
class RepetitionDetection:
    """An answer ends once its last tokens are one pattern, min_count times behind one another.

    max_pattern_size: tokens of the longest pattern; 0 looks for none.
    min_pattern_size: of the shortest; 0 counts as 1. A pattern that is itself a repetition counts
        too, so from 16 on "ha" is found after 16 times min_count tokens.
    min_count: how often it stands there, the first time included; at least 2.

    Names and meaning are vLLM's. Raises: RequestError naming the field and its range.
    """

    max_pattern_size: int
    min_pattern_size: int = 0
    min_count: int = 0

    def __post_init__(self) -> None:
        for each in fields(self):
            limits.check(each.name, getattr(self, each.name), param=f"{_DETECTION}.{each.name}")
        if self.min_pattern_size > self.max_pattern_size:
            raise RequestError(
                f"{_DETECTION}.min_pattern_size is {self.min_pattern_size}, above max_pattern_size "
                f"{self.max_pattern_size}; it must be at most that.",
                param=f"{_DETECTION}.min_pattern_size",
            )
        if self.max_pattern_size and self.min_count < 2:
            raise RequestError(
                f"{_DETECTION}.min_count is {self.min_count}; it must be at least 2: a "
                "pattern that stands once repeats nothing.",
                param=f"{_DETECTION}.min_count",
            )

    def __str__(self) -> str:
        return f"{self.min_pattern_size},{self.max_pattern_size},{self.min_count}"


# Four times the same 16 to 64 tokens: loops of fewer tokens are found as 16 and more of them.
CHAT_DETECTION = RepetitionDetection(max_pattern_size=64, min_pattern_size=16, min_count=4)


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How the answer is chosen from the logits and when it ends.

    What the model recommends (temperature, top_k, top_p, min_p, repetition_penalty) acts where
    nothing was given. stop is a text or several; what is None counts as not given.
    draft: off, or which guesses are verified beside the answer's tokens, for a draft model also by
        its name; None takes the engine's own. It changes how long an answer takes, and no token.
    repetition_detection: when an answer that repeats itself ends; also a mapping of its fields, or
        text as in 16,64,4.

    Order in which they act: grammar, bias, penalties, temperature, min_p, top_k, top_p.
    Units:  penalties and bias are in logits; top_p and min_p are ratios from 0 to 1.
    Raises: RequestError naming field, value and range (core/limits.py).
    """

    temperature: float = FloatByModel(1.0)
    top_k: int = IntByModel(0)
    top_p: float = FloatByModel(1.0)
    min_p: float = FloatByModel(0.0)
    repetition_penalty: float = FloatByModel(1.0)
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = _NO_BIAS
    seed: int | None = None
    n: int = 1
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    include_stop: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    grammar: Grammar | None = None
    draft: str | None = None
    repetition_detection: RepetitionDetection | None = None

    def __post_init__(self) -> None:
        for name, default in _NUMBERS:
            value = getattr(self, name)
            if value is not default:  # of most requests nearly all are, and fit
                self._take_number(name, value, default)
        object.__setattr__(self, "stop", _stop_strings(self.stop))
        object.__setattr__(self, "stop_token_ids", _stop_tokens(self.stop_token_ids))
        object.__setattr__(self, "logit_bias", _logit_bias(self.logit_bias))
        object.__setattr__(self, "repetition_detection", _detection_of(self.repetition_detection))
        if self.grammar is not None and not isinstance(self.grammar, Grammar):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise RequestError(
                f"grammar is {limits.quote(self.grammar)}; it must be a Grammar.", param="grammar"
            )
        if self.draft is not None and not isinstance(self.draft, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise RequestError(
                f"draft is {limits.quote(self.draft)}; it must be {', '.join(DRAFTS)} or the name "
                "of the draft model.",
                param="draft",
            )
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(
                f"min_tokens is {self.min_tokens}, above max_tokens {self.max_tokens}; "
                "it must be at most max_tokens.",
                param="min_tokens",
            )
        if self.max_tokens == 0 and self.prompt_logprobs is None:
            raise RequestError(
                "max_tokens is 0; it must be at least 1 unless prompt_logprobs is asked for.",
                param="max_tokens",
            )

    def on(self, recommended: Mapping[str, object]) -> SamplingParams:
        """The same with what a model recommends in the place of what nobody gave."""
        unset = [name for name in RECOMMENDED if isinstance(getattr(self, name), _BY_MODEL)]
        if not unset:
            return self
        made = copy.copy(self)  # the rest is checked already
        for name in unset:
            own = getattr(self, name)
            if name in recommended:
                made._take_number(name, recommended[name], own)
            else:
                object.__setattr__(made, name, _plain(own))
        return made

    def _take_number(self, name: str, value: object, default: object) -> None:
        """Give a number its value, or its default. Raises: RequestError when it does not fit."""
        value = limits.plain_number(value)
        if value is None:
            value = default
        limits.check(name, value)
        object.__setattr__(self, name, value)

    @property
    def has_penalties(self) -> bool:
        """Whether what was said already makes tokens less likely."""
        return (
            self.repetition_penalty != 1
            or self.presence_penalty != 0
            or self.frequency_penalty != 0
        )

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature < GREEDY_BELOW


# What a model's makers may recommend; it goes before the default.
RECOMMENDED: tuple[str, ...] = tuple(
    each.name for each in fields(SamplingParams) if isinstance(each.default, _BY_MODEL)
)

# Those with a range of their own, and their defaults.
_NUMBERS: tuple[tuple[str, object], ...] = tuple(
    (each.name, each.default)
    for each in fields(SamplingParams)
    if each.name in limits.LIMITS and each.name != "logit_bias"
)

# Below this a float32 division of logits overflows or only the top token keeps any weight:
# the same answer as greedy. vLLM uses the same bound.
GREEDY_BELOW = 1e-5


@dataclass(frozen=True, kw_only=True)
class Request:
    """One prompt, as token ids, with how to continue it.

    cache_salt keeps the pages of different owners apart in the prefix index.
    lora:       the name of the adapter that answers; empty or "off" for the model alone.
    owner:      who asks; nobody else finds the answer.
    connection: where anybody may ask, the one that the request came by.
    continued_token_ids: how its one answer begins, as another server told it: it goes on behind
        them, as if all of it were said here.
    deadline:   seconds from arrival after which the answer ends; None waits for ever.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    cache_salt: bytes = b""
    owner: str = ""
    deadline: float | None = None
    connection: str = ""
    lora: str = ""
    continued_token_ids: tuple[int, ...] = ()

    def with_seed(self, seed: int) -> Request:
        """The same with a seed; nothing else of it is checked again, for nothing else changes."""
        made, params = copy.copy(self), copy.copy(self.params)
        object.__setattr__(params, "seed", seed)
        object.__setattr__(made, "params", params)
        return made

    @property
    def sharer(self) -> str:
        """Between whom the engine is shared: owners, and where anybody may ask, connections."""
        return self.owner or self.connection

    def __post_init__(self) -> None:
        # Who made it has looked what the model recommends: from here on numbers are what acts.
        object.__setattr__(self, "params", self.params.on({}))
        if not self.prompt_token_ids:
            raise RequestError(
                "prompt has no tokens; give at least one character or token id.", param="prompt"
            )
        if self.deadline is not None and not 0 < self.deadline < math.inf:
            raise RequestError(
                f"deadline is {self.deadline}; it must be a number of seconds above 0. Leave it "
                "out to wait for ever.",
                param="deadline",
            )


def _plain(value: float) -> float:
    return int(value) if isinstance(value, int) else float(value)


def _stop_strings(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        value = (value,)
    strings = _items(value)
    if strings is None or not all(isinstance(each, str) for each in strings):
        raise RequestError(
            f"stop is {limits.quote(value)}; it must be a string or a list of strings.",
            param="stop",
        )
    if len(strings) > limits.MAX_STOP_STRINGS:
        raise RequestError(
            f"stop has {len(strings)} strings; at most {limits.MAX_STOP_STRINGS} are allowed.",
            param="stop",
        )
    for string in cast("tuple[str, ...]", strings):
        _check_stop_string(string)
    return cast("tuple[str, ...]", strings)


def _check_stop_string(string: str) -> None:
    try:
        size = len(string.encode())
    except UnicodeEncodeError:
        raise RequestError(
            f"stop holds {limits.quote(string)}, a lone surrogate; it must be valid Unicode.",
            param="stop",
        ) from None
    if not 1 <= size <= limits.MAX_STOP_BYTES:
        raise RequestError(
            f"stop holds a string of {size} bytes; each must have 1 to "
            f"{limits.MAX_STOP_BYTES} bytes in UTF-8.",
            param="stop",
        )


def _stop_tokens(value: object) -> tuple[int, ...]:
    ids = () if value is None else _items(value)
    if ids is not None:
        ids = tuple(map(limits.plain_number, ids))
    if ids is None or not all(_is_token_id(each) for each in ids):
        raise RequestError(
            f"stop_token_ids is {limits.quote(value)}; it must be a list of token ids.",
            param="stop_token_ids",
        )
    if len(ids) > limits.MAX_STOP_TOKENS:
        raise RequestError(
            f"stop_token_ids has {len(ids)} ids; at most {limits.MAX_STOP_TOKENS} are allowed.",
            param="stop_token_ids",
        )
    return cast("tuple[int, ...]", ids)


def _logit_bias(value: object) -> TokenBias:
    if value is None or value is _NO_BIAS:
        return _NO_BIAS
    if not isinstance(value, Mapping):
        raise RequestError(
            f"logit_bias is {limits.quote(value)}; it must map token ids to numbers.",
            param="logit_bias",
        )
    entries = cast("Mapping[object, object]", value)
    if len(entries) > limits.MAX_LOGIT_BIAS:
        raise RequestError(
            f"logit_bias has {len(entries)} entries; at most {limits.MAX_LOGIT_BIAS} are allowed.",
            param="logit_bias",
        )
    bias: dict[int, float] = {}
    for given, added in entries.items():
        key, amount = limits.plain_number(given), limits.plain_number(added)
        if not _is_token_id(key):
            raise RequestError(
                f"logit_bias has the key {limits.quote(key)}; keys must be token ids.",
                param="logit_bias",
            )
        limits.check("logit_bias", amount, param=f"logit_bias[{key}]")
        bias[cast(int, key)] = float(cast(float, amount))
    return TokenBias(bias)


def _items(value: object) -> tuple[object, ...] | None:
    """The members of a list or tuple; None for anything else."""
    if isinstance(value, tuple | list):
        return tuple(cast("tuple[object, ...]", value))
    return None


def _is_token_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _detection_of(value: object) -> RepetitionDetection | None:
    """What was asked for, as an object, as its fields or as text; None looks for none.

    As text it is off, or least size, largest size and count as in 16,64,4.

    Raises: RequestError naming the field.
    """
    if isinstance(value, str):
        value = _detection_of_text(value)
    if isinstance(value, Mapping):
        given = cast("Mapping[str, object]", value)
        names = [each.name for each in fields(RepetitionDetection)]
        unknown = [name for name in given if name not in names]
        if unknown or "max_pattern_size" not in given:
            raise _detection_fault(dict(given))
        whole = {name: limits.plain_number(each) for name, each in given.items()}
        value = RepetitionDetection(**whole)  # pyright: ignore[reportArgumentType] it checks them
    if value is None:
        return None
    if not isinstance(value, RepetitionDetection):
        raise _detection_fault(value)
    return value if value.max_pattern_size else None


def _detection_of_text(text: str) -> object:
    if text.strip() == "off":
        return None
    parts = text.split(",")
    if len(parts) != 3 or not all(part.strip().isdecimal() for part in parts):
        raise RequestError(
            f"{_DETECTION} is {limits.quote(text)}; it must be off, or three numbers as in "
            f"{CHAT_DETECTION}: least and largest size of what repeats, in tokens, and how often.",
            param=_DETECTION,
        )
    least, most, count = map(int, parts)
    return RepetitionDetection(max_pattern_size=most, min_pattern_size=least, min_count=count)


def _detection_fault(value: object) -> RequestError:
    return RequestError(
        f"{_DETECTION} is {limits.quote(value)}; it must be {_DETECTION_FORM}.", param=_DETECTION
    )
