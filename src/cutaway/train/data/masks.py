"""The tokens of a conversation, and which of them the assistant has to write.

Known from where each character came from when the template was rendered, never by searching the
text: a token is scored if it holds a character of an answer, or is the control token that closes
it. Ids are those that a server makes of the same conversation, tokenized as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate

from cutaway.core.errors import RequestError, TemplateError
from cutaway.text.chat_messages import Message, ToolCall
from cutaway.text.prompt import Prompt, encode_segments
from cutaway.text.template import ChatTemplate, Spoken
from cutaway.tokens.tokenizer import Tokenizer
from cutaway.train.data.examples import Conversation
from cutaway.train.data.packing import ScoredSequence

Span = tuple[int, int]  # of characters


def score(
    conversation: Conversation, template: ChatTemplate, tokenizer: Tokenizer
) -> ScoredSequence:
    """A conversation's tokens, those of its answers scored.

    Raises: TemplateError when the template refuses it; RequestError when a tokenizer changes the
    text so that a token's characters are not known.
    """
    spoken = template.render_spoken(conversation.messages, tools=conversation.tools)
    spans = answer_spans(spoken, conversation, template)
    token_ids: list[int] = []
    marks: list[bool] = []
    for each, mark in _marked_tokens(spoken.prompt, spans, tokenizer):
        token_ids.append(each)
        marks.append(mark and len(marks) > 0)
    return ScoredSequence(tuple(token_ids), tuple(marks))


def answer_spans(
    spoken: Spoken, conversation: Conversation, template: ChatTemplate
) -> tuple[Span, ...]:
    """Which characters of a rendered conversation are the assistant's to write, in order.

    Generation blocks count where the template has them. Else an answer reaches from its first
    character to the control token that closes it; one that thinks or calls begins where the
    prompt for it ends, since the template writes what opens a thought or a call.
    """
    if spoken.generated:
        return spoken.generated
    text = spoken.prompt.text
    spans: list[Span] = []
    for index, (first, last) in sorted(spoken.extents.items()):
        before = conversation.messages[:index]
        header = _header(before, conversation, template)
        opens = len(header[0]) if header and text.startswith(header[0]) else first
        is_opened = _has_frame(conversation.messages[index]) and opens < first
        closing = _closing(spoken.prompt, last, header[1] if header else frozenset())
        spans.append((opens if is_opened else first, closing))
    return tuple(spans)


def _has_frame(message: Message) -> bool:
    return message.reasoning is not None or any(isinstance(p, ToolCall) for p in message.content)


def _header(
    before: Sequence[Message], conversation: Conversation, template: ChatTemplate
) -> tuple[str, frozenset[str]] | None:
    """The prompt for the answer after some messages, and the control strings that open it.

    None where the template writes no such prompt.
    """
    if not before:
        return None
    try:
        asked = template.render(before, tools=conversation.tools)
        told = template.render(before, tools=conversation.tools, add_generation_prompt=False)
    except TemplateError:  # it takes the whole conversation, so what it takes of a part is its own
        return None
    opening = asked.segments[len(told.segments) :] if asked.text.startswith(told.text) else ()
    return asked.text, frozenset(each.text for each in opening if each.is_control)


def _closing(prompt: Prompt, last: int, openings: frozenset[str]) -> int:
    """Where the control token that closes an answer ends; last where a turn opens before one."""
    ends = accumulate(len(segment.text) for segment in prompt.segments)
    for segment, end in zip(prompt.segments, ends, strict=True):
        if segment.is_control and end - len(segment.text) >= last:
            return last if segment.text in openings else end
    return last


def _marked_tokens(
    prompt: Prompt, spans: Sequence[Span], tokenizer: Tokenizer
) -> Iterator[tuple[int, bool]]:
    parts = encode_segments(
        prompt,
        tokenizer.encode,
        tokenizer.control_tokens,
        encode_inner=partial(tokenizer.encode, is_start=False),
    )
    start = 0
    for segment, token_ids in parts:
        end = start + len(segment.text)
        inside = [(max(a, start) - start, min(b, end) - start) for a, b in spans]
        inside = [(a, b) for a, b in inside if a < b]
        if not inside or inside == [(0, len(segment.text))]:
            yield from ((token_id, bool(inside)) for token_id in token_ids)
        else:
            yield from _overlapping(segment.text, token_ids, inside, tokenizer)
        start = end


def _overlapping(
    text: str, token_ids: Sequence[int], inside: Sequence[Span], tokenizer: Tokenizer
) -> Iterator[tuple[int, bool]]:
    """Each token, and whether one of its bytes lies inside."""
    parts = [tokenizer.token_bytes(token_id) for token_id in token_ids]
    spelled, raw = b"".join(parts), text.encode()
    if spelled not in (raw, b" " + raw):  # SentencePiece may put a blank in front
        raise RequestError("the tokenizer changes the text, so its tokens cannot be told apart.")
    lengths = [len(text[:place].encode()) for span in inside for place in span]
    scored = list(zip(lengths[::2], lengths[1::2], strict=True))
    place = len(raw) - len(spelled)
    for token_id, part in zip(token_ids, parts, strict=True):
        yield token_id, any(a < place + len(part) and place < b for a, b in scored)
        place += len(part)
