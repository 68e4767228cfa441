"""Rows measured on a running engine: prefix cache, the cache itself, cost by context and batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cutaway.bench.machine import measure
from cutaway.bench.paper_engine import Driver, fastest
from cutaway.bench.paper_rows import PaperRow, PaperSize
from cutaway.core.estimate import estimate
from cutaway.core.weight_types import weights_of_file
from cutaway.host import gguf_file
from cutaway.models.parts.reading import read_gguf
from cutaway.weights.find.find import find


def prefix(size: PaperSize) -> Iterator[PaperRow]:
    """Time to the first token of a prompt whose beginning another one had."""
    driver = Driver(size.model, cache_tokens=_room(size))
    total = size.prefix + size.own
    cold, warm, cached = list[float](), list[float](), list[int]()
    driver.first_token(driver.tokens(total))  # warms the kernels up
    for _ in range(size.rounds):
        shared = driver.tokens(size.prefix)
        cold.append(driver.first_token(shared + driver.tokens(size.own))[0])
        seconds, found = driver.first_token(shared + driver.tokens(size.own))
        warm.append(seconds)
        cached.append(found)
    what = f"{size.prefix:,} shared tokens and {size.own} more"
    yield PaperRow(
        section="prefix",
        name=f"prompt tokens computed, {what}: first over second",
        value=total / (total - cached[0]),
        unit="x",
        how="counted",
        model=size.model,
        formula="tokens / (tokens - cached)",
        terms={"tokens": total, "cached": cached[0]},
        source="arXiv 2312.07104, section 3: what is shared is not computed again",
    )
    yield PaperRow(
        section="prefix",
        name=f"time to first token, {what}: first over second",
        value=fastest(cold) / fastest(warm),
        unit="x",
        how="measured",
        model=size.model,
        formula="first / second",
        terms={"first": fastest(cold), "second": fastest(warm)},
        source="arXiv 2312.07104: up to 6.4 times the throughput, over whole programs",
    )
    yield _overhead(size, driver)


def _overhead(size: PaperSize, driver: Driver) -> PaperRow:
    """What looking for prefixes costs where nothing is shared."""
    other = Driver(size.model, cache_tokens=_room(size), prefix_cache=False)
    other.first_token(other.tokens(size.prefix))
    on, off = list[float](), list[float]()
    for _ in range(size.rounds):  # side by side: a machine's speed moves
        on.append(driver.first_token(driver.tokens(size.prefix))[0])
        off.append(other.first_token(other.tokens(size.prefix))[0])
    return PaperRow(
        section="prefix",
        name="time that the cache costs where nothing is shared",
        value=100 * (fastest(on) / fastest(off) - 1),
        unit="%",
        how="measured",
        model=size.model,
        formula="100 * (with_cache / without - 1)",
        terms={"with_cache": fastest(on), "without": fastest(off)},
        published=1.0,
        source="vLLM's post on V1, January 2025: below 1 % at a hit rate of 0",
        note="other work on the machine moves it by several percent either way",
    )


def measure_keeping(size: PaperSize) -> Iterator[PaperRow]:
    """Time per answer token with keys and values kept, and with all of them computed again."""
    driver = Driver(size.model, cache_tokens=_room(size), prefix_cache=False)
    driver.first_token(driver.tokens(size.contexts[0]))
    ons, offs = list[float](), list[float]()
    for context in size.contexts:
        again = [driver.first_token(driver.tokens(context))[0] for _ in range(size.rounds)]
        ons.append(driver.decode(context, 1, size.steps))
        offs.append(fastest(again))
        yield PaperRow(
            section="cache",
            name=f"time per token after {context:,}, recomputed over kept",
            value=offs[-1] / ons[-1],
            unit="x",
            how="measured",
            model=size.model,
            formula="recomputed / kept",
            terms={"recomputed": offs[-1], "kept": ons[-1]},
            source="no figure: it grows with the length, so that each published one is of its own",
            note=f"{1e3 * offs[-1]:.1f} ms against {1e3 * ons[-1]:.1f} ms",
        )
    without, with_cache = _area(size.contexts, offs), _area(size.contexts, ons)
    first, last = size.contexts[0], size.contexts[-1]
    yield PaperRow(
        section="cache",
        name=f"time of an answer from token {first:,} to {last:,}, recomputed over kept",
        value=without / with_cache,
        unit="x",
        how="measured",
        model=size.model,
        formula="recomputed / kept",
        terms={"recomputed": without, "kept": with_cache},
        source="the rows above, summed by trapezoids",
    )


def _area(lengths: Sequence[int], seconds: Sequence[float]) -> float:
    """The sum of a time per token over all tokens between the lengths, by trapezoids."""
    pairs = zip(lengths, lengths[1:], seconds, seconds[1:], strict=False)
    return sum((right - left) * (a + b) / 2 for left, right, a, b in pairs)


def cost(size: PaperSize) -> Iterator[PaperRow]:
    """Hours of a million answer tokens, by context and batch, beside the least that bytes take."""
    driver = Driver(size.model, cache_tokens=_room(size) * max(size.batches), prefix_cache=False)
    floor = _Floor(size.model)
    for context in size.cost_contexts:
        for batch in size.batches:
            seconds = driver.decode(context, batch, size.steps)
            yield PaperRow(
                section="cost",
                name=f"a million tokens at {context:,}, {batch} at once",
                value=seconds / batch * 1e6 / 3600,
                unit="hours",
                how="measured",
                model=size.model,
                formula="seconds / batch * 1e6 / 3600",
                terms={"seconds": seconds, "batch": batch},
                source="no figure: times the price of the machine per hour it is the bill",
                note=f"{1e3 * seconds:.1f} ms a step{floor.tell(context, batch)}",
            )


class _Floor:
    """What the bytes of a step take at the bandwidth that this machine has now."""

    def __init__(self, model: str) -> None:
        found = find(model)
        self.file = gguf_file.read(found.path) if found.kind == "gguf" else None
        self.bandwidth = measure().bandwidth

    def tell(self, context: int, batch: int) -> str:
        """Words for a row; none where the weights are no file."""
        if self.file is None:
            return ""
        shape = read_gguf(self.file).shape
        weights = weights_of_file(self.file.tensors, shape)
        made = estimate(shape, weights, context=context, batch=batch, kv_dtype="float16")
        least = made.bytes_decode / self.bandwidth
        return f"; its bytes take {1e3 * least:.1f} at {self.bandwidth / 1e9:.1f} GB/s"


def _room(size: PaperSize) -> int:
    """Tokens of a cache that holds the longest sequence of a row beside what was cached before."""
    return 2 * (max(*size.contexts, *size.cost_contexts, size.prefix) + size.own + 256)
