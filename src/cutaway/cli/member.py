"""`cutaway member`: an engine that fronts on other hosts ask over a link."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from cutaway.cli.serve import LinkKeyFile
from cutaway.cli.session.at_hand import note_left_out
from cutaway.cli.settings.options import Given, SettingsFile, with_settings
from cutaway.cli.settings.setting_keys import ENGINE, FLEET, KEYS, MODEL, PROCESS_NAMES, TRAFFIC
from cutaway.cli.terminal.progress import download_bar
from cutaway.cli.terminal.terminal import note

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from cutaway.cli.settings.settings import Resolved
    from cutaway.host.link_key import LinkKey

_NAMES = tuple(key.name for key in KEYS if key.panel in (MODEL, ENGINE)) + PROCESS_NAMES


@with_settings(MODEL, ENGINE, TRAFFIC, only=_NAMES)
def member(
    *,
    name: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="as for --model", show_default=False)
    ] = None,
    given: Given,
    config: SettingsFile = None,
    listen: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="tcp://HOST:PORT at which fronts find it; port 0 takes any",
            rich_help_panel=FLEET,
        ),
    ] = "tcp://127.0.0.1:7070",
    link_key_file: LinkKeyFile = None,
    drain_seconds: Annotated[
        float,
        typer.Option(
            metavar="X", help="time for answers to finish after SIGTERM", rich_help_panel=FLEET
        ),
    ] = 30,
    end_with_stdin: Annotated[
        bool,
        typer.Option(
            "--end-with-stdin",
            help="end when nobody holds the other end of stdin any more",
            rich_help_panel=FLEET,
        ),
    ] = False,
    lease_seconds: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="end when no front was linked for so long; default: wait for ever",
            rich_help_panel=FLEET,
        ),
    ] = None,
) -> None:
    """Load a model and answer fronts: `cutaway serve MODEL --member ADDRESS` on another host.

    Both prove by a key that they belong together. Prints the address once it listens.
    """
    import asyncio

    from cutaway.cli.settings.settings import resolve
    from cutaway.host.link_key import LinkAddress, read_link_key
    from cutaway.host.sealed_link import listen_for_links
    from cutaway.weights.find.find import find

    address = LinkAddress.parse(listen, takes_any=True)
    key = read_link_key(link_key_file, where=f"to listen on {address}")
    settings = resolve(dict(given) if name is None else {**given, "model": name}, config=config)
    with listen_for_links(address) as listener:
        with download_bar(settings.model) as progress:
            found = find(settings.model, progress=progress, accept_license=settings.accepts_license)
        note_left_out(found)
        bound = LinkAddress(address.host, listener.getsockname()[1])
        note(f"Loading {found.name}; fronts find it at {bound}.")
        typer.echo(str(bound))
        asyncio.run(
            _answer(
                settings,
                key,
                listener,
                drain_seconds=drain_seconds,
                with_stdin=end_with_stdin,
                lease_seconds=lease_seconds,
            )
        )


async def _answer(settings: Resolved, key: LinkKey, listener: socket.socket, **ends: Any) -> None:
    """Load, and answer until a signal says otherwise. Raises: what keeps the model from loading."""
    from cutaway.service.bounds import UNBOUNDED, FleetShare
    from cutaway.service.links.link_server import run_member
    from cutaway.service.process import ProcessService

    def make(changed: Callable[[], None]) -> ProcessService:
        return ProcessService(
            settings.model,
            process=settings.process,
            traffic=UNBOUNDED,  # who waits, waits at the front
            tell=tell,
            share=FleetShare(page_secret=key.page_secret),
            changed=changed,
            **settings.engine,
        )

    def tell(text: str) -> None:
        note(f"cutaway: {text}")

    await run_member(make, key, listener, tell=tell, **ends)
