"""The sampling that a GGUF file recommends: its metadata under general.sampling."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

from cutaway.core.errors import ModelError, ModelFormatError, RequestError
from cutaway.core.limits import LIMITS, check, quote
from cutaway.host import gguf_file

_PREFIX = "general.sampling."
# What writers of GGUF files call it, and the name of SamplingParams.
_NAMES = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}
# Values of the others that ask for nothing. The order of the stages is the sampler's own.
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "sequence": (),
    "xtc_probability": (0,),
    "xtc_threshold": (),
    "penalty_last_n": (-1, 0, 64),
    "mirostat": (0,),
    "mirostat_tau": (),
    "mirostat_eta": (),
}
_SIDE = frozenset(name for name, neutral in _NEUTRAL.items() if not neutral)


def file_sampling(path: Path) -> Mapping[str, float]:
    """The sampling that the file recommends, by the names of SamplingParams.

    A file that cannot be read recommends nothing; loading it says what is wrong. What has no part
    here is told in a warning. Raises: ModelFormatError naming the key that is out of range.
    """
    try:
        metadata = gguf_file.read(path).metadata
    except ModelError:
        return {}
    sampling: dict[str, float] = {}
    for key in (key for key in metadata if key.startswith(_PREFIX)):
        name, value = key.removeprefix(_PREFIX), metadata[key]
        if name in _NAMES:
            sampling[_NAMES[name]] = _number(_NAMES[name], value, file=str(path), key=key)
        elif name not in _SIDE and value not in _NEUTRAL.get(name, ()):
            warnings.warn(
                f"{path} recommends {key} {quote(value)}, which Cutaway does not have; what it "
                "recommends otherwise acts.",
                stacklevel=2,
            )
    return sampling


def _number(name: str, value: object, *, file: str, key: str) -> float:
    # Files hold 32 bits: 0.6 comes as 0.6000000238.
    given = float(f"{value:.7g}") if isinstance(value, float) else value
    if LIMITS[name].kind == "int" and isinstance(given, float) and given.is_integer():
        given = int(given)
    try:
        check(name, given)
    except RequestError as error:
        raise ModelFormatError(str(error), file=file, field=key) from None
    assert isinstance(given, int | float), "the limits table lets only numbers pass"
    return given if LIMITS[name].kind == "int" else float(given)
