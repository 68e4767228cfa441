"""Template: the conversation as the one text that the model was given, and who wrote which part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, pairwise
from typing import Literal

from cutaway.text.prompt import Prompt, encode
from cutaway.views.parts.drawing import Drawing, Span, columns
from cutaway.views.parts.query import Query
from cutaway.views.parts.replay_values import ReplayValues
from cutaway.views.parts.subject import Subject, visible
from cutaway.views.parts.view import View

Writer = Literal["control", "template", "conversation", "prompt"]

MAX_CHARACTERS = 2_000  # of one stretch in the payload
_FIRST, _LAST, _LINES, _TEXT_WIDTH = 24, 8, 6, 84


@dataclass(frozen=True)
class Stretch:
    """A part of the prompt by one writer: a control token, the template's words, or a message's.

    text: at most MAX_CHARACTERS of it.
    """

    writer: Writer
    text: str
    num_characters: int


@dataclass(frozen=True)
class Expansion:
    """The prompt in order.

    is_known: whether the conversation, through the template, gives the very ids that were served;
    else the stretches are read off the ids, and who wrote the words is not known.
    num_messages: of the conversation; 0 for a plain prompt.
    """

    stretches: tuple[Stretch, ...]
    num_messages: int
    num_tokens: int
    num_control: int
    is_known: bool

    def draw(self) -> Drawing:
        """The picture: the prompt in stretches, each with who wrote it."""
        drawing = Drawing()
        drawing.line(self._summary)
        skipped = len(self.stretches) - _FIRST - _LAST
        first = self.stretches[: _FIRST if skipped > 0 else None]
        rows = list(_rows(first))
        if skipped > 0:
            rows.append((Span(""), Span(f"... {skipped} stretches are left out here ...", "dim")))
            rows += _rows(self.stretches[-_LAST:])
        drawing.table(("written by", "text"), rows, sides="ll")
        drawing.line(
            f"The model gets {self.num_tokens} ids, {self.num_control} of them control tokens: no "
            "roles, no names, no messages."
        )
        drawing.line(
            Span("Outside the model, in plain code: template, sampling, stop rules, tools.", "dim")
        )
        return drawing

    @property
    def _summary(self) -> str:
        if not self.num_messages:
            return "a plain prompt: no template was used"
        if not self.is_known:
            return (
                f"{self.num_messages} messages; tools, options or the date gave other ids, so this "
                "is read off the ids"
            )
        sums = {writer: 0 for writer in ("conversation", "template")}
        for each in self.stretches:
            if each.writer in sums:
                sums[each.writer] += each.num_characters
        plural = "s" * (self.num_messages > 1)
        return (
            f"{self.num_messages} message{plural} of {sums['conversation']} characters; the "
            f"template adds {sums['template']} and {self.num_control} control tokens"
        )


def _rows(stretches: Sequence[Stretch]) -> Iterator[tuple[Span, Span]]:
    styles = {"control": "strong", "template": "dim"}
    for each in stretches:
        style = styles.get(each.writer, "plain")
        lines = _broken("".join(c if c == " " else visible(c.encode()) for c in each.text))
        left = each.num_characters - len(each.text)
        if left or len(lines) > _LINES:
            lines = [*lines[: _LINES - 1], f"... {each.num_characters} characters in all"]
        for index, line in enumerate(lines):
            yield Span("" if index else each.writer, style), Span(line, style)


def _broken(text: str) -> list[str]:
    """A text in lines of equal width; blanks at its ends would not show, so they become dots."""
    inner = text.strip(" ")
    at = text.find(inner) if inner else 0
    text = "\u00b7" * at + inner + "\u00b7" * (len(text) - at - len(inner))
    lines, used = [""], 0
    for c in text:
        width = columns(c)
        if used + width > _TEXT_WIDTH:
            lines, used = [*lines, ""], 0
        lines[-1] += c
        used += width
    return lines


def probe(subject: Subject, query: Query, taken: ReplayValues) -> Expansion:
    """The prompt cut where its author changes: the template, or a message."""
    del query, taken
    ids, prompt = subject.answer.request.prompt_token_ids, subject.prompt
    is_known = prompt is not None and _ids_of(subject, prompt) == ids
    parts = _written(prompt) if prompt is not None and is_known else _read_off(subject)
    return Expansion(
        stretches=tuple(Stretch(who, text[:MAX_CHARACTERS], len(text)) for who, text in parts),
        num_messages=len(subject.messages or ()),
        num_tokens=len(ids),
        num_control=sum(each in subject.tokenizer.control_ids for each in ids),
        is_known=is_known,
    )


def _ids_of(subject: Subject, prompt: Prompt) -> tuple[int, ...]:
    plain = subject.tokenizer.encode
    inner = partial(plain, is_start=False)
    controls = subject.tokenizer.control_tokens
    return tuple(encode(prompt, plain, controls, encode_inner=inner))


def _written(prompt: Prompt) -> Iterator[tuple[Writer, str]]:
    """Segments cut where the writer changes."""
    start = 0
    for segment in prompt.segments:
        end = start + len(segment.text)
        if segment.is_control:
            yield "control", segment.text
        else:
            borders = {start, end}
            for span in prompt.template_spans:
                borders |= {border for border in span if start < border < end}
            ordered = sorted(borders)
            for left, right in pairwise(ordered):
                is_own = any(a <= left < b for a, b in prompt.template_spans)
                writer: Writer = "template" if is_own else "conversation"
                yield writer, segment.text[left - start : right - start]
        start = end


def _read_off(subject: Subject) -> Iterator[tuple[Writer, str]]:
    """Control tokens, and the text between them."""
    tokenizer, ids = subject.tokenizer, subject.answer.request.prompt_token_ids
    for is_control, group in groupby(ids, tokenizer.control_ids.__contains__):
        if is_control:
            for each in group:
                yield "control", tokenizer.token_text(each)
        else:
            yield "prompt", tokenizer.decode_bytes(group).decode(errors="replace")


VIEW = View(
    "template",
    "text",
    "What text does the model really get?",
    probe,
)
