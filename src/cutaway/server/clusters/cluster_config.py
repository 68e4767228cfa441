"""What `cutaway cluster` is told of a cluster: a TOML file, each field with its range.

Free of Ray.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import UnionType
from typing import Any, Final, get_args, get_type_hints

from cutaway.core.errors import ConfigError
from cutaway.core.limits import quote
from cutaway.host.ports import MAX_PORT, check_port

Setting = str | int | float | bool | list[str]
_ADDRESS: Final = re.compile(r"local|[\w.:\[\]-]+:(?P<port>[0-9]{1,19})")


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """A model served by engines that Ray places.

    address:  of Ray's head, as HOST:PORT; local starts one here.
    engines:  each a process with the whole model; cpus, gpus and memory (bytes) are what Ray keeps
        for each. memory None takes what the model is estimated to need.
    fronts:   processes that answer people, at most one a host, all on the same port.
    link_key_file, api_key_file: on every host; the first is made for a cluster here.
    place_seconds: that Ray may take to find room.
    settings: of the engines, as in a file of settings.
    Raises: ConfigError naming the field, its value and what is allowed.
    """

    model: str
    address: str = "local"
    engines: int = 2
    fronts: int = 1
    cpus: float = 1.0
    gpus: float = 0.0
    memory: int | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    link_key_file: str = ""
    api_key_file: str = ""
    drain_seconds: float = 30.0
    stall_seconds: float = 60.0
    place_seconds: float = 120.0
    settings: Mapping[str, Setting] = field(default_factory=dict[str, Setting])

    def __post_init__(self) -> None:
        for name, least, most in (
            *(("engines", 1, 10_000), ("fronts", 1, 1000), ("port", 1, MAX_PORT)),
            *(("cpus", 0, 10_000), ("gpus", 0, 1000), ("drain_seconds", 0, 86_400)),
            *(("stall_seconds", 1, 86_400), ("place_seconds", 1, 86_400)),
        ):
            if not least <= getattr(self, name) <= most:
                raise ConfigError(
                    f"{name} is {getattr(self, name)}; it must be from {least} to {most}."
                )
        if self.memory is not None and self.memory < 1:
            raise ConfigError(f"memory is {self.memory}; it must be a number of bytes above 0.")
        found = _ADDRESS.fullmatch(self.address)
        if found is None:
            raise ConfigError(
                f"address is {quote(self.address)}; it must be local, or HOST:PORT of Ray's head."
            )
        if found["port"] is not None:
            check_port(int(found["port"]), f"the port of address {quote(self.address)}")
        if not self.model:
            raise ConfigError("model is empty; it must be what --model takes.")
        if not self.is_local and not self.link_key_file:
            raise ConfigError(
                "link_key_file is missing; hosts of a fleet share a key. Make one with "
                "`openssl rand -hex 32 > link.key`, copy it to the same path of every host, and "
                "name that path."
            )

    @property
    def is_local(self) -> bool:
        """Whether Ray's head is started here."""
        return self.address == "local"

    @property
    def flags(self) -> list[str]:
        """The engines' settings as the command line has them."""
        found: list[str] = []
        for name, value in self.settings.items():
            dashed = name.replace("_", "-")
            if isinstance(value, bool):
                found.append(f"--{'' if value else 'no-'}{dashed}")
            else:
                for each in value if isinstance(value, list) else [value]:
                    found += [f"--{dashed}", str(each)]
        return found

    def as_table(self) -> dict[str, Any]:
        """All fields as plain data, from which parse makes the same again."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def parse(cls, table: Mapping[str, object], *, where: str) -> ClusterConfig:
        """A table of TOML, or what as_table gave. Raises: ConfigError naming the key."""
        hints = get_type_hints(cls)
        known = {each.name for each in fields(cls)}
        for name, value in table.items():
            if name not in known:
                raise ConfigError(
                    f"{where} has the key {quote(name)}; allowed are {', '.join(sorted(known))}."
                )
            if name == "settings":
                if not isinstance(value, dict):
                    raise ConfigError(f"{where}: settings must be a table, [settings].")
                continue
            allowed = _kinds(hints[name])
            if isinstance(value, bool) or not isinstance(value, allowed):
                words = " or ".join(kind.__name__ for kind in allowed)
                raise ConfigError(f"{where}: {name} is {quote(value)}; it must be {words}.")
        if "model" not in table:
            raise ConfigError(f'{where} has no model; write model = "smollm2", for instance.')
        return cls(**table)  # type: ignore[arg-type]


def read_cluster(file: Path) -> ClusterConfig:
    """What a file says of a cluster; paths in it count from its folder. Raises: ConfigError."""
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is no TOML file: {error}.") from None
    for name in ("link_key_file", "api_key_file"):
        if isinstance(path := table.get(name), str) and path:
            table[name] = str((file.parent / path).resolve())
    return ClusterConfig.parse(table, where=str(file))


def _kinds(hint: object) -> tuple[type, ...]:
    kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    found = [kind for kind in kinds if isinstance(kind, type) and kind is not type(None)]
    return (int, float) if found == [float] else tuple(found)
