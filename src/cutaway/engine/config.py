"""Settings of one engine, each with the reason of its default. Free of torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

from cutaway.core.errors import ConfigError
from cutaway.core.limits import quote, similar
from cutaway.core.request import DRAFTS
from cutaway.host.link_key import LinkAddress
from cutaway.quantize.schemes import scheme_of

MOST_RANKS = 64
DTYPES = ("float32", "auto", "float64", "bfloat16", "float16")
# What each word of draft needs, the first that is given being what auto means.
NEEDED_BY_DRAFT: Mapping[str, str] = {
    "model": "draft_model",
    "early": "draft_layers",
    "trained": "draft_speculator",
}
_NUMERIC = ("dtype", "kv_dtype", "quant", "invariant")  # decide the numbers of an answer
KV_DTYPES = ("auto", "float32", "float16", "bfloat16", "int8", "float8_e4m3fn")


class ByDevice(int):
    """In place of a number that nobody gave: what is right depends on the device."""


BY_DEVICE = ByDevice(0)


class _DefaultSizes(NamedTuple):
    max_sequences: int
    max_tokens_per_step: int
    prefill_chunk: int


# A GPU's step hardly takes longer for 256 sequences than for 64, and its products need thousands of
# tokens to be as fast as they can be; on a CPU such a step would take a minute.
_SIZES = {"cpu": _DefaultSizes(64, 2048, 512), "cuda": _DefaultSizes(256, 16384, 8192)}


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """How an engine computes and how much it may hold.

    dtype: float32 is the reference, auto what is fastest on the device; the others are for
        experiments.
    kv_dtype: what the cache keeps keys and values in; auto is what dtype brings. The two of
        eight bits have a scale per token and head.
    quant: our own scheme for the weights of a checkpoint without quantization, rounded at load.
    cache_tokens: tokens that the cache holds over all sequences; None takes what memory allows.
    host_cache_bytes: of the host's memory for pages that leave the cache, to be put back when they
        are asked for again; for GPUs. 0 keeps none.
    disk_cache: a folder for pages of prompts, which outlive the engine; None keeps none.
    disk_cache_bytes: of all files there together.
    pin: system prompts that are computed at the start and never evicted.
    invariant: whether a row's bits must not depend on its company or cut. Kernels for CPUs always
        hold to that; on a GPU it costs some speed. Refused where it cannot be.
    ledger_bytes: what the record of recent answers may take, from which they can be run again.
    override: fields of a config.json to replace, as in "sliding_window=128".
    draft: where guesses of next tokens come from where a request does not say.
    draft_model: a smaller model with the same vocabulary, by what a model is named by.
    draft_layers: of the model's own layers, so many make guesses where early is asked for.
    draft_speculator: the folder of a layer that was trained to guess for the model.
    tensor: ranks, each a process with a part of every matrix; see docs/ranks.md.
    pipeline: ranks, each a process with some of the layers.
    rank_listen: where ranks of other hosts join, as tcp://HOST:PORT; None has all of them here.
    rank_key_file: the key that they prove; None takes that of the environment.
    Raises: ConfigError naming the setting, its value and what is allowed.
    """

    dtype: str = "auto"
    kv_dtype: str = "auto"
    quant: str = "off"  # int4-g64 and the like: quantize/schemes.py has the words
    device: str = "auto"  # cuda where there is one
    cache_tokens: int | None = None
    page_size: int = 16  # wastes at most 15 tokens a sequence; also vLLM's default
    prefix_cache: bool = True
    host_cache_bytes: int = 0
    # Off unless asked for: on a machine that others use too, files outlive who asked.
    disk_cache: str | None = None
    disk_cache_bytes: int = 4 * 2**30
    pin: tuple[str, ...] = ()  # system prompts that stay in the cache, each NAME=FILE
    max_sequences: int = BY_DEVICE  # running at once; 64, on a GPU 256
    max_tokens_per_step: int = BY_DEVICE  # 2048, on a GPU 16384
    prefill_chunk: int = BY_DEVICE  # of one prompt in a step: bounds how long decodes wait
    graphs: bool = True  # capture decode steps on a GPU
    invariant: bool = False
    ledger_bytes: int = 64 * 2**20  # some 700,000 tokens; 0 records nothing
    override: tuple[str, ...] = ()
    lora: tuple[str, ...] = ()  # adapters beside the model, each NAME=FOLDER
    # auto is model where there is a draft model, early where there are draft layers, trained where
    # there is a speculator, else off: a guess costs time where it is wrong.
    draft: str = "auto"
    draft_model: str | None = None
    draft_layers: int | None = None
    draft_speculator: str | None = None
    tensor: int = 1  # processes among which each matrix is divided
    pipeline: int = 1  # processes among which layers are divided
    rank_listen: str | None = None
    rank_key_file: str | None = None

    def __post_init__(self) -> None:
        _check_one_of("dtype", self.dtype, DTYPES)
        _check_one_of("kv_dtype", self.kv_dtype, KV_DTYPES)
        if self.quant != "off":
            scheme_of(self.quant)
        self._check_draft()
        self._check_invariant()
        self._check_ranks()
        for name in ("page_size", "max_sequences", "max_tokens_per_step", "prefill_chunk"):
            value = getattr(self, name)
            if value < 1 and not isinstance(value, ByDevice):
                raise ConfigError(
                    f"{name} is {getattr(self, name)}; it must be at least 1. Leave it out for the "
                    "default."
                )
        for name in ("host_cache_bytes", "disk_cache_bytes"):
            if getattr(self, name) < 0:
                raise ConfigError(
                    f"{name} is {getattr(self, name)}; it must be at least 0. Leave it out for the "
                    "default."
                )
        if self.pin and not self.prefix_cache:
            raise ConfigError(
                "prefix_cache is false, so no page is found again, and pin is set. Leave one of "
                "them out."
            )
        if self.keeps_pages and not self.prefix_cache:
            raise ConfigError(
                "prefix_cache is false, so no page is found again, and host_cache_bytes or "
                "disk_cache is set. Leave one of them out."
            )
        if self.ledger_bytes < 0:
            raise ConfigError(
                f"ledger_bytes is {self.ledger_bytes}; it must be at least 0, which records "
                "nothing. Leave it out for the default."
            )
        if self.cache_tokens is not None and self.cache_tokens < self.page_size:
            raise ConfigError(
                f"cache_tokens is {self.cache_tokens}; it must be at least page_size, "
                f"{self.page_size}. Leave it out to take what memory allows."
            )

    def _check_invariant(self) -> None:
        if self.invariant and self.lora:
            raise ConfigError(
                f"invariant is true and lora is {quote(self.lora[0])}; products of adapters follow "
                "the step. Leave one of them out."
            )

    def _check_draft(self) -> None:
        _check_one_of("draft", self.draft, ("auto", *DRAFTS))
        if self.draft_layers is not None and self.draft_layers < 1:
            raise ConfigError(
                f"draft_layers is {self.draft_layers}; it must be at least 1. Leave it out for no "
                "guesses by early layers."
            )
        if self.draft == "auto":
            given = [w for w, name in NEEDED_BY_DRAFT.items() if getattr(self, name) is not None]
            object.__setattr__(self, "draft", given[0] if given else "off")
        for word, needed in NEEDED_BY_DRAFT.items():
            if self.draft == word and getattr(self, needed) is None:
                raise ConfigError(
                    f"draft is {quote(word)}, but {needed} is not set. Set {needed}, or draft to "
                    f"{' or '.join(each for each in DRAFTS if each != word)}."
                )

    @property
    def keeps_pages(self) -> bool:
        """Whether pages are kept elsewhere than in the cache."""
        return self.host_cache_bytes > 0 or self.disk_cache is not None

    @property
    def num_ranks(self) -> int:
        """Processes that have the model together."""
        return self.tensor * self.pipeline

    def _check_ranks(self) -> None:
        for word in ("tensor", "pipeline"):
            count = getattr(self, word)
            if not 1 <= count <= MOST_RANKS:
                raise ConfigError(f"{word} is {count}; it must be from 1 to {MOST_RANKS}.")
            for name, is_set in (
                ("lora", bool(self.lora)),
                ("host_cache_bytes", self.host_cache_bytes > 0),
                ("disk_cache", self.disk_cache is not None),
                ("draft", self.draft in ("early", "trained")),
            ):
                if count > 1 and is_set:
                    raise ConfigError(
                        f"{word} is {count} and {name} is {quote(getattr(self, name))}; ranks "
                        f"do not do that. Leave {name} out, or set {word} to 1."
                    )
        if self.rank_listen is not None:
            LinkAddress.parse(self.rank_listen, takes_any=True)
            if self.num_ranks == 1:
                raise ConfigError(
                    f"rank_listen is {quote(self.rank_listen)}, and there is one rank. Set tensor "
                    "or pipeline to how many ranks there are, this one included."
                )
        if self.num_ranks > MOST_RANKS:
            raise ConfigError(
                f"tensor is {self.tensor} and pipeline {self.pipeline}, which are "
                f"{self.num_ranks} ranks; there may be at most {MOST_RANKS}."
            )

    def on(self, device_type: str) -> EngineConfig:
        """The same with numbers for what nobody gave. device_type: cpu or cuda."""
        sizes = _SIZES[device_type]._asdict()
        if isinstance(self.max_tokens_per_step, ByDevice):  # everybody who runs gets a token
            sizes["max_tokens_per_step"] = max(sizes["max_tokens_per_step"], self.max_sequences)
        elif isinstance(self.max_sequences, ByDevice):
            sizes["max_sequences"] = min(sizes["max_sequences"], self.max_tokens_per_step)
        missing = {n: v for n, v in sizes.items() if isinstance(getattr(self, n), ByDevice)}
        return replace(self, **missing) if missing else self

    def as_settings(self) -> dict[str, Any]:
        """Plain values from which of() makes the same; what nobody gave is left out."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: v for name, v in values.items() if not isinstance(v, ByDevice)}

    def numeric_settings(self) -> dict[str, str]:
        """What decides the numbers of an answer, as far as it is not the default."""
        defaults = {each.name: each.default for each in fields(self)}
        asked = {name: str(getattr(self, name)) for name in _NUMERIC}
        return {name: value for name, value in asked.items() if value != str(defaults[name])}

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> EngineConfig:
        """A configuration from loose settings; one that is None counts as not given.

        Raises: ConfigError naming an unknown setting and the nearest known one.
        """
        known = [each.name for each in fields(cls)]
        for name in settings:
            if name not in known:
                near = similar(name, known)
                hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}."
                raise ConfigError(f"{name} is not a setting of the engine; {hint}")
        return cls(**{name: value for name, value in settings.items() if value is not None})


def _check_one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name} is {quote(value)}; it must be one of {', '.join(allowed)}.")
