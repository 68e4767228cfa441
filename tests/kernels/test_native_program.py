"""Programs: the same bits as single calls, any step over one recording, every bound checked."""

from __future__ import annotations

import ctypes
import threading
from dataclasses import replace

import pytest
import torch
from native_cases import needs_native, packed, random, random_step, running
from torch import Tensor

from cutaway.core.step import Numbers, Step
from cutaway.kernels import native
from cutaway.kernels.native import library
from cutaway.kernels.native.structs import STRUCTS, Code, Rows

pytestmark = needs_native

WIDTH, HEADS, GROUPS, SIZE, INNER, VOCAB, ROOM = 96, 6, 2, 16, 160, 50, 64


class Tiny:
    """A model of two layers with random weights, recorded over buffers with room for 64 tokens."""

    def __init__(self) -> None:
        self.table = packed(native.Kind.Q8, VOCAB, WIDTH)
        self.norm = native.NormWeights(random(WIDTH, seed=1), 1e-5)
        self.rotation = native.Rotation(random(700, 8, seed=2), random(700, 8, seed=3))
        self.pages = [
            native.Pages.of(torch.zeros(90, 16, GROUPS, SIZE), torch.zeros(90, 16, GROUPS, SIZE))
            for _ in range(2)
        ]
        self.hidden = torch.empty(ROOM, WIDTH)
        self.last = torch.empty(ROOM, WIDTH)
        self.logits = torch.empty(ROOM, VOCAB)
        qkv, mixed = torch.empty(ROOM, (HEADS + 2 * GROUPS) * SIZE), torch.empty(ROOM, WIDTH)
        product = torch.empty(ROOM, INNER)
        self.operations = [native.gather(self.table, out=self.hidden)]
        for layer in range(2):
            weights = [
                packed(native.Kind.Q4_AFFINE, rows, columns, seed=layer)
                for rows, columns in (
                    (qkv.shape[1], WIDTH),
                    (WIDTH, WIDTH),
                    (INNER, WIDTH),
                    (INNER, WIDTH),
                    (WIDTH, INNER),
                )
            ]
            hidden = self.hidden
            self.operations += [
                native.linear(hidden, weights[:1], out=qkv, norm=self.norm),
                native.attention(
                    qkv,
                    self.pages[layer],
                    num_heads=HEADS,
                    rotation=self.rotation,
                    out=mixed,
                    scoring=native.NativeScoring(0.25),
                ),
                native.linear(mixed, weights[1:2], out=hidden, residual=hidden),
                native.multiply_gate(hidden, weights[2], weights[3], out=product, norm=self.norm),
                native.linear(product, weights[4:], out=hidden, residual=hidden),
            ]
        self.operations += [
            native.take(self.hidden, out=self.last),
            native.linear(
                self.last, [self.table], out=self.logits, norm=self.norm, rows=Rows.LOGITS
            ),
        ]
        self.program = native.Program()
        for operation in self.operations:
            self.program.add(operation)

    def eager(self, step: Step) -> Tensor:
        now = native.NativeStep.of(step)
        for operation in self.operations:
            native.run(operation, now)
        return self.logits[: len(step.logit_rows)].clone()

    def replayed(self, step: Step) -> Tensor:
        self.program.run(native.NativeStep.of(step))
        return self.logits[: len(step.logit_rows)].clone()


