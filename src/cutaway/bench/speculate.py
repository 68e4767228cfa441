"""`cutaway bench speculate`: what guessing ahead wins or costs, by workload and batch size.

Every case is answered with and without guesses by two engines over one model, which take turns of
some tokens: what slows a machine down for a while slows both. That both give the same tokens is
checked each time. In each round they change places once, since one of two equal engines may be 1 %
slower for good by where its buffers lie. So many answers run at all times: who is guessed for says
more in the round, nobody ends before the others. The ratio of a round is plain seconds a token
over those with guesses.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from cutaway.core.errors import ConfigError
from cutaway.core.grammar import Grammar
from cutaway.core.limits import quote
from cutaway.core.request import Request, SamplingParams
from cutaway.engine.engine import Engine
from cutaway.service.llm import LLM

_CODE = '''class Account:
    """Money of one person, in cents."""

    def __init__(self, owner, balance=0):
        self.owner = owner
        self.balance = balance

    def deposit(self, amount):
        """Put money in."""
        if amount <= 0:
            raise ValueError("amount must be above 0")
        self.balance = self.balance + amount
        return self.balance

    def withdraw(self, amount):
        """Take money out."""
        if amount <= 0:
            raise ValueError("amount must be above 0")
        if amount > self.balance:
            raise ValueError("not enough money")
        self.balance = self.balance - amount
        return self.balance
'''
_ARTICLE = (
    "The lighthouse at Cape Brandt was lit in 1871. Its first keeper, Ada Holm, wrote in her "
    "diary that the lamp used four barrels of oil each month. In 1903 the oil lamp gave way to "
    "gas, and in 1931 to electricity. A storm in January 1953 broke the lantern's glass, and for "
    "nine nights volunteers kept a fire on the rocks so that ships would find the bay. The light "
    "was automated in 1984, and the keeper's house is a museum today, open from May to September."
)
_SCHEMA = (
    '{"type": "object", "properties": {"name": {"type": "string", "maxLength": 20}, "birth_year": '
    '{"type": "integer", "minimum": 1000, "maximum": 2030}, "nationality": {"type": "string", '
    '"maxLength": 20}, "profession": {"type": "string", "maxLength": 20}, "is_alive": {"type": '
    '"boolean"}}, "required": ["name", "birth_year", "nationality", "profession", "is_alive"], '
    '"additionalProperties": false}'
)
WORKLOADS = ("repeat", "edit", "quote", "chat", "structured", "random")
_ASKED = {
    "repeat": f"{_ARTICLE}\n\n" * 2 + _ARTICLE[:43],
    "edit": f"Rename deposit to add and write the whole class again:\n```python\n{_CODE}```",
    "quote": f"Summarise in a few sentences, quoting whole sentences:\n\n{_ARTICLE}",
    "chat": "What is gravity?",
    "structured": "Describe Marie Curie as JSON.",
}


_TURN = 16  # tokens of each answer, until the other side goes on


@dataclass(frozen=True)
class SpeculateRow:
    """One workload at one batch size.

    ratio: lower quartile of the rounds, plain seconds a token over guessing; median beside it.
    accepted: share of the guesses that stood; None where nothing was guessed.
    tokens_per_step: of one answer.   plain, guessing: tokens per second of all answers, medians.
    """

    workload: str
    batch: int
    ratio: float
    median: float
    accepted: float | None
    tokens_per_step: float
    plain: float
    guessing: float


@dataclass(frozen=True)
class SpeculateReport:
    """Rows in the order in which they were measured."""

    model: str
    draft: str
    tokens: int
    rounds: int
    rows: tuple[SpeculateRow, ...]


def run(
    llm: LLM,
    *,
    workloads: Sequence[str] = WORKLOADS,
    batches: Sequence[int] = (1, 4, 16),
    rounds: int = 5,
    tokens: int = 128,
    draft: str = "ngram",
    say: Callable[[str], None] = lambda _: None,
) -> SpeculateReport:
    """Measure each workload at each batch size.

    Raises: ConfigError for a workload that there is not, or answers that the engine cannot hold;
    what ended an answer, such as a grammar that was refused.
    """
    for name in workloads:
        if name not in WORKLOADS:
            known = ", ".join(WORKLOADS)
            raise ConfigError(f"workloads holds {quote(name)}; it must be of {known}.")
    if min(batches) < 1:
        raise ConfigError(f"batch is {min(batches)}; it must be at least 1.")
    most = llm.engine.config.max_sequences
    if max(batches) > most:
        raise ConfigError(
            f"batch is {max(batches)}, above max_sequences, {most}. Ask for fewer, or raise it."
        )
    rows: list[SpeculateRow] = []
    for name in workloads:
        for batch in batches:
            prompt, params = _asked(llm, name, tokens)
            # Each with a seed of its own, so that no two answers are alike; and one may say it all.
            most = min(tokens * batch, llm.engine.max_length - len(prompt))
            asked = [replace(params, seed=seed, max_tokens=most) for seed in range(batch)]
            row = _measure(llm, name, prompt, asked, tokens=tokens, rounds=rounds, draft=draft)
            rows.append(row)
            say(f"{name}, {batch} at once: {row.ratio:.2f} ({row.median:.2f})")
    return SpeculateReport(llm.engine.model.name, draft, tokens, rounds, tuple(rows))


def _asked(llm: LLM, name: str, tokens: int) -> tuple[list[int], SamplingParams]:
    params = SamplingParams(temperature=0.7, max_tokens=tokens, ignore_eos=True)
    if name == "repeat":  # a text that is said a third time
        params = replace(params, temperature=0.0)
    if name == "structured":
        params = replace(params, grammar=Grammar("json_schema", _SCHEMA), ignore_eos=False)
    if name == "random":
        chance, vocab_size = random.Random(0), llm.engine.model.facts.vocab_size
        return [chance.randrange(vocab_size) for _ in range(48)], replace(params, temperature=1.0)
    if name == "repeat" or llm.engine.model.template_source is None:
        return llm.encode(_ASKED[name]), params
    return llm.encode_chat([{"role": "user", "content": _ASKED[name]}]), params


def _measure(
    llm: LLM,
    name: str,
    prompt: list[int],
    asked: Sequence[SamplingParams],
    *,
    tokens: int,
    rounds: int,
    draft: str,
) -> SpeculateRow:
    ratios: list[float] = []
    speeds: dict[str, list[float]] = {"off": [], draft: []}
    engines = [llm.engine, _second_engine(llm.engine, len(prompt), asked)]
    drafting = llm.engine.drafting
    assert drafting is not None, "who asks for guesses was let in"
    goal = tokens * len(asked)
    drafted = accepted = said = 0
    for number in range(rounds + 1):  # the first warms up, and teaches what steps take
        took: dict[str, float] = dict.fromkeys(speeds, 0.0)
        count: dict[str, int] = dict.fromkeys(speeds, 0)
        # A drafter that reads a model's streams reads those of the engine that was built for it.
        pairs = [engines] if drafting.streams else [engines, engines[::-1]]
        for order, (guessing, plain) in enumerate(pairs, number):
            plain.drafting, guessing.drafting = None, drafting
            before = guessing.num_drafted, guessing.num_accepted
            sides: dict[str, _Side] = {}
            for kind, engine in (("off", plain), (draft, guessing)):
                params = [replace(each, draft=kind) for each in asked]
                requests = llm.requests([prompt] * len(params), params, control=False, lora=None)
                sides[kind] = _Side(engine, requests, goal)
            kinds = ["off", draft] if order % 2 else [draft, "off"]
            while any(not side.is_over for side in sides.values()):
                for kind in kinds:
                    sides[kind].take_turn(_TURN * len(asked))
                kinds.reverse()
            for one, other in zip(sides["off"].token_ids, sides[draft].token_ids, strict=True):
                known = min(len(one), len(other))
                assert one[:known] == other[:known], "guesses never change an answer"
            for kind, side in sides.items():
                side.end()
                took[kind] += side.seconds
                count[kind] += side.count
            if number:
                drafted += guessing.num_drafted - before[0]
                accepted += guessing.num_accepted - before[1]
        if number:
            said += count[draft]
            for kind, speed in speeds.items():
                speed.append(count[kind] / took[kind])
            ratios.append(speeds[draft][-1] / speeds["off"][-1])
    llm.engine.drafting = drafting
    quartile = statistics.quantiles(ratios, n=4)[0] if len(ratios) > 1 else ratios[0]
    return SpeculateRow(
        workload=name,
        batch=len(asked),
        ratio=quartile,
        median=statistics.median(ratios),
        accepted=accepted / drafted if drafted else None,
        tokens_per_step=said / (said - accepted),  # each that stood saved a step
        plain=statistics.median(speeds["off"]),
        guessing=statistics.median(speeds[draft]),
    )


class _Side:
    """Answers of one engine until they said so many tokens, and the seconds that it worked."""

    def __init__(self, engine: Engine, requests: Sequence[Request], goal: int) -> None:
        self._engine, self._goal = engine, goal
        self.seconds, self.count = 0.0, 0
        self._said: dict[str, list[int]] = {each.request_id: [] for each in requests}
        for request in requests:
            engine.add(request)

    @property
    def token_ids(self) -> list[tuple[int, ...]]:
        """What each answer said, in the order of the requests."""
        return [tuple(each) for each in self._said.values()]

    @property
    def is_over(self) -> bool:
        """Whether all was said."""
        return self.count >= self._goal or not self._engine.has_work

    def take_turn(self, tokens: int) -> None:
        """Step until all answers together said so many tokens more, or all."""
        until, began = min(self._goal, self.count + tokens), time.perf_counter()
        while self.count < until and self._engine.has_work:
            for delta in self._engine.step():
                if delta.error is not None:
                    raise delta.error
                self._said[delta.request_id] += delta.token_ids
                self.count += len(delta.token_ids)
        self.seconds += time.perf_counter() - began

    def end(self) -> None:
        """Ask for no more."""
        for request_id in self._said:
            self._engine.abort(request_id)
        while self._engine.has_work:
            self._engine.step()


def _second_engine(engine: Engine, prompt: int, asked: Sequence[SamplingParams]) -> Engine:
    """An engine over the same model, with pages for these answers."""
    size = engine.config.page_size
    longest = max(prompt + (each.max_tokens or 0) for each in asked)
    needed = (longest + len(asked) * (prompt + 2 * size)) // size
    return Engine(engine.model, engine.config, num_pages=2 + needed)
