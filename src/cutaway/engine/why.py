"""Why an answer was slow, expensive or wrong: causes from its record, each tried without itself.

What stands behind `instead` was run and measured, on this engine and with this model; where that
cannot be had it is None, and the cause is what the record says and no more.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from cutaway.core.errors import ReplayError
from cutaway.core.layout import Window
from cutaway.engine.engine import Engine
from cutaway.engine.look import Look
from cutaway.engine.rerun import Rerun
from cutaway.trace.misses import miss_of
from cutaway.views import cost, timeline
from cutaway.views.cost import Cost
from cutaway.views.drawing import WIDTH, Drawing, Span, cut
from cutaway.views.query import Query
from cutaway.views.subject import Subject
from cutaway.views.taken import Wanted
from cutaway.views.timeline import Timeline

Question = Literal["slow", "expensive", "wrong"]

_TRIED = 8  # tokens of a rerun that is timed
_COPIES = 4  # answers at once, to see what a shared reading of the weights is worth
_DOUBT = 0.5  # a token below this probability was no foregone conclusion
_DRAWS = 4  # other draws of a doubtful span
_LONG = 1024  # tokens of context from which its own cost is looked at
_MORE = 64  # tokens after which an answer that was cut may end by itself
_LETTERS = re.compile(r"\b(letters?|spell|vowels?|consonants?|how many [a-z]'?s)\b", re.IGNORECASE)
_WORD = re.compile(r"[A-Za-z]{4,}")


@dataclass(frozen=True)
class Cause:
    """One cause. found: what the record says.   instead: what was measured without it."""

    question: Question
    name: str
    found: str
    instead: str | None


@dataclass(frozen=True)
class Diagnosis:
    """All causes that were found, by question."""

    causes: tuple[Cause, ...]

    def draw(self) -> Drawing:
        drawing = Drawing()
        questions: tuple[Question, ...] = ("slow", "expensive", "wrong")
        for question in questions:
            causes = [cause for cause in self.causes if cause.question == question]
            drawing.line(Span(f"why {question}?", "strong"), "" if causes else "  nothing found")
            for cause in causes:
                _paragraph(drawing, f"{cause.name}: {cause.found}", indent=2)
                if cause.instead is not None:
                    _paragraph(drawing, f"measured: {cause.instead}", indent=4)
        return drawing


def _paragraph(drawing: Drawing, text: str, *, indent: int) -> None:
    drawing.wrapped((Span(cut(word, WIDTH - 9) + " ") for word in text.split()), indent=indent)


def why(engine: Engine, look: Look) -> Diagnosis:
    """Look for causes, and try each without itself. The engine must be idle.

    Raises: ReplayError when the record of the answer is not whole.
    """
    if engine.has_work or not look.subject.answer.tokens:
        raise ReplayError("an answer is diagnosed when it has ended and nothing else runs.")
    # Both are read before anything is run again: steps of reruns would join the record.
    times = timeline.probe(look.subject, Query(), look.take(Wanted()))
    costs = cost.probe(look.subject, Query(), look.take(Wanted()))
    asked = _Asked(engine, look, times, costs, Rerun(engine, look.subject.answer))
    return Diagnosis((*asked.slow(), *asked.expensive(), *asked.wrong()))


@dataclass(frozen=True)
class _Asked:
    """One answer while its causes are looked for."""

    engine: Engine
    look: Look
    times: Timeline
    costs: Cost
    rerun: Rerun

    @property
    def subject(self) -> Subject:
        return self.look.subject

    def slow(self) -> Iterator[Cause]:
        answer, times = self.subject.answer, self.times
        phases = {phase.name: phase for phase in times.phases}
        prompt = answer.request.prompt_token_ids
        (warm,) = self.rerun.run(prompt, 1)
        first = self.rerun.first_token(warm)
        queue = phases["queue"].seconds
        if queue > 0.05 * times.total:
            yield Cause(
                "slow",
                "queue",
                f"{_ms(queue)} of {_ms(times.total)} it waited for others",
                f"alone it waited {_ms(0.0 if warm.timings is None else warm.timings.queue)}",
            )
        miss = miss_of(
            self.rerun.ledger,
            answer,
            page_size=self.subject.build.page_size,
            has_prefix_cache=self.subject.build.has_prefix_cache,
        )
        prefill = times.first_token - queue
        found = warm.admissions[0].num_hit
        yield Cause(
            "slow",
            "prefill",
            f"{_ms(prefill)} to the first token, {miss.num_computed} of {len(prompt)} prompt "
            f"tokens computed in {_counted(int(times.is_prefill.sum()), 'step')}; {miss.words}",
            None
            if found <= miss.num_hit
            else f"with the prefix warm, {found} tokens found, the first token came after "
            f"{_ms(first)}",
        )
        yield from self._decode(prompt)
        if "preempted" in phases:
            lost = sum(admission.num_hit for admission in answer.admissions[1:])
            yield Cause(
                "slow",
                "preemption",
                f"{len(answer.admissions) - 1} times its pages went to older answers: "
                f"{_ms(phases['preempted'].seconds)} it waited, and what was not found again "
                f"({lost} tokens were) was computed twice",
                None,
            )

    def _decode(self, prompt: Sequence[int]) -> Iterator[Cause]:
        """Between tokens: company, context, drafts."""
        answer, times = self.subject.answer, self.times
        if len(times.gaps) < 2:
            return
        (alone,) = self.rerun.run(prompt, _TRIED, ignore_eos=True)
        gap = self.rerun.gap(alone)
        shared = int((times.others[times.is_prefill == 0] > 0).sum())
        if shared:
            yield Cause(
                "slow",
                "company",
                f"{shared} of {len(times.gaps)} steps after the first token were shared; "
                f"the median was {_ms(times.gap_p50)}",
                f"alone it was {_ms(gap)}",
            )
        if times.num_drafts:
            accepted = len(answer.tokens) - len({token.step for token in answer.tokens})
            yield Cause(
                "slow",
                "drafts",
                f"{accepted} of {times.num_drafts} guessed tokens were right; the others were "
                "computed for nothing",
                None,
            )
        context = self.subject.num_positions
        if context >= _LONG:
            (short,) = self.rerun.run(answer.token_ids[-257:-1], _TRIED, ignore_eos=True)
            yield Cause(
                "slow",
                "long context",
                f"every token looked at up to {context} before it, {_ms(times.gap_p50)} each",
                f"with the last 256 alone it took {_ms(self.rerun.gap(short))}",
            )

    def expensive(self) -> Iterator[Cause]:
        prefill, decode = self.costs.modes
        answer = self.subject.answer
        share = prefill.seconds / self.costs.seconds
        if share > 0.3:
            yield Cause(
                "expensive",
                "prompt",
                f"{share:.0%} of its time went into {prefill.num_tokens} prompt tokens that were "
                f"not found in the cache; {self.costs.num_cached} were",
                self._warm_cost(),
            )
        if decode.num_tokens >= 2:
            alone = (self.times.others == 0).mean()
            yield Cause(
                "expensive",
                "memory-bound decode",
                f"each token read {decode.num_bytes / decode.num_tokens / 1e6:.0f} MB for "
                f"{decode.flops / decode.num_tokens / 1e9:.2f} GFLOP, {decode.intensity:.1f} "
                f"operations a byte (the prompt: {prefill.intensity:.1f}); {alone:.0%} of the "
                "steps were not shared with anybody",
                self._batched(answer.request.prompt_token_ids),
            )

    def _warm_cost(self) -> str | None:
        prompt = self.subject.answer.request.prompt_token_ids
        (warm,) = self.rerun.run(prompt, 1)
        if warm.admissions[0].num_hit <= self.costs.num_cached:
            return None
        steps = [self.rerun.ledger.step(number) for number in warm.steps]
        seconds = sum(step.ended - step.began for step in steps if step is not None)
        return f"with the prefix warm the prompt took {_ms(seconds)} of the engine's time"

    def _batched(self, prompt: Sequence[int]) -> str:
        (alone,) = self.rerun.run(prompt, _TRIED, ignore_eos=True)
        together = self.rerun.run(prompt, _TRIED, ignore_eos=True, copies=_COPIES)
        one, many = self.rerun.gap(alone), self.rerun.gap(together[-1])
        return (
            f"{_COPIES} at once took {_ms(many)} a step and alone {_ms(one)}: "
            f"{_COPIES * one / many:.1f} times the tokens for the same time"
        )

    def wrong(self) -> Iterator[Cause]:
        answer = self.subject.answer
        for start, end in self._doubtful():
            yield self._doubt(start, end)
        hidden = self._hidden_letters()
        if hidden is not None:
            yield hidden
        if answer.finish_reason == "length":
            yield self._truncated()
        context = self.subject.num_positions
        widths = [
            spec.extent.width
            for spec in self.subject.facts.cache_specs
            if isinstance(spec.extent, Window) and not spec.is_state
        ]
        short = [width for width in widths if width < context]
        if short:
            yield Cause(
                "wrong",
                "window",
                f"{len(short)} of {self.subject.facts.num_layers} layers saw the last {min(short)} "
                f"tokens alone; the first {context - min(short)} were out of their sight",
                None,
            )

    def _doubtful(self, most: int = 3) -> list[tuple[int, int]]:
        """Spans of tokens that were no foregone conclusion, the least likely first."""
        logprobs = [token.logit - token.logsumexp for token in self.subject.answer.tokens]
        spans: list[tuple[int, int]] = []
        for index, logprob in enumerate(logprobs):
            if logprob >= math.log(_DOUBT):
                continue
            if spans and spans[-1][1] == index:
                spans[-1] = (spans[-1][0], index + 1)
            else:
                spans.append((index, index + 1))
        return sorted(spans, key=lambda span: min(logprobs[slice(*span)]))[:most]

    def _doubt(self, start: int, end: int) -> Cause:
        answer = self.subject.answer
        logprobs = [token.logit - token.logsumexp for token in answer.tokens]
        at = min(range(start, end), key=lambda index: logprobs[index])
        row = self.look.take(Wanted(rows=frozenset({at}))).rows[at].double()
        shares = row.log_softmax(dim=-1)
        entropy = float(-(shares.exp() * shares).nan_to_num().sum())
        best, second = (int(each) for each in row.topk(2).indices)
        other = second if best == answer.tokens[at].token_id else best
        ids = answer.token_ids[: answer.num_prompt_tokens + start]
        wanted = [token.token_id for token in answer.tokens[start:end]]
        draws = [
            self.rerun.run(ids, end - start, ignore_eos=True, seed=seed, temperature=1.0)[0]
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
            f"{same} of {_DRAWS} other draws say the same; they say {', '.join(told)}",
        )

    def _said(self, token_ids: Sequence[int]) -> str:
        return '"' + "".join(map(self.subject.text, token_ids[:12])) + '"'

    def _hidden_letters(self) -> Cause | None:
        """A word whose letters are asked for, and the tokens that hide them."""
        answer, tokenizer = self.subject.answer, self.subject.tokenizer
        ids = answer.request.prompt_token_ids
        pieces = [tokenizer.token_bytes(token_id) for token_id in ids]
        text = b"".join(pieces).decode("utf-8", errors="replace")
        asked = list(_LETTERS.finditer(text))
        if not asked:
            return None
        starts = [sum(map(len, pieces[:index])) for index in range(len(pieces) + 1)]
        words = [m for m in _WORD.finditer(text) if m.start() >= asked[-1].start()]
        spans = [
            (word, [i for i in range(len(ids)) if _overlaps(starts, i, text, word)])
            for word in words
            if not _LETTERS.search(word.group())
        ]
        # The word in question hides the most letters per token: the rest is the question.
        hiding = [(word, at) for word, at in spans if at and len(word.group()) > len(at)]
        if not hiding:
            return None
        word, at = max(hiding, key=lambda pair: len(pair[0].group()))
        apart = tokenizer.encode(" " + " ".join(word.group()), is_start=False)
        (again,) = self.rerun.run(
            [*ids[: at[0]], *apart, *ids[at[-1] + 1 :]], min(32, max(8, len(answer.tokens)))
        )
        said = self._text([token.token_id for token in again.tokens])
        parts = " ".join(self.subject.text(ids[index]) for index in at)
        return Cause(
            "wrong",
            "letters hidden in tokens",
            f'the model was given "{word.group()}" as {_counted(len(at), "token")} ({parts}), '
            f"not as {len(word.group())} letters",
            f"with the letters apart it says {said!r}",
        )

    def _text(self, token_ids: Sequence[int]) -> str:
        stream = self.subject.stream()
        return "".join(stream.push(each).text for each in token_ids) + stream.finish()

    def _truncated(self) -> Cause:
        answer = self.subject.answer
        left = self.engine.max_length - len(answer.token_ids)
        found = f"cut after {len(answer.tokens)} tokens, " + (
            f"as max_tokens asked; the context has room for {left} more"
            if left > 0
            else f"the context of {self.engine.max_length} tokens was full"
        )
        if left < 2:
            return Cause("wrong", "truncated", found, None)
        (more,) = self.rerun.run(answer.token_ids, min(_MORE, left - 1))
        ended = more.finish_reason == "stop"
        return Cause(
            "wrong",
            "truncated",
            found,
            f"it comes to its end after {len(more.tokens)} more tokens"
            if ended
            else f"it does not come to an end within {len(more.tokens)} more tokens",
        )


def _overlaps(starts: Sequence[int], index: int, text: str, word: re.Match[str]) -> bool:
    """Whether a token has bytes of the word."""
    first = len(text[: word.start()].encode())
    return starts[index] < first + len(word.group()) and first < starts[index + 1]


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s'[: count != 1]}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms" if seconds < 10 else f"{seconds:.2f} s"
