"""Losses are sums over what is scored, divided once: by hand, and however an update is cut."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

import tiny
from cutaway.core.errors import ConfigError, NumericsError
from cutaway.core.step import Step
from cutaway.train.data.packing import MicroBatch, ScoredSequence
from cutaway.train.loop import descend
from cutaway.train.losses.likelihood import in_chunks, likelihood, of_logits, sums_by_sequence
from cutaway.train.losses.losses import Loss, cross_entropy
from cutaway.train.optimizers import Optimizers, OptimizerSettings

SEQUENCES = [
    ScoredSequence((5, 9, 200, 31, 7), (False, False, True, True, True)),
    ScoredSequence((1, 2, 3), (False, True, False)),
    ScoredSequence.whole([8, 8, 19, 300, 4, 5, 6]),
    ScoredSequence((17,), (False,)),
    ScoredSequence((17, 3), (False, False)),
]


def settings(**changes: float) -> OptimizerSettings:
    return OptimizerSettings(**{"rate": 1e-3, **changes})  # type: ignore[arg-type]


def by_hand(logits: Tensor, sequences: list[ScoredSequence]) -> Tensor:
    """The negative log-likelihood of the scored tokens, token by token, from all logits."""
    at, total = 0, torch.zeros((), dtype=torch.float64)
    for each in sequences:
        for place, (token_id, is_scored) in enumerate(
            zip(each.token_ids, each.is_scored, strict=True)
        ):
            if is_scored:
                row = logits[at + place - 1]
                total = total - (row[token_id].exp() / row.exp().sum()).log()
        at += len(each.token_ids)
    return total


def test_the_loss_is_the_sum_that_one_writes_by_hand() -> None:
    _, model = tiny.random_model()
    batch = MicroBatch(tuple(SEQUENCES))
    loss = cross_entropy(likelihood(model, batch, rows_at_once=2))
    expected = by_hand(model(Step.without_cache([s.token_ids for s in SEQUENCES])), SEQUENCES)
    assert loss.count == batch.count == 10
    torch.testing.assert_close(loss.total, expected, rtol=0, atol=1e-11)


def test_on_a_cpu_what_nothing_scored_is_behind_does_not_go_through_the_model() -> None:
    batch = MicroBatch(tuple(SEQUENCES))
    step, whole = batch.step(), batch.step(is_whole=True)
    assert step.plan.query_lengths == (4, 1, 6, 1, 1)
    assert whole.plan.query_lengths == (5, 3, 7, 1, 2)
    for name in ("token_ids", "positions"):
        read = [getattr(each, name)[each.logit_rows].tolist() for each in (step, whole)]
        assert read[0] == read[1]
    _, model = tiny.random_model()
    a, b = (model.hidden(each)[each.logit_rows] for each in (step, whole))
    torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_chunks_change_neither_loss_nor_gradient() -> None:
    """Rows in chunks that are computed again give what all rows at once give."""
    found: list[tuple[Tensor, list[Tensor]]] = []
    for rows_at_once in (1, 3, 4096):
        _, model = tiny.random_model()
        given = likelihood(model, MicroBatch(tuple(SEQUENCES)), rows_at_once=rows_at_once)
        loss = cross_entropy(given, z_weight=1e-4)
        loss.total.backward()
        found.append((loss.total, [p.grad for p in model.parameters() if p.grad is not None]))
    for total, grads in found[1:]:
        torch.testing.assert_close(total, found[0][0], rtol=0, atol=1e-11)
        for grad, first in zip(grads, found[0][1], strict=True):
            torch.testing.assert_close(grad, first, rtol=0, atol=1e-11)


def test_no_table_of_all_rows_by_the_vocabulary_exists() -> None:
    sizes: list[int] = []

    def read(rows: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
        sizes.append(len(rows))
        return of_logits(rows @ torch.ones(4, 50), targets)

    rows = torch.randn(10, 4, requires_grad=True)
    log_probs, _ = in_chunks(read, rows, torch.zeros(10, dtype=torch.int64), rows_at_once=4)
    log_probs.sum().backward()
    assert sizes[:3] == [4, 4, 2] and sorted(sizes[3:]) == [2, 4, 4]


def test_temperature_divides_the_logits() -> None:
    logits, target = torch.tensor([[1.0, 2.0, 4.0]]), torch.tensor([1])
    at_half = of_logits(logits, target, temperature=0.5).log_probs
    weights = [math.exp(2 * x) for x in (1.0, 2.0, 4.0)]
    assert float(at_half) == pytest.approx(math.log(weights[1] / sum(weights)), abs=1e-6)


def test_sums_by_sequence_are_those_of_each_alone() -> None:
    _, model = tiny.random_model()
    batch = MicroBatch(tuple(SEQUENCES))
    sums = sums_by_sequence(likelihood(model, batch).log_probs, batch)
    for each, total in zip(SEQUENCES, sums, strict=True):
        if each.count:
            alone = likelihood(model, MicroBatch((each,))).log_probs.sum()
            torch.testing.assert_close(total, alone, rtol=0, atol=1e-11)
        else:
            assert not total.detach().any()


@dataclass(frozen=True)
class Given:
    """A micro-batch whose loss is known: so many tokens of such a mean."""

    count: int
    mean: float


class Scale(nn.Module):
    """One number, by which losses are multiplied."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def loss(self, given: Given) -> Loss:
        return Loss((self.weight * given.mean * given.count).sum(), given.count)


