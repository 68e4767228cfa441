"""What a fleet tells of itself: numbers of all engines together and of each, and what they hold."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from typing import Final

import msgspec

from cutaway.core.errors import CutawayError, EngineClosedError
from cutaway.fleet.counts import COUNTED, add_counts, add_stores
from cutaway.fleet.members import STATS_SECONDS, Member
from cutaway.fleet.resume import Stream
from cutaway.fleet.routing import FleetRouter
from cutaway.service.service import EngineStats, FleetStats

# Of one engine each, so that their sum means nothing.
_MEANS: Final = ("step_seconds", "page_size")


def stats_of(
    members: Collection[Member],
    router: FleetRouter | None,
    waiting: int,
    resumed: Mapping[str, int],
    gone: EngineStats,
) -> EngineStats:
    """The sums over all engines that tell their numbers, and each engine's own.

    gone: what those had counted that have left.
    """
    known = [member.numbers for member in members if member.numbers is not None]
    counted = add_counts([gone, *(member.counted for member in members)])
    sums: dict[str, float] = {}
    for each in fields(EngineStats):
        if each.name not in ("fleet", "guesses", "stores", *COUNTED):
            values = [getattr(numbers, each.name) for numbers in known]
            total = sum(values)
            sums[each.name] = total / max(1, len(values)) if each.name in _MEANS else total
    fleet = FleetStats(
        replicas=tuple(member.tell() for member in members),
        waiting=waiting,
        resumed=dict(resumed),
        routes={} if router is None else dict(router.why),
        estimated_tokens=0 if router is None else router.estimated_tokens,
        found_tokens=0 if router is None else router.found_tokens,
    )
    sums["waiting"] = sums.get("waiting", 0) + waiting
    return replace(counted, fleet=fleet, stores=add_stores(known), **sums)  # type: ignore[arg-type]


async def snapshot_of(
    members: Collection[Member],
    owner: str,
    waiting: int,
    resumed: Mapping[str, int],
    answers: Sequence[Stream],
) -> bytes:
    """What the first engine holds, as one alone would tell it, and beside it what each does.

    answers: the owner's, of which is told where they are computed and why.
    Raises: EngineClosedError where none tells.
    """
    members = tuple(members)  # they may change while they are asked
    told = await asyncio.gather(*(_snapshot(member, owner) for member in members))
    first = next((each for each in told if each is not None), None)
    if first is None:
        raise EngineClosedError("no engine is ready. Try again in a few seconds.")
    whole = msgspec.json.decode(first, type=dict[str, msgspec.Raw])
    whole["fleet"] = msgspec.Raw(
        msgspec.json.encode(
            {
                "waiting": waiting,
                "resumed": dict(resumed),
                "members": [
                    _member(member, snapshot)
                    for member, snapshot in zip(members, told, strict=True)
                ],
                "answers": [_answer(each) for each in answers],
            }
        )
    )
    return msgspec.json.encode(whole)


def _answer(stream: Stream) -> dict[str, object]:
    return {
        "trace_id": stream.request.request_id,
        "is_done": stream.is_done,
        "num_tokens": stream.num_told,
        "is_exact": stream.is_exact,
        "routes": [
            {
                "member": each.member,
                "why": each.why,
                "estimated": each.estimated,
                "missing": each.missing,
            }
            for each in stream.routes
        ],
    }


async def _snapshot(member: Member, owner: str) -> bytes | None:
    try:
        async with asyncio.timeout(STATS_SECONDS):
            return await member.service.snapshot(owner)
    except (TimeoutError, CutawayError):
        return None


def _member(member: Member, snapshot: bytes | None) -> dict[str, object]:
    told = member.tell()
    load = member.load
    return {
        "name": told.name,
        "state": told.state,
        "starts": told.starts,
        "bound": told.bound,
        "requests": len(member.streams),
        "waiting_tokens": 0 if load is None else load.waiting_tokens,
        "prompt_rate": 0.0 if told.numbers is None else round(told.numbers.prompt_rate, 1),
        "step_seconds": 0.0 if told.numbers is None else round(told.numbers.step_seconds, 7),
        "numeric_class": "" if load is None else load.numeric_class,
        "refused": member.refused,
        "engine": None if snapshot is None else msgspec.Raw(snapshot),
    }
