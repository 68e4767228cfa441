"""The engine's side of a process of its own: obeys a socket, steps, and tells the socket.

Started by engine/spawn.py. A thread reads, the main thread steps. When the other side is gone,
for whatever reason, this process ends.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING, NoReturn

from cutaway.core import garbage
from cutaway.core.errors import CutawayError
from cutaway.core.lines import MAX_LINES, Lines, LineStream
from cutaway.core.output import Delta
from cutaway.core.pulse import PULSE
from cutaway.engine.config import EngineConfig
from cutaway.engine.messages import (
    DUMP_SIGNAL,
    Abort,
    Add,
    Command,
    Count,
    Counted,
    Frames,
    Heard,
    Hold,
    Leave,
    Listen,
    Load,
    Loaded,
    More,
    News,
    Ping,
    Progress,
    Refused,
    Report,
    See,
    Seen,
    Survey,
    Try,
    Unheard,
    Unloadable,
    Unseen,
    command,
    written,
)
from cutaway.engine.outbox import Outbox
from cutaway.engine.service import Batch

if TYPE_CHECKING:
    from cutaway.engine.engine import Engine
    from cutaway.engine.feeds import Feeds
    from cutaway.engine.lane import Lane

_CHUNK = 1 << 18
_STDERR = 2
_LAST_SECONDS = 5.0  # for the last words to be read


class Child:
    """One engine and the socket that commands it."""

    def __init__(self, link: socket.socket, lines: Lines) -> None:
        self._link, self._lines = link, lines
        self._commands: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._loads: SimpleQueue[Load] = SimpleQueue()
        self._engine: Engine | None = None
        self._lane: Lane | None = None
        self._feeds: Feeds | None = None
        self._is_pinged = False  # whether a ping waits for the main thread
        self._outbox = Outbox(link)

    def run(self) -> None:
        """Load, then work until the other side is gone. Raises: what a step raises."""
        threading.Thread(target=self._read, name="cutaway-commands", daemon=True).start()
        try:
            engine = self._load(self._loads.get())
        except CutawayError as error:
            self._say(Unloadable(error))
            self._outbox.close(_LAST_SECONDS)
            return
        from cutaway.engine import loop

        assert self._lane and self._feeds, "they come with the engine"
        loop.run(engine, self._lane, self._feeds, self._commands, self._tell)

    def _load(self, wanted: Load) -> Engine:
        with garbage.held_off():
            from cutaway.engine.build import build_engine
            from cutaway.engine.card import cache_tokens_of, card_of
            from cutaway.engine.feeds import Feeds
            from cutaway.engine.lane import Lane

            engine = build_engine(wanted.model, EngineConfig.of(wanted.settings))
            self._engine, self._lane, self._feeds = engine, Lane(engine), Feeds(engine)
        self._say(Loaded(card_of(engine), engine.config.max_sequences, cache_tokens_of(engine)))
        return engine

    def _read(self) -> None:
        """Pass commands on. Ends the process with the link, even in the middle of a step."""
        frames = Frames()
        try:
            while data := self._link.recv(_CHUNK):
                for body in frames.feed(data):
                    self._pass_on(command(body))
        except OSError:
            pass  # as good as the end
        except BaseException:
            traceback.print_exc()
            _end(1, self._lines)
        _end(0, self._lines)

    def _pass_on(self, told: Command) -> None:
        if isinstance(told, Load):
            self._loads.put(told)
        elif isinstance(told, Ping):
            self._answer_ping()
        else:
            self._commands.put(lambda: self._obey(told))

    def _answer_ping(self) -> None:
        """Say how far work has come, and let the main thread beat when it next takes a command."""
        from cutaway.kernels.capture import num_operations

        self._say(Progress(PULSE.count + num_operations()))
        if not self._is_pinged:
            self._is_pinged = True
            self._commands.put(self._beat)

    def _beat(self) -> None:
        """With requests to answer, only a forward counts: a scheduler that stalls is a hang too."""
        self._is_pinged = False
        assert self._engine is not None, "who is pinged has loaded"
        if not self._engine.has_work:
            PULSE.beat()

    def _obey(self, told: Command) -> None:
        from cutaway.engine import loop
        from cutaway.engine.card import stats_of
        from cutaway.engine.snapshot import snapshot_of

        assert self._engine and self._lane and self._feeds, "commands come after the model"
        match told:
            case Add(request):
                error = loop.take_in(self._engine, request)
                if error is not None:
                    self._say(Refused(request.request_id, error))
            case Abort(request_id, choice):
                self._engine.abort(request_id, choice=choice)
            case Count(number):
                self._say(Counted(number, stats_of(self._engine)))
            case See(number, asked):
                self._lane.add(number, asked, lambda found: self._say(_seen(number, found)))
            case Survey(number, owner):
                self._say(Seen(number, snapshot_of(self._engine, owner)))
            case Listen(number, listened):
                self._feeds.open(number, listened, lambda heard: self._say(_heard(number, heard)))
            case Try(number, tried):
                self._lane.compare(number, tried, lambda told: self._say(_heard(number, told)))
            case Hold(request_id, is_held):
                self._engine.hold(request_id, is_held=is_held)
            case More(number):
                self._feeds.more(number)
            case Leave(number):
                self._feeds.leave(number)
                self._lane.leave(number)
            case Load() | Ping():
                pass  # passed on before

    def _tell(self, deltas: list[Delta]) -> None:
        if deltas:
            self._say(News(deltas))

    def _say(self, said: Report) -> None:
        data = written(said)
        self._outbox.put(data)


def _seen(number: int, found: bytes | CutawayError) -> Seen | Unseen:
    return Seen(number, found) if isinstance(found, bytes) else Unseen(number, found)


def _heard(number: int, heard: Batch | CutawayError) -> Heard | Unheard:
    return Heard(number, heard) if isinstance(heard, Batch) else Unheard(number, heard)


def main() -> None:
    """The process: the number of its socket is its only argument."""
    # Ctrl-C and a service manager's signal reach every process; when to end is the other's to say.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    faulthandler.enable()  # by the descriptor: no thread of ours is needed then
    faulthandler.register(DUMP_SIGNAL, all_threads=True)
    dropped = "{} lines dropped: stderr was read too slowly".format
    lines = Lines(_STDERR, dropped, most=MAX_LINES)
    sys.stderr = sys.stdout = LineStream(lines, _STDERR)
    try:
        Child(socket.socket(fileno=int(sys.argv[1])), lines).run()
    except BaseException:
        traceback.print_exc()
        _end(1, lines)
    _end(0, lines)


def _end(code: int, lines: Lines) -> NoReturn:
    """End visibly and without more: nothing here is worth saving, and others wait to be told."""
    lines.close()
    os._exit(code)


if __name__ == "__main__":
    main()
