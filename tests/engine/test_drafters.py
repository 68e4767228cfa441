"""Guesses from the text itself, and how many of them are worth their time."""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence
from dataclasses import replace

import pytest

from cutaway.core.errors import RequestError
from cutaway.core.grammar import Grammar
from cutaway.core.request import Request, SamplingParams
from cutaway.engine.drafters import Controller, Draft, NGramDrafter, Wish
from cutaway.engine.drafting import Drafting
from cutaway.engine.engine import Engine
from cutaway.engine.loading.loaded_model import LoadedModel
from drafters import EachAlone
from engines import engine, loaded, run


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return loaded()


def propose(
    drafter: NGramDrafter, token_ids: list[int], *, most: int = 4, key: int = 0
) -> list[int]:
    (draft,) = drafter.propose([Wish(key, token_ids, most)])
    return draft.token_ids


def search(token_ids: list[int], *, shortest: int, longest: int, most: int) -> list[int]:
    """The same by comparing every earlier place: the longest agreement, the latest of several."""
    known, best, found = len(token_ids), shortest - 1, -1
    for end in range(known - 1, shortest - 1, -1):
        agreed = 0
        while (
            agreed < min(longest, end)
            and token_ids[end - 1 - agreed] == token_ids[known - 1 - agreed]
        ):
            agreed += 1
        if agreed > best:
            best, found = agreed, end
    if found < 0:
        return []
    copied = token_ids[found : found + most]
    while len(copied) < most:
        copied.append(copied[len(copied) - (known - found)])
    return copied


@pytest.mark.parametrize("seed", range(20))
def test_the_index_finds_what_a_search_finds(seed: int) -> None:
    chance = random.Random(seed)
    # Few kinds of tokens; with few earlier places of each pair, since no more are compared.
    text = [chance.randrange(12) for _ in range(80)]
    drafter = NGramDrafter(shortest=2, longest=16)
    for known in range(1, len(text) + 1):
        now = text[:known]
        assert propose(drafter, now, most=5) == search(now, shortest=2, longest=16, most=5)


def test_a_text_that_repeats_itself_is_read_on_into_itself() -> None:
    assert propose(NGramDrafter(), [1, 2, 3, 1, 2, 3], most=7) == [1, 2, 3, 1, 2, 3, 1]


def test_an_answer_that_begins_anew_is_indexed_anew() -> None:
    drafter = NGramDrafter()
    assert propose(drafter, [1, 2, 3, 4, 1, 2]) == [3, 4, 1, 2]
    assert propose(drafter, [5, 6, 7, 5, 6]) == [7, 5, 6, 7]
    drafter.finish(0)
    assert propose(drafter, [1, 2, 9, 1, 2]) == [9, 1, 2, 9]


def test_answers_know_nothing_of_each_other() -> None:
    drafter = NGramDrafter()
    propose(drafter, [1, 2, 3, 4], key=0)
    assert propose(drafter, [1, 2], key=1) == []


def test_no_more_is_guessed_than_can_be_taken() -> None:
    assert propose(NGramDrafter(), [1, 2, 3, 1, 2], most=0) == []
    assert propose(NGramDrafter(), [1, 2, 3, 1, 2], most=1) == [3]


def lengths(controller: Controller, *drafts: Draft, num_answers: int = 1) -> list[int]:
    return controller.lengths(list(enumerate(drafts)), num_answers=num_answers)


def taught(*, slope: float, share: float, num_answers: int = 1) -> Controller:
    """A controller for which a further token costs this much of a step, guesses right so often."""
    controller, chance = Controller(), random.Random(0)
    for further in (0, 0, 0, 0, 1, 2, 4, 8, 12) * 6:
        seconds = 0.005 * (1 + slope * further)
        controller.learn_time(num_answers, further, seconds, right=further)
    for _ in range(200):
        right = next((i for i in range(4) if chance.random() >= share), 4)
        controller.learn("other", "k", tried=4, right=right)
    controller.learn_time(num_answers, 0, 0.005)
    return controller


GUESSES = Draft(list(range(12)), "k")


def test_many_guesses_are_taken_where_they_are_right_and_cheap() -> None:
    assert lengths(taught(slope=0.02, share=0.95), GUESSES)[0] >= 8


def test_none_are_taken_where_they_are_wrong() -> None:
    assert lengths(taught(slope=0.1, share=0.02), GUESSES) == [0]


def test_none_are_taken_where_a_further_token_costs_as_much_as_a_step() -> None:
    """As with many answers at once, where products compute as long as they read."""
    assert lengths(taught(slope=1.0, share=0.95), GUESSES) == [0]


