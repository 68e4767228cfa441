"""`cutaway rank`: a part of a model that a leader on another host has divided."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cutaway.cli.serve import LinkKeyFile
from cutaway.cli.session.at_hand import note_left_out
from cutaway.cli.settings.options import Given, SettingsFile, integer, with_settings
from cutaway.cli.settings.setting_keys import FLEET, MODEL
from cutaway.cli.terminal.progress import download_bar
from cutaway.cli.terminal.terminal import note

if TYPE_CHECKING:
    from types import FrameType


@with_settings(MODEL, only=("model", "accept_license"))
def rank(
    *,
    name: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="as for --model", show_default=False)
    ] = None,
    given: Given,
    config: SettingsFile = None,
    join: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="the leader's --rank-listen, as tcp://HOST:PORT",
            rich_help_panel=FLEET,
        ),
    ],
    number: Annotated[
        int,
        typer.Option(
            "--rank",
            parser=integer,
            metavar="N",
            help="which of its ranks this is, from 1",
            rich_help_panel=FLEET,
        ),
    ],
    link_key_file: LinkKeyFile = None,
) -> None:
    """Compute a part of a model: `cutaway serve MODEL --tensor 2 --rank-listen ADDRESS` leads.

    All settings are the leader's; the same files have to be here. It joins again when its group
    has ended, until Ctrl-C.
    """
    import signal
    import threading

    from cutaway.cli.settings.settings import resolve
    from cutaway.core.errors import ConfigError
    from cutaway.engine.ranks.rank_host import keep_rank
    from cutaway.host.link_key import LinkAddress, read_link_key
    from cutaway.weights.find.find import find

    address = LinkAddress.parse(join)
    if number < 1:
        raise ConfigError(f"rank is {number}; it must be at least 1. Rank 0 leads.")
    read_link_key(link_key_file, where=f"to join {address}")  # before anything is fetched
    settings = resolve(dict(given) if name is None else {**given, "model": name}, config=config)
    with download_bar(settings.model) as progress:
        found = find(settings.model, progress=progress, accept_license=settings.accepts_license)
    note_left_out(found)
    ended = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        del number, frame
        ended.set()

    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, end)
    note(f"Rank {number} of {found.name} joins {address}; Ctrl-C ends it.")
    keep_rank(
        f"random:{found.path}" if found.kind == "random" else str(found.path),
        address,
        number,
        key_file="" if link_key_file is None else str(link_key_file),
        ended=ended,
        tell=lambda text: note(f"cutaway: {text}"),
    )
