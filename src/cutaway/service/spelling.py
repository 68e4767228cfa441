"""Log-probabilities with the texts of their tokens, for people who read them."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from cutaway.core.output import Delta, TokenLogprob
from cutaway.tokens.tokenizer import Tokenizer


def spell(delta: Delta, tokenizer: Tokenizer) -> Delta:
    """The same news, in which each log-probability says its token's text.

    Bytes that are no whole character stand as U+FFFD.
    """
    if not delta.logprobs and not delta.prompt_logprobs:
        return delta

    def spell_score(score: TokenLogprob) -> TokenLogprob:
        text = tokenizer.token_bytes(score.token_id).decode("utf-8", "replace")
        return replace(score, text=text)

    return msgspec.structs.replace(
        delta,
        logprobs=tuple(map(spell_score, delta.logprobs)),
        prompt_logprobs=tuple(each and spell_score(each) for each in delta.prompt_logprobs),
    )
