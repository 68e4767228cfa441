"""Torch's operations that give the same bits wherever an entry or a row lies, and the trial of it.

The torch form may be made of the operations listed here alone: tests/models watches it. Run as a
program this tries each of them, and our own forms, under the instruction set that
ATEN_CPU_CAPABILITY names, and prints what hangs on a place as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from cutaway.kernels.delta import delta_rule, short_convolution, unit_rows
from cutaway.kernels.elementwise import (
    gelu,
    gelu_tanh,
    power,
    row_sum,
    sigmoid,
    silu,
    softplus,
)
from cutaway.kernels.experts import tiled_linear
from cutaway.kernels.gate import clamped_gate, gelu_tanh_gate, silu_gate
from cutaway.kernels.norm import layer_norm, offset_rms_norm, rms_norm, wide_rms_norm
from cutaway.kernels.store import scale_rows

Entry = Callable[[Tensor, Tensor], Tensor]  # of two tensors of one shape
Row = Callable[[Tensor], Tensor]  # [R, D] -> [R, ...]

# Each entry alone, by the name of torch's operation.
ENTRIES: Mapping[str, Entry] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "rsub": lambda x, y: 1.0 - x,
    "mul": lambda x, y: x * y * 1.7,
    "div": lambda x, y: x / y / 1.7,
    "reciprocal": lambda x, y: x.reciprocal(),
    "neg": lambda x, y: -x,
    "abs": lambda x, y: x.abs(),
    "exp": lambda x, y: x.exp(),
    "log": lambda x, y: x.log(),
    "log1p": lambda x, y: x.abs().log1p(),
    "tanh": lambda x, y: x.tanh(),
    "erf": lambda x, y: x.erf(),
    "sin": lambda x, y: x.sin(),
    "cos": lambda x, y: x.cos(),
    "sqrt": lambda x, y: x.sqrt(),
    "rsqrt": lambda x, y: x.rsqrt(),
    "square": lambda x, y: x.square(),
    "relu": lambda x, y: x.relu(),
    "clamp": lambda x, y: x.clamp(min=-1.7, max=2.3),
    "clamp_min": lambda x, y: x.clamp_min(0.3),
    "maximum": torch.maximum,
    "round": lambda x, y: x.round(),
    "nan_to_num": lambda x, y: x.nan_to_num(0.0),
    "isfinite": lambda x, y: x.isfinite(),
    "masked_fill": lambda x, y: x.masked_fill(y > 0, 0.5),
    "where": lambda x, y: torch.where(y > 0, x, y),
    "eq": lambda x, y: x == y,
    "gt": lambda x, y: x > y,
    "lt": lambda x, y: x < y,
    "_to_copy": lambda x, y: x.to(torch.bfloat16).float() + x.half().float(),
}
OURS: Mapping[str, Entry] = {
    "sigmoid": lambda x, y: sigmoid(x),
    "silu": lambda x, y: silu(x),
    "softplus": lambda x, y: softplus(x),
    "gelu": lambda x, y: gelu(x),
    "gelu_tanh": lambda x, y: gelu_tanh(x),
    "power": lambda x, y: power(x.abs() + 0.1, 1.3) + power(1.7, x.double()),
    "silu_gate": silu_gate,
    "gelu_tanh_gate": gelu_tanh_gate,
    "clamped_gate": partial(clamped_gate, alpha=1.702, limit=7.0),
}
# Their bits are the same in float32 and float64 alone.
WIDE = frozenset({"rsqrt"})

# Each row alone.
ROWS: Mapping[str, Row] = {
    "sum": lambda x: x.contiguous().sum(dim=-1),  # up to 32,767 entries; see row_sum
    "amax": lambda x: x.amax(dim=-1),
    "_softmax": lambda x: x.softmax(dim=-1),
    "topk": lambda x: torch.cat([p.double() for p in x.topk(1 + x.shape[-1] // 3)], dim=-1),
    "native_layer_norm": lambda x: functional.layer_norm(x, x.shape[-1:]),
}
OUR_ROWS: Mapping[str, Row] = {
    "row_sum": row_sum,
    "rms_norm": lambda x: rms_norm(x, torch.full(x.shape[-1:], 1.3, dtype=x.dtype), 1e-6),
    "wide_rms_norm": lambda x: wide_rms_norm(x, None, 1e-6),
    "offset_rms_norm": lambda x: offset_rms_norm(x, torch.full(x.shape[-1:], 0.3), 1e-6),
    "layer_norm": lambda x: layer_norm(x, torch.full(x.shape[-1:], 1.3).to(x), None, 1e-6),
    "unit_rows": unit_rows,
    "scaled": lambda x: scale_rows(x, torch.int8)[0],
}

# Sums of these hang on the shape of the product, and on nothing else: see docs/trace.md.
PRODUCTS = frozenset({"mm", "addmm", "bmm"})

# Moved, made or looked up: no arithmetic.
MOVES = frozenset(
    "alias arange argsort as_strided bincount cat clone constant_pad_nd copy_ detach detach_ "
    "embedding empty expand fill_ full gather index index_copy_ index_put_ index_select "
    "lift_fresh _local_scalar_dense new_zeros ones ones_like permute repeat repeat_interleave "
    "scatter select slice sort split split_with_sizes stack t transpose unbind unsqueeze squeeze "
    "_unsafe_view view _reshape_alias zeros zeros_like new_empty new_full scalar_tensor".split()
)


@dataclass
class Watch(TorchDispatchMode):
    """Notes every operation on floating-point numbers that nobody has tried."""

    def __post_init__(self) -> None:
        super().__init__()
        self.untried: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # What is composed of others is noted by its parts.
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
            return func.decompose(*args, **(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        given = [each for each in args if isinstance(each, Tensor)]
        if any(each.is_floating_point() for each in given) and (why := _untried(func, args, given)):
            self.untried.add(f"{func}: {why}")
        return result


def _untried(func: Any, args: Any, given: list[Tensor]) -> str | None:
    name = func.overloadpacket.__name__
    name = name if name in MOVES else name.rstrip("_")
    if name in MOVES or name in PRODUCTS:
        return None
    if name == "pow":
        return None if args[1] == 2 else f"to the power of {args[1]}"
    if name in ENTRIES:
        narrow = name in WIDE and any(each.dtype.itemsize < 4 for each in given)
        return f"in {given[0].dtype}" if narrow else None
    if name not in ROWS:
        return "not on the list"
    if name == "sum" and not (given[0].is_contiguous() and args[1] == [-1]):
        return "not along rows that lie whole"
    return None


def same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same bits; any NaN is like another."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not one.is_floating_point():
        return torch.equal(one, other)
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[one.dtype.itemsize]
    bits = one.contiguous().view(whole) == other.contiguous().view(whole)
    return bool((bits | (one.isnan() & other.isnan())).all())


def hangs_on_place(entry: Entry, dtype: torch.dtype) -> str | None:
    """How an entry's bits change with its place, if they do."""
    x, y = (_numbers(4096, seed, dtype) for seed in (1, 2))
    whole = entry(x, y)
    for length in (*range(1, 36), 63, 64, 65, 100, 576, 1536):
        for start in (0, 1, 7, 501):
            here = slice(start, start + length)
            for lay in (Tensor.clone, lambda part: part):
                if not same(entry(lay(x[here]), lay(y[here])), whole[here]):
                    return f"{length} entries from {start}"
    for step in (2, 3):
        if not same(entry(x[::step], y[::step]), whole[::step]):
            return f"every {step}"
    table, other, result = (each.view(64, 64) for each in (x, y, whole))
    if not same(entry(table.T, other.T).T, result):
        return "transposed"
    for columns in (1, 5, 17, 63):
        if not same(entry(table[:, :columns], other[:, :columns]), result[:, :columns]):
            return f"{columns} columns"
    return None


