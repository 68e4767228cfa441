"""Who of those that wait gets which engine, and when: in owners' turns, as the router has it.

How an engine is started, and what it answers, is not known here. Free of torch.
"""

from __future__ import annotations

import asyncio

from cutaway.core.errors import EngineClosedError
from cutaway.fleet.crew import Crew
from cutaway.fleet.owner_turns import Turns
from cutaway.fleet.resume import Stream, late
from cutaway.fleet.routing import MOST_LOOKED_AT, Binding, EngineWanted


class EngineQueue:
    """Requests that no engine has, before an engine had them and between two."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self._turns: Turns[EngineWanted] = Turns()
        self._waiting: dict[EngineWanted, asyncio.Future[Binding]] = {}
        self._is_looking = False
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._turns)

    async def bind(self, stream: Stream) -> Binding:
        """Wait for a request's turn and an engine for it; it is to be released.

        Raises: DeadlineError; EngineClosedError where no engine may have it.
        """
        if self._is_closed:
            raise _closed()
        router = self._crew.router
        assert router is not None, "the router is made with the first engine"
        token_ids = stream.longest
        wanted = EngineWanted(
            owner=stream.request.sharer,
            num_tokens=len(token_ids),
            num_answers=stream.num_open,
            keys=router.prefixes.keys(token_ids, stream.request.cache_salt),
            classes=self._classes_for(stream),
            is_alone=stream.is_suspect,
            has_begun=stream.num_moves > 0,
        )
        future: asyncio.Future[Binding] = asyncio.get_running_loop().create_future()
        self._waiting[wanted] = future
        self._turns.add(wanted)
        self._bind_all()
        if future.done():  # as where nobody waits: there is nothing to wait for
            del self._waiting[wanted]
            router.give_up(wanted)
            return future.result()
        try:
            async with asyncio.timeout(stream.seconds_left):
                return await future
        except TimeoutError:
            raise late(stream.request) from None
        except BaseException:
            if future.done() and not future.cancelled() and future.exception() is None:
                router.leave(future.result())  # its engine came as its reader went
                self._turns.release(wanted)
            raise
        finally:
            self._waiting.pop(wanted, None)
            self._turns.remove(wanted)
            router.give_up(wanted)

    def release(self, binding: Binding) -> None:
        """The engine has it no more."""
        if self._crew.router is not None:
            self._crew.router.leave(binding)
        self._turns.release(binding.wanted)

    def look(self) -> None:
        """Engines or those who wait have changed: see soon who can be bound now."""
        if self._waiting and not self._is_looking:
            self._is_looking = True
            asyncio.get_running_loop().call_soon(self._bind_all)

    def make_room(self) -> None:
        """Somebody is to have an engine alone: who else has it goes on elsewhere."""
        for member in tuple(self._crew.members.values()):
            wanted = None if member.load is None else member.load.reserved_for
            if member.streams and wanted in self._waiting and self._crew.may_move(member):
                self._crew.move_all(member)

    def close(self) -> None:
        """Nobody gets an engine any more, whether they wait now or come back from one later."""
        self._is_closed = True
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(_closed())

    def _classes_for(self, stream: Stream) -> frozenset[str] | None:
        """Numbers with which a request may go on. Raises: EngineClosedError where none are left."""
        own = stream.numeric_class
        if not stream.has_begun or own is None or self._crew.config.resume == "any":
            return None
        left = {m.load.numeric_class for m in self._crew.members.values() if m.load is not None}
        if own not in left:
            raise EngineClosedError(
                "the engine ended while this answer ran, and no other gives its numbers. With "
                "resume any it would go on all the same. Try again."
            )
        return frozenset({own})

    def _bind_all(self) -> None:
        self._is_looking = False
        router = self._crew.router
        if router is None:
            return
        for member in self._crew.members.values():
            if member.load is not None:
                member.load.is_open = member.may_take(self._crew.hang_seconds)
        for binding in router.bindings(self._turns.in_order(MOST_LOOKED_AT)):
            self._turns.bind(binding.wanted)
            future = self._waiting.get(binding.wanted)
            if future is None or future.done():
                router.leave(binding)
                self._turns.release(binding.wanted)
                continue
            future.set_result(binding)


def _closed() -> EngineClosedError:
    return EngineClosedError("the engines were closed before this answer ended.")
