"""Settings from flags, environment, files and the model, in that order, each with its origin.

pydantic-settings reads and orders the sources; core/limits.py and the engine's configurations judge
the values.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import BeforeValidator, ValidationError, create_model
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from cutaway.cache.paged import check_page_size
from cutaway.cli.settings.integer_text import parse_integer
from cutaway.cli.settings.setting_keys import (
    BY_NAME,
    ENGINE_NAMES,
    FLEET_NAMES,
    KEYS,
    PROCESS_NAMES,
    SAMPLING_NAMES,
    TRAFFIC_NAMES,
)
from cutaway.core import limits
from cutaway.core.errors import ConfigError, RequestError
from cutaway.core.request import SamplingParams
from cutaway.engine.config import EngineConfig
from cutaway.fleet.fleet_config import FleetConfig
from cutaway.service.bounds import ProcessConfig, TrafficConfig

SettingOrigin = Literal["flag", "environment", "file", "user file", "model", "default"]

PREFIX = "CUTAWAY_"
# Variables that are no settings: switches of the program and of its tests.
_OTHER_VARIABLES = frozenset(
    {
        *("CUTAWAY_CACHE", "CUTAWAY_CONFIG", "CUTAWAY_DEBUG"),
        *("CUTAWAY_ORACLES", "CUTAWAY_REQUIRE_ORACLES"),
    }
)


@dataclass(frozen=True)
class Resolved:
    """The value of every setting, and where it came from."""

    values: Mapping[str, object]
    origins: Mapping[str, SettingOrigin]

    @property
    def model(self) -> str:
        """The model to load: a name, a file, a folder or a hub id."""
        return cast(str, self.values["model"])

    @property
    def accepts_license(self) -> bool:
        """Whether a model with terms of its own may be fetched."""
        return bool(self.values["accept_license"])

    @property
    def engine(self) -> dict[str, object]:
        """What the engine is built with."""
        return {name: self.values[name] for name in ENGINE_NAMES}

    @property
    def traffic(self) -> TrafficConfig:
        """How much may wait at a server."""
        chosen: dict[str, Any] = {name: self.values[name] for name in TRAFFIC_NAMES}
        return TrafficConfig(**chosen)

    @property
    def fleet(self) -> FleetConfig:
        """How many engines a server has, and how answers go on whose engine ends."""
        chosen: dict[str, Any] = {name: self.values[name] for name in FLEET_NAMES}
        return FleetConfig(**chosen)

    def fleet_with(self, members: tuple[str, ...]) -> FleetConfig:
        """The same with engines elsewhere: then none is here unless somebody asks for some."""
        chosen: dict[str, Any] = {name: self.values[name] for name in FLEET_NAMES}
        if members and self.origins["replicas"] == "default":
            chosen["replicas"] = 0
        return FleetConfig(**chosen, members=members)

    @property
    def process(self) -> ProcessConfig:
        """How a server watches its engine."""
        chosen: dict[str, Any] = {name: self.values[name] for name in PROCESS_NAMES}
        return ProcessConfig(**chosen)

    def sampling(
        self, *, logprobs: int | None = None, prompt_logprobs: int | None = None
    ) -> SamplingParams:
        """How answers are drawn, with what is reported of it."""
        chosen: dict[str, Any] = {name: self.values[name] for name in SAMPLING_NAMES}
        return SamplingParams(**chosen, logprobs=logprobs, prompt_logprobs=prompt_logprobs)


def resolve(
    given: Mapping[str, object],
    *,
    config: Path | None = None,
    recommended: Mapping[str, object] | None = None,
) -> Resolved:
    """Take each setting from the first source that has it.

    given:       flags.
    config:      the file named by --config.
    recommended: sampling that the model itself asks for, once it is known.

    Raises: ConfigError naming source, key, value and what is allowed; RequestError for sampling
    that is out of range.
    """
    if config is not None and not config.is_file():
        raise ConfigError(f"{config} is not a file; --config names a TOML file of settings.")
    _check_variables()
    sources = _sources(given, config, recommended or {})
    found: dict[SettingOrigin, Mapping[str, object]] = {
        origin: source() for origin, source in sources.items()
    }
    _check_names(found["file"], str(config))
    _check_names(found["user file"], str(user_file()))
    origins: dict[str, SettingOrigin] = {key.name: _origin(key.name, found) for key in KEYS}
    try:
        values = _layered(sources)().model_dump()
    except ValidationError as error:
        raise _as_config_error(error.errors()[0], origins) from None
    _check_ranges(values, origins)
    EngineConfig.of({name: values[name] for name in ENGINE_NAMES})
    check_page_size(values["page_size"])
    return Resolved(values, origins)


def user_file() -> Path:
    """Where a user's own settings lie."""
    import platformdirs

    return platformdirs.user_config_path("cutaway", appauthor=False) / "config.toml"


