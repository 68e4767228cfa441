"""What a server asks: one engine, or a fleet of them here and elsewhere, as settings have it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cutaway.cli.settings.settings import Resolved
    from cutaway.fleet.fleet_config import FleetConfig
    from cutaway.fleet.members import MemberService
    from cutaway.fleet.members_file import MembersFile
    from cutaway.host.link_key import LinkKey
    from cutaway.server.run import Signalled
    from cutaway.server.server_config import ServerConfig
    from cutaway.service.links.link_service import LinkService
    from cutaway.service.service import Service
    from cutaway.weights.find.find import Found


@dataclass(frozen=True)
class Linker:
    """What links engines elsewhere.

    secret: of keys of pages, which all of them have.
    listed: the file that names them, if one does.
    """

    secret: bytes
    link: Callable[..., LinkService]
    listed: MembersFile | None = None


def linker_of(
    settings: Resolved, key: LinkKey, found: Found, listed: MembersFile | None = None
) -> Linker:
    """What links engines that share a key and serve a model."""
    from cutaway.engine.loading.tokenizer_of import tokenizer_of
    from cutaway.host.link_key import LinkAddress
    from cutaway.service.links.link_service import LinkService

    vocabulary = tokenizer_of(found).fingerprint

    def link(address: str, **hearers: Any) -> LinkService:
        return LinkService(
            LinkAddress.parse(address),
            key,
            vocabulary=vocabulary,
            config=settings.process,
            **hearers,
        )

    return Linker(key.page_secret, link, listed)


def service_of(
    settings: Resolved,
    server: ServerConfig,
    *,
    tell: Callable[[str], None],
    fleet: FleetConfig | None = None,
    linker: Linker | None = None,
) -> Service:
    """One engine in a process of its own, or a fleet of them, here and elsewhere."""
    from cutaway.fleet.engine_places import share_of
    from cutaway.fleet.fleet import Fleet
    from cutaway.service.bounds import UNBOUNDED
    from cutaway.service.process import ProcessService

    engine: dict[str, Any] = settings.engine
    fleet, process = fleet or settings.fleet, settings.process
    if (fleet.most_replicas or fleet.replicas) == 1 and linker is None:
        return ProcessService(
            settings.model, process=process, traffic=settings.traffic, tell=tell, **engine
        )

    def make(name: str, changed: Callable[[], None], secret: bytes, replicas: int) -> MemberService:
        def hear(text: str) -> None:
            tell(f"replica {name}: {text}")

        if linker is not None and not name.isdecimal():
            return linker.link(name, tell=hear, changed=changed)
        share = share_of(int(name), replicas, secret=secret, device=engine["device"])
        return ProcessService(
            settings.model,
            process=process,
            traffic=UNBOUNDED,  # who waits, waits at the fleet
            tell=hear,
            share=share,
            changed=changed,
            **engine,
        )

    return Fleet(
        make,
        fleet,
        traffic=settings.traffic,
        hang_seconds=process.silent_seconds,
        drain_seconds=server.drain_seconds,
        tell=tell,
        secret=_secret_of(engine) if linker is None else linker.secret,
        addresses=linker.listed.read if linker is not None and linker.listed else None,
    )


def _secret_of(engine: dict[str, Any]) -> bytes | None:
    """Of keys of pages, where engines keep pages in a folder: they are found after a restart."""
    from cutaway.cache.disk import open_folder, page_secret_of

    folder = engine.get("disk_cache")
    return None if folder is None else page_secret_of(open_folder(Path(folder)))


def signals_of(service: Service, tell: Callable[[str], None]) -> Mapping[int, Signalled]:
    """What signals ask of a fleet: one engine more or less, and all of them anew."""
    import signal

    from cutaway.core.errors import CutawayError
    from cutaway.fleet.fleet import Fleet

    if not isinstance(service, Fleet):
        return {}

    async def scale(by: int) -> None:
        try:
            await service.scale(service.wanted_replicas + by)
        except CutawayError as error:
            tell(str(error))

    return {
        signal.SIGTTIN: lambda: scale(1),
        signal.SIGTTOU: lambda: scale(-1),
        signal.SIGHUP: service.roll,
    }
