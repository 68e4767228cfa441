"""A prompt as segments: control strings that the template wrote, and plain text between them.

What a caller wrote is plain text whatever it spells, so it never becomes a control token. Knows
no vocabulary: encode() is handed one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, takewhile

from cutaway.text import written

# Unicode's White_Space, which is what tokenizers' strip flags mean; str.strip takes more.
_BLANKS = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)

_MAX_BRANCHINGS = 32  # nested groups of a pattern; deeper ones are listed one by one


@dataclass(frozen=True)
class Segment:
    """A stretch of a prompt: one control string, or plain text."""

    text: str
    is_control: bool


@dataclass(frozen=True)
class Prompt:
    """The text of a prompt, cut into segments.

    template_spans: start and end of each stretch of text that the template wrote.
    """

    segments: tuple[Segment, ...]
    template_spans: tuple[tuple[int, int], ...] = ()

    @property
    def text(self) -> str:
        """The whole text, as a rendering gives it."""
        return "".join(segment.text for segment in self.segments)

    def before(self, end: int) -> Prompt:
        """What stands before a character; a control string that it cuts becomes plain text."""
        kept: list[Segment] = []
        left = end
        for segment in self.segments:
            whole = len(segment.text) <= left
            if left > 0:
                text = segment.text[:left]
                kept.append(Segment(text, is_control=segment.is_control and whole))
            left -= len(segment.text)
        spans = ((start, min(stop, end)) for start, stop in self.template_spans if start < end)
        return Prompt(tuple(kept), tuple(spans))


def cut_rendered(text: str, control_strings: frozenset[str]) -> Prompt:
    """Cut marked text: a control string counts if the template wrote all of its characters."""
    spans = tuple(written.template_runs(text))
    return Prompt(tuple(_segments(text, spans, control_strings)), spans)


def encode(
    prompt: Prompt,
    encode_plain: Callable[[str], list[int]],
    control_ids: Mapping[str, int],
    *,
    encode_inner: Callable[[str], list[int]] | None = None,
    strips_left: frozenset[str] = frozenset(),
    strips_right: frozenset[str] = frozenset(),
) -> list[int]:
    """Token ids of a prompt; nothing is put before or after, so a BOS is there if it was written.

    encode_plain must know no control token. encode_inner takes its place for text after the first
    segment, which a SentencePiece vocabulary may begin without a blank. strips_left and
    strips_right are the control strings that swallow the blanks beside them (lstrip and rstrip in
    tokenizer.json).
    """
    parts = encode_segments(
        prompt,
        encode_plain,
        control_ids,
        encode_inner=encode_inner,
        strips_left=strips_left,
        strips_right=strips_right,
    )
    return [token_id for _, token_ids in parts for token_id in token_ids]


def encode_segments(
    prompt: Prompt,
    encode_plain: Callable[[str], list[int]],
    control_ids: Mapping[str, int],
    *,
    encode_inner: Callable[[str], list[int]] | None = None,
    strips_left: frozenset[str] = frozenset(),
    strips_right: frozenset[str] = frozenset(),
) -> Iterator[tuple[Segment, list[int]]]:
    """The same, segment by segment."""
    segments = prompt.segments
    for index, segment in enumerate(segments):
        if segment.is_control:
            yield segment, [control_ids[segment.text]]
            continue
        text = segment.text
        if index > 0 and segments[index - 1].text in strips_right:
            text = text.lstrip(_BLANKS)
        if index + 1 < len(segments) and segments[index + 1].text in strips_left:
            text = text.rstrip(_BLANKS)
        encoded = encode_plain if index == 0 else encode_inner or encode_plain
        yield segment, encoded(text) if text else []


def _segments(
    text: str, spans: Iterable[tuple[int, int]], control_strings: frozenset[str]
) -> Iterator[Segment]:
    text = "".join(text)
    start = 0
    for span in spans if control_strings else ():
        for match in _pattern(control_strings).finditer(text, *span):
            if match.start() > start:
                yield Segment(text[start : match.start()], is_control=False)
            yield Segment(match[0], is_control=True)
            start = match.end()
    if start < len(text):
        yield Segment(text[start:], is_control=False)


@lru_cache(maxsize=16)
def _pattern(control_strings: frozenset[str]) -> re.Pattern[str]:
    """Leftmost first, then longest: how tokenizers look for added tokens."""
    return re.compile(_alternatives(sorted(control_strings), _MAX_BRANCHINGS))


def _alternatives(strings: list[str], depth: int) -> str:
    """A pattern for any of the sorted strings that shares what they begin with.

    A vocabulary may hold thousands of control tokens: tried one by one, each "<" costs them all.
    """
    pairs = zip(strings[0], strings[-1], strict=False)
    shared = "".join(first for first, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    rests = [string[len(shared) :] for string in strings]
    longer = [rest for rest in rests if rest]
    if depth == 0:
        branches = [re.escape(rest) for rest in sorted(longer, key=len, reverse=True)]
    else:
        groups = groupby(longer, key=lambda rest: rest[0])
        branches = [_alternatives(list(group), depth - 1) for _, group in groups]
    ending = f"(?:{'|'.join(branches)})" if branches else ""
    return re.escape(shared) + ending + ("?" if ending and len(longer) < len(rests) else "")
