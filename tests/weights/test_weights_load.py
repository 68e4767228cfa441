"""Filling a model: names and shapes are judged first, rows put in order, dtypes kept in range."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from cutaway.core.errors import ModelFormatError, UnsupportedModelError
from cutaway.core.weight_targets import PairedRows, Target
from cutaway.host import gguf_file
from cutaway.weights.files.safetensors import SafetensorsWeights
from cutaway.weights.files.safetensors_index import SINGLE
from cutaway.weights.load import in_own_order, load_weights, shown_names
from cutaway.weights.random import RandomWeights
from cutaway.weights.source import GgufWeights, WeightSource


class Table(nn.Module):
    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, columns))


class Tiny(nn.Module):
    """An embedding, a list of biases, and a head that may be the embedding's own table."""

    def __init__(self, *, is_tied: bool) -> None:
        super().__init__()
        self.table = Table(4, 3)
        self.head = self.table if is_tied else Table(4, 3)
        self.biases = nn.ParameterList([torch.empty(4), torch.empty(2)])


TARGETS = {
    "embed.weight": Target("table.weight", (4, 3)),
    "b.0.bias": Target("biases.0", (4,)),
    "b.1.bias": Target("biases.1", (2,)),
}
HEAD = {"head.weight": Target("head.weight", (4, 3))}
TIED_HEAD = {"head.weight": Target("table.weight", (4, 3))}


def tiny(*, is_tied: bool = True) -> Tiny:
    with torch.device("meta"):
        return Tiny(is_tied=is_tied)


class Held:
    """Tensors in memory that count how often they are read."""

    file = "m.safetensors"

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = tensors
        self.reads = 0
        self.released: list[str] = []

    def names(self) -> Collection[str]:
        return self.tensors.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.tensors[name].shape)

    def check(self, name: str) -> None:
        if self.tensors[name].dtype == torch.int8:
            raise UnsupportedModelError(f"{name} is int8")

    def release(self, name: str) -> None:
        self.released.append(name)

    def tensor(self, name: str) -> Tensor:
        self.reads += 1
        return self.tensors[name].clone()


def held(**changes: Tensor | None) -> Held:
    generator = torch.Generator().manual_seed(5)
    stored = {n: torch.randn(t.shape, generator=generator) for n, t in TARGETS.items()}
    stored |= {n.replace("__", "."): v for n, v in changes.items() if v is not None}
    for name, value in changes.items():
        if value is None:
            del stored[name.replace("__", ".")]
    return Held(stored)


def load(
    module: nn.Module,
    source: WeightSource,
    targets: Mapping[str, Target] = TARGETS,
    **options: object,
) -> None:
    load_weights(module, source, targets, **{"dtype": torch.float32, **options})  # type: ignore[arg-type]


def test_every_parameter_gets_its_stored_values() -> None:
    module, source = tiny(), held()
    load(module, source)
    assert torch.equal(module.table.weight, source.tensors["embed.weight"])
    assert torch.equal(module.biases[1], source.tensors["b.1.bias"])
    assert source.reads == 3
    assert not any(parameter.is_meta for parameter in module.parameters())


def test_parameters_keep_whether_they_are_trained() -> None:
    module = tiny()
    module.biases[0].requires_grad_(False)
    load(module, held())
    assert module.table.weight.requires_grad
    assert not module.biases[0].requires_grad


