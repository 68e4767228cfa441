"""What a request must satisfy before it is queued: everything that needs the model's sizes."""

from __future__ import annotations

from collections.abc import Collection

from cutaway.core.errors import ContextLengthError, RequestError
from cutaway.core.request import Request


def check_request(request: Request, vocab_size: int, max_length: int) -> None:
    """Raise RequestError or ContextLengthError for what can never be computed."""
    params = request.params
    _check_ids(request.prompt_token_ids, vocab_size, "prompt")
    _check_ids(params.logit_bias, vocab_size, "logit_bias")
    _check_ids(params.stop_token_ids, vocab_size, "stop_token_ids")
    _check_ids(request.continued_token_ids, vocab_size, "continued_token_ids")
    _check_continued(request)
    num_prompt = len(request.prompt_token_ids)
    asked = 1 if params.max_tokens is None else params.max_tokens
    asked = max(asked, len(request.continued_token_ids) + 1) if asked else 0
    if num_prompt + asked <= max_length:
        return
    if num_prompt + min(asked, 1) > max_length:
        raise ContextLengthError(
            f"the prompt has {num_prompt} tokens and the longest sequence is {max_length} tokens, "
            "prompt and answer together. Shorten the prompt.",
            param="prompt",
        )
    raise ContextLengthError(
        f"the prompt has {num_prompt} tokens and max_tokens is {asked}, together "
        f"{num_prompt + asked}; the longest sequence is {max_length} tokens. Ask for at most "
        f"{max_length - num_prompt}, or leave max_tokens out.",
        param="max_tokens",
    )


def _check_continued(request: Request) -> None:
    """One answer is continued, which may have more tokens, and whose prompt is not scored."""
    params, count = request.params, len(request.continued_token_ids)
    why = ""
    if count and params.n != 1:
        why = f"n is {params.n}; one answer is continued. Send a request for each"
    elif count and params.prompt_logprobs is not None:
        why = "a prompt is scored before its answer begins. Leave prompt_logprobs and echo out"
    elif count and params.max_tokens is not None and params.max_tokens <= count:
        why = f"max_tokens is {params.max_tokens}, of the whole answer. Ask for more"
    if why:
        raise RequestError(
            f"continued_token_ids holds {count} tokens, and {why}.", param="continued_token_ids"
        )


def max_length_of(request: Request, max_length: int) -> int:
    """Tokens that the request's sequence may reach."""
    asked = request.params.max_tokens
    return max_length if asked is None else len(request.prompt_token_ids) + asked


def _check_ids(token_ids: Collection[int], vocab_size: int, param: str) -> None:
    if not token_ids:
        return
    for token_id in (min(token_ids), max(token_ids)):
        if not 0 <= token_id < vocab_size:
            raise RequestError(
                f"{param} holds the token id {token_id}; ids go from 0 to {vocab_size - 1}.",
                param=param,
            )