def test_the_surer_answer_gets_more() -> None:
    controller = taught(slope=0.1, share=0.5, num_answers=2)
    for _ in range(30):
        controller.learn(0, "k", tried=4, right=4)
        controller.learn(1, "k", tried=4, right=0)
    first, second = lengths(controller, GUESSES, GUESSES, num_answers=2)
    assert first > 3 and second == 0


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
@pytest.mark.parametrize("slope", [0.03, 0.1, 0.3])
def test_the_length_is_near_the_best(slope: float, share: float) -> None:
    """What it chooses gives at least 0.97 of what the best length gives by the formula."""

    def speed(length: int) -> float:
        return sum(share**each for each in range(length + 1)) / (1 + slope * length)

    (length,) = lengths(taught(slope=slope, share=share), GUESSES)
    assert speed(length) >= 0.97 * max(map(speed, range(13)))


def test_nothing_is_taken_before_a_plain_step_was_measured_and_one_is_measured_anew() -> None:
    controller = Controller()
    assert lengths(controller, GUESSES) == [0]
    controller = taught(slope=0.01, share=0.95)
    taken = []
    for _ in range(400):
        (length,) = lengths(controller, GUESSES)
        taken.append(length)
        controller.learn_time(1, length, 0.005 * (1 + 0.01 * length), right=length)
        if length:
            controller.learn(0, "k", tried=length, right=length)
    assert 2 <= taken.count(0) <= 6, "a plain step now and then, to know what one takes"


def test_bounds_rise_with_what_a_guess_costs_and_with_answers() -> None:
    dear, cheap = (taught(slope=slope, share=0.8) for slope in (0.3, 0.03))
    assert 0 < cheap.bounds(1)[0] < cheap.bounds(1)[1] < dear.bounds(1)[0] < dear.bounds(1)[1] <= 1
    assert cheap.most(1, 1) == 12 and taught(slope=1.0, share=0.95).most(1, 1) == 0
    assert taught(slope=0.03, share=0.8, num_answers=2).bounds(2)[0] > cheap.bounds(1)[0]


@pytest.mark.parametrize(("making", "verifying"), [(0.1, 0.25), (0.2, 0.02), (0.05, 0.5)])
def test_drafts_that_end_by_their_chances_win_more(making: float, verifying: float) -> None:
    """Of a drafter that knows which of its guesses are sure, and tells their chances rightly."""

    def speed(*, heeds: bool) -> float:
        controller, chance = Controller(), random.Random(1)
        tokens = spent = 0.0
        for _ in range(3000):
            kept = followed = 0.0
            if heeds:
                most, (kept, followed) = controller.most(1, 1), controller.bounds(1)
            else:
                most = lengths(controller, GUESSES)[0] if controller.may_pay(1, 1) else 0
            chances, odds, made = list[float](), 1.0, 0
            while made < most and odds >= followed:
                made += 1
                odds *= (one := chance.choice((0.95, 0.3)))
                if odds < kept:
                    break
                chances.append(one)
            right = next(
                (i for i, one in enumerate(chances) if chance.random() > one), len(chances)
            )
            took = 1 + verifying * len(chances) + making * made
            tokens, spent = tokens + 1 + right, spent + took
            if chances:
                controller.learn(0, "k", tried=len(chances), right=right)
            controller.learn_time(1, len(chances), 0.005 * took, right=right, was_sought=made > 0)
        return tokens / spent

    assert speed(heeds=True) > max(1.1, 1.08 * speed(heeds=False))


def test_bounded_drafts_that_never_stand_cost_little() -> None:
    controller, spent = Controller(), 0.0
    for _ in range(2000):
        kept = int(controller.most(1, 1) > 0)
        took = 1 + 0.3 * kept
        controller.learn_time(1, kept, 0.005 * took, was_sought=kept > 0)
        spent += took
    assert spent < 2000 / 0.99


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("share", "cost", "least"), [(0.45, 0.15, 1.15), (0.3, 0.1, 1.1), (0.1, 0.35, 0.98)]
)
def test_what_bounded_drafts_win_is_found_on_a_busy_machine(
    share: float, cost: float, least: float, seed: int
) -> None:
    """Steps take a fifth more or less by chance, and now and then all take longer for a while."""
    controller, chance = Controller(), random.Random(seed)
    tokens, spent, load = 0, 0.0, 1.0
    for number in range(3000):
        if number % 150 == 0:
            load = chance.choice((1.0, 1.3, 1.7))
        kept = int(controller.most(1, 1) > 0)
        right, took = kept * (chance.random() < share), 1 + cost * kept
        seconds = 0.005 * load * took * chance.lognormvariate(0, 0.2)
        controller.learn_time(1, kept, seconds, right=right, was_sought=kept > 0)
        tokens, spent = tokens + 1 + right, spent + took
    assert tokens / spent > least