def test_progress_counts_tensors() -> None:
    seen: list[tuple[int, int]] = []
    load(tiny(), held(), progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_g05_tied_head_that_is_absent_is_the_embedding() -> None:
    module = tiny()
    load(module, held(), {**TARGETS, **TIED_HEAD}, optional=frozenset(HEAD))
    assert module.head.weight is module.table.weight


def test_g05_tied_head_that_is_stored_and_equal_loads() -> None:
    for targets in (TARGETS, {**TARGETS, **TIED_HEAD}):
        module, source = tiny(), held()
        source.tensors = {**source.tensors, "head.weight": source.tensors["embed.weight"].clone()}
        load(module, source, targets, optional=frozenset(HEAD))
        assert module.head.weight is module.table.weight
        assert torch.equal(module.head.weight, source.tensors["embed.weight"])


def test_g05_tied_head_that_differs_is_refused_by_name() -> None:
    source = held(head__weight=torch.zeros(4, 3))
    with pytest.raises(ModelFormatError, match=r"head\.weight: differs from the tensor with which"):
        load(tiny(), source, {**TARGETS, **TIED_HEAD}, optional=frozenset(HEAD))


def test_g05_untied_head_is_loaded_or_missed() -> None:
    module = tiny(is_tied=False)
    load(module, held(head__weight=torch.ones(4, 3)), {**TARGETS, **HEAD})
    assert torch.equal(module.head.weight, torch.ones(4, 3))
    with pytest.raises(ModelFormatError, match=r"1 missing: head\.weight"):
        load(tiny(is_tied=False), held(), {**TARGETS, **HEAD})


def test_parameter_shared_by_two_modules_stays_shared() -> None:
    module = tiny(is_tied=False)
    module.head.weight = module.table.weight
    load(module, held())
    assert module.head.weight is module.table.weight
    assert not module.head.weight.is_meta


@pytest.mark.parametrize("heads", [1, 2, 4])
@pytest.mark.parametrize("head_size", [2, 4, 6, 64])
def test_g06_rows_in_their_own_order_undo_that_of_gguf_writers(heads: int, head_size: int) -> None:
    pairs = PairedRows(heads, head_size, head_size)
    for shape in [(heads * head_size, 5), (heads * head_size,)]:
        rows = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        # as the converters of llama.cpp do, with K's own head count for K
        stored = rows.reshape(heads, 2, head_size // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)
        assert np.array_equal(in_own_order(torch.from_numpy(stored.copy()), pairs).numpy(), rows)


def test_g06_rows_of_one_head_of_six_by_hand() -> None:
    stored = torch.tensor([0, 3, 1, 4, 2, 5])
    assert in_own_order(stored, PairedRows(1, 6, 6)).tolist() == [0, 1, 2, 3, 4, 5]


def test_g06_only_targets_with_pairs_are_reordered(tmp_path: Path) -> None:
    writer = pytest.importorskip("gguf").GGUFWriter(tmp_path / "m.gguf", "llama")
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    writer.add_tensor("embed.weight", rows)
    writer.add_tensor("b.0.bias", np.array([0, 2, 1, 3], np.float32))
    writer.add_tensor("b.1.bias", np.array([7, 8], np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    module = tiny()
    targets = {**TARGETS, "b.0.bias": Target("biases.0", (4,), PairedRows(1, 4, 4))}
    load(module, GgufWeights(gguf_file.read(tmp_path / "m.gguf")), targets)
    assert module.biases[0].tolist() == [0, 1, 2, 3]
    assert module.table.weight.tolist() == rows.tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_g08_large_bfloat16_value_stays_finite(dtype: torch.dtype, tmp_path: Path) -> None:
    stored = {n: torch.full(t.shape, 70_000.0).bfloat16() for n, t in TARGETS.items()}
    safetensors.torch.save_file(stored, tmp_path / SINGLE)
    module = tiny()
    load(module, SafetensorsWeights(tmp_path), dtype=dtype)
    assert module.table.weight.dtype == dtype
    assert module.table.weight.isfinite().all()


def test_g08_float16_on_request_refuses_what_it_cannot_hold() -> None:
    source = held(b__1__bias=torch.tensor([70_000.0, 1.0]))
    with pytest.raises(UnsupportedModelError, match=r"b\.1\.bias holds 70000, and float16 ends at"):
        load(tiny(), source, dtype=torch.float16)
    module = tiny()
    load(module, held(), dtype=torch.float16)
    assert module.table.weight.dtype == torch.float16


def test_g09_missing_and_unexpected_are_one_error_before_anything_is_read() -> None:
    targets = {
        **TARGETS,
        **{f"blk.{i}.attn_k.weight": Target("table.weight", (4, 3)) for i in range(30)},
        "norm.weight": Target("biases.0", (4,)),
    }
    source = held(q__bias=torch.zeros(1), extra=torch.zeros(1), b__0__bias=None)
    with pytest.raises(ModelFormatError) as caught:
        load(tiny(), source, targets)
    assert caught.value.field == "tensors"
    assert source.reads == 0
    words = (
        "32 missing: b.0.bias, blk.[0-29].attn_k.weight, norm.weight; "
        "2 unexpected: extra, q.bias. The file does not fit"
    )
    assert words in str(caught.value)


def test_g09_optional_tensor_without_a_target_is_left_alone() -> None:
    source = held(rope_freqs__weight=torch.zeros(1))
    with pytest.raises(ModelFormatError, match=r"1 unexpected: rope_freqs\.weight"):
        load(tiny(), source)
    load(tiny(), source, optional=frozenset({"rope_freqs.weight"}))
    assert source.reads == 3


def test_g09_other_shape_is_refused_before_anything_is_read() -> None:
    source = held(b__1__bias=torch.zeros(3))
    with pytest.raises(ModelFormatError, match=r"b\.1\.bias: has shape \(3,\); .* asks for \(2,\)"):
        load(tiny(), source)
    assert source.reads == 0


def test_unsupported_type_is_refused_before_anything_is_read() -> None:
    source = held(b__1__bias=torch.zeros(2, dtype=torch.int8))
    with pytest.raises(UnsupportedModelError, match=r"b\.1\.bias is int8"):
        load(tiny(), source)
    assert source.reads == 0


def test_targets_that_leave_a_parameter_unset_are_our_fault() -> None:
    for targets, words in [
        ({"embed.weight": TARGETS["embed.weight"]}, r"no tensor goes to biases\.\[0-1\]"),
        ({**TARGETS, "embed.weight": Target("tables.weight", (4, 3))}, "which the model lacks"),
        ({**TARGETS, "b.1.bias": Target("biases.0", (2,))}, r"biases\.0 is \(4,\)"),
    ]:
        source = held()
        source.tensors = {name: source.tensors[name] for name in targets}
        with pytest.raises(AssertionError, match=words):
            load(tiny(), source, targets)


class Stack(nn.Module):
    """Two experts in one parameter, and a matrix that its file keeps the other way round."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.Parameter(torch.empty(2, 4, 3))
        self.across = nn.Parameter(torch.empty(2, 5))


STACK_TARGETS = {
    **{f"e.{i}.up": Target("experts", (2, 3), part=(i, slice(0, 2))) for i in range(2)},
    "down": Target("experts", (2, 3, 2), is_transposed=True, part=(slice(None), slice(2, 4))),
    "across": Target("across", (5, 2), is_transposed=True),
}


def test_parts_of_a_stack_go_where_they_belong() -> None:
    generator = torch.Generator().manual_seed(4)
    tensors = {n: torch.randn(t.shape, generator=generator) for n, t in STACK_TARGETS.items()}
    with torch.device("meta"):
        module = Stack()
    load_weights(module, Held(tensors), STACK_TARGETS, dtype=torch.float32)
    assert torch.equal(module.experts[0, :2], tensors["e.0.up"])
    assert torch.equal(module.experts[1, :2], tensors["e.1.up"])
    assert torch.equal(module.experts[:, 2:], tensors["down"].transpose(1, 2))
    assert torch.equal(module.across, tensors["across"].T)


def test_parts_that_leave_a_hole_are_our_fault() -> None:
    targets = {n: t for n, t in STACK_TARGETS.items() if n != "e.1.up"}
    tensors = {n: torch.zeros(t.shape) for n, t in targets.items()}
    with torch.device("meta"):
        module = Stack()
    with pytest.raises(AssertionError, match="no tensor goes to experts, or to all of it"):
        load_weights(module, Held(tensors), targets, dtype=torch.float32)


def test_random_weights_repeat_for_seed_and_name_alone() -> None:
    first = RandomWeights({**TARGETS, "norm.weight": Target("norm.weight", (8,))}, seed=1)
    second = RandomWeights(TARGETS, seed=1)
    assert torch.equal(first.tensor("embed.weight"), second.tensor("embed.weight"))
    assert not torch.equal(
        first.tensor("embed.weight"), RandomWeights(TARGETS, seed=2).tensor("embed.weight")
    )
    assert not torch.equal(first.tensor("b.0.bias")[:2], first.tensor("b.1.bias"))
    assert first.tensor("norm.weight").tolist() == [1.0] * 8


def test_random_matrix_keeps_the_size_of_what_it_multiplies() -> None:
    weights = RandomWeights({"w": Target("w", (512, 256))}, seed=0)
    x = torch.randn(64, 256, generator=torch.Generator().manual_seed(6))
    assert (x @ weights.tensor("w").T).std().item() == pytest.approx(1, abs=0.05)


def test_random_weights_load() -> None:
    module = tiny()
    load(module, RandomWeights(TARGETS))
    assert module.table.weight.std() > 0


def test_shown_names_join_what_differs_in_its_first_number() -> None:
    names = ["a", "l.0.x", "l.1.x", "l.3.x", "l.3.y", *(f"n{i}z" for i in range(3))]
    assert shown_names(names) == "a, l.[0-1,3].x, l.3.y, n[0-2]z"
    assert shown_names([f"{'x' * i}" for i in range(1, 65)]).endswith("x and 4 more")
