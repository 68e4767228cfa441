"""Views, files and comparisons of ill will, each field in its own language; all by a seed."""

from __future__ import annotations

import json
import random
from typing import Any

from hostile_bodies import TEXTS

from cutaway.compare.levers import LEVERS
from cutaway.views import VIEWS

NUMBERS = ["0", "1", "-1", "0.5", "1e309", "nan", "-0", "+1", "007", "1_000", " 1", "1 ", "\u00b2"]
NUMBERS += [
    "\u0661",
    "\uff11",
    "9" * 18,
    "9" * 19,
    "9" * 900,
    "0x10",
    "1e5",
    "",
    "2147483648",
    "12",
]
WORDS = ["on", "off", "naive", "fused", "ngram", "auto", "int8", "fp8", "bfloat16", "zero", "all"]
LONG = [
    "a" * 9_999,
    "a" * 10_001,
    "word and " * 1_000,
    "\u00e9" * 5_000,
    "\U0001f468\u200d" * 1_000,
]
SUMS = [
    "a - b + c = d",
    "a - b",
    "= d",
    "+ + +",
    "a - " * 40,
    "king - man + woman = queen",
    "-",
    "a =",
]
NAMES = ["embedding", "blocks.0", "mlp", "e", " the"]
PLACES = [0, 1, 2, 5, 7, 31, 10**4, 2**31 - 1, 2**31, -1, None, True, 0.5, "0", [0], 10**30]


def number(chance: random.Random) -> str:
    return chance.choice(NUMBERS) if chance.random() < 0.6 else str(chance.randrange(40))


def text(chance: random.Random) -> str:
    kind = chance.randrange(5)
    return chance.choice(
        (TEXTS, LONG, SUMS, NUMBERS, ["embedding", "blocks.0", "mlp", "e", " the"])[kind]
    )


def value_of(chance: random.Random, lever: str) -> str:
    """A value in the lever's own syntax, good or nearly."""
    layer, other = number(chance), number(chance)
    own = {
        "ablate": (layer, f"{layer}.{other}", f"{layer}.attention", f"{layer}.mlp", f"{layer}."),
        "patch": (f"{layer}@{other}:{number(chance)}", f"{layer}@{other}:zero", f"{layer}@"),
        "token": (number(chance), text(chance)[:950]),
        "batch": ("1", "2", "3", "0", "1025"),
        "page_size": ("1", "2", "8", "16", "7", "1048576", "1048577"),
        "prefill_chunk": ("1", "2", "8", "4096", "0"),
    }
    if lever in own and chance.random() < 0.7:
        return chance.choice(own[lever])
    return chance.choice((number(chance), chance.choice(WORDS), text(chance)[:950]))


def change(chance: random.Random) -> str:
    """FIELD=VALUE, or what somebody might take for it."""
    lever = chance.choice(list(LEVERS))
    field = lever
    if lever == "token" or chance.random() < 0.05:
        field = f"{lever}@{number(chance)}"
    made = f"{field}={value_of(chance, lever)}"
    if chance.random() < 0.1:
        at = chance.randrange(len(made) + 1)
        made = chance.choice((made[:at], made[at:], f"{made}={made}", made.upper(), f" {made} "))
    return made


def compare_body(chance: random.Random) -> dict[str, Any]:
    """A comparison; most of few runs."""
    body: dict[str, Any] = {"change": change(chance), "runs": 1}
    for name, values in (
        ("runs", (1, 2, 20, 0, 21)),
        ("price", (0, 3.6, 1e9, -1)),
        ("max_tokens", (1, 2, 3, 0, 2**31)),
        ("max_bytes", (1, 10**5, 2**30, 2**31)),
        ("max_flops", (1, 10**9, 5 * 10**13, 10**15)),
        ("stream", (True, False, 1)),
        ("choice", (0, 1, -1)),
    ):
        if chance.random() < 0.12:
            body[name] = chance.choice(values)
    return body


def view_body(chance: random.Random) -> dict[str, Any]:
    """A view with places that it takes, and now and then one that it does not."""
    view = chance.choice(VIEWS)
    name = view.name if chance.random() < 0.97 else chance.choice((*TEXTS, view.name.upper()))
    body: dict[str, Any] = {"view": name}
    places = [*view.takes, "top", "text"] if chance.random() < 0.1 else list(view.takes)
    for place in places:
        if chance.random() < 0.5:
            body[place] = text(chance) if place == "text" else chance.choice(PLACES)
    for other, values in (("only_cost", (True, False)), ("max_bytes", (1, 2**28, 2**29))):
        if chance.random() < 0.1:
            body[other] = chance.choice(values)
    return body


def file_body(chance: random.Random) -> dict[str, Any]:
    """A file of a few views at a few places."""
    names = [chance.choice(VIEWS).name for _ in range(chance.randrange(1, 3))]
    body: dict[str, Any] = {"views": ",".join(names), "steps": chance.choice(("0", "0-1", "none"))}
    for name in ("steps", "layers", "heads"):
        if chance.random() < 0.3:
            ranges = (f"{number(chance)}-{number(chance)}", number(chance), "none", "-", ",")
            body[name] = chance.choice(ranges)
    if chance.random() < 0.2:
        body["token"] = chance.choice(PLACES)
    if chance.random() < 0.2:
        body["redact"] = True
    return body


def look(chance: random.Random) -> tuple[str, bytes]:
    """What is asked of an answer, and the body."""
    kind = chance.choices(("compare", "views", "file"), (10, 10, 1))[0]
    made = {"compare": compare_body, "views": view_body, "file": file_body}[kind](chance)
    return kind, json.dumps(made).encode()
