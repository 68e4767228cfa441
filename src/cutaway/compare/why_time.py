"""Why an answer was slow or expensive: its steps, and variants of it that are run and timed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise

from cutaway.compare.cause import Cause, count_noun, ms
from cutaway.compare.rerun import Rerun
from cutaway.engine.engine import Engine
from cutaway.trace.ledger import part_of
from cutaway.trace.misses import Miss, miss_of
from cutaway.trace.records import AnswerRecord, StepRecord
from cutaway.views.cost import AnswerCost
from cutaway.views.parts.subject import Subject
from cutaway.views.timeline import Timeline

_TRIED = 8  # tokens of a rerun that is timed
_ROUNDS = 2  # of such reruns: the quicker one counts, so that a disturbance does not
_COPIES = 4  # answers at once, to see what a shared reading of the weights is worth
_LONG = 1024  # tokens of context from which its own cost is looked at
_LAST = 256  # tokens that are left of it then
_SHARE = 0.05  # of the whole time, below which a wait or a prefill is no cause
_BOUND = 1.25  # times the tokens in the same time, from which reading weights is what binds
_WHOLE = 256  # tokens of an answer that was preempted, run again alone


class TimeCauses:
    """Causes of one answer's time and price. times and costs: as it was served."""

    def __init__(
        self, engine: Engine, subject: Subject, times: Timeline, costs: AnswerCost
    ) -> None:
        self._subject, self._answer = subject, subject.answer
        self._times, self._costs = times, costs
        self._places, self._max_length = engine.config.max_sequences, engine.max_length
        self._rerun = Rerun(engine, subject.answer)
        build = subject.build
        self._miss: Miss = miss_of(
            subject.ledger,
            subject.answer,
            page_size=build.page_size,
            has_prefix_cache=build.has_prefix_cache,
        )

    def slow(self) -> Iterator[Cause]:
        """Causes of the time that it took: waiting, prefill, cache misses, company, preemption."""
        times, phases = self._times, {phase.name: phase.seconds for phase in self._times.phases}
        if phases["queue"] > _SHARE * times.total:
            yield self._queue(phases["queue"])
        if times.first_token - phases["queue"] > _SHARE * times.total:
            yield self._prefill(times.first_token - phases["queue"])
        if self._miss.kind != "rest":
            yield self._cache_miss()
        if len(times.gaps) > 1:
            yield from self._between_tokens()
        if "preempted" in phases:
            yield self._preemption(phases["preempted"])

    def expensive(self) -> Iterator[Cause]:
        """Causes of what it took of the engine's time: its prompt, and what binds a step."""
        prefill, decode = self._costs.modes
        share = prefill.seconds / self._costs.seconds
        if share > 0.3:
            yield Cause(
                "expensive",
                "prompt",
                f"{share:.0%} of its time, {ms(prefill.seconds)}, went into {prefill.num_tokens} "
                f"prompt tokens that were not found in the cache; {self._costs.num_cached} were",
                self._less_prompt(),
            )
        if decode.num_tokens >= 2:
            yield self._decode_bound()

    @property
    def _prompt(self) -> tuple[int, ...]:
        return self._answer.request.prompt_token_ids

    @cached_property
    def _warm(self) -> AnswerRecord:
        """The prompt again, with what can be found of it in the cache."""
        # Twice: what the cache had lost meanwhile is computed by the first.
        runs = [self._rerun.run(self._prompt, 1)[0] for _ in range(2)]
        return max(runs, key=lambda run: run.admissions[0].num_hit)

    @cached_property
    def _half(self) -> AnswerRecord:
        """The second half of the prompt, cold: what fewer tokens take."""
        return self._rerun.run(self._prompt[len(self._prompt) // 2 :], 1, is_cold=True)[0]

    @cached_property
    def _alone(self) -> float:
        """Seconds between tokens without company, in the middle of the answer."""
        middle = self._answer.num_prompt_tokens + len(self._answer.tokens) // 2
        return self._gap(self._answer.token_ids[:middle])

    def _gap(self, token_ids: Sequence[int], copies: int = 1) -> float:
        ids, best = token_ids[: self._max_length - _TRIED], math.inf
        for _ in range(_ROUNDS):
            runs = self._rerun.run(ids, _TRIED, ignore_eos=True, copies=copies)
            best = min(best, self._rerun.gap(runs[0], copies))
        return best

    def _queue(self, queue: float) -> Cause:
        ledger, began = self._subject.ledger, self._answer.admissions[0].steps[0]
        first = ledger.step(began)
        assert first is not None, "the timeline was made of it"
        arrived = first.began - queue
        company = [len(s.parts) for s in ledger.steps if s.ended > arrived and s.number < began]
        most = max(company, default=0)
        what = (
            f"{count_noun(len(company), 'step')} of up to {count_noun(most, 'other')} ran meanwhile"
        )
        if most >= self._places:
            what += f", and all places (max_sequences, {self._places}) were taken"
        timings = self._warm.timings
        return Cause(
            "slow",
            "queue",
            f"{ms(queue)} of {ms(self._times.total)} it waited; {what}",
            f"alone it waited {ms(0.0 if timings is None else timings.queue)}",
        )

    def _prefill(self, seconds: float) -> Cause:
        first = self._answer.tokens[0].step
        is_prefill = self._times.steps <= first
        others = int(self._times.other_tokens[is_prefill].sum())
        beside = f", beside {count_noun(others, 'token')} of others" if others else ""
        half = self._half
        return Cause(
            "slow",
            "prefill",
            f"{ms(seconds)} to the first token: {self._miss.num_computed} of {len(self._prompt)} "
            f"prompt tokens computed in {count_noun(int(is_prefill.sum()), 'step')}{beside}",
            f"the last {half.num_prompt_tokens} of them alone took {ms(self._rerun.seconds(half))}",
        )

    def _cache_miss(self) -> Cause:
        miss, served = self._miss, self._costs.modes[0].seconds
        reason = miss.words + self._where_it_differs()
        found = f"{miss.num_computed} of {len(self._prompt)} prompt tokens were not found: {reason}"
        hit = self._warm.admissions[0].num_hit
        instead = None
        if hit > miss.num_hit:
            instead = (
                f"with the prefix warm {hit} tokens were found, and the prompt took "
                f"{ms(self._rerun.seconds(self._warm))} and not {ms(served)}"
            )
        elif self._subject.build.has_prefix_cache:
            instead = f"asked again, it found {hit} tokens: the cache has no room to keep more"
        return Cause("slow", "cache miss", found, instead)

    def _where_it_differs(self) -> str:
        """The tokens at which the nearest answer of the same owner parts from this one."""
        miss, ledger = self._miss, self._subject.ledger
        nearest = None if miss.nearest is None else ledger.answer(miss.nearest)
        if miss.kind != "differs" or nearest is None:
            return ""
        both = (self._answer.token_ids, nearest.token_ids)
        here, there = (
            f'"{self._subject.text(ids[miss.agrees])}"' if miss.agrees < len(ids) else "its end"
            for ids in both
        )
        return f" ({here} here, {there} there)"

    def _between_tokens(self) -> Iterator[Cause]:
        times, context = self._times, self._subject.num_positions
        shared = int((times.others[times.is_prefill == 0] > 0).sum())
        if shared:
            yield Cause(
                "slow",
                "company",
                f"{shared} of {count_noun(len(times.gaps), 'step')} after the first token were "
                f"shared; the median was {ms(times.gap_p50)}",
                f"alone it was {ms(self._alone)}",
            )
        if times.num_drafts:
            yield self._drafts()
        if context >= _LONG:
            ids = self._answer.token_ids[:-1]
            yield Cause(
                "slow",
                "long context",
                f"every token looked at up to {context} before it",
                f"alone a token took {ms(self._gap(ids))} with all of them, and "
                f"{ms(self._gap(ids[-_LAST:]))} with the last {_LAST}",
            )

    def _drafts(self) -> Cause:
        """Guesses are held against this answer's own steps without any."""
        answer, times = self._answer, self._times
        accepted = len(answer.tokens) - len({token.step for token in answer.tokens})
        found = (
            f"{accepted} of {count_noun(times.num_drafts, 'guessed token')} were right; the others "
            "were computed for nothing"
        )
        with_drafts, plain = self._step_times()
        instead = None
        if with_drafts and plain:
            took, one = statistics.median(with_drafts), statistics.median(plain)
            given = 1 + accepted / len(with_drafts)
            instead = (
                f"steps with guesses took {ms(took)} and gave {given:.1f} tokens, "
                f"{ms(took / given)} a token; its steps without took {ms(one)}"
            )
        return Cause("slow", "drafts", found, instead)

    def _step_times(self) -> tuple[list[float], list[float]]:
        """Seconds of its steps after the first token: with drafts, and of one plain token."""
        answer = self._answer
        with_drafts: list[float] = []
        plain: list[float] = []
        for step in self._steps():
            part = part_of(step, answer.number)
            if step.number > answer.tokens[0].step:
                if part.draft_token_ids:
                    with_drafts.append(step.ended - step.began)
                elif part.count == 1:
                    plain.append(step.ended - step.began)
        return with_drafts, plain

    def _steps(self) -> list[StepRecord]:
        ledger = self._subject.ledger
        return [step for n in self._answer.steps if (step := ledger.step(n)) is not None]

    def _preemption(self, waited: float) -> Cause:
        answer, admissions = self._answer, self._answer.admissions
        again = found = 0
        steps = {step.number: step for step in self._steps()}
        for left, right in pairwise(admissions):
            known = part_of(steps[left.steps[-1]], answer.number).end
            again += max(0, known - right.num_hit)
            found += right.num_hit
        count = min(len(answer.tokens), _WHOLE)
        (alone,) = self._rerun.run(self._prompt, count, ignore_eos=True)
        served = float(self._times.tokens[count - 1] - self._times.began[0])
        return Cause(
            "slow",
            "preemption",
            f"{count_noun(len(admissions) - 1, 'time')} its pages went to older answers: "
            f"{ms(waited)} it waited, then {count_noun(again, 'token')} were computed again and "
            f"{found} found in the cache",
            f"alone, never preempted, its first {count} tokens took "
            f"{ms(self._rerun.seconds(alone))} and not {ms(served)}",
        )

    def _less_prompt(self) -> str:
        hit = self._warm.admissions[0].num_hit
        if hit > self._costs.num_cached:
            return (
                f"with the prefix warm the prompt took {ms(self._rerun.seconds(self._warm))} of "
                "the engine's time"
            )
        half = self._half
        return (
            f"the last {half.num_prompt_tokens} tokens of it alone took "
            f"{ms(self._rerun.seconds(half))} of the engine's time"
        )

    def _decode_bound(self) -> Cause:
        prefill, decode = self._costs.modes
        alone = (self._times.others[self._times.steps > self._answer.tokens[0].step] == 0).mean()
        found = (
            f"each token read {decode.num_bytes / decode.num_tokens / 1e6:.0f} MB for "
            f"{decode.flops / decode.num_tokens / 1e9:.2f} GFLOP, {decode.intensity:.1f} "
            f"operations a byte (the prompt: {prefill.intensity:.1f}); {alone:.0%} of the steps "
            "were not shared with anybody"
        )
        copies = min(_COPIES, self._places)
        one = self._gap(self._prompt)
        many = self._gap(self._prompt, copies) if copies > 1 else math.inf
        if many == math.inf:
            return Cause("expensive", "decode", f"{found}; there is no room for several", None)
        ratio = copies * one / many
        name = "memory-bound decode" if ratio >= _BOUND else "decode bound by arithmetic"
        instead = (
            f"{copies} at once took {ms(many)} a step and alone {ms(one)}: {ratio:.1f} times the "
            "tokens for the same time"
        )
        return Cause("expensive", name, found, instead)
