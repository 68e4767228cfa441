"""What a view looks at: one recorded answer, the model that gave it, and its inner values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from cutaway.blocks.transformer import Transformer
from cutaway.core.facts import ModelFacts
from cutaway.host.turns import breathe
from cutaway.sampling.candidates import SamplerRow
from cutaway.sampling.grammars.grammar_state import GrammarState
from cutaway.stream.text import TextStream
from cutaway.text.chat_messages import Message
from cutaway.text.prompt import Prompt
from cutaway.tokens.tokenizer import Tokenizer
from cutaway.trace.ledger import Ledger
from cutaway.trace.records import AnswerRecord
from cutaway.views.parts.replay_values import ReplayValues, Wanted


@dataclass(frozen=True)
class Build:
    """How the model was run. Dtypes by name.

    settings: those of the engine that decide its numbers, where they are not the default.
    """

    model: str
    dtype: str
    cache_dtype: str
    device: str
    page_size: int
    prefill_chunk: int
    has_prefix_cache: bool
    settings: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class Subject:
    """One answer, opened.

    messages: the conversation behind the prompt, where it is known.
    prompt:   what the model's template makes of it; None for a plain prompt.
    grammar:  the request's grammar before the first token; None where it has none.
    stream:   what made text of the tokens, before the first of them.
    take:     runs the answer again for inner values; what was taken before is not run twice.
    row:      what decided a token of the answer besides its logits.
    branch:   runs tokens that might have come after so many of the answer: their rows [N, V].
    kept:     for each cache group, which full pages of the answer the prefix index can find now.
    encode_seconds: what template and tokenizer took before the request came, where it is known.
    """

    answer: AnswerRecord
    ledger: Ledger
    transformer: Transformer
    facts: ModelFacts
    tokenizer: Tokenizer
    build: Build
    take: Callable[[Wanted], ReplayValues]
    grammar: Callable[[], GrammarState | None]
    stream: Callable[[], TextStream]
    kept: Callable[[], tuple[tuple[bool, ...], ...]]
    row: Callable[[int], SamplerRow]
    branch: Callable[[int, Sequence[int]], Tensor]
    messages: tuple[Message, ...] | None = None
    prompt: Prompt | None = None
    encode_seconds: float | None = None

    @property
    def num_positions(self) -> int:
        """That went through the model: all tokens but the answer's last."""
        return self.answer.num_prompt_tokens + max(0, len(self.answer.tokens) - 1)

    @property
    def num_rows(self) -> int:
        """Tokens of the answer, each drawn from a row of logits."""
        return len(self.answer.tokens)

    @property
    def asked(self) -> str:
        """What a person wrote: the last message of a user, or else the whole prompt."""
        texts = [each.text for each in self.messages or () if each.role == "user"]
        if texts and texts[-1] is not None:
            return texts[-1]
        return self.tokenizer.decode(self.answer.request.prompt_token_ids)

    @property
    def asked_positions(self) -> range:
        """Where what a person wrote stands in the prompt; all of it where that is not found."""
        prompt = self.answer.request.prompt_token_ids
        ids = tuple(self.tokenizer.encode(self.asked, is_start=False))
        last = len(prompt) - len(ids)
        for start in range(last, -1, -1) if ids else ():
            breathe()
            if prompt[start] == ids[0] and prompt[start : start + len(ids)] == ids:
                return range(start, start + len(ids))
        return range(len(prompt))

    def row_position(self, token: int) -> int:
        """The position whose logits gave a token of the answer."""
        return self.answer.num_prompt_tokens - 1 + token

    def text(self, token_id: int) -> str:
        """A token as one short line: blanks, line ends and broken bytes are visible."""
        breathe()
        return visible(self.tokenizer.token_bytes(token_id))

    def texts(self) -> list[str]:
        """Every token of prompt and answer."""
        return [self.text(token_id) for token_id in self.answer.token_ids]


_GLYPHS = {" ": "\u00b7", "\n": "\u21b5", "\t": "\u21e5", "\r": "\u240d"}


def visible(data: bytes) -> str:
    """Bytes as text of which every character shows; those that are no text as \\xNN."""
    text = data.decode("utf-8", errors="backslashreplace")
    return "".join(_GLYPHS.get(c, c if c.isprintable() else f"\\u{{{ord(c):x}}}") for c in text)
