"""Every setting once: its name in flags, environment and files, its default and its help.

Ranges and defaults are those of core/limits.py, EngineConfig, service/bounds.py and
fleet/fleet_config.py. Free of pydantic, so that help is quick; settings.py reads the values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal

from cutaway.core.limits import DRAW_SETTINGS, INT64_MAX, LIMITS, Limit
from cutaway.core.request import CHAT_DETECTION, RECOMMENDED
from cutaway.engine.config import MOST_RANKS, ByDevice, EngineConfig
from cutaway.fleet.fleet_config import MOST_REPLICAS, FleetConfig
from cutaway.service.bounds import ProcessConfig, TrafficConfig

SettingKind = Literal["text", "texts", "int", "float", "bool"]

MODEL, ENGINE, SAMPLING, CHAT = "Model", "Engine", "Sampling", "Chat"
TRAFFIC = "Traffic"  # of servers: what may wait, and how the engine is watched
FLEET = "Fleet"  # of servers with several engines

DEFAULT_MODEL = "smollm2"
# A plain prompt may never come to an end of its own, and a small model may repeat itself for ever.
COMPLETE_TOKENS, CHAT_TOKENS = 256, 1024
VIEW_TOKENS = 32  # of an answer that is looked at: each of its tokens is computed again


@dataclass(frozen=True)
class Key:
    """One setting. The environment calls it CUTAWAY_ and its name in capitals."""

    name: str
    kind: SettingKind
    panel: str
    help: str
    default: object = None
    limit: Limit | None = None  # its entry in core/limits.py, where it has one

    @property
    def flag(self) -> str:
        """How the command line writes it."""
        dashed = "--" + self.name.replace("_", "-")
        return f"{dashed}/--no-{dashed[2:]}" if self.kind == "bool" else dashed

    @property
    def variable(self) -> str:
        """How the environment writes it."""
        return f"CUTAWAY_{self.name.upper()}"

    @property
    def allowed(self) -> str:
        """What a value must be, for messages."""
        if self.limit is not None:
            return self.limit.describe()
        words = {"text": "text", "texts": "a string or a list of strings", "int": "an integer"}
        return words.get(self.kind, "true or false")


def _engine(
    name: str, kind: SettingKind, help_: str, *, panel: str = ENGINE, limit: Limit | None = None
) -> Key:
    limit = limit or (_COUNT if kind == "int" else None)
    return Key(name, kind, panel, help_, _ENGINE_DEFAULTS[name], limit)


def _sampling(name: str, help_: str | None = None) -> Key:
    limit = LIMITS[name]
    meaning = help_ or limit.meaning
    told = f"{meaning}; {_shown(limit)}"
    if name in RECOMMENDED:
        told += ", unless the model recommends another"
    return Key(name, limit.kind, SAMPLING, told, limit.default, limit)


def _shown(limit: Limit) -> str:
    """A range for help: bounds that only a machine could reach are left out."""
    default = "" if limit.default is None else f"; default {limit.default}"
    if limit.kind == "bool":
        return f"default {str(limit.default).lower()}"
    if limit.most >= 2**31 - 1:
        noun = "an integer" if limit.kind == "int" else "a number"
        return (
            noun + (f" of at least {limit.least:.0f}" if limit.least > -(2**31) else "") + default
        )
    return limit.describe() + default


def _fleet(name: str, kind: SettingKind, help_: str, *, limit: Limit | None = None) -> Key:
    return Key(name, kind, FLEET, help_, _FLEET_DEFAULTS[name], limit)


def _bound(name: str, help_: str, limit: Limit) -> Key:
    return Key(name, limit.kind, TRAFFIC, help_, _BOUNDS[name], limit)


_COUNT = Limit("int", None, 1, INT64_MAX)  # what the engine's integers have in common
_COUNT_OR_NONE = Limit("int", None, 0, INT64_MAX)
_SECONDS = Limit("float", None, 0, 10**9, least_open=True)
_BOUNDS: Mapping[str, object] = {
    each.name: each.default for owner in (TrafficConfig, ProcessConfig) for each in fields(owner)
}
_FLEET_DEFAULTS: Mapping[str, object] = {each.name: each.default for each in fields(FleetConfig)}
_REPLICAS = Limit("int", None, 1, MOST_REPLICAS)
_RANKS = Limit("int", None, 1, MOST_RANKS)
_ENGINE_DEFAULTS: Mapping[str, object] = {
    each.name: None if isinstance(each.default, ByDevice) else each.default
    for each in fields(EngineConfig)
}

KEYS: tuple[Key, ...] = (
    Key(
        "model",
        "text",
        MODEL,
        "a name, a .gguf file, a Hugging Face folder or hub id, or random:PATH/config.json; "
        f"default {DEFAULT_MODEL}",
        DEFAULT_MODEL,
    ),
    Key(
        "accept_license",
        "bool",
        MODEL,
        "accept the terms of a model that has some and is not here; they are shown without it",
        False,
    ),
    _engine("dtype", "text", "auto, float32, float64, bfloat16 or float16", panel=MODEL),
    _engine(
        "kv_dtype",
        "text",
        "what the cache keeps: auto, float32, float16, bfloat16, int8 or float8_e4m3fn",
        panel=MODEL,
    ),
    _engine(
        "override",
        "texts",
        "replace a field of config.json, as in sliding_window=128; may be given several times",
        panel=MODEL,
    ),
    _engine(
        "quant",
        "text",
        "round weights at load: int8, int4 or fp8, also as in int4-g64 or int4-sym-g128",
        panel=MODEL,
    ),
    _engine(
        "lora",
        "texts",
        "an adapter beside the model, as NAME=FOLDER, or off; may be given several times",
        panel=MODEL,
    ),
    _engine("device", "text", "auto, cpu, cuda or cuda:N", panel=MODEL),
    _engine("cache_tokens", "int", "tokens that the cache holds, as in 32K; what memory allows"),
    _engine("page_size", "int", "tokens per page of the cache, a power of two from 8 to 256"),
    _engine("prefix_cache", "bool", "find equal beginnings of prompts in the cache"),
    _engine(
        "pin",
        "texts",
        "a system prompt that is never evicted, as NAME=FILE; may be given several times",
    ),
    _engine(
        "host_cache_bytes",
        "int",
        "of the host's memory behind a GPU's cache, as in 8G; 0 keeps none there",
        limit=_COUNT_OR_NONE,
    ),
    _engine(
        "disk_cache",
        "text",
        "a folder where pages of prompts outlive the engine, for you alone; default: none",
    ),
    _engine("disk_cache_bytes", "int", "of all files in that folder", limit=_COUNT_OR_NONE),
    _engine("max_sequences", "int", "answers that run at once; default: 64, on a GPU 256"),
    _engine(
        "max_tokens_per_step",
        "int",
        "tokens computed in one step, over all answers; default: 2048, on a GPU 16384",
    ),
    _engine(
        "prefill_chunk",
        "int",
        "tokens of one prompt in one step; default: 512, on a GPU 8192",
    ),
    _engine(
        "ledger_bytes",
        "int",
        "memory for the record of recent answers; 0 records nothing",
        limit=_COUNT_OR_NONE,
    ),
    _engine("graphs", "bool", "capture decode steps on a GPU"),
    _engine(
        "invariant",
        "bool",
        "give a row the same bits in any company and cut on a GPU too, or refuse to start",
    ),
    _engine(
        "draft",
        "text",
        "guess tokens, then verify them: off, ngram (from what was said), model, early or "
        "trained; auto is what draft-model, draft-layers or draft-speculator bring",
    ),
    _engine("draft_model", "text", "a smaller model with the same vocabulary, which guesses"),
    _engine("draft_layers", "int", "so many of the model's own layers guess"),
    _engine("draft_speculator", "text", "the folder of a layer trained to guess for the model"),
    _engine(
        "tensor",
        "int",
        "processes among which each matrix of the model is divided",
        limit=_RANKS,
    ),
    _engine(
        "pipeline",
        "int",
        "processes among which the layers of the model are divided",
        limit=_RANKS,
    ),
    _engine(
        "rank_listen",
        "text",
        "where the other ranks join from their hosts by `cutaway rank`, as tcp://HOST:PORT; "
        "default: all are here",
    ),
    _engine(
        "rank_key_file",
        "text",
        "the key that those prove; else CUTAWAY_LINK_KEY holds it",
    ),
    *map(_sampling, DRAW_SETTINGS),
    _sampling("seed"),
    _sampling(
        "max_tokens",
        f"most tokens of the answer; default {COMPLETE_TOKENS} in complete, {CHAT_TOKENS} in chat, "
        f"{VIEW_TOKENS} in view, why, compare and trace save",
    ),
    _sampling("min_tokens"),
    _sampling("ignore_eos", "go on when the model ends its answer"),
    Key(
        "repetition_detection",
        "text",
        SAMPLING,
        "end an answer that repeats itself: least and largest size of what repeats, in tokens, and "
        f"how often it stands in a row; default {CHAT_DETECTION} in chat, off elsewhere",
    ),
    Key("stop", "texts", SAMPLING, "end before this string; may be given up to 16 times", ()),
    _bound("max_waiting", "answers that may wait; default: 4 for each of max_sequences", _COUNT),
    _bound(
        "max_waiting_tokens",
        "tokens of prompts that may wait; default: 8 times what the cache holds",
        _COUNT,
    ),
    _bound("hang_seconds", "without a sign of work; then nothing is taken in", _SECONDS),
    _bound("stall_seconds", "without one; then the engine is started again", _SECONDS),
    _bound("load_seconds", "longest time to load the model", _SECONDS),
    _bound("restart_seconds", "longest pause between starts of the engine that fail", _SECONDS),
    _bound(
        "max_restarts",
        "starts in a row without an answer until the server ends; default: it tries for ever",
        _COUNT_OR_NONE,
    ),
    _fleet(
        "replicas",
        "int",
        "engines that answer, each a process with the whole model; cores, memory and GPUs are "
        "divided",
        limit=_REPLICAS,
    ),
    _fleet(
        "most_replicas",
        "int",
        "so many engines where answers wait, and fewer again later; default: as many as replicas",
        limit=_REPLICAS,
    ),
    _fleet(
        "least_ready",
        "int",
        "engines that are there before the first request is taken in",
        limit=_REPLICAS,
    ),
    _fleet(
        "resume",
        "text",
        "how an answer goes on whose engine ends: class (in one of the same numbers), strict (in "
        "an error where the seam is not exact), any, or off",
    ),
    Key("system", "text", CHAT, "the system message; default: what the model's template brings"),
)

BY_NAME: Mapping[str, Key] = {key.name: key for key in KEYS}
ENGINE_NAMES: tuple[str, ...] = tuple(key.name for key in KEYS if key.name in _ENGINE_DEFAULTS)
TRAFFIC_NAMES: tuple[str, ...] = tuple(each.name for each in fields(TrafficConfig))
FLEET_NAMES: tuple[str, ...] = tuple(key.name for key in KEYS if key.panel == FLEET)
PROCESS_NAMES: tuple[str, ...] = tuple(each.name for each in fields(ProcessConfig))
SAMPLING_NAMES: tuple[str, ...] = tuple(key.name for key in KEYS if key.panel == SAMPLING)
