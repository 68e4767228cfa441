"""One answer from tokens to text: whole characters, stop strings, ends, loops, min_tokens.

Streamed or not, an answer goes through the same object, so both are the same text. Knows no
vocabulary and no model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cutaway.core.request import SamplingParams
from cutaway.stream.detokenize import Detokenizer, TokenBytes
from cutaway.stream.loops import RepetitionDetector
from cutaway.stream.stop import StopStrings


@dataclass(frozen=True)
class TextPiece:
    """What one token gave.

    text:        characters to show now.
    stopped_by:  the stop string, or the id of the ending token, that ended the answer; else None.
    token_bytes: what the token itself adds to the answer, shown now or later.
    held_bytes:  bytes that wait for the rest of their character, at most 3.
    held_text:   text that waits because a stop string may start in it.
    """

    text: str
    stopped_by: str | int | None = None
    token_bytes: bytes = b""
    held_bytes: bytes = b""
    held_text: str = ""


class TextStream:
    """Text of one answer, token by token.

    skipped: ids without text (control tokens, while they are to be skipped).
    ending:  ids that end the answer, each with what is to be told as the reason.

    The first min_tokens tokens end nothing. Their text is shown like any other: a stop string that
    one of them completes is passed over, one that a later token completes counts wherever it
    starts, and it is cut off whole, because the start of a stop string is never shown.
    """

    def __init__(
        self,
        params: SamplingParams,
        token_bytes: TokenBytes,
        *,
        skipped: frozenset[int] = frozenset(),
        ending: Mapping[int, str | int] | None = None,
    ) -> None:
        self._params = params
        self._detokenizer = Detokenizer(token_bytes, skipped=skipped)
        self._stops = StopStrings(params.stop, include_stop=params.include_stop)
        self._ending = ending or {}
        self._min_tokens = params.min_tokens
        self._has_stops = bool(params.stop)
        wanted = params.repetition_detection
        self._repetition = None if wanted is None else RepetitionDetector(wanted)
        self.is_repeating = False  # the answer ends here, if nothing else ended it
        self._is_done = False
        self.num_tokens = 0
        self.stopped_by: str | int | None = None  # the stop string or ending token that came

    def push(self, token_id: int) -> TextPiece:
        """The next token, and all that is known of it."""
        text = self.advance(token_id)
        return TextPiece(
            text=text,
            stopped_by=self.stopped_by,
            token_bytes=self._detokenizer.bytes_of(token_id),
            held_bytes=self._detokenizer.held,
            held_text=self._stops.held,
        )

    def advance(self, token_id: int) -> str:
        """What may be shown after the next token; stopped_by tells whether the answer ends."""
        assert not self._is_done, "nothing follows the end of an answer"
        self.num_tokens += 1
        may_end = self.num_tokens > self._min_tokens
        if may_end and token_id in self._ending:
            return self._end(token_id)
        text = self._detokenizer.push(token_id)
        if self._has_stops:
            text = self._stops.push(text, may_stop=may_end)
            self.stopped_by = self._stops.stopped_by
            self._is_done = self.stopped_by is not None
        if self._repetition is not None:
            self.is_repeating = self._repetition.push(token_id) and may_end
        return text

    def finish(self) -> str:
        """What is left to show when the answer ends for want of room: withheld text and bytes.

        Bytes that are no whole character become U+FFFD; stop strings are not looked for in that.
        """
        if self._is_done:
            return ""
        self._is_done = True
        return self._stops.finish() + self._detokenizer.finish()

    def _end(self, token_id: int) -> str:
        """The ending token's own text goes by token, never by counting characters."""
        self._is_done, self.stopped_by = True, self._ending[token_id]
        own = self._detokenizer.push(token_id) if self._params.include_stop else ""
        return self._stops.finish() + own + self._detokenizer.finish()


def eos_token_ids(*sources: int | Sequence[int] | None) -> frozenset[int]:
    """All ids that end an answer by the model's files: each may name none, one or several.

    The tokenizer, config.json and generation_config.json often disagree; each of them is right.
    """
    lists = ([source] if isinstance(source, int) else source or () for source in sources)
    return frozenset(token_id for ids in lists for token_id in ids)


def stop_token_ids(
    params: SamplingParams, eos_ids: Iterable[int], control_tokens: Mapping[str, int]
) -> dict[int, str | int]:
    """Ids that end this answer, each with the reason to tell: the stop string, or the id itself.

    The model's own ends unless ignore_eos, the request's stop_token_ids, and the token of a stop
    string that is a control token's text: it gives no text to search in.
    """
    ending: dict[int, str | int] = {}
    if not params.ignore_eos:
        ending.update((token_id, token_id) for token_id in eos_ids)
    ending.update((token_id, token_id) for token_id in params.stop_token_ids)
    ending.update((control_tokens[s], s) for s in params.stop if s in control_tokens)
    return ending
