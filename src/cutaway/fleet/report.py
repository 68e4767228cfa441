"""What a fleet tells of itself: numbers of all engines together and of each, and what they hold."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields, replace
from typing import Final

import msgspec

from cutaway.core.errors import CutawayError, EngineClosedError
from cutaway.fleet.members import STATS_SECONDS, Member
from cutaway.fleet.routing import FleetRouter
from cutaway.service.service import EngineStats, FleetStats, GuessCount

# Of one engine each, so that their sum means nothing.
_MEANS: Final = ("step_seconds", "page_size")


def stats_of(
    members: Collection[Member],
    router: FleetRouter | None,
    waiting: int,
    resumed: Mapping[str, int],
) -> EngineStats:
    """The sums over all engines that tell their numbers, and each engine's own."""
    known = [member.numbers for member in members if member.numbers is not None]
    sums: dict[str, float] = {}
    for each in fields(EngineStats):
        if each.name not in ("fleet", "guesses"):
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
    guesses = _together(each for numbers in known for each in numbers.guesses)
    return EngineStats(fleet=fleet, guesses=guesses, **sums)  # type: ignore[arg-type]


def _together(counts: Iterable[GuessCount]) -> tuple[GuessCount, ...]:
    """One count for each drafter and place."""
    sums: dict[tuple[str, int], GuessCount] = {}
    for each in counts:
        before = sums.get((each.drafter, each.place), replace(each, tried=0, right=0))
        sums[each.drafter, each.place] = replace(
            each, tried=before.tried + each.tried, right=before.right + each.right
        )
    return tuple(sums[key] for key in sorted(sums))


async def snapshot_of(
    members: Collection[Member], owner: str, waiting: int, resumed: Mapping[str, int]
) -> bytes:
    """What the first engine holds, as one alone would tell it, and beside it what each does.

    Raises: EngineClosedError where none tells.
    """
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
            }
        )
    )
    return msgspec.json.encode(whole)


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
