"""Settings of a stage: a frozen dataclass, read from TOML and key=value, each value checked.

What a field may be stands in its declaration, so that an error can say what is allowed.
"""

from __future__ import annotations

import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, field, fields
from pathlib import Path
from typing import Any, TypeVar, cast

from cutaway.core.errors import ConfigError
from cutaway.core.limits import quote, similar
from cutaway.tokens.unicode import is_unicode

Settings = TypeVar("Settings")


def option(
    default: Any = MISSING,
    *,
    help: str,
    least: float | None = None,
    most: float | None = None,
    choices: Sequence[str] = (),
    changes_run: bool = True,
    names_model: bool = False,
) -> Any:
    """A field of a stage's settings.

    changes_run: whether a run that goes on must have the value that it began with.
    names_model: whether it is a folder or file of weights, which must then be the same ones too.
    """
    metadata = {
        "help": help,
        "least": least,
        "most": most,
        "choices": tuple(choices),
        "changes_run": changes_run,
        "names_model": names_model,
    }
    if default is MISSING:
        return field(metadata=metadata)
    return field(default=default, metadata=metadata)


def read_settings(
    kind: type[Settings], path: Path | None, overrides: Sequence[str] = ()
) -> Settings:
    """The settings of a TOML file, with key=value in place of what it says.

    Raises: ConfigError naming the key that is unknown, missing or out of range, and what is
    allowed.
    """
    values = {} if path is None else _toml(path)
    for each in overrides:
        key, is_given, text = each.partition("=")
        if not is_given:
            raise ConfigError(f"{quote(each)} is no setting; write key=value, as in rate=3e-3.")
        if not is_unicode(text):
            raise ConfigError(f"{key.strip()} is {quote(text)}; it must be text in UTF-8.")
        values[key.strip()] = _value(text.strip())
    known = {each.name: each for each in fields(cast(Any, kind))}
    for key in values:
        if key not in known:
            close = similar(key, known, cutoff=0.5)
            hint = f"; did you mean {close[0]}?" if close else "."
            listed = ", ".join(known)
            raise ConfigError(f"{key} is no setting of this stage{hint} Known are {listed}.")
    hints = typing.get_type_hints(kind)
    checked = {
        name: _checked(each, hints[name], values[name])
        for name, each in known.items()
        if name in values
    }
    missing = [n for n, each in known.items() if n not in checked and each.default is MISSING]
    if missing:
        each = known[missing[0]]
        raise ConfigError(f"{missing[0]} is missing: {each.metadata['help']}.")
    return kind(**checked)


def resolve_settings(settings: object, *, of_the_run: bool = False) -> dict[str, Any]:
    """All settings as data that JSON can hold; of_the_run: those that may not change in a run."""
    return {
        each.name: plain(getattr(settings, each.name))
        for each in fields(cast(Any, settings))
        if not of_the_run or each.metadata["changes_run"]
    }


def models_of(settings: object) -> dict[str, str]:
    """The settings that name folders or files of weights, as far as they do."""
    given = {
        each.name: getattr(settings, each.name)
        for each in fields(cast(Any, settings))
        if each.metadata["names_model"]
    }
    return {name: value for name, value in given.items() if value and isinstance(value, str)}


def plain(value: Any) -> Any:
    """A value as JSON can hold it."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple):
        return [plain(each) for each in cast("tuple[Any, ...]", value)]
    return value


def _toml(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not TOML: {error}.") from None


def _value(text: str) -> object:
    """A value as TOML has it; what is none is a string, so that paths need no quotes."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text


def _checked(each: Field[Any], hint: Any, value: object) -> object:
    allowed = _allowed(each, hint)
    fault = ConfigError(f"{each.name} is {quote(value)}; it must be {allowed}.")
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for kind in kinds:
        try:
            made = _made(kind, value)
        except TypeError:
            continue
        if made == () and each.default is MISSING:
            raise fault
        least, most = each.metadata["least"], each.metadata["most"]
        if isinstance(made, int | float) and not isinstance(made, bool):
            if (least is not None and made < least) or (most is not None and made > most):
                raise fault
            if made != made or made in (float("inf"), float("-inf")):
                raise fault
        if each.metadata["choices"] and made not in each.metadata["choices"]:
            raise fault
        return made
    raise fault


def _made(kind: Any, value: object) -> object:
    """The value as one of its field's types. Raises: TypeError where it is another."""
    if kind is Path and isinstance(value, str):
        return Path(value).expanduser()
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind in (tuple[Path, ...], tuple[str, ...]):
        listed = cast("list[object]", value) if isinstance(value, list) else [value]
        return tuple(_made(typing.get_args(kind)[0], one) for one in listed)
    if kind == Mapping[str, object] and isinstance(value, dict):
        return cast("dict[str, object]", value)
    if type(value) is kind:
        return value
    raise TypeError


def _allowed(each: Field[Any], hint: Any) -> str:
    choices, least, most = (each.metadata[name] for name in ("choices", "least", "most"))
    if choices:
        return f"one of {', '.join(choices)}"
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    words = {int: "an integer", float: "a number", bool: "true or false", str: "a string"}
    words |= {Path: "a path", tuple[Path, ...]: "a path or a list of paths"}
    words |= {tuple[str, ...]: "a string or a list of strings"}
    words |= {Mapping[str, object]: "a table"}
    said = " or ".join(words[kind] for kind in kinds if kind in words)
    if least is not None and most is not None:
        return f"{said} from {least:g} to {most:g}"
    return said + ("" if least is None else f" of at least {least:g}")
