"""How much each engine has to do, as routers of others ask for it: SGLang's /v1/loads."""

from __future__ import annotations

import time

from cutaway import __version__
from cutaway.service.service import EngineStats


def tell_loads(stats: EngineStats) -> dict[str, object]:
    """One entry for each engine that tells its numbers, and their sums."""
    told = [stats] if stats.fleet is None else [each.numbers for each in stats.fleet.replicas]
    loads = [_tell(number, each) for number, each in enumerate(told) if each is not None]
    known = [each for each in told if each is not None]
    running = sum(each.running for each in known)
    usages = [_usage(each) for each in known]
    return {
        "timestamp": time.time(),
        "version": __version__,
        "dp_rank_count": len(told),
        "loads": loads,
        "aggregate": {
            "total_running_reqs": running,
            "total_waiting_reqs": stats.waiting,
            "total_reqs": running + stats.waiting,
            "avg_token_usage": round(sum(usages) / max(1, len(usages)), 4),
        },
    }


def _tell(number: int, stats: EngineStats) -> dict[str, object]:
    return {
        "dp_rank": number,
        "num_running_reqs": stats.running,
        "num_waiting_reqs": stats.waiting,
        "num_total_reqs": stats.running + stats.waiting,
        "num_used_tokens": stats.pages_used * stats.page_size,
        "max_total_num_tokens": stats.pages_total * stats.page_size,
        "max_running_requests": stats.max_sequences,
        "token_usage": _usage(stats),
        "cache_hit_rate": _ratio(stats.hit_tokens, stats.query_tokens),
    }


def _usage(stats: EngineStats) -> float:
    return _ratio(stats.pages_used, stats.pages_total)


def _ratio(part: int, whole: int) -> float:
    return round(part / whole, 4) if whole else 0.0
