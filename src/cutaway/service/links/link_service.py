"""An engine on another host, as a service: reached over a link, which is made again when it ends.

Free of torch. The other side is service/links/link_server.py. That a link is lost means that the
engine is: who follows an answer hears so, and a fleet has it go on elsewhere.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from cutaway.core.errors import ConfigError, CutawayError, EngineClosedError
from cutaway.host.faults import note
from cutaway.host.link_key import LinkAddress, LinkKey
from cutaway.host.sealed_link import LinkLostError, SealedLink, ask_for_link
from cutaway.service.bounds import UNBOUNDED, ProcessConfig
from cutaway.service.engine_messages import Command, Load, Loaded, Ping
from cutaway.service.links.link_messages import (
    Answered,
    Beat,
    Introduce,
    check_introduced,
    decode_answered,
    encode,
)
from cutaway.service.message_service import MessageService
from cutaway.service.service import State
from cutaway.service.traffic import Traffic

FIRST_PAUSE: Final = 0.25  # between two tries to reach a host; then twice as long each time
LOOK_SECONDS: Final = 0.5  # between two looks at how long nothing was heard


class LinkService(MessageService):
    """A member of a fleet on another host.

    tell: hears in the event loop what befalls the link; it must not wait for anybody.
    changed: called in the event loop when the state has changed.
    vocabulary: fingerprint of the tokenizer that it must have; nothing takes any.
    config: hang_seconds and stall_seconds count from the last word over the link, too.
    """

    def __init__(
        self,
        address: LinkAddress,
        key: LinkKey,
        *,
        vocabulary: str = "",
        config: ProcessConfig | None = None,
        tell: Callable[[str], None] = print,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(is_member=True)
        self.address, self._key, self._vocabulary = address, key, vocabulary
        self._config = config or ProcessConfig()
        self._tell, self._changed = tell, changed
        self._link: _LiveLink | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()
        self._refused: asyncio.Future[CutawayError] | None = None
        self._beat = Beat("starting", 0, 0.0)
        self._num_starts = 0
        self._silent = 0.0  # since something was heard, in looks
        self._is_closing = False
        self._told = ""

    @property
    def num_starts(self) -> int:
        """Of the engine, as far as is known here: whoever is linked anew counts as begun anew."""
        return self._num_starts

    @property
    def state(self) -> State:
        """What the member says of its engine; failed without a link."""
        if self._is_closing:
            return "draining"
        if self._link is None:
            return "starting" if not self._num_starts else "failed"
        if self._beat.state == "ready" and not self._link.has_loaded:
            return "starting"
        return self._beat.state

    @property
    def silent_seconds(self) -> float:
        """For how long the engine has shown no sign of work, or the member none of life."""
        return max(self._beat.silent_seconds, self._silent)

    async def start(self) -> None:
        """Reach the member, and wait until its engine is ready; who is not there is tried again.

        Raises: ConfigError where the member is another version, has another key, or is no member.
        """
        self._refused = asyncio.get_running_loop().create_future()
        self._keeper = asyncio.create_task(self._keep(), name="cutaway-link")
        ready = asyncio.create_task(self._ready.wait())
        try:
            await asyncio.wait({ready, self._refused}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
        if not self._ready.is_set():
            raise self._refused.result()

    async def wait_until_gone(self) -> str:
        """Never returns: a member that is away may come back."""
        return await asyncio.get_running_loop().create_future()

    async def adapt(self, name: str, path: str | None) -> None:
        """Load an adapter from a folder of the member's host, or unload it. Raises: as there."""
        adapters = await self._calls.adapt(name, path)
        loaded = self._loaded
        assert loaded is not None, "whoever is alive has loaded"
        self._loaded = Loaded(replace(loaded.card, adapters=adapters), loaded.terms)

    async def drain(self, seconds: float) -> None:
        """Take nothing new in, and wait until what runs has ended, for so long at most."""
        self._is_closing = True
        if self._traffic is not None:
            await self._traffic.drain(seconds)

    async def close(self) -> None:
        """Leave the member, which goes on living; what still runs is told."""
        self._is_closing = True
        if self._keeper is not None:
            self._keeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeper
        link, self._link = self._link, None
        self._calls.fail_all("the engine was closed while this answer ran.")
        if link is not None:
            await link.close()

    @property
    def _reached(self) -> _LiveLink | None:
        return self._link

    def _alive(self) -> _LiveLink:
        if self._link is None or not self._link.has_loaded:
            raise EngineClosedError(f"{self.address} is not reached. Try again in a few seconds.")
        if self.silent_seconds >= self._config.silent_seconds:
            raise EngineClosedError(f"{self.address} shows no sign of work. Try again in a minute.")
        return self._link

    # The link and its end.

    async def _keep(self) -> None:
        """Have a link for ever: ask for one, hear what comes, ask again when it has ended."""
        pause = FIRST_PAUSE
        while True:
            why = f"the link to {self.address} is lost."
            try:
                sealed = await ask_for_link(self.address, self._key)
                try:
                    pause = FIRST_PAUSE
                    await self._hear_all(sealed)
                except LinkLostError as error:
                    why = f"the link to {self.address} is lost: {error}."
                finally:
                    sealed.cut()
            except (ConfigError, LinkLostError) as error:
                why = str(error)
                if isinstance(error, ConfigError) and self._refused is not None:
                    if not self._refused.done() and not self._num_starts:
                        self._refused.set_result(error)
                        return
            except TimeoutError:
                why = f"{self.address} cannot be reached: nobody answers in time."
            except OSError as error:
                code = error.errno or 0  # negative where a name is not known
                reason = os.strerror(code) if code > 0 else error.strerror
                why = f"{self.address} cannot be reached: {reason or error}."
            except Exception as fault:
                note(f"what {self.address} says cannot be read; the link is made again.", fault)
                why = f"what {self.address} says cannot be read"
            self._lose(why)
            await asyncio.sleep(pause)
            pause = min(self._config.restart_seconds, 2 * pause)

    async def _hear_all(self, sealed: SealedLink) -> None:
        """Introduce oneself, then pass on all that is said. Raises: LinkLostError, ConfigError."""
        sealed.send(encode(Introduce()))
        check_introduced(
            decode_answered(await sealed.receive()), role="member", where=str(self.address)
        )
        link = self._link = _LiveLink(sealed)
        self._beat, self._silent = Beat("starting", 0, 0.0), 0.0
        watching = asyncio.create_task(self._watch(link))
        try:
            while True:
                said = decode_answered(await sealed.receive())
                self._silent = 0.0
                self._hear(said, link)
        finally:
            watching.cancel()

    async def _watch(self, link: _LiveLink) -> None:
        """Cut a link over which nothing comes; in looks, for nobody is silent while this stops."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self._silent += LOOK_SECONDS
            if self._silent >= self._config.stall_seconds:
                self._tell(f"nothing was heard of {self.address} for {self._silent:g} seconds.")
                link.cut()
                return

    def _hear(self, said: Answered, link: _LiveLink) -> None:
        match said:
            case Loaded():
                if self._vocabulary not in ("", said.terms.vocabulary):
                    raise ConfigError(
                        f"{self.address} serves {said.card.name}, whose vocabulary is not that of "
                        "the model here. Serve the same model on all hosts of a fleet."
                    )
                self._loaded = said
                link.has_loaded = True
                self._num_starts += 1
                if self._traffic is None:
                    self._traffic = Traffic(
                        UNBOUNDED,  # who waits, waits at the fleet
                        max_sequences=said.terms.max_sequences,
                        cache_tokens=said.terms.cache_tokens,
                    )
                self._tell(f"{self.address} is linked.")
                self._told = ""
            case Beat():
                before, self._beat = self.state, said
                link.has_loaded &= said.state in ("ready", "draining")
                if self.state != before:
                    self._changed()
                if self.state == "ready":
                    self._ready.set()
            case Introduce():
                pass
            case _:
                self._calls.hear(said, link)

    def _lose(self, why: str) -> None:
        had, self._link = self._link, None
        self._silent = 0.0
        if had is not None:
            self._calls.fail_all("the engine was lost while this answer ran. Try again.")
            self._changed()
        if why != self._told:  # said once, however often it is tried
            self._told = why
            self._tell(f"{why} It is tried again until it is there.")


class _LiveLink:
    """One link while it lasts. has_loaded: whether the engine at its end can be asked."""

    def __init__(self, sealed: SealedLink) -> None:
        self._sealed = sealed
        self.has_loaded = False

    def say(self, command: Command) -> None:
        """Tell the member something; one that is gone does not hear."""
        assert not isinstance(command, Load | Ping), "the member loads and watches by itself"
        self._sealed.send(encode(command))

    def cut(self) -> None:
        self._sealed.cut()

    async def close(self) -> None:
        await self._sealed.close()