def test_guesses_that_were_wrong_are_tried_again_seldom() -> None:
    controller = taught(slope=0.1, share=0.02)
    tried = 0
    for _ in range(640):
        (length,) = lengths(controller, GUESSES)
        tried += length
        controller.learn_time(1, length, 0.005 * (1 + 0.1 * length))
        if length:
            controller.learn(0, "k", tried=length, right=0)
    assert 5 <= tried <= 12, "one guess in 64 steps costs less than 1 % of them"


def test_guesses_end_where_they_do_not_pay_whatever_was_expected() -> None:
    """As where what was right for other answers is wrong for these, and steps are dearer."""
    controller = taught(slope=0.1, share=0.95)
    assert controller.may_pay(1, 1)
    rests: list[int] = []
    tried, number = 0, 8000
    for _ in range(number):
        if controller.may_pay(1, 1):
            controller.learn_time(1, 4, 0.005 * 1.5, right=0)
            tried, rests = tried + 1, rests if rests and not rests[-1] else [*rests, 0]
        else:
            controller.learn_time(1, 0, 0.005)
            rests[-1] += 1
    assert rests[0] < 200, "it may have been the machine, for a while"
    assert 500 < max(rests) < 1200, "they may have become better"
    assert 0.5 * tried / number < 0.01, "what trials lose is a small share of all time"


@pytest.mark.parametrize("seed", range(4))
def test_a_machine_that_becomes_slower_is_not_taken_for_guesses_that_lose(seed: int) -> None:
    """As on a shared one: all steps take 1.7 times as long for a while, some ten steps at first."""
    controller, chance = Controller(), random.Random(seed)
    guessed = 0
    for number in range(600):
        load = 1.0 if number < 4 else 1.7 if number % 80 < 40 else 1.0
        kept = int(controller.most(1, 1) > 0)
        right = kept * (chance.random() < 0.5)
        seconds = 0.005 * load * (1 + 0.2 * kept) * chance.lognormvariate(0, 0.1)
        controller.learn_time(1, kept, seconds, right=right, was_sought=kept > 0)
        guessed += kept
    assert guessed > 400


def test_a_dear_trial_is_repeated_as_seldom_as_it_is_dear() -> None:
    """As on a GPU with many answers, where a step that may get guesses is not begun ahead."""
    controller = Controller()
    for _ in range(5):
        controller.learn_time(64, 0, 0.006)
    spent = plain = 0.0
    for _ in range(4000):
        length = 0
        if sought := controller.may_pay(64, 64):
            length = sum(controller.lengths([(0, GUESSES)], num_answers=64))
        seconds = 0.006 if not sought else 0.008 if not length else 0.014
        controller.learn_time(64, length, seconds, was_sought=sought)
        if length:
            controller.learn(0, "k", tried=length, right=0)
        spent, plain = spent + seconds, plain + 0.006
    assert spent / plain < 1.01


def test_a_step_that_was_held_up_once_does_not_make_a_length_dear_for_good() -> None:
    controller = Controller()
    for _ in range(5):
        controller.learn_time(1, 0, 0.005)
    controller.learn_time(1, 12, 0.1, right=12)  # twenty steps for the first guesses
    controller.learn(0, "k", tried=12, right=12)
    taken: list[int] = []
    for _ in range(100):
        (length,) = lengths(controller, GUESSES)
        taken.append(length)
        controller.learn_time(1, length, 0.005 * (1 + 0.1 * length), right=length)
        if length:
            controller.learn(0, "k", tried=length, right=length)
    assert sum(taken[50:]) > 50 * 6


class _Watched(Controller):
    """Counts how often a step asks it for something."""

    def __init__(self) -> None:
        super().__init__()
        self.num_asked = 0

    def may_pay(self, num_answers: int, num_asking: int) -> bool:
        self.num_asked += 1
        return super().may_pay(num_answers, num_asking)


class _Sought(NGramDrafter):
    """Remembers how long a text was when a guess was first sought."""

    began: int | None = None

    def may_guess(self, key: Hashable, token_ids: Sequence[int]) -> bool:
        self.began = self.began or len(token_ids)
        return super().may_guess(key, token_ids)


def resting() -> _Watched:
    """A controller that has learned that guesses do not pay."""
    control = _Watched()
    for _ in range(5):
        control.learn_time(1, 0, 1.0)
    while control.may_pay(1, 1):
        control.learn_time(1, 1, 1.05)
    control.learn_time(1, 0, 1.0)
    assert not control.may_pay(1, 1)
    return control