def chunk(token_ids: list[int], first: int, table: Tensor) -> Step:
    """A step over some tokens of one sequence that begins at position 0 of a table."""
    step = random_step([len(token_ids)], [first + len(token_ids)], page_size=16, num_pages=60)
    positions = step.positions
    step.groups[0].page_table[0, :] = table[: step.groups[0].page_table.shape[1]]
    step.groups[0].slots[:] = table[positions // 16] * 16 + positions % 16
    step.token_ids[:] = torch.tensor(token_ids)
    return step


def test_structs_are_those_of_the_header() -> None:
    for code, struct in STRUCTS.items():
        assert library.library().cw_sizeof(code) == ctypes.sizeof(struct)
    assert library.library().cw_sizeof(len(STRUCTS)) == 0


@pytest.mark.parametrize("threads", [1, 2])
def test_replay_is_the_eager_calls_for_prefill_decode_and_both(threads: int) -> None:
    model = Tiny()
    with running(threads=threads):
        for queries, contexts in (
            ([40], [40]),
            ([1, 1, 1], [41, 3, 300]),
            ([1, 30, 5], [9, 30, 600]),
        ):
            step = random_step(queries, contexts, page_size=16, num_pages=90)
            wanted = model.eager(step)
            assert wanted.isfinite().all()
            assert torch.equal(model.replayed(step), wanted)


def test_tokens_in_one_chunk_many_chunks_or_one_by_one_give_the_same_bits() -> None:
    model = Tiny()
    table = torch.randperm(89, generator=torch.Generator().manual_seed(5)) + 1
    ids = torch.randint(0, VOCAB, (60,), generator=torch.Generator().manual_seed(6)).tolist()
    found: list[Tensor] = []
    for threads, sizes in ((1, [60]), (2, [60]), (2, [7, 1, 30, 22]), (2, [1] * 60)):
        for pages in model.pages:
            pages.keys.zero_(), pages.values.zero_()
        with running(threads=threads):
            first = 0
            for size in sizes:
                last = model.replayed(chunk(ids[first : first + size], first, table))
                first += size
        found.append(last)
    for each in found[1:]:
        assert torch.equal(each, found[0])


def numbers_of(step: Step) -> Numbers:
    """The host's side of a step."""
    lists = [
        each.tolist()
        for each in (step.token_ids, step.positions, step.declared_lengths, step.logit_rows)
    ]
    groups = step.groups
    pages, slots = [g.page_table.tolist() for g in groups], [g.slots.tolist() for g in groups]
    return Numbers(*lists, step.plan, pages, slots)


def test_numbers_of_the_host_are_the_same_step_as_tensors() -> None:
    model = Tiny()
    step = random_step([3, 1, 20], [40, 17, 20], page_size=16, num_pages=90)
    second = replace(step.groups[0], page_table=step.groups[0].page_table.flip(0))
    step = replace(step, groups=(*step.groups, second))
    numbers = numbers_of(step)
    made = Step.of(numbers, (), device=torch.device("cpu"))
    assert made.plan == step.plan and torch.equal(made.query_starts, step.query_starts)
    assert torch.equal(made.groups[1].page_table, second.page_table)
    wanted = model.replayed(step)
    model.logits.fill_(-7.0)
    model.program.run(native.NativeStep.of_numbers(numbers))
    assert torch.equal(model.logits[: len(wanted)], wanted)
    read, kept = native.NativeStep.of_numbers(numbers), native.NativeStep.of(step)
    for group in range(2):
        for name, count in (("page_table", second.page_table.numel()), ("slots", 24)):
            ours, theirs = (
                (ctypes.c_int64 * count).from_address(getattr(each.struct.groups[group], name))[:]
                for each in (read, kept)
            )
            assert ours == theirs


def test_numbers_that_do_not_fit_together_are_refused() -> None:
    numbers = numbers_of(random_step([3, 1], [40, 17], page_size=16, num_pages=90))
    pages, slots = numbers.pages[0], numbers.slots[0]
    for wrong, message in (
        ({"positions": numbers.positions[1:]}, "lack a number"),
        ({"plan": replace(numbers.plan, query_lengths=(4,))}, "lack a number"),
        ({"slots": [slots[1:]]}, "too many or too few pages or slots"),
        ({"pages": [pages[:1]]}, "too many or too few pages or slots"),
        ({"pages": [pages] * 5, "slots": [slots] * 5}, "more than four"),
    ):
        with pytest.raises(AssertionError, match=message):
            native.NativeStep.of_numbers(replace(numbers, **wrong))


def test_a_step_that_wants_no_logits_still_stores_its_tokens() -> None:
    model = Tiny()
    step = random_step([30], [30], page_size=16, num_pages=90)
    now = native.NativeStep.of(step)
    now.struct.num_logit_rows = 0
    model.logits.fill_(-7.0)
    with running(threads=2):
        model.program.run(now)
    assert (model.logits == -7.0).all()
    assert all((pages.keys != 0).any() for pages in model.pages)


def test_an_empty_step_does_nothing() -> None:
    model = Tiny()
    model.logits.fill_(-7.0)
    now = native.NativeStep.of_rows(0)
    starts = torch.zeros(1, dtype=torch.int64)
    now.struct.query_starts = now.struct.context_lengths = starts.data_ptr()
    now.struct.groups[0].page_table = starts.data_ptr()
    now.struct.groups[0].pages_per_sequence = 1
    with running(threads=2):
        model.program.run(now)
    assert (model.logits == -7.0).all()


def test_room_is_aligned_zeros() -> None:
    for rows, width in ((1, 1), (3, 5), (1000, 577)):
        buffer = native.room(rows, width)
        assert buffer.shape == (rows, width) and buffer.is_contiguous()
        assert buffer.data_ptr() % 64 == 0 and not buffer.any()


def test_program_tells_what_it_recorded_and_how_long_it_took() -> None:
    model = Tiny()
    layer = (Code.LINEAR, Code.ATTENTION, Code.LINEAR, Code.GATED, Code.LINEAR)
    assert model.program.codes == (Code.GATHER, *layer, *layer, Code.TAKE, Code.LINEAR)
    step = random_step([1], [20], page_size=16, num_pages=90)
    times = model.program.time(native.NativeStep.of(step))
    assert len(times) == len(model.program.codes) and all(t > 0 for t in times)


def step_with(**changes: object) -> Step:
    step = random_step([1, 2], [20, 40], page_size=16, num_pages=90)
    for name, value in changes.items():
        tensor: Tensor = getattr(step, name)
        tensor[:] = torch.tensor(value)
    return step


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"token_ids": [0, VOCAB, 0]}, "token id is outside"),
        ({"token_ids": [0, -1, 0]}, "token id is outside"),
        ({"positions": [0, 0, 700]}, "position is outside"),
        ({"query_starts": [0, 2, 1]}, "query starts"),
        ({"query_starts": [0, 0, 3]}, "query starts"),
        ({"query_starts": [1, 2, 3]}, "query starts"),
        ({"context_lengths": [0, 40]}, "context is shorter"),
        ({"context_lengths": [20, 1]}, "context is shorter"),
        ({"context_lengths": [20, 81]}, "context is shorter than its queries or longer"),
        ({"context_lengths": [20, 70]}, "page is outside"),
        ({"logit_rows": [0, 3]}, "logit row is not"),
    ],
)
def test_a_step_out_of_bounds_is_refused_and_nothing_is_written(
    changes: dict[str, object], message: str
) -> None:
    model = Tiny()
    model.logits.fill_(-7.0)
    with pytest.raises(AssertionError, match=message):
        model.replayed(step_with(**changes))
    assert (model.logits == -7.0).all()
    assert all((pages.keys == 0).all() for pages in model.pages)