def row_hangs_on_place(row: Row, dtype: torch.dtype) -> str | None:
    """How a row's bits change with its company, its place or its layout, if they do."""
    for width in (1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 33, 64, 100, 576, 1000):
        height = 36 if width < 600 else 12
        x = _numbers(height * width, width, dtype, is_tame=True).view(height, width)
        x[::3] = (x[::3] * 2).round()  # rows with equal entries
        whole = row(x)
        for count in (1, 2, 3, 4, 5, 8, 11, 33):
            for start in (0, 1, max(0, height - count)):
                here = slice(start, min(height, start + count))
                if not same(row(x[here].clone()), whole[here]):
                    return f"{count} rows of {width} from {start}"
        wide = torch.zeros(height, width + 7, dtype=dtype)
        wide[:, 3 : 3 + width] = x
        for name, laid in (("columns", wide[:, 3 : 3 + width]), ("turned", x.T.contiguous().T)):
            if not same(row(laid), whole):
                return f"rows of {width}, {name}"
    return None


def long_sum_hangs_on_threads() -> str | None:
    """Whether a row that is long enough to be shared out is summed otherwise then."""
    x = _numbers(3 * 100_003, 3, torch.float32, is_tame=True).view(3, -1)
    whole = row_sum(x)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        if not same(row_sum(x[1:2]), whole[1:2]):
            return f"{threads} threads"
    return None


