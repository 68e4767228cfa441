"""Merges: how pieces of text become tokens, step by step; for unigram vocabularies the best cut."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cutaway.host.turns import breathe
from cutaway.tokens.tokenizer import Merge, Piece, Tokenizer
from cutaway.views.parts.drawing import WIDTH, Drawing, Span, columns, cut
from cutaway.views.parts.query import Query
from cutaway.views.parts.replay_values import ReplayValues
from cutaway.views.parts.subject import Subject, visible
from cutaway.views.parts.view import View

MAX_PIECES = 8
MAX_CHARACTERS = 100  # of a piece: every step writes out the whole piece
_FIRST, _LAST = 16, 4  # steps of a piece that are drawn


@dataclass(frozen=True)
class MergeStep:
    """Two neighbours became one token.

    rank: of the merge; the lowest among a piece's neighbours goes first.   parts: all, after it.
    """

    rank: int
    left: str
    right: str
    token_id: int
    parts: tuple[str, ...]


@dataclass(frozen=True)
class ScoredPart:
    """A part of the best cut. token_id: None where no piece fits.   score: a log-probability."""

    text: str
    token_id: int | None
    score: float


@dataclass(frozen=True)
class PieceMerges:
    """One piece and how its ids came about.

    start: what it was before any merge.   cut: of a unigram vocabulary, instead of steps.
    is_whole: taken from the vocabulary as it is; the steps are what merging would have done.
    """

    text: str
    token_ids: tuple[int, ...]
    texts: tuple[str, ...]
    start: tuple[str, ...]
    steps: tuple[MergeStep, ...]
    cut: tuple[ScoredPart, ...]
    is_whole: bool


@dataclass(frozen=True)
class Merges:
    """num_left_out: pieces of the text beyond MAX_PIECES or longer than MAX_CHARACTERS."""

    pieces: tuple[PieceMerges, ...]
    num_left_out: int
    vocab_size: int

    def draw(self) -> Drawing:
        """The picture: the merges of each piece in order, or the best cut of it."""
        drawing = Drawing()
        for piece in self.pieces:
            _draw_piece(piece, drawing)
        if not self.pieces:
            drawing.line("no piece of this text is split or merged")
        if self.num_left_out:
            left_out = f"left out: {self.num_left_out} other pieces; give a word as text to see it"
            drawing.line(Span(left_out, "dim"))
        drawing.line(
            Span(f"one vocabulary of {self.vocab_size} tokens, made before the model: ", "dim"),
            Span("counts decided, not grammar", "dim"),
        )
        return drawing


def _draw_piece(piece: PieceMerges, drawing: Drawing) -> None:
    count = len(piece.token_ids)
    ids = " ".join(map(str, piece.token_ids))
    drawing.line(
        Span(cut(piece.text, 40), "strong"),
        cut(f"  becomes {count} token{'s' * (count != 1)}: {_joined(piece.texts)}", WIDTH - 45),
    )
    drawing.line(Span(cut(f"ids {ids}", WIDTH), "dim"))
    if piece.is_whole:
        drawing.line("taken whole, since it is a token; merging would have gone this way:")
    if piece.cut:
        drawing.line("of all ways to cut it, this one has the highest sum of scores:")
        rows = [
            (each.text, "no piece" if each.token_id is None else str(each.token_id), each.score)
            for each in piece.cut
        ]
        shown = [(cut(text, 60), token_id, f"{score:.3f}") for text, token_id, score in rows]
        total = sum(each.score for each in piece.cut)
        drawing.table(("part", "id", "score"), [*shown, ("sum", "", f"{total:.3f}")], sides="lrr")
    elif piece.steps:
        _draw_steps(piece, drawing)
    else:
        drawing.line(Span("no two neighbours of it merge", "dim"))


def _draw_steps(piece: PieceMerges, drawing: Drawing) -> None:
    head = ("step", "rank", "joins", "into id", "the piece now")
    rows = [("", "", "", "", _joined(piece.start))]
    for number, step in enumerate(piece.steps, start=1):
        joins = f"{step.left} + {step.right}"
        rows.append((str(number), str(step.rank), joins, str(step.token_id), _joined(step.parts)))
    skipped = len(rows) - 1 - _FIRST - _LAST
    if skipped > 0:
        rows[_FIRST + 1 : -_LAST] = [("", "", f"({skipped} steps)", "", "...")]
    rows = [(*row[:2], cut(row[2], 30), *row[3:]) for row in rows]
    used = sum(max(columns(row[i]) for row in (head, *rows)) + 2 for i in range(4))
    drawing.table(head, [(*row[:4], cut(row[4], WIDTH - used - 3)) for row in rows], sides="rrlrl")


def _joined(parts: Iterable[str]) -> str:
    return "\u2502".join(parts)


def probe(subject: Subject, query: Query, taken: ReplayValues) -> Merges:
    """Spell out how the tokenizer builds up each piece of the text."""
    del taken
    tokenizer, text = subject.tokenizer, query.text
    pieces = _pieces(tokenizer, subject.asked if text is None else text)
    written = _written(subject) if text is None else pieces
    shown = [each for each in written if len(each.text) <= MAX_CHARACTERS][:MAX_PIECES]
    if text is None:  # one alone, the longest: most happens there
        shown = sorted(shown, key=lambda each: len(each.text), reverse=True)[:1]
    return Merges(
        pieces=tuple(_merged(tokenizer, each) for each in shown),
        num_left_out=len(pieces) - len(shown),
        vocab_size=tokenizer.vocab_size,
    )


def _written(subject: Subject) -> list[Piece]:
    """What a person wrote, as pieces: where messages are not known, what stands between the last
    two control tokens with several words between them, since a template's own stretch is one name.
    """
    if not subject.messages:
        control, stretch = frozenset(subject.tokenizer.control_tokens.values()), list[int]()
        for token_id in reversed((-1, *subject.answer.request.prompt_token_ids)):
            if token_id >= 0 and token_id not in control:
                stretch.append(token_id)
                continue
            pieces = _pieces(subject.tokenizer, subject.tokenizer.decode(stretch[::-1]))
            if sum(any(map(str.isalpha, each.text)) for each in pieces) > 1:
                return pieces
            stretch.clear()
    return _pieces(subject.tokenizer, subject.asked)


def _pieces(tokenizer: Tokenizer, text: str) -> list[Piece]:
    """Of the text; of each word where the vocabulary would take a long text as one piece."""
    pieces = tokenizer.encode_pieces(text)
    if len(pieces) == 1 and len(text) > MAX_CHARACTERS:
        pieces = [piece for word in text.split() for piece in tokenizer.encode_pieces(word)]
    return [each for each in pieces if each.text and not each.is_added]


def _merged(tokenizer: Tokenizer, piece: Piece) -> PieceMerges:
    steps = tuple(tokenizer.merges(piece.text))
    ids = piece.token_ids
    tokens = tuple(tokenizer.token_bytes(token_id) for token_id in ids)
    return PieceMerges(
        text=visible(b"".join(tokens)),
        token_ids=ids,
        texts=tuple(map(visible, tokens)),
        start=tuple(map(visible, _start(steps, tokens))),
        steps=tuple(_step(each) for each in steps),
        cut=tuple(
            ScoredPart(visible(each.part), each.token_id, each.score)
            for each in tokenizer.best_cut(piece.text)
        ),
        is_whole=bool(steps) and len(steps[-1].parts) != len(ids) == 1,
    )


def _start(steps: tuple[Merge, ...], tokens: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """The parts before the first merge: after it, the joined one is the first of its bytes."""
    if not steps:
        return tokens
    first = steps[0]
    at = first.parts.index(first.left + first.right)
    return (*first.parts[:at], first.left, first.right, *first.parts[at + 1 :])


def _step(merge: Merge) -> MergeStep:
    breathe()
    return MergeStep(
        rank=merge.rank,
        left=visible(merge.left),
        right=visible(merge.right),
        token_id=merge.token_id,
        parts=tuple(map(visible, merge.parts)),
    )


VIEW = View(
    "merges",
    "tokens",
    "How did its characters become tokens?",
    probe,
    takes=("text",),
)