@pytest.mark.parametrize("slot", [-1, 90 * 16])
def test_slots_outside_the_pool_are_refused(slot: int) -> None:
    model = Tiny()
    step = step_with()
    step.groups[0].slots[1] = slot
    with pytest.raises(AssertionError, match="slot is outside"):
        model.replayed(step)


def test_pages_outside_the_pool_are_refused() -> None:
    model = Tiny()
    for page in (-1, 90):
        step = step_with()
        step.groups[0].page_table[1, 2] = page
        with pytest.raises(AssertionError, match="page is outside"):
            model.replayed(step)


def test_more_tokens_than_buffers_hold_are_refused() -> None:
    step = random_step([ROOM + 1], [ROOM + 1], page_size=16, num_pages=90)
    with pytest.raises(AssertionError, match="more rows than the buffers"):
        Tiny().replayed(step)


def test_rows_are_not_taken_from_beyond_a_buffer() -> None:
    step = random_step([9], [9], page_size=16, num_pages=20)
    operation = native.take(random(8, 4), out=torch.empty(1, 4))
    with pytest.raises(AssertionError, match="more rows than the buffers"):
        native.run(operation, native.NativeStep.of(step))


def test_a_step_without_what_an_operation_reads_is_refused() -> None:
    with pytest.raises(AssertionError):
        Tiny().program.run(native.NativeStep.of_rows(1))


def test_operations_refuse_wrong_tensors() -> None:
    weight = packed(native.Kind.Q8, 20, 32)
    x, out = random(3, 32), torch.empty(3, 20)
    for wrong, message in (
        (lambda: native.linear(x.double(), [weight], out=out), "float64"),
        (lambda: native.linear(random(3, 31), [weight], out=out), "is not a contiguous"),
        (lambda: native.linear(random(32, 3).T, [weight], out=out), "is not a contiguous"),
        (lambda: native.linear(x, [weight], out=torch.empty(2, 20)), "is not a contiguous"),
        (lambda: native.linear(x, [], out=out), "one to four segments"),
        (lambda: native.linear(x, [weight], out=out, biases=[random(19)]), "is not a contiguous"),
        (
            lambda: native.linear(x, [weight], out=out, norm=native.NormWeights(random(31), 1e-5)),
            "is not",
        ),
        (lambda: native.gate(x[:, ::2], x[:, ::2], out=torch.empty(3, 16)), "not contiguous"),
        (lambda: native.gate(x[:1].expand(3, 32), x, out=torch.empty(3, 32)), "overlap"),
    ):
        with pytest.raises(AssertionError, match=message):
            wrong()
    square = packed(native.Kind.Q8, 32, 32)
    with pytest.raises(AssertionError, match="share memory"):
        native.linear(x, [square], out=x)


def test_two_python_threads_may_run_at_once() -> None:
    model, other = Tiny(), Tiny()
    step = random_step([5, 1], [5, 100], page_size=16, num_pages=90)
    with running(threads=2):
        wanted = model.replayed(step)
        found: list[Tensor] = []
        workers = [
            threading.Thread(target=lambda m=m: found.extend(m.replayed(step) for _ in range(20)))
            for m in (model, other)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    assert len(found) == 40 and all(torch.equal(each, wanted) for each in found)


def test_threads_that_slept_wake_up() -> None:
    weight = packed(native.Kind.Q8, 64, 64)
    x, out = random(9, 64), torch.empty(9, 64)
    operation = native.linear(x, [weight], out=out)
    step = native.NativeStep.of_rows(9)
    with running(threads=1):
        native.run(operation, step)
    wanted = out.clone()
    with running(threads=3):
        library.set_num_threads(3, spin_seconds=0.0)
        for _ in range(200):
            out.zero_()
            native.run(operation, step)
            assert torch.equal(out, wanted)


def test_a_forked_child_starts_with_threads_of_its_own() -> None:
    import os

    weight = packed(native.Kind.Q8, 64, 64)
    x, out = random(9, 64), torch.empty(9, 64)
    operation, step = native.linear(x, [weight], out=out), native.NativeStep.of_rows(9)
    with running(threads=2):
        native.run(operation, step)
        child = os.fork()
        if child == 0:
            native.run(operation, step)
            os._exit(0 if library.num_threads() == 1 else 1)
        assert os.waitpid(child, 0)[1] == 0
