"""The range and default of every request field, in one table.

HTTP schema, command line and Python check against this table and nothing else.
Free of torch. It knows single fields only; what needs the model (vocabulary, context)
is checked at the engine's door.
"""

from __future__ import annotations

import json
import math
import numbers
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal, cast

from cutaway.core.errors import RequestError

Kind = Literal["int", "float", "bool"]


@dataclass(frozen=True)
class Limit:
    """Range of one field. Ends are included unless least_open says otherwise.

    is_draw: the field says how a token is drawn. Flags, the APIs' fields, levers and views are made
        of these, so a further one needs no line there.
    """

    kind: Kind
    default: float | int | bool | None
    least: float = -math.inf
    most: float = math.inf
    least_open: bool = False
    meaning: str = ""
    is_draw: bool = False

    def describe(self) -> str:
        """The range in words, for messages and help."""
        if self.kind == "bool":
            return "true or false"
        noun = "an integer" if self.kind == "int" else "a number"
        if self.least_open:
            return f"{noun} above {_plain(self.least)} and at most {_plain(self.most)}"
        return f"{noun} from {_plain(self.least)} to {_plain(self.most)}"


INT64_MAX = 2**63 - 1


def _draw(
    kind: Kind,
    default: float,
    least: float,
    most: float,
    meaning: str,
    *,
    least_open: bool = False,
) -> Limit:
    return Limit(kind, default, least, most, least_open, meaning, is_draw=True)


LIMITS: Mapping[str, Limit] = {
    "temperature": _draw("float", 1.0, 0, 5, "divides the logits; 0 is greedy"),
    "top_k": _draw("int", 0, -1, 2**31 - 1, "keep the k most likely; 0 and -1 keep all"),
    "top_p": _draw("float", 1.0, 0, 1, "smallest set whose mass reaches p"),
    "min_p": _draw("float", 0.0, 0, 1, "least share of the top token's probability"),
    "repetition_penalty": _draw(
        *("float", 1.0, 0, 10),
        "divides the logits of tokens in prompt and output",
        least_open=True,
    ),
    "presence_penalty": _draw("float", 0.0, -2, 2, "once per token in the output"),
    "frequency_penalty": _draw("float", 0.0, -2, 2, "times its count in the output"),
    "logit_bias": Limit("float", 0.0, -100, 100, meaning="added to one token's logit"),
    "seed": Limit("int", None, -(2**63), INT64_MAX, meaning="repeats the draws"),
    "n": Limit("int", 1, 1, 128, meaning="answers per prompt"),
    "max_tokens": Limit("int", None, 0, INT64_MAX, meaning="most tokens of the answer"),
    "min_tokens": Limit("int", 0, 0, INT64_MAX, meaning="no end and no stop before"),
    "logprobs": Limit("int", None, 0, 20, meaning="alternatives reported per token"),
    "prompt_logprobs": Limit("int", None, 0, 20, meaning="alternatives per prompt token"),
    "max_pattern_size": Limit("int", 0, 0, 1024, meaning="tokens of what repeats, at most"),
    "min_pattern_size": Limit("int", 0, 0, 1024, meaning="tokens of what repeats, at least"),
    "min_count": Limit("int", 0, 0, 2**31 - 1, meaning="times that it stands in a row"),
    "timeout": Limit("float", None, 0, 604_800, least_open=True, meaning="seconds it may take"),
    # Views: what there is decides further, and is told by the view.
    "place": Limit("int", None, 0, 2**31 - 1, meaning="counted from 0"),
    "top": Limit("int", None, 1, 1_000, meaning="how many of a ranking"),
    "view_bytes": Limit("int", None, 1, 256 * 2**20, meaning="of inner values that it may take"),
    "view_flops": Limit("int", None, 1, 20 * 10**12, meaning="that running again may take"),
    # Comparisons: tried in moments without other work, and given up when nobody waits.
    "runs": Limit("int", 3, 1, 20, meaning="of each side"),
    "price": Limit("float", None, 0, 10**6, meaning="of an hour of this machine"),
    "compare_tokens": Limit("int", None, 1, 2**31 - 1, meaning="of each side's answer"),
    "compare_bytes": Limit("int", None, 1, 2**30, meaning="of pages and matrices beside"),
    "compare_flops": Limit("int", None, 1, 50 * 10**12, meaning="of all runs together"),
    # Learning a vocabulary: these of random letters took 0.4 to 0.8 s of a core of an EPYC.
    "merges": Limit("int", 100, 1, 300, meaning="pairs that become tokens, at most"),
    # The lesson: a tiny model, trained while one looks on.
    "rate": Limit("float", 0.003, 0, 1, meaning="peak learning rate"),
    "beta": Limit("float", 0.05, 0, 100, meaning="weight of the KL to the start"),
    "ignore_eos": Limit("bool", False),
    "include_stop": Limit("bool", False),
    "skip_special_tokens": Limit("bool", True),
}

