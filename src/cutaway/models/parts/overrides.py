"""Fields of a config.json replaced by the user: one shape can be compared in several builds.

Free of torch. It reads no file and knows no architecture.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import cast

from cutaway.core.errors import ConfigError
from cutaway.core.limits import quote, similar
from cutaway.models.parts.config_fields import Fields


def overridden(values: Mapping[str, object], overrides: Sequence[str]) -> dict[str, object]:
    """A copy of values with fields replaced by entries such as "sliding_window=128".

    What follows the sign is JSON, or else a string. A dot in a name goes into a mapping.

    Raises: ConfigError for an entry without a name or a sign, or a name inside what is no mapping.
    """
    changed = dict(values)
    for entry in overrides:
        name, sign, text = entry.partition("=")
        if not sign or not all(name.split(".")):
            raise ConfigError(
                f"override is {quote(entry)}; it must be NAME=VALUE, as in sliding_window=128 or "
                "rope_parameters.rope_type=none."
            )
        _put(changed, name, _value(text))
    return changed


def check_read(fields: Fields, overrides: Sequence[str]) -> None:
    """Raise ConfigError for an override of a field that the architecture never asked for."""
    for entry in overrides:
        name = entry.partition("=")[0].partition(".")[0]
        if name in fields.asked:
            continue
        near = similar(name, fields.asked)
        hint = (
            f"did you mean {near[0]}?" if near else f"it reads {', '.join(sorted(fields.asked))}."
        )
        raise ConfigError(f"override names {name}, which this architecture does not read; {hint}")


def _put(values: dict[str, object], name: str, value: object) -> None:
    *outer, last = name.split(".")
    for part in outer:
        inner = values.get(part)
        if inner is not None and not isinstance(inner, Mapping):
            raise ConfigError(
                f"override names {name}, but {part} is {quote(inner)} and no mapping."
            )
        # Copied, so that the caller's values stay what they were.
        values[part] = dict(cast("Mapping[str, object]", inner or {}))
        values = cast("dict[str, object]", values[part])
    values[last] = value


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text
