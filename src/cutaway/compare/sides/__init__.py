"""A recorded answer and one change, as two sides to run: where each lever is pulled.

One file per kind of lever. Most share the engine's pages. Some need another pool, or another model
beside; what that takes is told before it is made.
"""

from __future__ import annotations

from cutaway.compare.levers import DRAWS, ENGINES, MODELS, MODULES, RUNS, WORDS, Change
from cutaway.compare.side import Side
from cutaway.compare.sides.beside import with_own_pages
from cutaway.compare.sides.inputs import change_words
from cutaway.compare.sides.modules import change_modules
from cutaway.compare.sides.other_models import change_model
from cutaway.compare.sides.pair import Pair, Source
from cutaway.compare.sides.runs import change_draw, change_engine, change_run
from cutaway.core.errors import ConfigError, RequestError

__all__ = ["Pair", "Source", "pair_of", "with_own_pages"]

_KINDS = (
    (DRAWS, change_draw),
    (WORDS, change_words),
    (MODULES, change_modules),
    (RUNS, change_run),
    (ENGINES, change_engine),
    (MODELS, change_model),
)


def pair_of(source: Source, change: Change) -> Pair:
    """Both sides of a change.

    Raises: RequestError for a value that does not fit; errors of models that are opened.
    """
    if source.answer.choice != 0:
        raise RequestError("only the first answer of a request can be compared.", param="change")
    if not source.token_ids:
        raise RequestError("the answer has no tokens; there is nothing to compare.", param="change")
    lora = source.answer.request.lora
    ranks = source.engine.model.ranks
    if ranks is not None and change.lever in (*MODULES, *MODELS):
        raise RequestError(
            f"{change.lever} changes the model, which is divided among {ranks.size} ranks here. "
            "Start with tensor 1 for it.",
            param="change",
        )
    base = Side(source.engine, source.prompt, source.params, source.allowance, lora=lora)
    make = next(make for levers, make in _KINDS if change.lever in levers)
    try:
        return make(source, change, base)
    except ConfigError as error:  # of an engine beside that cannot have such a setting
        raise RequestError(str(error), param="change") from None
    except RequestError as error:
        if error.param != "max_bytes":  # a setting's own name is no field of the request
            error.param = "change"
        raise
