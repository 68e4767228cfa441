"""`cutaway run`: serve a model on a free port of this machine and open its page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cutaway.cli.serve import RUNS, keys_of, serve_model
from cutaway.cli.settings.options import Given, SettingsFile, integer, with_settings
from cutaway.cli.settings.setting_keys import ENGINE, FLEET, MODEL, TRAFFIC
from cutaway.cli.terminal.terminal import note

if TYPE_CHECKING:
    from cutaway.server.entry.auth import Keys


@with_settings(MODEL, ENGINE, TRAFFIC, FLEET)
def run(
    *,
    name: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="as for --model", show_default=False)
    ] = None,
    given: Given,
    config: SettingsFile = None,
    port: Annotated[
        int, typer.Option(parser=integer, metavar="N", help="0 takes any that is free")
    ] = 0,
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            envvar="CUTAWAY_API_KEY_FILE",
            show_envvar=False,
            help="API keys of other clients; the page is let in by a link that works once",
        ),
    ] = None,
    runs: Annotated[Path, RUNS] = Path("runs"),
    no_open: Annotated[
        bool, typer.Option("--no-open", help="print the page's address and open no browser")
    ] = False,
) -> None:
    """Serve a model on this machine and open a page to talk to it.

    Other clients find the same API there as with cutaway serve.
    """
    from cutaway.server.server_config import ServerConfig

    server = ServerConfig(port=port)
    keys = keys_of(server, api_key_file, allow_unauthenticated=False)
    settings = dict(given) if name is None else {**given, "model": name}

    def greet(url: str, model: str) -> None:
        link = _link(url, keys)
        note(f"Cutaway runs {model} until Ctrl-C. Its page: {link}")
        if not no_open:
            _open(link)

    serve_model(settings, config, server, keys, served_name="", form="text", runs=runs, greet=greet)


def _link(url: str, keys: Keys) -> str:
    """The page's address; where keys are asked for it lets in the first browser that opens it."""
    return f"{url}/{keys.browsers.new_link() if keys else ''}"


def _open(link: str) -> None:
    """Open a browser, if there is one, without waiting for it: the server answers meanwhile."""
    import threading
    import webbrowser

    threading.Thread(target=webbrowser.open, args=(link,), daemon=True).start()
