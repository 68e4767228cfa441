"""`cutaway bench speculate`: what guessing ahead wins or costs, by workload and batch size.

Every case is answered with and without guesses by two engines over one model, which take turns of
some tokens: what slows a machine down for a while slows both. That both give the same tokens is
checked each time. The ratio of a round is plain seconds over those with guesses.
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

    ratio: lower quartile of the rounds, plain over guessing; median beside it.
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

    Raises: ConfigError for a workload that there is not, or answers that the engine cannot hold.
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
            # Each with a seed of its own, so that no two answers are alike.
            asked = [replace(params, seed=seed) for seed in range(batch)]
            rows.append(_measure(llm, name, prompt, asked, rounds=rounds, draft=draft))
            row = rows[-1]
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
    rounds: int,
    draft: str,
) -> SpeculateRow:
    ratios: list[float] = []
    seconds: dict[str, list[float]] = {"off": [], draft: []}
    told: dict[str, list[tuple[int, ...]]] = {}
    guessing, plain = llm.engine, _plain_engine(llm.engine, len(prompt), asked)
    drafted = accepted = said = 0
    for number in range(rounds + 1):  # the first warms up, and teaches what steps take
        before = guessing.num_drafted, guessing.num_accepted
        sides: dict[str, _Side] = {}
        for kind, engine in (("off", plain), (draft, guessing)):
            params = [replace(each, draft=kind) for each in asked]
            sides[kind] = _Side(
                engine, llm.requests([prompt] * len(params), params, control=False, lora=None)
            )
        kinds = ["off", draft]
        while any(side.engine.has_work for side in sides.values()):
            for kind in kinds:
                sides[kind].take_turn(_TURN * len(asked))
            kinds.reverse()
        told = {kind: side.token_ids for kind, side in sides.items()}
        assert told["off"] == told[draft], "guesses never change an answer"
        if number:
            drafted += guessing.num_drafted - before[0]
            accepted += guessing.num_accepted - before[1]
            said += sum(map(len, told[draft]))
            ratios.append(sides["off"].seconds / sides[draft].seconds)
            for kind, side in sides.items():
                seconds[kind].append(side.seconds)
    count = sum(map(len, told["off"]))
    quartile = statistics.quantiles(ratios, n=4)[0] if len(ratios) > 1 else ratios[0]
    return SpeculateRow(
        workload=name,
        batch=len(asked),
        ratio=quartile,
        median=statistics.median(ratios),
        accepted=accepted / drafted if drafted else None,
        tokens_per_step=said / (said - accepted),  # each that stood saved a step
        plain=count / statistics.median(seconds["off"]),
        guessing=count / statistics.median(seconds[draft]),
    )


class _Side:
    """Answers of one engine, and the seconds that it worked for them."""

    def __init__(self, engine: Engine, requests: Sequence[Request]) -> None:
        self.engine, self.seconds = engine, 0.0
        self._said: dict[str, list[int]] = {each.request_id: [] for each in requests}
        for request in requests:
            engine.add(request)

    @property
    def token_ids(self) -> list[tuple[int, ...]]:
        """What each answer said, in the order of the requests."""
        return [tuple(each) for each in self._said.values()]

    def take_turn(self, tokens: int) -> None:
        """Step until all answers together said so many tokens, or ended."""
        left, began = tokens, time.perf_counter()
        while left > 0 and self.engine.has_work:
            for delta in self.engine.step():
                self._said[delta.request_id] += delta.token_ids
                left -= len(delta.token_ids)
        self.seconds += time.perf_counter() - began


def _plain_engine(engine: Engine, prompt: int, asked: Sequence[SamplingParams]) -> Engine:
    """An engine over the same model that makes no guesses, with pages for these answers."""
    size = engine.config.page_size
    needed = sum(2 + (prompt + (each.max_tokens or 0)) // size for each in asked)
    config = replace(engine.config, draft="off")
    return Engine(engine.model, config, num_pages=1 + needed)
