"""`cutaway bench context`: perplexity over the position, behind the trained length too, by scaling.

One text is read once by each form of the model, every token predicted from all before it. Beside
stand the same tokens with the context begun anew at each multiple of the trained length: what is
lost behind that length is lost by its positions, not by a harder stretch of the text.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from cutaway.cache.table import pages_for
from cutaway.compare.variant import SCALINGS, lengthen
from cutaway.core.errors import ConfigError
from cutaway.core.limits import quote
from cutaway.core.request import Request, SamplingParams
from cutaway.engine.build import num_pages
from cutaway.engine.config import EngineConfig
from cutaway.engine.engine import Engine
from cutaway.engine.loading.loaded_model import LoadedModel

IN_TRAINED = 4  # stretches of the trained length
_SCORED = SamplingParams(temperature=0.0, max_tokens=0, prompt_logprobs=0)


@dataclass(frozen=True)
class ContextReading:
    """One way of reading the text. perplexities: one for each stretch."""

    name: str
    perplexities: tuple[float, ...]


@dataclass(frozen=True)
class ContextReport:
    """What was read, and how well.

    trained: tokens that the model was made for.   length: tokens that were read.
    starts:  the first position of each stretch of width tokens.   factor: of the scalings.
    """

    model: str
    dtype: str
    trained: int
    length: int
    factor: float
    starts: tuple[int, ...]
    width: int
    readings: tuple[ContextReading, ...]
    seconds: float


def run(
    model: LoadedModel,
    config: EngineConfig,
    token_ids: Sequence[int],
    *,
    scalings: Sequence[str],
    say: Callable[[str], None] = lambda _: None,
) -> ContextReport:
    """Read a text that is longer than what the model was made for.

    Raises: ConfigError for a text that is not, for an unknown scaling, and as lengthen does.
    """
    unknown = [name for name in scalings if name not in SCALINGS]
    if unknown:
        raise ConfigError(
            f"scaling holds {quote(unknown[0])}; it must be of {', '.join(SCALINGS)}."
        )
    trained, length, began = model.facts.max_length, len(token_ids), time.perf_counter()
    width = max(2, trained // IN_TRAINED)
    if length < trained + width:
        raise ConfigError(
            f"tokens is {length:,}; it must be at least {trained + width:,}: {model.name} was made "
            f"for {trained:,}, and a quarter more is the first stretch behind. Ask for more."
        )
    forms = {"unscaled": lengthen(model, length)}
    forms |= {name: lengthen(model, length, scaling=name) for name in scalings}
    say(f"anew: {trained:,} tokens at a time ...")
    pieces = [token_ids[at : at + trained] for at in range(0, length, trained)]
    anew = _engine(model, config, trained)
    losses = {"anew": [loss for piece in pieces for loss in _losses(anew, piece)]}
    for name, form in forms.items():
        say(f"{name}: {length:,} tokens at once ...")
        losses[name] = _losses(_engine(form, config, length), token_ids)
    starts = range(0, length - width + 1, width)
    return ContextReport(
        model=model.name,
        dtype=config.dtype,
        trained=trained,
        length=length,
        factor=length / trained,
        starts=tuple(starts),
        width=width,
        readings=tuple(
            ContextReading(
                name, tuple(_perplexity(each[at : at + width], at, trained) for at in starts)
            )
            for name, each in losses.items()
        ),
        seconds=time.perf_counter() - began,
    )


def _engine(model: LoadedModel, config: EngineConfig, length: int) -> Engine:
    """Room for one text, and no record of it."""
    config = replace(
        config,
        cache_tokens=None,
        max_sequences=2,  # what could be used at once, rounded down to pages, is enough for one
        prefix_cache=False,
        ledger_bytes=0,
        draft="off",
    )
    # One token more than is read: a sequence must be able to grow.
    needed, most = 1 + pages_for(length + 1, config.page_size), num_pages(model, config)
    if most < needed:
        room = (most - 1) * config.page_size
        raise ConfigError(
            f"tokens is {length:,}; the memory of this machine keeps {room:,}. Ask for fewer, or "
            "keep them in fewer bits by --kv-dtype int8."
        )
    return Engine(model, config, num_pages=needed)


def _losses(engine: Engine, token_ids: Sequence[int]) -> list[float]:
    """Minus the log-probability of each token, in nats; 0 for the first, which nothing predicts."""
    engine.add(Request(request_id="text", prompt_token_ids=tuple(token_ids), params=_SCORED))
    found: list[float] = []
    while engine.has_work:
        for delta in engine.step():
            if delta.error is not None:
                raise delta.error
            found += [0.0 if each is None else -each.logprob for each in delta.prompt_logprobs]
    assert len(found) == len(token_ids), "each token of a prompt is scored once"
    return found


def _perplexity(losses: Sequence[float], start: int, trained: int) -> float:
    """Of a stretch that begins at start. Where the context begins anew no reading counts."""
    counted = [loss for at, loss in enumerate(losses, start) if at % trained]
    return math.exp(math.fsum(counted) / len(counted))
