"""The field that Cutaway adds to requests of other APIs: whether the answer tells where it opens.

Nothing changes for those who do not send it.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Annotated, Any

from cutaway.core.errors import RequestError
from cutaway.server.error_replies import HttpError
from cutaway.server.field_types import Body, array, take_schema
from cutaway.server.route_context import Context
from cutaway.server.tokenizer_routes import token_ids_of
from cutaway.trace.events import SCHEMA

_IDS = array({"type": "integer", "minimum": 0}, minItems=1)
CONTINUED = "cutaway.continue_token_ids"
_TRACES = "/cutaway/v1/traces"


class OptIn(Body):
    """What a request asks of Cutaway beside the answer.

    trace: whether the end of the answer tells where its events and views are.
    """

    trace: bool | None = None


class TokenOptIn(OptIn):
    """What completions may ask for besides.

    token_ids: whether what is said has its tokens' ids, and log-probabilities theirs.
    continue_token_ids: what another server has told of this answer: it goes on behind it, with the
        same seed to the same tokens, and what it adds is told.
    """

    token_ids: bool | None = None
    continue_token_ids: Annotated[object, take_schema({"anyOf": [_IDS, {"type": "null"}]})] = None


class ChatOptIn(TokenOptIn):
    """What a chat may ask for besides.

    times: whether each piece of a stream tells when it was given to the socket.
    answer_token_ids: how the answer begins; the model goes on from there, and what it adds is told.
    """

    times: bool | None = None
    answer_token_ids: Annotated[object, take_schema({"anyOf": [_IDS, {"type": "null"}]})] = None


def continued_ids(asked: TokenOptIn | None, context: Context) -> tuple[int, ...]:
    """What another server has told of an answer. Raises: RequestError."""
    if asked is None or asked.continue_token_ids is None:
        return ()
    return tuple(
        token_ids_of(
            asked.continue_token_ids, CONTINUED, vocab_size=context.service.model.vocab_size
        )
    )


def tell_ids(token_ids: Sequence[int], *, is_wanted: bool) -> dict[str, Any]:
    """The ids of what a choice says, if they are wanted."""
    return {"token_ids": list(token_ids)} if is_wanted else {}


def wants_ids(asked: TokenOptIn | None) -> bool:
    """Whether ids are wanted."""
    return asked is not None and bool(asked.token_ids)


def wants_trace(asked: OptIn | None, context: Context) -> bool:
    """Whether an answer's end is to tell where it opens.

    Raises: HttpError where views are off; RequestError where nothing is recorded.
    """
    if asked is None or not asked.trace:
        return False
    check_on(context)
    if not context.service.model.is_recorded:
        raise RequestError(
            "cutaway.trace is true; this server records no answers, since ledger_bytes is 0. Leave "
            "it out.",
            param="cutaway.trace",
        )
    return True


def tell_record(trace_id: str, *, is_wanted: bool) -> dict[str, Any]:
    """What the end of an answer says more, if that is wanted."""
    if not is_wanted:
        return {}
    place = f"{_TRACES}/{trace_id}"
    told = {
        "schema": SCHEMA,
        "trace_id": trace_id,
        "events": f"{place}/events",
        "views": f"{place}/views",
    }
    return {"cutaway": told}


def wants_times(asked: ChatOptIn | None, *, is_streamed: bool) -> bool:
    """Whether the pieces of a stream are to tell when they went out.

    Raises: RequestError where there is no stream.
    """
    if asked is None or not asked.times:
        return False
    if not is_streamed:
        raise RequestError(
            "cutaway.times is true without stream; send stream: true as well.",
            param="cutaway.times",
        )
    return True


def clock() -> float:
    """Seconds of this machine's monotonic clock: the engine's process reads the same one."""
    return round(perf_counter(), 6)


def tell_time(*, is_wanted: bool) -> dict[str, Any]:
    """What a piece of a stream says more, if that is wanted: made last, right before it goes."""
    return {"cutaway": {"sent": clock()}} if is_wanted else {}


def check_on(context: Context) -> None:
    """Raise HttpError where answers cannot be looked into."""
    if not context.config.has_views:
        raise HttpError(
            status=403,
            message="this server shows no views. It was started with --views off, or on a public "
            "address without --views full.",
            code="views_off",
        )
