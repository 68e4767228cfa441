"""Why an answer may be wrong: doubtful spans, hidden letters, what was cut or out of sight."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from cutaway.compare.cause import Cause, count_noun
from cutaway.compare.rerun import Rerun
from cutaway.core.layout import Window
from cutaway.core.limits import quote
from cutaway.engine.engine import Engine
from cutaway.replay.look import Look
from cutaway.trace.records import AnswerRecord
from cutaway.views.parts.replay_values import Wanted

_DOUBT = 0.5  # a token below this probability was no foregone conclusion
_DRAWS = 4  # other draws of a doubtful span
_SPAN = 16  # tokens of a span that are drawn anew
_MORE = 64  # tokens after which an answer that was cut may end by itself
_SAID = 32  # tokens of an answer to a changed prompt
_LETTERS = re.compile(
    r"\b(?:letters?|characters?|spell\w*|vowels?|consonants?|syllables?|anagrams?|palindromes?"
    r"|backwards?|how many (?:times (?:does )?)?[\"'*`]?[a-z][\"'*`]?(?:'?s)?)(?![a-z'])",
    re.IGNORECASE,
)
_NAMED = re.compile(r"\b(?:in|of|word|spell|contains?)(?: the)?(?: word)? [\"'*`]*([A-Za-z]{3,})")
_WORD = re.compile(r"[A-Za-z]{4,}")
_END = re.compile(r"[.?!\n]")


class WrongCauses:
    """Causes of what an answer says."""

    def __init__(self, engine: Engine, look: Look) -> None:
        self._look, self._subject, self._answer = look, look.subject, look.subject.answer
        self._rerun = Rerun(engine, self._answer)
        self._max_length = engine.max_length

    def wrong(self) -> Iterator[Cause]:
        """Causes of a doubtful answer: low confidence, hidden letters, a cut, a window."""
        for start, end in self._doubtful():
            yield self._doubt(start, end)
        hidden = self._hidden_letters()
        if hidden is not None:
            yield hidden
        if self._answer.finish_reason == "length":
            yield self._truncated()
        window = self._window()
        if window is not None:
            yield window

    def _doubtful(self, most: int = 3) -> list[tuple[int, int]]:
        """Spans of tokens that were no foregone conclusion, the least likely first."""
        logprobs = [token.logit - token.logsumexp for token in self._answer.tokens]
        spans: list[tuple[int, int]] = []
        for index, logprob in enumerate(logprobs):
            if logprob >= math.log(_DOUBT):
                continue
            if spans and spans[-1][1] == index and index - spans[-1][0] < _SPAN:
                spans[-1] = (spans[-1][0], index + 1)
            else:
                spans.append((index, index + 1))
        return sorted(spans, key=lambda span: min(logprobs[slice(*span)]))[:most]

    def _doubt(self, start: int, end: int) -> Cause:
        answer = self._answer
        logprobs = [token.logit - token.logsumexp for token in answer.tokens]
        at = min(range(start, end), key=lambda index: logprobs[index])
        row = self._look.take(Wanted(rows=frozenset({at}))).rows[at].double()
        shares = row.log_softmax(dim=-1)
        entropy = float(-(shares.exp() * shares).nan_to_num().sum())
        best, second = (int(each) for each in row.topk(2).indices)
        other = second if best == answer.tokens[at].token_id else best
        ids = answer.token_ids[: answer.num_prompt_tokens + start]
        wanted = [token.token_id for token in answer.tokens[start:end]]
        draws = [
            self._rerun.run(ids, end - start, ignore_eos=True, seed=seed, temperature=1.0)[0]
            for seed in range(_DRAWS)
        ]
        same = sum([t.token_id for t in draw.tokens] == wanted for draw in draws)
        told = [self._said([t.token_id for t in draw.tokens]) for draw in draws]
        return Cause(
            "wrong",
            "low confidence",
            f"{self._said(wanted)} at token {start}: {math.exp(logprobs[at]):.1%} for "
            f"{self._said([answer.tokens[at].token_id])}, entropy {entropy:.2f} nats; "
            f"{self._said([other])} had {math.exp(float(shares[other])):.1%}",
            f"{same} of {_DRAWS} other draws at temperature 1 say the same; they say "
            f"{', '.join(told)}",
        )

    def _said(self, token_ids: Sequence[int]) -> str:
        return '"' + "".join(map(self._subject.text, token_ids[:12])) + '"'

    def _hidden_letters(self) -> Cause | None:
        """A word whose letters are asked for, and the tokens that hide them."""
        tokenizer, ids = self._subject.tokenizer, self._answer.request.prompt_token_ids
        pieces = [tokenizer.token_bytes(token_id) for token_id in ids]
        text = b"".join(pieces).decode("utf-8", errors="replace")
        span = word_asked(text)
        if span is None:
            return None
        word = text[slice(*span)]
        first = len(text[: span[0]].encode())
        starts = [sum(map(len, pieces[:index])) for index in range(len(pieces) + 1)]
        at = [i for i in range(len(ids)) if starts[i] < first + len(word) and first < starts[i + 1]]
        if not at or len(word) <= len(at):
            return None
        apart = tokenizer.encode(" " + " ".join(word), is_start=False)
        changed = [*ids[: at[0]], *apart, *ids[at[-1] + 1 :]]
        parts = " ".join(self._subject.text(ids[index]) for index in at)
        found = (
            f'the model was given "{word}" as {count_noun(len(at), "token")} ({parts}), not as '
            f"{len(word)} letters"
        )
        count = min(_SAID, max(8, len(self._answer.tokens)), self._max_length - len(changed))
        if count < 1:
            return Cause("wrong", "letters hidden in tokens", found, None)
        served = self._text([token.token_id for token in self._answer.tokens[:_SAID]])
        (again,) = self._rerun.run(changed, count)
        said = self._text([token.token_id for token in again.tokens])
        return Cause(
            "wrong",
            "letters hidden in tokens",
            found,
            f"with the letters apart it says {quote(said)} and not {quote(served)}",
        )

    def _text(self, token_ids: Sequence[int]) -> str:
        stream = self._subject.stream()
        return "".join(stream.push(each).text for each in token_ids) + stream.finish()

    def _truncated(self) -> Cause:
        answer, count = self._answer, len(self._answer.tokens)
        left = self._max_length - len(answer.token_ids)
        if left >= 2:
            (more,) = self._rerun.run(answer.token_ids, min(_MORE, left - 1))
            found = (
                f"cut after {count_noun(count, 'token')}, which is max_tokens here; the context "
                f"has room for {left} more"
            )
            return Cause("wrong", "truncated", found, self._ended(more))
        # The later half of all tokens leaves room for as many again.
        kept = answer.token_ids[len(answer.token_ids) // 2 :]
        (more,) = self._rerun.run(kept, min(_MORE, self._max_length - len(kept)))
        found = (
            f"cut after {count_noun(count, 'token')}: the context of {self._max_length} was full"
        )
        instead = f"with the first {len(answer.token_ids) - len(kept)} tokens left out "
        return Cause("wrong", "truncated context", found, instead + self._ended(more))

    @staticmethod
    def _ended(more: AnswerRecord) -> str:
        count = count_noun(len(more.tokens), "more token")
        if more.finish_reason == "stop":
            return f"it comes to its end after {count}"
        return f"it does not come to an end within {count}"

    def _window(self) -> Cause | None:
        """Layers that did not see all; whether it matters is told by leaving that out for all."""
        facts, context = self._subject.facts, self._subject.num_positions
        widths = [
            spec.extent.width
            for spec in facts.cache_specs
            if isinstance(spec.extent, Window) and not spec.is_state
        ]
        short = [width for width in widths if width < context]
        if not short:
            return None
        width, token_ids = min(short), self._answer.token_ids
        (seen,) = self._rerun.run(token_ids[:-1][-width:], 1, ignore_eos=True, temperature=0.0)
        (whole,) = self._rerun.run(token_ids[:-1], 1, ignore_eos=True, temperature=0.0)
        with_all, without = (run.tokens[0].token_id for run in (whole, seen))
        return Cause(
            "wrong",
            "window",
            f"{len(short)} of {facts.num_layers} layers saw the last {width} tokens alone; the "
            f"first {context - width} were out of their sight",
            f"the likeliest last token is {self._said([with_all])} with all of the context, and "
            f"{self._said([without])} with the last {width} tokens alone",
        )


def word_asked(text: str) -> tuple[int, int] | None:
    """Where the word stands whose letters the last such question is about."""
    asked = list(_LETTERS.finditer(text))
    if not asked:
        return None
    cue = asked[-1]
    ends = [end.start() for end in _END.finditer(text)]
    begin = max((end + 1 for end in ends if end < cue.start()), default=0)
    stop = min((end for end in ends if end >= cue.end()), default=len(text))
    spans = [m.span(1) for m in _NAMED.finditer(text, begin, stop)]
    spans = [span for span in spans if not _LETTERS.fullmatch(text[slice(*span)])]
    if not spans:  # the longest word of the sentence: the others ask
        words = (m.span() for m in _WORD.finditer(text, begin, stop))
        spans = [span for span in words if not _LETTERS.fullmatch(text[slice(*span)])]
    return max(spans, key=lambda span: span[1] - span[0], default=None)
