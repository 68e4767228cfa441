"""`cutaway serve`: a model behind HTTP, for the clients that people already use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from cutaway.cli.session.at_hand import note_left_out
from cutaway.cli.settings.options import Given, SettingsFile, integer, with_settings
from cutaway.cli.settings.setting_keys import ENGINE, FLEET, MODEL, TRAFFIC
from cutaway.cli.terminal.progress import download_bar
from cutaway.cli.terminal.terminal import note
from cutaway.core.errors import ConfigError
from cutaway.core.limits import quote

if TYPE_CHECKING:
    from cutaway.server.entry.auth import Keys
    from cutaway.server.server_config import ServerConfig
    from cutaway.server.watching.spans import Spans

_ADDRESS, _SAFETY, _TIME = "Address", "Safety", "Time"

RUNS = typer.Option(
    metavar="FOLDER",
    envvar="CUTAWAY_RUNS",
    show_envvar=False,
    help="the page's room Training shows the runs of cutaway train that lie in it, as they go",
)


LinkKeyFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        envvar="CUTAWAY_LINK_KEY_FILE",
        show_envvar=False,
        help="the key that hosts of a fleet share; else CUTAWAY_LINK_KEY holds it",
        rich_help_panel=FLEET,
    ),
]


@with_settings(MODEL, ENGINE, TRAFFIC, FLEET)
def serve(
    *,
    name: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="as for --model", show_default=False)
    ] = None,
    given: Given,
    config: SettingsFile = None,
    host: Annotated[
        str, typer.Option(help="address to listen on", rich_help_panel=_ADDRESS)
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(parser=integer, metavar="N", help="0 takes any", rich_help_panel=_ADDRESS),
    ] = 8000,
    served_name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="what requests call the model; default: its own name",
            rich_help_panel=_ADDRESS,
        ),
    ] = None,
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            envvar="CUTAWAY_API_KEY_FILE",
            show_envvar=False,
            help="API keys, one per line, each with a name before it or not",
            rich_help_panel=_SAFETY,
        ),
    ] = None,
    allow_unauthenticated: Annotated[
        bool,
        typer.Option(
            "--allow-unauthenticated",
            help="listen on a public address without API keys",
            rich_help_panel=_SAFETY,
        ),
    ] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="a further name of this server in Host; may be repeated",
            rich_help_panel=_SAFETY,
        ),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN",
            help="a web page that may ask, as in https://chat.example.org; may be repeated",
            rich_help_panel=_SAFETY,
        ),
    ] = None,
    max_body_bytes: Annotated[
        int,
        typer.Option(
            parser=integer, metavar="N", help="most bytes of a request", rich_help_panel=_SAFETY
        ),
    ] = 2 * 1024 * 1024,
    request_seconds: Annotated[
        float,
        typer.Option(
            metavar="X",
            help="longest time of one answer; a request may ask for less by timeout",
            rich_help_panel=_TIME,
        ),
    ] = 600,
    drain_seconds: Annotated[
        float,
        typer.Option(
            metavar="X", help="time for answers to finish after SIGTERM", rich_help_panel=_TIME
        ),
    ] = 30,
    views: Annotated[
        Literal["off", "local", "full"],
        typer.Option(
            help="whether answers can be looked into: never, where this machine alone reaches the "
            "server, or always; each key sees its own alone",
            rich_help_panel=_SAFETY,
        ),
    ] = "local",
    member: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ADDRESS",
            help="an engine elsewhere, as tcp://HOST:PORT where `cutaway member` listens; may be "
            "repeated. Engines here only where --replicas is given too",
            rich_help_panel=FLEET,
        ),
    ] = None,
    members_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="such addresses, one per line; read again whenever it changes",
            rich_help_panel=FLEET,
        ),
    ] = None,
    link_key_file: LinkKeyFile = None,
    end_with_stdin: Annotated[
        bool,
        typer.Option(
            "--end-with-stdin",
            help="end when nobody holds the other end of stdin any more",
            rich_help_panel=_TIME,
        ),
    ] = False,
    store: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            envvar="CUTAWAY_STORE",
            show_envvar=False,
            help="keep answers of the Responses API there for 30 days, so that clients can go on "
            "from them: previous_response_id, conversation; each key sees its own alone",
            rich_help_panel=_SAFETY,
        ),
    ] = None,
    runs: Annotated[Path, RUNS] = Path("runs"),
    otlp_endpoint: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar="CUTAWAY_OTLP_ENDPOINT",
            show_envvar=False,
            help="send a span of each request there, as to http://127.0.0.1:4318; needs "
            "cutaway[otel]",
        ),
    ] = None,
    log: Annotated[
        Literal["text", "json"], typer.Option(help="form of log lines on stderr")
    ] = "text",
) -> None:
    """Answer requests by HTTP, in the forms of OpenAI's and Anthropic's APIs.

    Listens on this machine alone unless told otherwise, and then asks for API keys.
    """
    from cutaway.server.server_config import ServerConfig

    server = ServerConfig(
        host=host,
        port=port,
        allowed_hosts=tuple(allow_host or ()),
        allowed_origins=tuple(allow_origin or ()),
        max_body_bytes=max_body_bytes,
        request_seconds=request_seconds,
        drain_seconds=drain_seconds,
        views=views,
    )
    keys = keys_of(server, api_key_file, allow_unauthenticated=allow_unauthenticated)
    settings = dict(given) if name is None else {**given, "model": name}
    serve_model(
        settings,
        config,
        server,
        keys,
        served_name=served_name or "",
        form=log,
        members=tuple(member or ()),
        members_file=members_file,
        with_stdin=end_with_stdin,
        link_key_file=link_key_file,
        store=store,
        runs=runs,
        otlp_endpoint=otlp_endpoint,
    )


def keys_of(server: ServerConfig, file: Path | None, *, allow_unauthenticated: bool) -> Keys:
    """The keys of a file, or none where none is needed. Raises: ConfigError."""
    from cutaway.server.entry.auth import Keys, read_keys

    if file is not None:
        return read_keys(file)
    if server.is_public and not allow_unauthenticated:
        raise ConfigError(
            f"host is {server.host}, which others can reach, and there is no API key. Give "
            "--api-key-file, or --allow-unauthenticated where something else guards the server."
        )
    return Keys()


def _check_adapter_names(model: str, lora: Sequence[str]) -> None:
    """Raise ConfigError for an adapter that would have the name of the model itself."""
    if model in (each.partition("=")[0] for each in lora):
        raise ConfigError(
            f"lora names an adapter {quote(model)}, which is the model itself; take another name."
        )


def serve_model(
    given: dict[str, object],
    file: Path | None,
    server: ServerConfig,
    keys: Keys,
    *,
    served_name: str,
    form: Literal["text", "json"],
    members: tuple[str, ...] = (),
    members_file: Path | None = None,
    link_key_file: Path | None = None,
    with_stdin: bool = False,
    store: Path | None = None,
    runs: Path = Path("runs"),
    otlp_endpoint: str | None = None,
    greet: Callable[[str, str], None] | None = None,
) -> None:
    """Serve until a signal says otherwise. greet: told address and name once it is ready."""
    import asyncio

    from cutaway.cache.disk import open_folder, salt_secret_of
    from cutaway.cli.session.served_fleet import linker_of, service_of, signals_of
    from cutaway.cli.settings.settings import resolve
    from cutaway.fleet.engine_places import check_memory, has_gpus
    from cutaway.fleet.members_file import MembersFile
    from cutaway.host.free_memory import free_memory
    from cutaway.host.link_key import read_link_key
    from cutaway.server.entry.descriptors import fit_to_descriptors, raise_limit
    from cutaway.server.openai.kept import Kept
    from cutaway.server.route_context import Context
    from cutaway.server.run import listening, serve, url_of
    from cutaway.server.watching import log
    from cutaway.weights.find.find import find

    settings = resolve(given, config=file)
    listed = None if members_file is None else MembersFile(members_file, members)
    members = members if listed is None else listed.read()
    fleet = settings.fleet_with(members)
    key = read_link_key(link_key_file, where="a link to a member") if members else None
    server = fit_to_descriptors(server, raise_limit())
    kept = None if store is None else Kept(store)
    listener = listening(server)
    with listener, closing(kept) if kept else nullcontext():
        with download_bar(settings.model) as progress:
            found = find(settings.model, progress=progress, accept_license=settings.accepts_license)
        if not has_gpus(str(settings.engine["device"])):
            most = fleet.most_replicas or fleet.replicas
            check_memory(most, found.path, free=free_memory())
        linker = None if key is None else linker_of(settings, key, found, listed)
        if settings.engine["disk_cache"] is not None:
            keys.salt(salt_secret_of(open_folder(Path(str(settings.engine["disk_cache"])))))
        service = service_of(settings, server, tell=log.of_engine, fleet=fleet, linker=linker)
        context = Context.of(found, service, server, name=served_name)
        _check_adapter_names(context.name, cast("Sequence[str]", settings.engine["lora"]))
        context.store, context.runs = kept, runs
        context.max_silent_seconds = settings.process.silent_seconds
        context.spans = None if otlp_endpoint is None else spans_to(otlp_endpoint, context.name)
        url = url_of(listener)
        note(f"Loading {context.name}; {url} answers /health meanwhile.")
        note_left_out(found)
        say = greet or _greet
        with log.writing(form):
            try:
                running = serve(
                    context,
                    listener,
                    keys=keys,
                    ready=lambda: say(url, context.name),
                    signals=signals_of(service, log.of_engine),
                    with_stdin=with_stdin,
                )
                asyncio.run(running)
            finally:
                if context.spans is not None:
                    context.spans.close()  # a receiver that does not answer is told of in a line


def spans_to(endpoint: str, model: str) -> Spans:
    """Where spans are made. Raises: ConfigError for what is no URL; where the extra is missing."""
    try:
        from cutaway.server.watching.spans import Spans
    except ImportError:
        raise ConfigError(
            "otlp_endpoint is given and OpenTelemetry is not installed. Install it: pip install "
            "'cutaway[otel]'."
        ) from None
    return Spans(endpoint, model=model)


def _greet(url: str, name: str) -> None:
    note(f"Cutaway serves {name} at {url}/v1 until Ctrl-C. To try it:")
    note(
        f"curl {url}/v1/chat/completions -H 'Content-Type: application/json' "
        f'-d \'{{"model": "{name}", "messages": [{{"role": "user", "content": "Hello"}}]}}\''
    )
