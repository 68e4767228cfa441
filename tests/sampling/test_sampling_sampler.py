"""The sampler as a whole: golden draws, mixed batches, batch = alone, bad rows, distribution."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace

import pytest
import torch
from plain_sampler import GOLDEN, SETTINGS, bits, from_bits, golden
from torch import Tensor

from cutaway.core.request import SamplingParams
from cutaway.sampling import candidates as candidates_module
from cutaway.sampling import sampler
from cutaway.sampling.draw import draw
from cutaway.sampling.sampler import Candidates, Sampler, SamplerRow, sample_plain, stages_of


def row_of(seed: int = 1, position: int = 9, **params: object) -> SamplerRow:
    return SamplerRow(params=SamplingParams(**params), seed=seed, position=position)  # pyright: ignore


def random_logits(num_rows: int, vocab_size: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_rows, vocab_size, generator=generator) * 3


def test_golden_file_is_what_its_script_writes() -> None:
    assert json.loads(GOLDEN.read_text()) == json.loads(json.dumps(golden()))


def test_golden_draws() -> None:
    cases = json.loads(GOLDEN.read_text())["draw"]
    assert len(cases) == 3 * len(SETTINGS)
    for case in cases:
        logits = torch.tensor([[from_bits(word) for word in case["logits"]]])
        row = row_of(**case["settings"])
        candidates = Candidates(logits)
        for stage in stages_of(row):
            candidates = stage(candidates, [row])
        drawn = draw(candidates.weights, torch.tensor([case["u"]]))
        assert candidates.weights.tolist() == [case["weights"]]
        assert drawn.total.item() == case["total"]
        assert drawn.target.item() == case["target"]
        assert drawn.cumulative.item() == case["cumulative"]
        assert drawn.token_ids.item() == case["token_id"]
        sampled = Sampler(logits.shape[-1]).sample(logits, [row])[0]
        assert bits(sampled.score.logsumexp) == case["logsumexp"]


def test_c02_greedy_and_random_rows_in_one_batch() -> None:
    logits = random_logits(2, 100)
    logits[0, ::2] = -math.inf
    rows = [row_of(temperature=0.0), row_of(temperature=0.8)]
    sampler = Sampler(100)
    mixed = sampler.sample(logits, rows)
    assert mixed[0].token_id == int(logits[0].argmax())
    for i in range(2):
        assert sampler.sample(logits[i : i + 1], rows[i : i + 1]) == [mixed[i]]


MIXED_ROWS = [
    row_of(seed=1, temperature=0.0),
    row_of(seed=2),
    row_of(seed=3, temperature=0.7, top_p=0.9),
    row_of(seed=4, temperature=1.3, top_k=40),
    row_of(seed=5, min_p=0.05),
    row_of(seed=6, temperature=0.0, logit_bias={3: 50.0}),
    row_of(seed=7, temperature=0.7, top_p=0.5),
    row_of(seed=8, temperature=0.9, top_k=5, top_p=0.8, min_p=0.01),
    SamplerRow(params=SamplingParams(), seed=9, position=4, num_logprobs=5),
    SamplerRow(
        params=SamplingParams(repetition_penalty=1.2, frequency_penalty=0.3),
        seed=10,
        position=7,
        prompt_token_ids=(1, 2, 3),
        output_token_ids=(5, 5, 6),
        num_logprobs=0,
    ),
    SamplerRow(params=SamplingParams(), seed=11, position=4, banned_token_ids=(0, 1)),
    row_of(seed=12),
]


def test_scores_of_what_is_drawn_from_have_the_temperature() -> None:
    logits = random_logits(2, 300)
    rows = [replace(row_of(seed=3, temperature=t), scores_drawn=True) for t in (0.6, 0.0)]
    drawn = Sampler(300).sample(logits, rows)
    for each, row, heat in zip(drawn, logits, (0.6, 1.0), strict=True):
        assert each.token_id is not None
        wanted = torch.log_softmax(row.double() / heat, dim=-1)[each.token_id]
        assert each.score.logprob == pytest.approx(float(wanted), abs=2e-6)
    plain = Sampler(300).sample(logits, [replace(row, scores_drawn=False) for row in rows])
    assert [each.token_id for each in plain] == [each.token_id for each in drawn]
    assert plain[0].score.logprob != drawn[0].score.logprob


# Small rows are worked on together, rows of 70001 one by one; 1000 is no multiple of the chunk.
@pytest.mark.parametrize(
    ("vocab_size", "rows"), [(64, MIXED_ROWS), (1000, MIXED_ROWS), (70_001, MIXED_ROWS[::3])]
)
def test_c13_batch_equals_alone_bit_for_bit(vocab_size: int, rows: list[SamplerRow]) -> None:
    logits = random_logits(len(rows), vocab_size)
    sampler = Sampler(vocab_size)
    together = sampler.sample(logits, rows)
    for i, row in enumerate(rows):
        assert sampler.sample(logits[i : i + 1], [row]) == [together[i]]
    backwards = sampler.sample(logits.flip(0), rows[::-1])
    assert backwards == together[::-1]


def test_the_number_of_threads_changes_no_bit_and_comes_back() -> None:
    logits, u = random_logits(1, 70_001), torch.tensor([3_000_000_000])
    threads = torch.get_num_threads()
    try:
        drawn: list[tuple[list[float], int]] = []
        for num_threads in (1, 4):
            torch.set_num_threads(num_threads)
            weights = Candidates(logits).weights
            drawn.append((weights.tolist(), int(draw(weights, u).token_ids)))
        assert drawn[0] == drawn[1]
        Sampler(70_001).sample(logits, [row_of()])
        assert torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_any_float_type_is_cast_to_float32_first(dtype: torch.dtype) -> None:
    logits = random_logits(len(MIXED_ROWS), 1000).to(dtype)
    sampler = Sampler(1000)
    assert sampler.sample(logits, MIXED_ROWS) == sampler.sample(logits.float(), MIXED_ROWS)


def test_logits_are_left_as_they_are() -> None:
    logits = random_logits(len(MIXED_ROWS), 500)
    before = logits.clone()
    Sampler(500).sample(logits, MIXED_ROWS)
    assert torch.equal(logits, before)
    frozen = logits.requires_grad_()
    assert Sampler(500).sample(frozen, MIXED_ROWS) == Sampler(500).sample(before, MIXED_ROWS)


def test_rows_may_be_a_slice_of_a_wider_tensor() -> None:
    wide = random_logits(len(MIXED_ROWS), 600)
    sampler = Sampler(500)
    got = sampler.sample(wide[:, :500], MIXED_ROWS)
    assert got == sampler.sample(wide[:, :500].contiguous(), MIXED_ROWS)


def test_no_rows_give_no_tokens() -> None:
    assert Sampler(5).sample(torch.zeros(0, 5), []) == []


def test_greedy_takes_the_smallest_id_among_equals() -> None:
    for vocab_size in (5, 1000):
        logits = torch.zeros(1, vocab_size)
        logits[0, 3] = logits[0, vocab_size - 1] = 2.0
        assert Sampler(vocab_size).sample(logits, [row_of(temperature=0.0)])[0].token_id == 3


FAULTS: dict[str, tuple[object, float | Tensor]] = {
    "one nan": (7, math.nan),
    "one inf": (-1, math.inf),
    "nan and inf": ([2, 30], torch.tensor([math.inf, math.nan])),
    "all nan": (slice(None), math.nan),
    "all -inf": (slice(None), -math.inf),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(("vocab_size", "rows"), [(40, MIXED_ROWS), (5000, MIXED_ROWS[:5])])
def test_a_bad_row_fails_alone(vocab_size: int, rows: list[SamplerRow], fault: str) -> None:
    clean = random_logits(len(rows), vocab_size)
    sampler = Sampler(vocab_size)
    expected = sampler.sample(clean, rows)
    where, value = FAULTS[fault]
    for bad in range(len(rows)):
        logits = clean.clone()
        logits[bad, where] = value
        got = sampler.sample(logits, rows)
        assert got[bad].is_bad and got[bad].token_id is None and got[bad].score.is_bad
        assert got[:bad] + got[bad + 1 :] == expected[:bad] + expected[bad + 1 :]


def test_some_logits_of_minus_infinity_are_fine() -> None:
    logits = torch.full((1, 50), -math.inf)
    logits[0, 33] = -7.0
    for params in ({}, {"temperature": 0.0}, {"top_k": 10}, {"top_p": 0.5}, {"min_p": 0.5}):
        sampled = Sampler(50).sample(logits, [row_of(**params)])[0]
        assert (sampled.token_id, sampled.score.logprob) == (33, 0.0)


@pytest.mark.parametrize("params", [{}, {"temperature": 0.0}, {"temperature": 0.5, "top_p": 0.9}])
def test_a_row_with_every_token_banned_is_bad(params: dict[str, float]) -> None:
    row = SamplerRow(params=SamplingParams(**params), seed=1, position=0, banned_token_ids=range(4))  # pyright: ignore
    sampled = Sampler(4).sample(torch.zeros(2, 4), [row, row_of()])
    assert sampled[0].is_bad and not sampled[1].is_bad


def test_c11_choices_of_a_flat_distribution_differ() -> None:
    sampler, logits = Sampler(50), torch.zeros(1, 50)

    def answer(choice: int) -> list[int | None]:
        rows = [
            SamplerRow(params=SamplingParams(seed=7, n=4), seed=7, choice=choice, position=p)
            for p in range(16)
        ]
        return [sampler.sample(logits, [row])[0].token_id for row in rows]

    answers = [answer(choice) for choice in range(4)]
    assert len({tuple(a) for a in answers}) == 4
    assert answers == [answer(choice) for choice in range(4)]


def test_l8_the_same_seed_repeats_and_another_differs() -> None:
    sampler, logits = Sampler(1000), random_logits(1, 1000)

    def answer(seed: int, **params: object) -> list[int | None]:
        rows = [row_of(seed=seed, position=p, **params) for p in range(32)]
        return [s.token_id for s in sampler.sample(logits.expand(32, -1), rows)]

    assert answer(1) == answer(1) != answer(2)
    assert answer(1, temperature=0.0) == answer(2, temperature=0.0)


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, (0.5, 0.25, 0.15, 0.1)),
        ({"temperature": 0.5}, (0.25, 0.0625, 0.0225, 0.01)),
        ({"top_k": 2}, (0.5, 0.25, 0, 0)),
        ({"top_p": 0.8}, (0.5, 0.25, 0.15, 0)),
        ({"min_p": 0.25}, (0.5, 0.25, 0.15, 0)),
    ],
)
def test_draws_follow_the_distribution(
    params: dict[str, float], expected: tuple[float, ...]
) -> None:
    num_draws = 20_000
    logits = torch.tensor([math.log(p) for p in (0.5, 0.25, 0.15, 0.1)]).expand(num_draws, -1)
    rows = [row_of(seed=3, position=p, **params) for p in range(num_draws)]
    ids = [s.token_id for s in Sampler(4).sample(logits, rows)]
    statistic = 0.0
    for token, share in enumerate(expected):
        count, mean = ids.count(token), num_draws * share / sum(expected)
        assert (count == 0) == (mean == 0)
        statistic += (count - mean) ** 2 / mean if mean else 0.0
    # 16.3 is the 0.999 quantile for 3 degrees of freedom; seeds are fixed.
    assert statistic < 16.3


def test_u_is_recorded_for_drawn_rows_only() -> None:
    sampled = Sampler(4).sample(torch.zeros(2, 4), [row_of(), row_of(temperature=0.0)])
    assert sampled[0].u is not None and sampled[0].u >> 30 == sampled[0].token_id
    assert sampled[1].u is None


def test_a_fork_draws_alike_at_the_same_position() -> None:
    logits = random_logits(1, 300)
    one = SamplerRow(params=SamplingParams(), seed=5, position=20, prompt_token_ids=range(20))
    fork = SamplerRow(
        params=SamplingParams(),
        seed=5,
        position=20,
        prompt_token_ids=range(12),
        output_token_ids=range(12, 20),
    )
    assert Sampler(300).sample(logits, [one]) == Sampler(300).sample(logits, [fork])


def test_the_polynomial_runs_once_for_a_plain_row(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    original = candidates_module.exponential

    def counted(logits: Tensor, peak: Tensor) -> Tensor:
        calls.append(logits.shape[-1])
        return original(logits, peak)

    monkeypatch.setattr(candidates_module, "exponential", counted)
    logits = random_logits(1, 5000)
    for params, expected in (
        ({}, [5000]),
        ({"temperature": 0.0}, [5000]),
        ({"top_p": 0.9, "min_p": 0.01}, [5000]),
        ({"top_k": 10, "top_p": 0.9}, [5000, 10]),
        ({"temperature": 0.7}, [5000, 5000]),
    ):
        calls.clear()
        sample_plain(logits, [row_of(**params)])
        assert sorted(calls, reverse=True) == expected


def test_settings_that_are_kept_draw_what_rows_made_anew_draw(monkeypatch) -> None:
    def echo(logits, choices, *, has_top_k, has_top_p):  # as if in the columns of kernels/sample
        assert has_top_k == bool((choices[:, 3] > 0).any())
        assert has_top_p == bool((choices[:, 4] >= 0).any())
        total = 2.0**35 * (1 + choices[:, [0, 1, 3]].sum(1) + choices[:, 4] / 2**32)
        columns = (logits[:, 0], logits[:, 1], logits[:, 2], logits[:, 1], total)
        return torch.stack([*columns, *(choices[:, 2] + 1, choices[:, 2] + 1)], dim=1)

    monkeypatch.setattr(sampler, "takes", lambda logits: True)
    monkeypatch.setattr(sampler, "sample", echo)
    chance = random.Random(1)
    params = [
        SamplingParams(
            temperature=chance.choice([0.0, 0.7]),
            min_p=chance.choice([0.0, 0.1]),
            top_k=chance.choice([0, 5]),
            top_p=chance.choice([1.0, 0.9]),
        )
        for _ in range(40)
    ]
    logits = torch.randn(40, 8, dtype=torch.float64)
    logits[:, 0] = torch.arange(40)

    def rows(position: int) -> list[SamplerRow]:
        numbered = enumerate(params)
        return [SamplerRow(params=p, seed=i, position=i + position) for i, p in numbered]

    steady = sampler.SteadyRows.of(rows(5), logits)
    assert steady is not None
    for position in (6, 7):
        anew = sampler.begin_plain(logits, rows(position)).read()
        positions = [i + position for i in range(40)]
        assert steady.begin(logits, positions).read() == anew

        def captured(choices, **cuts: bool) -> Tensor:
            return echo(logits, torch.tensor(choices), **cuts)

        assert steady.begin(logits, positions, captured).read() == anew
    kept = [31, 2, 17, 3]
    fewer = sampler.begin_plain(logits[kept], [rows(8)[i] for i in kept]).read()
    assert steady.keep(kept).begin(logits[kept], [i + 8 for i in kept]).read() == fewer


def test_settings_are_not_kept_where_a_row_asks_for_more(monkeypatch) -> None:
    monkeypatch.setattr(sampler, "takes", lambda logits: True)
    more = (
        {"params": SamplingParams(presence_penalty=0.5)},
        {"num_logprobs": 1},
        {"banned_token_ids": {1}},
    )
    for asks in more:
        row = SamplerRow(**{"params": SamplingParams(), "seed": 1, "position": 4, **asks})
        assert sampler.SteadyRows.of([row], torch.zeros(1, 8)) is None


def test_rows_read_together_are_those_read_one_by_one() -> None:
    logits = torch.randn(30, 50)
    logits[7, 3] = float("nan")
    rows = [row_of(seed, temperature=0.8) for seed in range(30)]
    together = sampler.begin_plain(logits, rows).read()
    assert together[7].is_bad
    for index, each in enumerate(together):
        alone = sampler.begin_plain(logits[index : index + 1], rows[index : index + 1]).read()
        assert [repr(each)] == list(map(repr, alone))


def test_tokens_that_are_awaited_alone_are_those_of_the_draws() -> None:
    settings: list[dict[str, object]] = [
        {"temperature": 0.0},
        {"temperature": 0.8, "top_k": 5},
        {"temperature": 1.0},
    ]
    rows = [row_of(seed=each, **settings[each % 3]) for each in range(12)]
    logits = random_logits(len(rows), 300)
    logits[3, 7], logits[4, 200], logits[8] = math.nan, math.inf, -math.inf
    drawing = sampler.begin_plain(logits, rows)
    token_ids = [each.token_id for each in drawing.read()]
    assert drawing.read_tokens() == token_ids and token_ids.count(None) == 3
