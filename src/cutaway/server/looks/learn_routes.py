"""Learning a vocabulary by HTTP, merge by merge, from a text that the caller gives."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from cutaway.core.errors import RequestError
from cutaway.core.limits import LIMITS, MAX_LEARN_BYTES
from cutaway.server.body import read
from cutaway.server.field_types import Body, Limited
from cutaway.server.route_context import Context
from cutaway.server.routes import describe_route, json_answer
from cutaway.tokens.learn_vocabulary import BPELearner
from cutaway.tokens.patterns import GPT2
from cutaway.tokens.splitting import Splitter
from cutaway.tokens.unicode import repair_surrogates

_RUNNERS_UP = 5  # pairs that are told with each merge, the one that won among them
_SHOWN_CHARACTERS = 600  # of the text, for a player to cut as the vocabulary grows


class LearnBody(Body):
    """A text, and how many merges are learned from it. Nothing of it is kept."""

    text: str
    merges: Annotated[int | None, Limited("merges")] = None


def router(context: Context) -> APIRouter:
    """The route of this API."""
    routes = APIRouter()

    @routes.post("/cutaway/v1/learn", **describe_route(LearnBody))
    async def learn(http: HttpRequest) -> Response:
        return json_answer(await context.worker.take_in(_learned, await http.body()))

    return routes


def _learned(data: bytes) -> dict[str, Any]:
    body = read(data, LearnBody)
    num_bytes = len(body.text.encode("utf-8", "surrogatepass"))
    if not 1 <= num_bytes <= MAX_LEARN_BYTES:
        raise RequestError(
            f"text has {num_bytes} bytes; it must have from 1 to {MAX_LEARN_BYTES}.", param="text"
        )
    learner = BPELearner([body.text])
    start, steps = learner.num_tokens, list[dict[str, Any]]()
    for _ in range(body.merges or int(LIMITS["merges"].default or 1)):
        pairs = learner.top_pairs(_RUNNERS_UP)
        learned = learner.step()
        if learned is None:
            break
        steps.append(
            {
                "pair": learned.pair,
                "token_id": learned.token_id,
                "count": learned.count,
                "num_tokens": learner.num_tokens,
                "pairs": [[*each.pair, each.count] for each in pairs],
            }
        )
    return {
        "num_bytes": num_bytes,
        "num_tokens": start,
        "steps": steps,
        "vocabulary": [token.hex() for token in learner.tokens],
        "words": _words(body.text),
    }


def _words(text: str) -> list[str]:
    """The beginning of the text in words, as no pair spans two of them; bytes in hex."""
    shown = repair_surrogates(text)[:_SHOWN_CHARACTERS]
    return [word.encode().hex() for word in Splitter((GPT2,)).split(shown)]