def product_hangs_on_mates() -> str | None:
    """Whether a row of a product hangs on what the others hold; in tiles, on how many there are."""
    weight, bias = _numbers(96 * 80, 4, torch.float32, is_tame=True).view(96, 80), torch.ones(96)
    x = _numbers(41 * 80, 5, torch.float32, is_tame=True).view(41, 80)
    other = _numbers(41 * 80, 6, torch.float32, is_tame=True).view(41, 80)
    whole = tiled_linear(x, weight, bias)
    order = torch.arange(40, -1, -1)
    if not same(tiled_linear(x[order], weight, bias), whole[order]):
        return "in tiles, by order"
    for count in (*range(1, 18), 40):
        if not same(tiled_linear(x[:count], weight, bias), whole[:count]):
            return f"{count} rows in tiles"
        mixed = other.clone()
        mixed[count - 1] = x[count - 1]
        for multiply in (functional.linear, lambda a, w: (a[None] @ w.T[None])[0]):
            one, two = multiply(x[:count], weight), multiply(mixed[:count], weight)
            if not same(one[-1], two[-1]):
                return f"the last of {count} rows"
    return None


def recurrence_hangs_on_chunks() -> str | None:
    """Whether states and the convolution before them hang on where chunks end."""
    query, key, value = (
        _numbers(11 * 3 * n, n, torch.float32, is_tame=True).view(11, 3, n) for n in (5, 6, 7)
    )
    query = torch.cat((query, query[..., :1]), dim=-1)
    decay, rate = (sigmoid(_numbers(33, n, torch.float32).view(11, 3)) for n in (8, 9))
    inputs = _numbers(14 * 37, 10, torch.float32).view(14, 37)
    weight = _numbers(4 * 37, 11, torch.float32).view(37, 4)
    state = torch.zeros(3, 6, 7)
    whole, last = delta_rule(query, key, value, decay, rate, state)
    mixed = short_convolution(inputs, weight)
    for cut in range(1, 11):
        first, second = slice(0, cut), slice(cut, 11)
        parts: list[Tensor] = []
        now = state
        for part in (first, second):
            done, now = delta_rule(
                query[part], key[part], value[part].clone(), decay[part], rate[part], now
            )
            parts.append(done)
        if not (same(torch.cat(parts), whole) and same(now, last)):
            return f"the delta rule, cut at {cut}"
        ends = (
            short_convolution(inputs[: cut + 3], weight),
            short_convolution(inputs[cut:], weight),
        )
        if not same(torch.cat(ends), mixed):
            return f"the convolution, cut at {cut}"
    return None


def found() -> Iterator[tuple[str, str]]:
    """Everything whose bits hang on a place, and how."""
    wide, narrow = (torch.float32, torch.float64), (torch.bfloat16, torch.float16)
    for name, entry in (ENTRIES | OURS).items():
        for dtype in wide if name in WIDE else (*wide, *narrow):
            if why := hangs_on_place(entry, dtype):
                yield f"{name} in {dtype}", why
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for name, row in (ROWS | OUR_ROWS).items():
            if why := row_hangs_on_place(row, torch.float32):
                yield f"{name}, {threads} threads", why
        for name, check in (
            ("products", product_hangs_on_mates),
            ("states", recurrence_hangs_on_chunks),
        ):
            if why := check():
                yield f"{name}, {threads} threads", why
    if why := long_sum_hangs_on_threads():
        yield "a long row_sum", why


def _numbers(count: int, seed: int, dtype: torch.dtype, *, is_tame: bool = False) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randn(count, generator=generator, dtype=torch.float64) * 3
    if not is_tame:  # what vectors and scalars may treat otherwise, sprinkled among the rest
        odd = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-40, 90.0, -104.0])
        numbers[seed::97] = odd.double().repeat(count)[: len(numbers[seed::97])]
    return numbers.to(dtype)


def main() -> None:
    controls = {
        "sigmoid": hangs_on_place(lambda x, y: torch.sigmoid(x), torch.float32),
        "sum": row_hangs_on_place(lambda x: x.sum(dim=-1), torch.float32),
    }
    capability = torch.backends.cpu.get_cpu_capability()
    print(json.dumps({"capability": capability, "found": dict(found()), "controls": controls}))


if __name__ == "__main__":
    main()
