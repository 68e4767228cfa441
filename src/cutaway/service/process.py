"""The engine in a process of its own, as a service: watched, and started again when it ends.

Free of torch. What the two processes say to each other is in service/engine_messages.py,
what the other one does in service/child.py.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import cast

from cutaway.core.errors import CutawayError, EngineClosedError, ModelFormatError
from cutaway.engine.config import EngineConfig
from cutaway.service.bounds import FleetShare, ProcessConfig, TrafficConfig
from cutaway.service.engine_messages import (
    Load,
    Loaded,
    News,
    Ping,
    Progress,
    Report,
    Unloadable,
)
from cutaway.service.message_service import MessageService
from cutaway.service.service import EngineStats, State
from cutaway.service.spawn import EngineProcess
from cutaway.service.traffic import Traffic

_HUNG = "the engine does not move. It is started again unless it does. Try again in a minute."


def _note(text: str) -> None:
    print(f"cutaway: {text}", file=sys.stderr, flush=True)


def _lies_in(file: str, folder: str) -> bool:
    return bool(folder) and Path(file).parent == Path(folder)


class ProcessService(MessageService):
    """A Service over an engine's process.

    tell: hears in the event loop what befalls the process; it must not wait for anybody.
    share: what it is of a fleet, where it is of one.
    changed: called in the event loop when the state has changed.
    settings: as for LLM.
    """

    def __init__(
        self,
        model: str,
        *,
        process: ProcessConfig | None = None,
        traffic: TrafficConfig | None = None,
        tell: Callable[[str], None] = _note,
        share: FleetShare | None = None,
        changed: Callable[[], None] = lambda: None,
        **settings: object,
    ) -> None:
        super().__init__(is_member=share is not None)
        self._tell = tell
        self._share = share or FleetShare()
        self._changed = changed
        self._load = Load(
            model,
            EngineConfig.of(settings).as_settings(),
            page_secret=self._share.page_secret,
            num_sharing=self._share.num_sharing,
            is_member=share is not None,
        )
        self._config = process or ProcessConfig()
        self._traffic_config = traffic or TrafficConfig()
        self._life: EngineProcess | None = None
        self._loading: asyncio.Future[Loaded] | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._restarts = 0
        self._has_answered = False
        self._num_fruitless = 0  # starts in a row without an answer
        self._gone: asyncio.Queue[str] = asyncio.Queue()
        self._silent = 0.0
        self._has_moved = False  # since the watchdog last looked
        self._progress = -1
        self._state: State = "starting"

    @property
    def num_starts(self) -> int:
        """Of the engine's process so far: what an earlier one kept is not there any more."""
        return self._restarts + (self._loaded is not None)

    @property
    def state(self) -> State:
        """draining outlasts the rest: nothing is taken in any more, whatever the engine does."""
        if self._state == "ready" and self._life is not None and self._life.ended.is_set():
            return "failed"  # who keeps it has not looked yet
        return self._state

    @property
    def silent_seconds(self) -> float:
        """For how long the engine has shown no sign of work, be it idle; 0 while it does."""
        return self._silent

    @property
    def pid(self) -> int | None:
        """The number of the engine's process, where there is one."""
        return None if self._life is None else self._life.pid

    async def start(self) -> None:
        """Start the process and load the model.

        Raises: what keeps the model from being loaded; EngineClosedError when the process ends.
        """
        self._life = await self._begin()
        self._become("ready")
        self._keeper = asyncio.create_task(self._keep(), name="cutaway-keeper")

    async def wait_until_gone(self) -> str:
        """Why the engine is given up; returns when it is, and else never."""
        return await self._gone.get()

    async def stats(self) -> EngineStats:
        """What the engine holds between two steps. Raises: EngineClosedError."""
        return replace(await super().stats(), restarts=self._restarts)

    async def adapt(self, name: str, path: str | None) -> None:
        """Load an adapter, or unload it where there is no path; a restart loads the same again.

        Raises: ConfigError, ModelFormatError, EngineClosedError.
        """
        adapters = await self._calls.adapt(name, path)
        assert self._loaded is not None, "whoever is alive has loaded"
        self._loaded.card = replace(self.model, adapters=adapters)
        lora = tuple(f"{each.name}={each.path}" for each in adapters)
        self._load.settings["lora"] = lora or ("off",)  # for the next start

    async def drain(self, seconds: float) -> None:
        """Take nothing new in, and wait until what runs has ended, for so long at most."""
        self._state = "draining"
        if self._traffic is not None:
            await self._traffic.drain(seconds)

    async def close(self) -> None:
        """End the process; what still runs is told."""
        self._state = "draining"
        if self._keeper is not None:
            self._keeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeper
        if self._life is not None:
            self._life.cut()
            self._calls.fail_all("the engine was closed while this answer ran.")
            await self._life.close()

    @property
    def _reached(self) -> EngineProcess | None:
        return self._life

    def _alive(self) -> EngineProcess:
        if self._life is None or self._life.ended.is_set():
            raise EngineClosedError("the engine is being started. Try again in a few seconds.")
        if self._silent >= self._config.silent_seconds:
            raise EngineClosedError(_HUNG)
        return self._life

    async def _begin(self) -> EngineProcess:
        """A process with a loaded model."""
        self._loading = asyncio.get_running_loop().create_future()
        life = await EngineProcess.start(self._hear, environment=self._share.environment)
        ending = asyncio.create_task(life.ended.wait())
        try:
            life.say(self._load)
            done, _ = await asyncio.wait(
                {self._loading, ending},
                return_when=asyncio.FIRST_COMPLETED,
                timeout=self._config.load_seconds,
            )
            if not done:
                await life.dump()
                raise EngineClosedError(
                    f"the model was not loaded in load_seconds, {self._config.load_seconds:g}. "
                    "Where its threads stood is on stderr. Allow more for a large model."
                )
            if not self._loading.done():
                raise EngineClosedError(
                    "the engine's process ended before its model was loaded. Its last words are "
                    "on stderr; memory that runs out leaves none."
                )
            loaded = self._loading.result()
        except BaseException:
            await life.close(at_once=True)
            raise
        finally:
            self._loading = None
            ending.cancel()
        self._loaded = loaded
        if self._traffic is None:
            self._traffic = Traffic(
                self._traffic_config,
                max_sequences=loaded.terms.max_sequences,
                cache_tokens=loaded.terms.cache_tokens,
            )
        return life

    async def _keep(self) -> None:
        """Watch the process; end it when it hangs, and start another whenever it has ended."""
        while True:
            life = self._life
            assert life is not None, "who is watched has started"
            why = await self._watch(life)
            life.cut()  # before they are told, so that nobody joins them afterwards
            self._calls.fail_all(why)
            self._become("failed")
            self._silent = 0.0
            await life.close(at_once=True)
            self._tell(f"{why} (exit code {life.exit_code})")
            begun = await self._begin_again()
            if begun is None:
                self._give_up()
                return
            self._life = begun
            self._restarts += 1
            self._become("ready")
            self._tell("the engine is back.")

    async def _watch(self, life: EngineProcess) -> str:
        """Wait until a process ends or hangs; returns what those who wait are told.

        Silence is counted in looks, not by a clock: while this process itself is stopped, nobody
        is silent. An engine that is idle is looked at like one that works.
        """
        self._has_answered, self._has_moved, self._progress = False, False, -1
        config = self._config
        pause = min(1.0, config.silent_seconds / 4)
        while self._silent < config.stall_seconds:
            life.say(Ping())
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await life.ended.wait()
                return "the engine ended while this answer ran. Try again in a few seconds."
            moved, self._has_moved = self._has_moved, False
            before, self._silent = self._silent, 0.0 if moved else self._silent + pause
            if before < config.silent_seconds <= self._silent:
                await self._tell_hung(life)
            elif moved and before >= config.silent_seconds:
                self._tell(f"the engine moves again, after {before:g} seconds.")
        await life.dump()
        return (
            f"the engine did not move in {config.stall_seconds:g} seconds, so it is started again. "
            "Try again in a few seconds."
        )

    async def _tell_hung(self, life: EngineProcess) -> None:
        """Say where its threads stand; who waits for a look is not kept waiting with it."""
        why = ": a signal or a debugger has stopped it" if life.is_stopped else ""
        self._tell(f"the engine has not moved for {self._silent:g} seconds{why}.")
        self._calls.fail_looks(_HUNG)
        await life.dump()

    async def _begin_again(self) -> EngineProcess | None:
        """Another process, as often as it takes and is allowed; None when it is given up."""
        pause, most = 0.0 if self._has_answered else 0.5, self._config.max_restarts
        while most is None or self._num_fruitless < most:
            self._num_fruitless += 1
            await asyncio.sleep(pause)
            self._become("starting")
            try:
                return await self._begin()
            except (CutawayError, OSError) as error:
                self._become("failed")
                self._tell(f"the engine could not be started again: {error}")
                self._leave_out_adapters(error)
            pause = min(self._config.restart_seconds, max(0.5, 2 * pause))
        return None

    def _leave_out_adapters(self, error: Exception) -> None:
        """Start without an adapter whose files are at fault: the model is worth more than it."""
        if not isinstance(error, ModelFormatError):
            return
        lora = cast("Sequence[str]", self._load.settings.get("lora") or ())
        kept = tuple(each for each in lora if not _lies_in(error.file, each.partition("=")[2]))
        if len(kept) < len(lora):
            self._load.settings["lora"] = kept or ("off",)
            names = ", ".join(each.partition("=")[0] for each in lora if each not in kept)
            self._tell(f"the next start leaves out the adapter {names}, whose files are at fault")

    def _give_up(self) -> None:
        tries = f"{self._num_fruitless} starts in a row came to nothing"
        told = f"the engine is given up: {tries if self._num_fruitless else 'it has ended'}, and "
        self._gone.put_nowait(f"{told}max_restarts is {self._config.max_restarts}.")

    def _become(self, state: State) -> None:
        if self._state != "draining":
            self._state = state
            self._changed()

    def _hear(self, said: Report) -> None:
        """Called in the event loop with each message of the process."""
        self._has_moved |= not isinstance(said, Progress) or said.count != self._progress
        match said:
            case News():
                self._has_answered = True
                self._num_fruitless = 0
                self._calls.hear(said, self._life)
            case Loaded():
                if self._loading is not None and not self._loading.done():
                    self._loading.set_result(said)
            case Unloadable(error):
                if self._loading is not None and not self._loading.done():
                    self._loading.set_exception(error)
            case Progress(count):
                self._progress = count
            case _:
                self._calls.hear(said, self._life)
