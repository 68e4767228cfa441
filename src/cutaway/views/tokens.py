"""Tokens: the pieces of prompt and answer, their ids and bytes."""

from __future__ import annotations

from dataclasses import dataclass

from cutaway.views.drawing import Drawing, Span
from cutaway.views.query import Query
from cutaway.views.subject import Subject
from cutaway.views.taken import Taken
from cutaway.views.view import View

NUM_COLOURS = 6  # neighbours differ; which colour a token has means nothing


@dataclass(frozen=True)
class Tokens:
    """texts: with blanks visible.   num_bytes: of each token.   num_prompt: so many are asked."""

    texts: tuple[str, ...]
    token_ids: tuple[int, ...]
    num_bytes: tuple[int, ...]
    is_control: tuple[bool, ...]
    num_prompt: int

    def draw(self) -> Drawing:
        drawing = Drawing()
        for name, start, end in (
            ("prompt", 0, self.num_prompt),
            ("answer", self.num_prompt, len(self.texts)),
        ):
            total = sum(self.num_bytes[start:end])
            ratio = total / max(1, end - start)
            drawing.line(
                Span(name, "strong"), f"  {end - start} tokens, {total} bytes, {ratio:.1f} a token"
            )
            drawing.wrapped((self._span(index) for index in range(start, end)), indent=2)
            drawing.line(Span("ids", "dim"))
            ids = (Span(f"{each} ", "dim") for each in self.token_ids[start:end])
            drawing.wrapped(ids, indent=2)
        return drawing

    def _span(self, index: int) -> Span:
        # A bar between pieces shows where they end when there is no colour.
        style = "strong" if self.is_control[index] else f"token-{index % NUM_COLOURS}"
        return Span(self.texts[index] + "\u2502", style)


def probe(subject: Subject, query: Query, taken: Taken) -> Tokens:
    del query, taken
    ids, control = subject.answer.token_ids, subject.tokenizer.control_ids
    return Tokens(
        texts=tuple(subject.texts()),
        token_ids=ids,
        num_bytes=tuple(len(subject.tokenizer.token_bytes(each)) for each in ids),
        is_control=tuple(each in control for each in ids),
        num_prompt=subject.answer.num_prompt_tokens,
    )


VIEW = View("tokens", "tokens", "Into which pieces is the text cut?", probe)