def test_t01_micro_batches_weigh_by_what_they_score() -> None:
    """A mean per micro-batch would give 1.5."""
    model = Scale()
    done = descend(
        [Given(4, 2.0), Given(16, 1.0)],
        model.loss,
        Optimizers(model, settings()),
        update=0,
        factor=1.0,
    )
    assert done.loss == pytest.approx(1.2, abs=1e-7)
    assert done.norm == pytest.approx(1.2, abs=1e-6)


def test_t01_gradients_do_not_hang_on_how_an_update_is_cut() -> None:
    norms: list[float] = []
    for cut in ([5], [2, 3], [1, 1, 3], [1, 1, 1, 1, 1]):
        _, model = tiny.random_model()
        batches, at = [], 0
        for length in cut:
            batches.append(MicroBatch(tuple(SEQUENCES[at : at + length])))
            at += length
        done = descend(
            batches,
            lambda batch, model=model: cross_entropy(likelihood(model, batch)),
            Optimizers(model, settings(max_norm=1e9)),
            update=0,
            factor=0.0,
        )
        norms.append(done.norm)
    assert norms == pytest.approx([norms[0]] * 4, rel=1e-12)


def test_t03_a_micro_batch_without_scored_tokens_adds_nothing() -> None:
    model = Scale()
    optimizers = Optimizers(model, settings())
    with_empty = [Given(0, math.nan), Given(2, 3.0), Given(0, math.nan)]
    done = descend(with_empty, model.loss, optimizers, update=0, factor=1.0)
    assert done.loss == 3.0 and done.count == 2
    with pytest.raises(ConfigError, match="update 7 has no scored token"):
        descend([Given(0, math.nan)], model.loss, optimizers, update=7, factor=1.0)


def test_t04_the_logged_loss_is_that_of_the_whole_update() -> None:
    """Not the last micro-batch's, and the one whose gradient was taken."""
    model = Scale()
    batches = [Given(30, 1.0), Given(10, 5.0)]
    done = descend(batches, model.loss, Optimizers(model, settings()), update=0, factor=1.0)
    assert done.loss == pytest.approx(2.0) and done.norm == pytest.approx(2.0)


def test_t05_the_clip_comes_once_after_all_micro_batches() -> None:
    """Two gradients that cancel are not clipped each."""
    model = Scale()
    before = model.weight.detach().clone()
    optimizers = Optimizers(model, settings(max_norm=1.0))
    batches = [Given(1, 1000.0), Given(1, -999.0)]
    done = descend(batches, model.loss, optimizers, update=0, factor=0.0)
    assert done.norm == pytest.approx(0.5) and torch.equal(model.weight, before)


def test_t07_64_micro_batches_equal_one() -> None:
    """In float64 nothing but what is summed can differ; in float32 sums round by their order."""
    for dtype, bound in ((torch.float64, 1e-14), (torch.float32, 2e-6)):
        assert _difference_of_64_micro_batches(dtype) < bound


def _difference_of_64_micro_batches(dtype: torch.dtype) -> float:
    sequences = [ScoredSequence.whole([n, n + 1, 2 * n % 300]) for n in range(64)]
    grads: list[Tensor] = []
    for size in (1, 64):
        _, model = tiny.random_model(dtype=dtype)
        taken: list[Tensor] = []
        optimizers = Optimizers(model, settings(max_norm=1e9))

        def keep(factor: float, model: nn.Module = model, taken: list[Tensor] = taken) -> None:
            taken.append(torch.cat([p.grad.flatten() for p in model.parameters()]))  # type: ignore[union-attr]

        optimizers.step = keep  # type: ignore[method-assign]
        batches = [MicroBatch(tuple(sequences[at : at + size])) for at in range(0, 64, size)]
        descend(
            batches,
            lambda batch, model=model: cross_entropy(likelihood(model, batch)),
            optimizers,
            update=0,
            factor=1.0,
        )
        grads += taken
    difference = (grads[0] - grads[1]).norm() / grads[1].norm()
    return float(difference)