# Numbers that say how a token is drawn, in the order of the help.
DRAW_SETTINGS: tuple[str, ...] = tuple(name for name, limit in LIMITS.items() if limit.is_draw)

MAX_LEARN_BYTES = 10_000  # of a text that a vocabulary is learned from
MAX_VIEW_TEXT = 10_000  # bytes of a text that a view works on: words, a sum of words, a name
MAX_CHANGE = 1_000  # characters of a change: a number, a word or a short text
MAX_LOGIT_BIAS = 1024  # entries of one request
MAX_STOP_STRINGS = 16
MAX_STOP_BYTES = 256  # of one stop string
MAX_STOP_TOKENS = 128
# Engines or ranks for a core: more would wait for each other, and fill the memory.
MOST_PER_CORE = 4
_MOST_SHOWN = 80  # characters of a value in a message


def check(name: str, value: object, *, param: str | None = None) -> None:
    """Raise RequestError unless value fits the field; None passes where it is the default."""
    limit = LIMITS[name]
    param = param or name
    if value is None and limit.default is None:
        return
    is_bool = isinstance(value, bool)
    if limit.kind == "bool":
        fits = is_bool
    elif limit.kind == "int":
        fits = isinstance(value, int) and not is_bool
    else:
        # An integer of any size can be compared, but not every one can become a float.
        is_finite = isinstance(value, float) and math.isfinite(value)
        fits = is_finite or (isinstance(value, int) and not is_bool)
    if fits and limit.kind != "bool":
        assert isinstance(value, int | float)
        above = value > limit.least if limit.least_open else value >= limit.least
        fits = above and value <= limit.most
    if not fits:
        raise RequestError(
            f"{param} is {quote(value)}; it must be {limit.describe()}.", param=param
        )


def plain_number(value: object) -> object:
    """A number of another library, as numpy has them, as Python's own; what is none as it is."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    return float(value) if isinstance(value, numbers.Real) else value


def quote(value: object) -> str:
    """A value as it may stand in a message: as JSON, short, whatever it is, and quick to write.

    JSON, because who reads it wrote a body, a config.json or a flag, and seldom Python. What JSON
    does not have stands as Python writes it.
    """
    value = _beginning(value, _MOST_SHOWN)[0]  # a body of megabytes is not written out whole
    try:
        text = (
            json.dumps(value, ensure_ascii=False, default=repr) if _is_json(value) else repr(value)
        )
    except TypeError:  # names that are no strings
        text = repr(value)
    except ValueError:  # Python writes no integer of more than 4,300 digits
        text = "a number of thousands of digits"
    return "".join(map(_visible, shorten(text)))


def _beginning(value: object, left: int) -> tuple[object, int]:
    """As much of a value as more than left characters are written of, and what is left then.

    Everything counts as its least: a text as its characters, an item as one.
    """
    if isinstance(value, str | bytes):
        return value[:left], left - len(value)
    if not isinstance(value, list | tuple | dict):
        return value, left - 1
    kept: list[tuple[object, object]] = []
    pairs: Iterable[tuple[object, object]]
    if isinstance(value, dict):
        pairs = cast("dict[object, object]", value).items()
    else:
        pairs = ((None, each) for each in cast("Iterable[object]", value))
    for name, each in pairs:
        if left <= 0:
            break
        short, left = _beginning(name, left) if isinstance(name, str) else (name, left)
        item, left = _beginning(each, max(1, left) - 1)
        kept.append((short, item))
    if isinstance(value, dict):
        return dict(kept), left - 1
    shown = [item for _, item in kept]
    return (tuple(shown) if isinstance(value, tuple) else shown), left - 1


def _is_json(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, str | int | list | tuple | dict)


def _visible(character: str) -> str:
    return character if character.isprintable() else f"\\u{ord(character):04x}"


def shorten(text: str, most: int = _MOST_SHOWN) -> str:
    """The beginning of a text that is longer than most, with a sign that there was more."""
    return text if len(text) <= most else text[: most - 3] + "..."


def similar(name: str, known: Iterable[str], *, most: int = 1, cutoff: float = 0.6) -> list[str]:
    """The known names that a misspelt one may have meant, the nearest first, for a message.

    A name may be of any length, and comparing takes time with it: its beginning is compared.
    """
    return get_close_matches(name[:_MOST_SHOWN], list(known), n=most, cutoff=cutoff)


def inside(param: str, name: str) -> str:
    """The field of that name within another, for a message: names may be of any length."""
    return shorten(f"{param}.{name}")


def _plain(number: float) -> str:
    return str(int(number)) if float(number).is_integer() else str(number)
