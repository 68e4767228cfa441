"""Detokenization: what each token of the answer let a reader see, and what had to wait, and why."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cutaway.stream.text import TextPiece
from cutaway.views.parts.drawing import Drawing, Span, cut
from cutaway.views.parts.payload import Array
from cutaway.views.parts.query import Query
from cutaway.views.parts.replay_values import ReplayValues
from cutaway.views.parts.subject import Subject, visible
from cutaway.views.parts.view import View

MAX_ROWS = 256  # tokens one by one in the payload; the counts are of the whole answer
MAX_TEXT = 600
_DRAWN = 36


@dataclass(frozen=True)
class Emitted:
    """What one token gave. token: in the answer.   data: its bytes in hex; none if it is skipped.

    shows: characters that were whole and free after it.
    held_bytes: in hex, of a character that is not whole.   held_text: it may begin a stop string.
    """

    token: int
    token_id: int
    text: str
    data: str
    shows: str
    held_bytes: str
    held_text: str


@dataclass(frozen=True)
class Detokenization:
    """The answer as it came to a reader.

    rows:       up to MAX_ROWS tokens around the one that was asked for.
    characters: shown after each token of the whole answer, the sum so far.   Shapes: [tokens].
    num_held:   tokens after which something waited.
    rest:       what the end of the answer set free.   stopped_by: what ended it, if a stop did.
    text:       the first MAX_TEXT characters of all.
    """

    rows: tuple[Emitted, ...]
    token: int
    characters: Array
    num_tokens: int
    num_bytes: int
    num_held: int
    rest: str
    stopped_by: str | int | None
    text: str

    def draw(self) -> Drawing:
        """The picture: a row for each token around the chosen one, and what waits after it."""
        drawing = Drawing()
        shown = int(self.characters[-1]) if self.num_tokens else 0
        drawing.line(
            f"{self.num_tokens} tokens gave {self.num_bytes} bytes and {shown} characters at once; "
            f"after {self.num_held} of them something waited"
        )
        start = max(0, min(self.token - _DRAWN // 2, self.num_tokens - _DRAWN))
        rows = [each for each in self.rows if start <= each.token < start + _DRAWN]
        head = ("", "id", "token", "bytes", "shows", "waits")
        drawing.table(head, [_row(each) for each in rows], sides="rrllll")
        if len(rows) < self.num_tokens:
            left_out = self.num_tokens - len(rows)
            drawing.line(Span(f"{left_out} tokens are not drawn; name one with token", "dim"))
        if self.rest:
            drawing.line(f"the end set free: {cut(visible(self.rest.encode()), 70)}")
        if self.stopped_by is not None:
            what = "the token" if isinstance(self.stopped_by, int) else "the stop string"
            drawing.line(f"ended by {what} {cut(str(self.stopped_by), 60)}")
        drawing.line(Span("assembled ", "strong"), cut(visible(self.text.encode()), 88))
        return drawing


def _row(each: Emitted) -> tuple[str, ...]:
    waits = ""
    if each.held_bytes:
        waits = f"{each.held_bytes} for the rest of its character"
    elif each.held_text:
        waits = cut(f"{visible(each.held_text.encode())}: may begin a stop string", 40)
    data = cut(each.data, 20) if each.data else "skipped"
    shows = cut(visible(each.shows.encode()), 20)
    return str(each.token), str(each.token_id), cut(each.text, 16), data, shows, cut(waits, 36)


def probe(subject: Subject, query: Query, taken: ReplayValues) -> Detokenization:
    """Push the answer's tokens through a new stream, and note what each one gave."""
    del taken
    stream, ids = subject.stream(), [each.token_id for each in subject.answer.tokens]
    pieces: list[TextPiece] = [stream.push(each) for each in ids]
    rest = stream.finish()
    centre = query.token or 0
    first = max(0, min(centre - MAX_ROWS // 2, len(ids) - MAX_ROWS))
    text = "".join(piece.text for piece in pieces) + rest
    return Detokenization(
        rows=tuple(
            _emitted(subject, index, ids[index], pieces[index])
            for index in range(first, min(len(ids), first + MAX_ROWS))
        ),
        token=centre,
        characters=np.cumsum([len(piece.text) for piece in pieces]).astype(np.int64),
        num_tokens=len(ids),
        num_bytes=sum(len(piece.token_bytes) for piece in pieces),
        num_held=sum(bool(piece.held_bytes or piece.held_text) for piece in pieces),
        rest=rest,
        stopped_by=pieces[-1].stopped_by if pieces else None,
        text=text[:MAX_TEXT],
    )


def _emitted(subject: Subject, token: int, token_id: int, piece: TextPiece) -> Emitted:
    return Emitted(
        token=token,
        token_id=token_id,
        text=subject.text(token_id),
        data=piece.token_bytes.hex(),
        shows=piece.text,
        held_bytes=piece.held_bytes.hex(),
        held_text=piece.held_text,
    )


VIEW = View(
    "detokenization",
    "stream",
    "When did a reader see which characters?",
    probe,
    takes=("token",),
    is_by_step=True,
)