def test_while_guesses_rest_one_step_in_sixteen_asks_and_they_come_back_in_time(
    model: LoadedModel,
) -> None:
    control, twin, drafter = resting(), resting(), _Sought()
    rest = 0
    while not twin.may_pay(1, 1):
        twin.learn_time(1, 0, 1.0)
        rest += 1
    assert rest > 100
    for _ in range(rest - 100):
        control.learn_time(1, 0, 1.0)
    control.num_asked = 0
    target = engine(model)
    target.drafting = Drafting.of(drafter, controller=control)
    request = asked("a", max_tokens=105)
    run(target, [request])
    assert drafter.began == len(request.prompt_token_ids) + 101, "as if each step had asked"
    assert control.num_asked <= 100 // 16 + 6, "the last five steps ask each"


def test_who_comes_while_guesses_rest_ends_the_rest(model: LoadedModel) -> None:
    control, drafter = resting(), _Sought()
    target = engine(model)
    target.drafting = Drafting.of(drafter, controller=control)
    target.add(asked("a"))
    while not target.drafting.is_resting:
        target.step()
    before = control.num_asked
    target.add(asked("b"))
    target.step()
    assert not target.drafting.is_resting and control.num_asked > before


def test_what_a_grammar_forces_is_guessed_while_nothing_else_is() -> None:
    pytest.importorskip("llguidance")
    control = resting()
    target = engine(loaded())
    target.drafting = Drafting.of(NGramDrafter(), controller=control)
    run(target, [asked("a", grammar=Grammar.regex("(ab|cd){3,9}"), ignore_eos=False)])
    assert target.num_accepted > 1 and control.share(None, "grammar") > 0.8


def test_long_guesses_that_stand_pay_though_their_steps_are_long() -> None:
    controller = taught(slope=0.16, share=0.95)
    for _ in range(100):
        controller.learn_time(1, 12, 0.005 * 2.95, right=12)
    controller.learn_time(1, 0, 0.005)
    assert controller.may_pay(1, 1)


def test_none_are_made_where_not_even_right_ones_pay() -> None:
    controller = taught(slope=1.0, share=0.95)
    assert not controller.may_pay(1, 1)


def asked(name: str, draft: str | None = None, **params: object) -> Request:
    given = {"temperature": 0.0, "max_tokens": 60, "ignore_eos": True, **params}
    prompt = tuple(b"one two three one two three one two three one two")
    return Request(
        request_id=name, prompt_token_ids=prompt, params=SamplingParams(**given, draft=draft)
    )


def drafting_engine(model: LoadedModel, *, is_default: bool) -> Engine:
    target = engine(model)
    target.drafting = Drafting.of(NGramDrafter(), is_default=is_default)
    return target


def test_a_request_chooses_whether_its_answer_is_guessed(model: LoadedModel) -> None:
    plain = run(engine(model), [asked("a")])["a", 0]
    for is_default, draft, is_drafted in (
        (False, None, False),
        (False, "ngram", True),
        (True, None, True),
        (True, "off", False),
    ):
        target = drafting_engine(model, is_default=is_default)
        answer = run(target, [asked("a", draft)])["a", 0]
        assert answer.token_ids == plain.token_ids
        timings = answer.last.timings
        assert timings is not None
        assert (timings.drafted > 0) == is_drafted == (target.num_drafted > 0)
        assert timings.accepted == target.num_accepted <= timings.drafted
    with pytest.raises(RequestError, match='draft is "x"; here it may be off, ngram'):
        drafting_engine(model, is_default=False).add(asked("a", "x"))


def test_only_those_who_ask_are_guessed_for(model: LoadedModel) -> None:
    target = drafting_engine(model, is_default=False)
    told = run(target, [asked("a", "ngram"), asked("b")])
    first, second = told["a", 0].last.timings, told["b", 0].last.timings
    assert first is not None and second is not None
    assert first.drafted == target.num_drafted > 0 and second.drafted == 0


class _Breaks(EachAlone):
    def guess(self, token_ids: object) -> list[int]:
        raise RuntimeError("planted")


def test_a_drafter_that_raises_ends_drafting_and_no_answer(
    model: LoadedModel, capsys: pytest.CaptureFixture[str]
) -> None:
    target = engine(model, drafter=_Breaks())
    answer = run(target, [asked("a")])["a", 0]
    assert answer.token_ids == run(engine(model), [asked("a")])["a", 0].token_ids
    again = run(target, [replace(asked("b"))])["b", 0]
    assert again.last.error is None and target.num_drafted == 0
    assert not target.drafting.is_asked
