"""What can be changed of a recorded answer, one thing at a time, and how a change is written.

FIELD=VALUE, as in temperature=0.5, token@5=" Yes", ablate=3.7 or model=qwen2.5-0.5b. Free of torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cutaway.core.errors import RequestError
from cutaway.core.limits import DRAW_SETTINGS, LIMITS, quote, similar
from cutaway.core.whole_numbers import whole_number

MOST_COPIES, MOST_TOKENS = 1024, 2**20  # of batch; of a step or a page
# Of batch beside the answers of others: a step stops between operations, and the map to the
# vocabulary is one, of a row for each copy: 256 rows of SmolLM2's take some 30 ms on two cores.
MOST_SERVED_COPIES = 256

# What each lever's value is, in the order of the help.
DRAWS: Mapping[str, str] = {
    **{name: LIMITS[name].meaning for name in DRAW_SETTINGS},
    "seed": "a whole number",
}
WORDS: Mapping[str, str] = {
    "token": "token@STEP=ID, or a text in its place",
    "system": "the system message; nothing leaves it out",
    "prompt": "another question",
    "context": "how many of the prompt's last tokens stay",
}
MODULES: Mapping[str, str] = {
    "ablate": "LAYER, LAYER.HEAD, LAYER.attention or LAYER.mlp: it adds nothing",
    "patch": "LAYER@POSITION:OTHER, the stream of another position, or LAYER@POSITION:zero",
    "positions": "off: heads are not turned by their position",
    "attention": "naive: all scores in memory and one softmax; fused: reduced as keys come",
    "window": "how many of the last tokens attention sees",
    "experts_per_token": "how many experts a token goes through",
}
RUNS: Mapping[str, str] = {
    "prefix_cache": "on or off, where the prompt was answered before",
    "kv_cache": "off: every token computes all before it again",
    "streaming": "on or off: whether words are seen as they come",
    "batch": "how many copies are answered at once",
}
ENGINES: Mapping[str, str] = {
    "kv_dtype": "what the cache keeps keys and values in",
    "prefill_chunk": "tokens of a prompt in one step",
    "page_size": "tokens per page",
    "draft": "off or ngram; model or early where the engine has a draft model or layers",
}
MODELS: Mapping[str, str] = {
    "quant": "int8, int4, fp8 and the like: weights rounded at load",
    "dtype": "in what the model computes",
    "model": "another model",
}
# What a server cannot do, and why.
_SECOND, _WORDLESS = (
    "it loads a second model, and a server holds one",
    "a server keeps the tokens of an answer, not its conversation",
)
NOT_SERVED: Mapping[str, str] = {
    **dict.fromkeys(MODELS, _SECOND),
    "system": _WORDLESS,
    "prompt": _WORDLESS,
}
LEVERS: Mapping[str, str] = {**DRAWS, **WORDS, **MODULES, **RUNS, **ENGINES, **MODELS}


@dataclass(frozen=True)
class Change:
    """One lever and where it is pulled to.

    place: the step of token@STEP; None for all others.
    """

    lever: str
    value: str
    place: int | None = None

    def __str__(self) -> str:
        at = "" if self.place is None else f"@{self.place}"
        return f"{self.lever}{at}={self.value}"

    def whole(self, *, least: int, most: int) -> int:
        """The value as a whole number. Raises: RequestError with the range."""
        number = whole_number(self.value.strip())
        if number is None or not least <= number <= most:
            raise self.refusal(f"it must be a whole number from {least} to {most}")
        return number

    def one_of(self, *allowed: str) -> str:
        """The value, if it is one of some words."""
        if self.value not in allowed:
            raise self.refusal(f"it must be {' or '.join(allowed)}")
        return self.value

    def refusal(self, words: str) -> RequestError:
        """The error for this change: the lever, its value, and words that say what is allowed."""
        return RequestError(f"{self.lever} is {quote(self.value)}; {words}.", param="change")


def check_served(change: Change) -> None:
    """Check that a server can make the change.

    Raises: RequestError for what it cannot change, naming the command that can.
    """
    why = NOT_SERVED.get(change.lever)
    if why is not None:
        raise change.refusal(
            f"{why}. Run `cutaway compare PROMPT --change {change.lever}=...` instead"
        )
    if change.lever == "batch" and (whole_number(change.value.strip()) or 0) > MOST_SERVED_COPIES:
        raise change.refusal(
            f"beside others' answers it must be a whole number from 1 to {MOST_SERVED_COPIES}. Run "
            "`cutaway compare PROMPT --change batch=...` for more"
        )


def change_of(text: str) -> Change:
    """Read FIELD=VALUE. Raises: RequestError naming the levers there are."""
    field, equals, value = text.partition("=")
    name, at, place = field.strip().partition("@")
    if not equals:
        raise RequestError(
            f"change is {quote(text)}; it must be FIELD=VALUE, as in temperature=0.5.",
            param="change",
        )
    if name not in LEVERS:
        near = similar(name, LEVERS)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(LEVERS)}."
        raise RequestError(f"{quote(name)} is nothing to change; {hint}", param="change")
    step = whole_number(place)
    if (name == "token") != bool(at) or (at and step is None):
        raise RequestError(
            f"change is {quote(text)}; a token is changed by its step, as in token@5=ID, and "
            "nothing else has one.",
            param="change",
        )
    return Change(name, value, step)