def test_a_loss_that_is_no_number_moves_nothing() -> None:
    model = Scale()
    optimizers = Optimizers(model, settings())
    with pytest.raises(NumericsError, match="update 3"):
        descend([Given(1, math.inf)], model.loss, optimizers, update=3, factor=1.0)
    assert float(model.weight.detach()) == 1.0


def test_t24_packed_sequences_do_not_see_each_other() -> None:
    """Loss and gradient of a pack are those of its sequences alone, and neighbours change none."""
    _, model = tiny.random_model()
    packed = likelihood(model, MicroBatch(tuple(SEQUENCES))).log_probs
    alone = [likelihood(model, MicroBatch((each,))).log_probs for each in SEQUENCES if each.count]
    torch.testing.assert_close(packed, torch.cat(alone), rtol=0, atol=1e-11)
    changed = [ScoredSequence.whole([250, 251, 252, 253, 254]), *SEQUENCES[1:]]
    beside = likelihood(model, MicroBatch(tuple(changed))).log_probs
    torch.testing.assert_close(beside[4:], packed[3:], rtol=0, atol=1e-11)


def test_t25_a_batch_of_one_equals_a_batch_of_sixteen() -> None:
    _, model = tiny.random_model()
    sequences = [ScoredSequence.whole(list(range(n, 2 * n + 2))) for n in range(16)]
    batch = MicroBatch(tuple(sequences))
    together = sums_by_sequence(likelihood(model, batch).log_probs, batch)
    for each, total in zip(sequences, together, strict=True):
        alone = likelihood(model, MicroBatch((each,))).log_probs.sum()
        torch.testing.assert_close(alone, total, rtol=0, atol=1e-11)


def test_norms_by_block_add_up_to_the_whole() -> None:
    _, model = tiny.random_model()
    done = descend(
        [MicroBatch(tuple(SEQUENCES))],
        lambda batch: cross_entropy(likelihood(model, batch)),
        Optimizers(model, settings()),
        update=0,
        factor=1.0,
    )
    assert done.norms.keys() == {"embedding", "blocks.0", "blocks.1", "unembedding"}
    squares = sum(norm * norm for norm in done.norms.values())
    assert math.sqrt(squares) == pytest.approx(done.norm, rel=1e-5)
    assert all(norm > 0 for norm in done.norms.values())


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_q3_one_weights_way_is_that_of_adamw(optimizer: str) -> None:
    """Each number told is worked out again from those before it, by the paper's own formula."""
    _, model = tiny.random_model()
    told = OptimizerSettings(name=optimizer, rate=1e-2, max_norm=0.1)
    optimizers = Optimizers(model, told)
    decays = optimizers.parameters[optimizers.watched].ndim == 2
    assert optimizers.watched.startswith("blocks.0.") and decays is (optimizer == "adamw")
    mean = square = 0.0
    after = float(optimizers.parameters[optimizers.watched].detach().flatten()[0])
    for update in range(5):
        factor = 1 - update / 10
        done = descend(
            [MicroBatch(tuple(SEQUENCES))],
            lambda batch: cross_entropy(likelihood(model, batch)),
            optimizers,
            update=update,
            factor=factor,
        ).weight
        gradient = done["gradient"]
        assert done["before"] == after and gradient != 0
        mean = told.betas[0] * mean + (1 - told.betas[0]) * gradient
        square = told.betas[1] * square + (1 - told.betas[1]) * gradient**2
        assert (done["mean"], done["square"]) == pytest.approx((mean, square), rel=1e-5)
        unbiased = [
            m / (1 - b ** (update + 1)) for m, b in zip((mean, square), told.betas, strict=True)
        ]
        rate = told.rate * factor
        decayed = after * (1 - rate * told.decay * decays)
        moved = decayed - rate * unbiased[0] / (math.sqrt(unbiased[1]) + told.epsilon)
        assert done["after"] == pytest.approx(moved, rel=1e-5)
        after = done["after"]
