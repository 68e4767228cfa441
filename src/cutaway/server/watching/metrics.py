"""What can be watched: counters and histograms for Prometheus, named as vLLM's stems.

Every name begins with cutaway:, as vLLM's begin with vllm:, so that a dashboard made for one
serves the other after a replacement. No label holds content.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from cutaway.core.output import Timings, Usage
from cutaway.core.request import SamplingParams
from cutaway.service.service import State

if TYPE_CHECKING:
    from cutaway.cache.stores import StoreStats
    from cutaway.service.service import EngineStats, FleetStats

_SECONDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0),
)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
_CHOICES = (1, 2, 5, 10, 20)


class Metrics:
    """The numbers of one server. Calls cost a microsecond or two."""

    def __init__(self, model: str) -> None:
        self._registry = CollectorRegistry()
        self._labels = {"model_name": model}
        self._engine = _EngineNumbers(model)
        self._registry.register(self._engine)
        seconds = {
            "time_to_first_token_seconds": "arrival to the first token",
            "e2e_request_latency_seconds": "arrival to the end",
            "request_queue_time_seconds": "arrival to the first step",
            "request_prefill_time_seconds": "first step to the first token",
            "request_decode_time_seconds": "first token to the end",
            "request_inference_time_seconds": "first step to the end",
        }
        tokens = {
            "request_prompt_tokens": "tokens of a prompt",
            "request_generation_tokens": "tokens of an answer",
            "request_params_max_tokens": "max_tokens where it was set",
        }
        self._histograms = {
            **{name: self._histogram(name, text, _SECONDS) for name, text in seconds.items()},
            **{name: self._histogram(name, text, _TOKENS) for name, text in tokens.items()},
            "request_params_n": self._histogram("request_params_n", "answers asked for", _CHOICES),
        }
        self._gaps = _Gaps(model)
        self._registry.register(self._gaps)
        self._prompt = self._counter("prompt_tokens", "tokens of prompts").labels(model)
        self._generated = self._counter("generation_tokens", "tokens of answers").labels(model)
        self._success = self._counter(
            "request_success", "answers that came to an end", "finished_reason"
        )
        self._aborted = self._counter("aborted_requests", "answers that were cut off", "why")
        self._rejected = self._counter(
            "admission_rejections", "requests that were not taken in", "reason"
        )
        self._http = self._counter("http_requests", "answers by HTTP", "route", "status")
        self._lag = Gauge(
            "cutaway:event_loop_lag_seconds",
            "how late the event loop last was",
            ["model_name"],
            registry=self._registry,
        ).labels(model)

    def count_started(self, params: SamplingParams) -> None:
        """A request goes to the engine."""
        self._observe("request_params_n", params.n)
        if params.max_tokens is not None:
            self._observe("request_params_max_tokens", params.max_tokens)

    def gap(self, seconds: float) -> None:
        """Time between two tokens of one answer."""
        self._gaps.add(seconds)

    def count_finished(
        self, reason: str, usage: Usage, timings: Timings, *, is_first: bool
    ) -> None:
        """One choice came to an end. The prompt counts once, with the first choice."""
        self._success.labels(**self._labels, finished_reason=reason).inc()
        self._generated.inc(usage.completion_tokens)
        if is_first:
            self._prompt.inc(usage.prompt_tokens)
            self._observe("request_prompt_tokens", usage.prompt_tokens)
        inference = timings.prefill + timings.decode
        self._observe("request_generation_tokens", usage.completion_tokens)
        self._observe("time_to_first_token_seconds", timings.first_token)
        self._observe("request_queue_time_seconds", timings.queue)
        self._observe("request_prefill_time_seconds", timings.prefill)
        self._observe("request_decode_time_seconds", timings.decode)
        self._observe("request_inference_time_seconds", inference)
        self._observe("e2e_request_latency_seconds", timings.queue + inference)

    def count_aborted(self, why: str) -> None:
        """A request was cut off: client, deadline or engine."""
        self._aborted.labels(**self._labels, why=why).inc()

    def count_rejected(self, reason: str) -> None:
        """A request was not taken in."""
        self._rejected.labels(self._labels["model_name"], reason).inc()

    def count_answered(self, route: str, *, status: int, seconds: float) -> None:
        """An answer went out by HTTP."""
        self._http.labels(self._labels["model_name"], route, str(status)).inc()

    def lag(self, seconds: float) -> None:
        """How late the event loop was."""
        self._lag.set(seconds)

    def text(self, stats: EngineStats | None) -> bytes:
        """All of it in Prometheus' form; without the engine's part while there is none."""
        self._engine.stats = stats
        return generate_latest(self._registry)

    def _observe(self, name: str, amount: float) -> None:
        self._histograms[name].observe(amount)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        made = Histogram(
            f"cutaway:{name}", text, ["model_name"], registry=self._registry, buckets=buckets
        )
        return made.labels(self._labels["model_name"])

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"cutaway:{name}", text, ["model_name", *labels], registry=self._registry)


class _Gaps(Collector):
    """Times between tokens: the one histogram that every token adds to, in a fifth of the time.

    For the event loop alone, which adds and reads: a Histogram locks at each number.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._counts = [0] * (len(_SECONDS) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        """One more."""
        self._counts[bisect_left(_SECONDS, seconds)] += 1
        self._sum += seconds

    def collect(self) -> Iterator[Metric]:
        """As a Histogram tells it."""
        bounds = (*map(str, _SECONDS), "+Inf")
        told = HistogramMetricFamily(
            "cutaway:inter_token_latency_seconds", "one token to the next", labels=["model_name"]
        )
        buckets = list(zip(bounds, accumulate(self._counts), strict=True))
        told.add_metric([self._model], buckets, self._sum)
        yield told


class _EngineNumbers(Collector):
    """What the engine counts itself, read when it is asked for."""

    def __init__(self, model: str) -> None:
        self._model = model
        self.stats: EngineStats | None = None

    def collect(self) -> Iterator[Metric]:
        """The engine's numbers as they are now."""
        if self.stats is None:
            return
        for name, text, amount in _gauges(self.stats):
            gauge = GaugeMetricFamily(f"cutaway:{name}", text, labels=["model_name"])
            gauge.add_metric([self._model], amount)
            yield gauge
        for name, text, amount in _counters(self.stats):
            counter = CounterMetricFamily(f"cutaway:{name}", text, labels=["model_name"])
            counter.add_metric([self._model], amount)
            yield counter
        yield self._by_place("accepted", "guesses that held", [g.right for g in self.stats.guesses])
        yield self._by_place("tried", "guesses looked at", [g.tried for g in self.stats.guesses])
        yield from _of_stores(self._model, self.stats.stores)
        if self.stats.fleet is not None:
            yield from _of_fleet(self._model, self.stats.fleet)

    def _by_place(self, name: str, text: str, amounts: Iterable[int]) -> Metric:
        """Guesses by who made them and their place in the draft, as vLLM counts places from 0."""
        assert self.stats is not None, "asked for with numbers"
        counter = CounterMetricFamily(
            f"cutaway:spec_decode_num_{name}_tokens_per_pos",
            f"{text}, by drafter and place in the draft",
            labels=["model_name", "drafter", "position"],
        )
        for each, amount in zip(self.stats.guesses, amounts, strict=True):
            counter.add_metric([self._model, each.drafter, str(each.place)], amount)
        return counter


def _of_stores(model: str, stores: Iterable[StoreStats]) -> Iterator[Metric]:
    """What is behind the pages of the cache, by its kind."""
    labels = ["model_name", "store"]
    for name, text in (("num_bytes", "bytes of pages"), ("pages", "pages")):
        gauge = GaugeMetricFamily(
            f"cutaway:page_store_{name.removeprefix('num_')}", f"{text} in a store", labels=labels
        )
        for store in stores:
            gauge.add_metric([model, store.kind], getattr(store, name))
        yield gauge
    for name, text in (
        ("written", "pages that came into a store"),
        ("found", "pages that a store gave back"),
        ("spoilt", "pages of a wrong checksum, which were computed again"),
        ("skipped", "pages not written, since a store was behind"),
    ):
        counter = CounterMetricFamily(f"cutaway:page_store_{name}", text, labels=labels)
        for store in stores:
            counter.add_metric([model, store.kind], getattr(store, name))
        yield counter


def _of_fleet(model: str, fleet: FleetStats) -> Iterator[Metric]:
    """Each engine's numbers by its name, and what the fleet counts itself."""
    known = [each for each in fleet.replicas if each.numbers is not None]
    for kind, numbers_of in ((GaugeMetricFamily, _gauges), (CounterMetricFamily, _counters)):
        families: dict[str, Metric] = {}
        for each in known:
            assert each.numbers is not None, "asked above"
            for name, text, amount in numbers_of(each.numbers):
                labels = ["model_name", "replica"]
                family = families.setdefault(
                    name, kind(f"cutaway:replica_{name}", f"{text}, by replica", labels=labels)
                )
                assert isinstance(family, GaugeMetricFamily | CounterMetricFamily)
                family.add_metric([model, each.name], amount)
        yield from families.values()
    state = GaugeMetricFamily(
        "cutaway:replica_state",
        "1 for the state that a replica is in",
        labels=["model_name", "replica", "state"],
    )
    for each in fleet.replicas:
        for name in get_args(State):
            state.add_metric([model, each.name, name], float(each.state == name))
    yield state
    waiting = GaugeMetricFamily(
        "cutaway:fleet_requests_waiting", "requests that no replica has", labels=["model_name"]
    )
    waiting.add_metric([model], fleet.waiting)
    yield waiting
    for name, text, label, counts in (
        ("resumed_answers", "answers that went on in another replica", "exact", fleet.resumed),
        ("route_decisions", "requests by why they were sent there", "why", fleet.routes),
    ):
        counter = CounterMetricFamily(f"cutaway:{name}", text, labels=["model_name", label])
        for value, count in sorted(counts.items()):
            counter.add_metric([model, value], count)
        yield counter
    for name, text, count in (
        ("route_cached_tokens_estimated", "thought to be in a cache", fleet.estimated_tokens),
        ("route_cached_tokens_found", "that were there", fleet.found_tokens),
    ):
        counter = CounterMetricFamily(
            f"cutaway:{name}", f"tokens of prompts {text}", labels=["model_name"]
        )
        counter.add_metric([model], count)
        yield counter


def _gauges(stats: EngineStats) -> Iterator[tuple[str, str, float]]:
    yield "num_requests_running", "answers in the making", stats.running
    yield "num_requests_waiting", "answers that wait for a place", stats.waiting
    yield "num_tokens_waiting", "tokens of prompts that wait", stats.waiting_tokens
    yield "kv_cache_usage_perc", "share of the pages in use, 0 to 1", _used_ratio(stats)
    yield "kv_pages_used", "pages in use", stats.pages_used
    yield "kv_pages_cached", "pages that hold a known prefix and may be taken", stats.pages_cached
    yield "kv_pages_pinned", "pages of prefixes that are never evicted", stats.pinned_pages
    yield "kv_pages_total", "all pages", stats.pages_total


def _counters(stats: EngineStats) -> Iterator[tuple[str, str, float]]:
    yield "prefix_cache_queries", "tokens looked for in the prefix index", stats.query_tokens
    yield "prefix_cache_hits", "tokens found there", stats.hit_tokens
    yield "engine_restarts", "starts of the engine's process after its death", stats.restarts
    yield "engine_steps", "forward passes", stats.steps
    yield "kv_pages_restored", "pages whose content came back from a store", stats.restored_pages
    yield "num_preemptions", "answers put back for want of pages", stats.preemptions
    drafts = sum(each.tried for each in stats.guesses if each.place == 0)
    yield "spec_decode_num_drafts", "steps of answers with guesses", drafts
    yield "spec_decode_num_draft_tokens", "tokens guessed", stats.drafted_tokens
    yield "spec_decode_num_accepted_tokens", "guesses that held", stats.accepted_tokens


def _used_ratio(stats: EngineStats) -> float:
    return stats.pages_used / stats.pages_total if stats.pages_total else 0.0