def _number(value: object) -> object:
    """The value itself; true is no number, though Python would take it for 1."""
    if isinstance(value, bool):
        raise ValueError("not a number")
    return value


def _integer(value: object) -> object:
    """Text such as 32K as the integer that it means."""
    return parse_integer(value) if isinstance(value, str) else _number(value)


def _strings(value: object) -> object:
    """A list as JSON, or one string: the environment knows text alone."""
    if isinstance(value, str):
        return json.loads(value) if value.startswith("[") else [value]
    return value


_TYPES: Mapping[str, Any] = {
    "text": str,
    "texts": Annotated[tuple[str, ...], NoDecode, BeforeValidator(_strings)],
    "int": Annotated[int, BeforeValidator(_integer)],
    "float": Annotated[float, BeforeValidator(_number)],
    "bool": bool,
}


class _Empty(BaseSettings):
    model_config = SettingsConfigDict(env_prefix=PREFIX, env_ignore_empty=True, extra="forbid")


_FIELDS: Mapping[str, Any] = {
    key.name: (
        _TYPES[key.kind] if key.default is not None else _TYPES[key.kind] | None,
        key.default,
    )
    for key in KEYS
}
Settings: type[BaseSettings] = create_model("Settings", __base__=_Empty, **_FIELDS)


def _sources(
    given: Mapping[str, object], config: Path | None, recommended: Mapping[str, object]
) -> dict[SettingOrigin, PydanticBaseSettingsSource]:
    """Every source by its origin, the strongest first."""
    known = {name: value for name, value in recommended.items() if name in SAMPLING_NAMES}
    return {
        "flag": InitSettingsSource(Settings, init_kwargs=dict(given)),
        "environment": EnvSettingsSource(Settings),
        "file": _toml(config),
        "user file": _toml(user_file()),
        "model": InitSettingsSource(Settings, init_kwargs=known),
    }


def _toml(path: Path | None) -> TomlConfigSettingsSource:
    try:
        return TomlConfigSettingsSource(Settings, toml_file=path)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no TOML file: {error}.") from None


def _layered(sources: Mapping[SettingOrigin, PydanticBaseSettingsSource]) -> type[BaseSettings]:
    class Layered(Settings):
        @classmethod
        def settings_customise_sources(
            cls, settings_cls: type[BaseSettings], *_: object, **__: object
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return tuple(sources.values())

    return Layered


def _origin(name: str, found: Mapping[SettingOrigin, Mapping[str, object]]) -> SettingOrigin:
    for origin, values in found.items():
        if name in values:
            return origin
    return "default"


def _check_variables() -> None:
    """A misspelt variable is an error; one that resembles no setting belongs to somebody else.

    An orchestrator sets CUTAWAY_SERVICE_HOST for a service of that name, for instance.
    """
    known = {key.variable for key in KEYS} | _OTHER_VARIABLES
    for variable in os.environ:
        if variable.startswith(PREFIX) and variable not in known:
            near = limits.similar(variable.removeprefix(PREFIX).lower(), BY_NAME, cutoff=0.8)
            if near:
                raise ConfigError(
                    f"the environment has {variable}, which is no setting; the nearest is "
                    f"{BY_NAME[near[0]].variable}. Rename or unset it."
                )


def _check_names(found: Mapping[str, object], file: str) -> None:
    for name in found:
        if name not in BY_NAME:
            near = limits.similar(name, BY_NAME, cutoff=0.0)[0]
            raise ConfigError(
                f"{file} has the key {limits.quote(name)}, which is no setting; the nearest is "
                f"{near}. `cutaway config show` lists all."
            )


def _check_ranges(values: Mapping[str, object], origins: Mapping[str, SettingOrigin]) -> None:
    for name in SAMPLING_NAMES:
        try:
            if name in limits.LIMITS:
                limits.check(name, values[name])
        except RequestError as error:
            if origins[name] == "flag":
                raise
            raise ConfigError(f"{error} It comes from the {origins[name]}.") from None
    for name in (*ENGINE_NAMES, *TRAFFIC_NAMES, *PROCESS_NAMES, *FLEET_NAMES):
        value, limit = values[name], BY_NAME[name].limit
        if limit is None or not isinstance(value, int | float):
            continue
        is_above = value > limit.least if limit.least_open else value >= limit.least
        if not (is_above and value <= limit.most):
            raise ConfigError(f"{name} is {value}; it must be {limit.describe()}.")


def _as_config_error(error: ErrorDetails, origins: Mapping[str, SettingOrigin]) -> ConfigError:
    key = BY_NAME[str(error["loc"][0])]
    return ConfigError(
        f"{key.name} is {limits.quote(error['input'])}, from the {origins[key.name]}; "
        f"it must be {key.allowed}."
    )
