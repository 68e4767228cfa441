"""The engine's side of a process of its own: obeys a socket, steps, and tells the socket.

Started by service/spawn.py. A thread reads, the main thread steps. When the other side is gone,
for whatever reason, this process ends.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, NoReturn

from cutaway.core.errors import CutawayError
from cutaway.core.looks import EventBatch
from cutaway.core.output import Delta, ToldChoice
from cutaway.core.request import Request
from cutaway.engine.config import EngineConfig
from cutaway.host import garbage
from cutaway.host.faults import again, error_of, note, refuse
from cutaway.host.line_writer import MAX_LINES, Lines, LineStream
from cutaway.host.pulse import PULSE
from cutaway.host.read_sizes import READ_BYTES
from cutaway.service.engine_messages import (
    DUMP_SIGNAL,
    Abort,
    Adapt,
    Add,
    Command,
    Continue,
    Count,
    EngineCounts,
    Failed,
    Frames,
    Heard,
    Hold,
    Leave,
    Listen,
    Load,
    Loaded,
    LoadedAdapters,
    More,
    News,
    Ping,
    Progress,
    Report,
    See,
    Seen,
    Survey,
    Try,
    Unloadable,
    asker_of,
    decode_command,
    encode_frame,
)
from cutaway.service.outbox import Outbox

if TYPE_CHECKING:
    from cutaway.engine.engine import Engine
    from cutaway.service.feeds import Feeds
    from cutaway.service.view_queue import ViewQueue

_STDERR = 2
_LAST_SECONDS = 5.0  # for the last words to be read


class Child:
    """One engine and the socket that commands it."""

    def __init__(self, link: socket.socket, lines: Lines) -> None:
        self._link, self._lines = link, lines
        self._commands: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._loads: SimpleQueue[Load] = SimpleQueue()
        self._engine: Engine | None = None
        self._view_queue: ViewQueue | None = None
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
        from cutaway.service import engine_loop

        assert self._view_queue and self._feeds, "they come with the engine"
        engine_loop.run(engine, self._view_queue, self._feeds, self._commands, self._tell)

    def _load(self, wanted: Load) -> Engine:
        with garbage.hold_off():
            from cutaway.engine.build import build_engine
            from cutaway.service.card import card_of, terms_of
            from cutaway.service.feeds import Feeds
            from cutaway.service.view_queue import ViewQueue

            engine = build_engine(
                wanted.model,
                EngineConfig.of(wanted.settings),
                page_secret=wanted.page_secret,
                num_sharing=wanted.num_sharing,
            )
            engine.tells_draws = wanted.is_member
            if engine.model.ranks is not None:  # a model of which a part is gone computes nothing
                engine.model.ranks.on_loss = lambda why: _end(1, self._lines)
            self._engine, self._view_queue, self._feeds = engine, ViewQueue(engine), Feeds(engine)
        self._say(Loaded(card_of(engine), terms_of(engine)))
        return engine

    def _read(self) -> None:
        """Pass commands on. Ends the process with the link, even in the middle of a step."""
        frames = Frames()
        try:
            while data := self._link.recv(READ_BYTES):
                for body in frames.feed(data):
                    self._take_in(body)
        except OSError:
            pass  # as good as the end
        except BaseException as fault:
            note("the link raised; the engine ends.", fault)
            _end(1, self._lines)
        _end(0, self._lines)

    def _take_in(self, body: bytes) -> None:
        """A command that cannot be read ends alone: who asked is told."""
        try:
            again(partial(self._pass_on, body))
        except Exception as fault:
            error = error_of(fault, "this cannot be read")
            note("a command could not be read; it ends alone.", fault)
            asker = asker_of(body)
            if asker is not None:
                self._commands.put(lambda: self._say(Failed(asker, error)))

    def _pass_on(self, body: bytes) -> None:
        told = decode_command(body)
        if isinstance(told, Load):
            self._loads.put(told)
        elif isinstance(told, Ping):
            try:
                self._answer_ping()
            except Exception as fault:
                note("a ping was not answered; another comes.", fault)
        else:
            self._commands.put(self._foretold(told))

    def _foretold(self, told: Command) -> Callable[[], None]:
        """What obeys a command; the step that runs may be broken off for a request."""
        if not isinstance(told, Add) or self._engine is None:
            return lambda: self._obey(told)
        breaks = self._engine.breaks
        breaks.come(told.request.sharer)

        def arrive() -> None:
            breaks.arrive()
            self._obey(told)

        return arrive

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
        """What raises here ends what was asked, and nothing else."""
        try:
            self._do(told)
        except Exception as fault:
            refuse(partial(self._refuse, told), fault, "this cannot be done")

    def _refuse(self, told: Command, error: CutawayError) -> None:
        """Tell whoever waits for a command, if anybody does, why nothing comes of it."""
        match told:
            case Add(request) | Continue(request):
                self._say(Failed(request.request_id, error))
            case Hold(request_id):
                self._say(Failed(request_id, error))
            case Count(number) | See(number) | Survey(number) | Listen(number) | Try(number):
                self._say(Failed(number, error))
            case Adapt(number):
                self._say(Failed(number, error))
            case More(number):
                self._say(Failed(number, error))
            case Load() | Abort() | Leave() | Ping():
                pass

    def _do(self, told: Command) -> None:
        from cutaway.service.card import adapt, stats_of
        from cutaway.service.snapshot import snapshot_of

        assert self._engine and self._view_queue and self._feeds, "commands come after the model"
        engine = self._engine
        match told:
            case Add(request):
                self._take_up(engine, request, ())
            case Continue(request, before):
                self._take_up(engine, request, before)
            case Abort(request_id, choice):
                again(lambda: engine.abort(request_id, choice=choice))
            case Count(number):
                self._say(EngineCounts(number, stats_of(engine)))
            case Adapt(number, name, path):
                self._say(LoadedAdapters(number, adapt(engine, name, path)))
            case See(number, asked):
                self._view_queue.add(number, asked, lambda found: self._say(_seen(number, found)))
            case Survey(number, owner):
                self._say(Seen(number, snapshot_of(engine, owner)))
            case Listen(number, listened):
                self._feeds.open(number, listened, lambda heard: self._say(_heard(number, heard)))
            case Try(number, tried):
                self._view_queue.compare(
                    number, tried, lambda told: self._say(_heard(number, told))
                )
            case Hold(request_id, is_held):
                again(lambda: engine.hold(request_id, is_held=is_held))
            case More(number):
                self._feeds.more(number)
            case Leave(number):
                again(partial(self._feeds.leave, number))
                again(partial(self._view_queue.leave, number))
            case Load() | Ping():
                pass  # passed on before

    def _take_up(self, engine: Engine, request: Request, told: tuple[ToldChoice, ...]) -> None:
        from cutaway.service import engine_loop

        error = engine_loop.take_in(engine, request, told)
        if error is not None:
            self._say(Failed(request.request_id, error))

    def _tell(self, deltas: list[Delta]) -> None:
        if not deltas:
            return
        try:
            self._say(News(deltas))
        except Exception as fault:
            note("news of a step could not be told at once; they are told one by one.", fault)
            for delta in deltas:
                self._tell_alone(delta)

    def _tell_alone(self, delta: Delta) -> None:
        """News that cannot be told end the answer, since its words would be missing."""
        try:
            self._say(News([delta]))
        except Exception as fault:
            note("news of an answer could not be told; it ends alone.", fault)
            error = error_of(fault, "this answer ends here")
            if delta.finish_reason is None and self._engine is not None:
                self._engine.abort(delta.request_id, choice=delta.choice, error=error)
            else:
                last = Delta(delta.request_id, delta.choice, finish_reason="error", error=error)
                self._say(News([last]))

    def _say(self, said: Report) -> None:
        data = encode_frame(said)
        self._outbox.put(data)


def _seen(number: int, found: bytes | CutawayError) -> Seen | Failed:
    return Seen(number, found) if isinstance(found, bytes) else Failed(number, found)


def _heard(number: int, heard: EventBatch | CutawayError) -> Heard | Failed:
    return Heard(number, heard) if isinstance(heard, EventBatch) else Failed(number, heard)


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
    except BaseException as fault:
        note("the engine ends, for this raised.", fault)
        _end(1, lines)
    _end(0, lines)


def _end(code: int, lines: Lines) -> NoReturn:
    """End visibly and without more: nothing here is worth saving, and others wait to be told."""
    lines.close()
    os._exit(code)


if __name__ == "__main__":
    main()
