"""Tokens: the pieces of prompt and answer, their ids and bytes, and the letters hidden in them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from cutaway.host.turns import breathe
from cutaway.views.parts.drawing import Drawing, Span
from cutaway.views.parts.query import Query
from cutaway.views.parts.replay_values import ReplayValues
from cutaway.views.parts.subject import Subject
from cutaway.views.parts.view import View

NUM_COLOURS = 6  # neighbours differ; which colour a token has means nothing
MOST_TOLD = 32_768  # tokens one by one, a megabyte; of more the last
_FIRST, _LAST = 240, 60  # tokens of prompt or answer that are drawn
_HOLDING = 12


@dataclass(frozen=True)
class Tokens:
    """Each token of prompt and answer; of more than 32,768 the last, or those from one on.

    start: position of the first that is told; skipped_bytes, skipped_letters: of those before it.
    texts: with blanks visible.   num_bytes: of each token.   num_prompt: so many of the told are
    of the prompt.
    is_part:     whether its bytes are no whole characters, so that it shows as \\xNN.
    num_letters: letters inside it.   letters: those that were asked for; else all.
    num_words:   words of prompt and answer, between blanks.
    """

    texts: tuple[str, ...]
    token_ids: tuple[int, ...]
    num_bytes: tuple[int, ...]
    is_control: tuple[bool, ...]
    is_part: tuple[bool, ...]
    num_letters: tuple[int, ...]
    letters: str | None
    num_words: tuple[int, int]
    num_prompt: int
    start: int
    skipped_bytes: int
    skipped_letters: int

    def draw(self) -> Drawing:
        """The picture: the tokens of prompt and answer, with counts of bytes and words."""
        drawing = Drawing()
        for name, start, end, words, before in (
            ("prompt", 0, self.num_prompt, self.num_words[0], (self.start, self.skipped_bytes)),
            ("answer", self.num_prompt, len(self.texts), self.num_words[1], (0, 0)),
        ):
            count = end - start + before[0]
            total = sum(self.num_bytes[start:end]) + before[1]
            counts = [f"{count} tokens", f"{total} bytes"]
            counts.append(f"{total / max(1, count):.1f} a token")
            if words:
                counts.append(f"{count / words:.1f} tokens a word")
            drawing.line(Span(name, "strong"), f"  {', '.join(counts)}")
            if before[0]:
                drawing.line(Span(f"the first {before[0]:,} are counted and not told", "dim"))
            skipped = end - start - _FIRST - _LAST
            if skipped <= 0:
                self._draw_range(drawing, start, end)
                continue
            self._draw_range(drawing, start, start + _FIRST)
            drawing.line(Span(f"... {skipped} tokens are left out here ...", "dim"))
            self._draw_range(drawing, end - _LAST, end)
        self._draw_notes(drawing)
        return drawing

    def _draw_range(self, drawing: Drawing, start: int, end: int) -> None:
        drawing.wrap((self._span(index) for index in range(start, end)), indent=2)
        drawing.line(Span("ids", "dim"))
        ids = (Span(f"{each} ", "dim") for each in self.token_ids[start:end])
        drawing.wrap(ids, indent=2)

    def _span(self, index: int) -> Span:
        # A bar between pieces shows where they end when there is no colour.
        style = "strong" if self.is_control[index] else f"token-{index % NUM_COLOURS}"
        return Span(self.texts[index] + "\u2502", "bad" if self.is_part[index] else style)

    def _draw_notes(self, drawing: Drawing) -> None:
        parts = sum(self.is_part)
        if parts:
            drawing.line(f"{parts} tokens hold parts of characters (\\xNN)")
        total = sum(self.num_letters) + self.skipped_letters
        if self.letters is None:
            drawing.line(
                Span(f"{total} letters are inside these tokens; the model sees the ids", "dim")
            )
            return
        holding = sum(count > 0 for count in self.num_letters)
        drawing.line(
            Span(f"letters {self.letters}: {total} in {holding} tokens. ", "strong"),
            "The model sees the ids; what is inside it must know by heart.",
        )
        rows = list(islice(self._holding(), _HOLDING))
        if rows:
            drawing.table(("token", "id", "holds"), rows, sides="lrr")
        if holding > len(rows):
            drawing.line(Span(f"{holding - len(rows)} tokens more hold some", "dim"))

    def _holding(self) -> Iterator[tuple[str, str, str]]:
        for text, token_id, count in zip(self.texts, self.token_ids, self.num_letters, strict=True):
            if count:
                yield text, str(token_id), str(count)


def probe(subject: Subject, query: Query, taken: ReplayValues) -> Tokens:
    """The tokens of prompt and answer, with the size and kind of each."""
    del taken
    tokenizer, every = subject.tokenizer, subject.answer.token_ids
    num_prompt = subject.answer.num_prompt_tokens
    start = max(0, min(num_prompt, len(every) - MOST_TOLD))
    if query.start is not None:
        start = query.start
    told = slice(start, start + MOST_TOLD)
    data = [tokenizer.token_bytes(each) for each in every]
    is_control = tuple(each in tokenizer.control_ids for each in every)
    sizes = [0 if control else len(each) for each, control in zip(data, is_control, strict=True)]
    wanted = None if query.text is None else frozenset(query.text.lower())
    halves = (data[:num_prompt], data[num_prompt:])
    words = [len(b"".join(half).decode(errors="replace").split()) for half in halves]
    letters = tuple(
        0 if control else _num_letters(each, wanted)
        for each, control in zip(data, is_control, strict=True)
    )
    breathe()
    return Tokens(
        texts=tuple(map(subject.text, every[told])),
        token_ids=every[told],
        num_bytes=tuple(sizes[told]),
        is_control=is_control[told],
        is_part=tuple(not _is_whole(each) for each in data[told]),
        num_letters=letters[told],
        letters=query.text,
        num_words=(words[0], words[1]),
        num_prompt=max(0, min(MOST_TOLD, num_prompt - start)),
        start=start,
        skipped_bytes=sum(sizes[:start]),
        skipped_letters=sum(letters[:start]),
    )


def _is_whole(data: bytes) -> bool:
    """Whether bytes are characters."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _num_letters(data: bytes, wanted: frozenset[str] | None) -> int:
    breathe()
    text = data.decode(errors="ignore").lower()
    return sum(c.isalpha() if wanted is None else c in wanted for c in text)


VIEW = View(
    "tokens", "tokens", "Into which pieces is the text cut?", probe, takes=("text", "start")
)
