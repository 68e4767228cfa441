"""Scores of experts and the choice by them in Triton."""

# pyright: basic
# pyright: reportMissingImports=false, reportMissingModuleSource=false
# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false
# A kernel is no Python: its parameters have the types of the language that Triton compiles.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from cutaway.kernels.native import Routing
from cutaway.kernels.triton_launches import await_last, early, start_next

_LARGEST_PROMPT_TILE = 64


def score(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """See plain.score_experts: products of short floats are exact, and summed in float32.

    Shapes: x [T, D], weight [E, D], bias [E] -> [T, E] float32.
    """
    num_tokens, width = x.shape
    num_experts = len(weight)
    out = torch.empty(num_tokens, num_experts, dtype=torch.float32, device=x.device)
    given = (x.contiguous(), weight.contiguous(), weight if bias is None else bias, out)
    if num_tokens == 1:
        columns = min(4096, triton.next_power_of_2(width))
        _score_one[(num_experts,)](
            *given,
            HAS_BIAS=bias is not None,
            WIDTH=width,
            COLUMNS=columns,
            **early(x),
            num_warps=4,
        )
        return out
    tokens = 16 if num_tokens <= _LARGEST_PROMPT_TILE else _LARGEST_PROMPT_TILE
    is_short = x.dtype == weight.dtype and x.dtype != torch.float32
    _score_some[(triton.cdiv(num_experts, 16), triton.cdiv(num_tokens, tokens))](
        *(*given, num_tokens),
        HAS_BIAS=bias is not None,
        IS_SHORT=is_short,
        NUM_EXPERTS=num_experts,
        WIDTH=width,
        TOKENS=tokens,
        COLUMNS=256 if is_short else 64,
        **early(x),
        num_warps=4,
        num_stages=3 if is_short else 2,
    )
    return out


def choose(scores: Tensor, routing: Routing, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """What a rule without groups chooses; where scores are equal, the lower id.

    Shapes: scores [T, E] float32 -> ids [T, K] int64, weights [T, K] of dtype.
    """
    num_tokens, num_experts = scores.shape
    chosen = routing.num_chosen
    ids = torch.empty(num_tokens, chosen, dtype=torch.int64, device=scores.device)
    weights = torch.empty(num_tokens, chosen, dtype=dtype, device=scores.device)
    if num_tokens:
        _choose[(num_tokens,)](
            *(scores.contiguous(), ids, weights),
            scores if routing.correction is None else routing.correction,
            scores if routing.factors is None else routing.factors,
            *(routing.score_multiplier, routing.multiplier, routing.least_sum),
            RULE=int(routing.rule),
            HAS_CORRECTION=routing.correction is not None,
            HAS_FACTORS=routing.factors is not None,
            RENORMALIZED=routing.is_renormalized,
            NUM_EXPERTS=num_experts,
            CHOSEN=chosen,
            EXPERTS=triton.next_power_of_2(num_experts),
            CHOICES=triton.next_power_of_2(chosen),
            **early(scores),
            num_warps=1 if num_experts <= 256 else 4,
        )
    return ids, weights


@triton.jit
def _score_one(
    x_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    HAS_BIAS: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    EARLY: tl.constexpr,
):
    start_next(EARLY)
    await_last(EARLY)
    expert = tl.program_id(0)
    total = tl.zeros([COLUMNS], tl.float32)
    for first in range(0, WIDTH, COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        inside = column < WIDTH
        x = tl.load(x_ptr + column, mask=inside, other=0.0).to(tl.float32)
        weight = tl.load(weight_ptr + expert * WIDTH + column, mask=inside, other=0.0)
        total += weight.to(tl.float32) * x
    score = tl.sum(total, 0)
    if HAS_BIAS:
        score += tl.load(bias_ptr + expert).to(tl.float32)
    tl.store(out_ptr + expert, score)


@triton.jit(do_not_specialize=["num_tokens"])
def _score_some(
    x_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    num_tokens,
    HAS_BIAS: tl.constexpr,
    IS_SHORT: tl.constexpr,
    NUM_EXPERTS: tl.constexpr,
    WIDTH: tl.constexpr,
    TOKENS: tl.constexpr,
    COLUMNS: tl.constexpr,
    EARLY: tl.constexpr,
):
    start_next(EARLY)
    await_last(EARLY)
    expert = tl.program_id(0) * 16 + tl.arange(0, 16)
    token = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    is_expert, is_token = expert < NUM_EXPERTS, token < num_tokens
    total = tl.zeros([TOKENS, 16], tl.float32)
    x_at = x_ptr + token.to(tl.int64)[:, None] * WIDTH
    weight_at = weight_ptr + expert[:, None] * WIDTH
    for first in range(0, WIDTH, COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        inside = (column < WIDTH)[None, :]
        x = tl.load(x_at + column[None, :], mask=is_token[:, None] & inside, other=0.0)
        weight = tl.load(weight_at + column[None, :], mask=is_expert[:, None] & inside, other=0.0)
        if not IS_SHORT:
            x, weight = x.to(tl.float32), weight.to(tl.float32)
        total = tl.dot(x, tl.trans(weight), acc=total, input_precision="ieee")
    if HAS_BIAS:
        bias = tl.load(bias_ptr + expert, mask=is_expert, other=0.0)
        total += bias.to(tl.float32)[None, :]
    place = token.to(tl.int64)[:, None] * NUM_EXPERTS + expert[None, :]
    tl.store(out_ptr + place, total, mask=is_token[:, None] & is_expert[None, :])


@triton.jit
def _choose(
    scores_ptr,
    ids_ptr,
    weights_ptr,
    correction_ptr,
    factors_ptr,
    score_multiplier,
    multiplier,
    least_sum,
    RULE: tl.constexpr,
    HAS_CORRECTION: tl.constexpr,
    HAS_FACTORS: tl.constexpr,
    RENORMALIZED: tl.constexpr,
    NUM_EXPERTS: tl.constexpr,
    CHOSEN: tl.constexpr,
    EXPERTS: tl.constexpr,
    CHOICES: tl.constexpr,
    EARLY: tl.constexpr,
):
    """One token. Rules as RoutingRule counts them: softmax then top, top then softmax, sigmoid."""
    start_next(EARLY)
    await_last(EARLY)
    token = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, EXPERTS)
    is_free = expert < NUM_EXPERTS
    scores = tl.load(scores_ptr + token * NUM_EXPERTS + expert, mask=is_free, other=-float("inf"))
    scores *= score_multiplier
    own = scores
    if RULE == 0:
        power = tl.exp(scores - tl.max(scores, 0))
        own = power / tl.sum(power, 0)
    elif RULE == 2:
        own = 1.0 / (1.0 + tl.exp(-scores))
    choice = scores
    if RULE == 2 or HAS_CORRECTION:
        choice = own
    if HAS_CORRECTION:
        choice += tl.load(correction_ptr + expert, mask=is_free, other=0.0).to(tl.float32)
    # As torch.topk has it NaN is above all. Bits that are ordered as numbers are, and the lower id
    # of equal ones, make one integer.
    bits = tl.where(choice != choice, float("inf"), choice).to(tl.int32, bitcast=True)
    bits = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    key = (bits.to(tl.int64) << 32) | (EXPERTS - 1 - expert).to(tl.int64)
    key = tl.where(is_free, key, -0x7FFFFFFFFFFFFFFF)
    number = tl.arange(0, CHOICES)
    ids = tl.zeros([CHOICES], tl.int32)
    for each in range(0, CHOSEN):
        best = tl.max(key, 0)
        chosen = EXPERTS - 1 - (best & 0xFFFFFFFF).to(tl.int32)
        ids = tl.where(number == each, chosen, ids)
        key = tl.where(expert == chosen, -0x7FFFFFFFFFFFFFFF, key)
    is_chosen = ids[:, None] == expert[None, :]
    weights = tl.sum(tl.where(is_chosen, own[None, :], 0.0), 1)
    weights = tl.where(number < CHOSEN, weights, -float("inf") if RULE == 1 else 0.0)
    if RULE == 1:
        power = tl.exp(weights - tl.max(weights, 0))
        weights = power / tl.sum(power, 0)
    if RENORMALIZED:
        weights = weights / (tl.sum(weights, 0) + least_sum)
    weights *= multiplier
    if HAS_FACTORS:
        factors = tl.load(factors_ptr + ids, mask=number < CHOSEN, other=0.0)
        weights *= factors.to(tl.float32)
    place = token * CHOSEN + number
    tl.store(ids_ptr + place, ids.to(tl.int64), mask=number < CHOSEN)
    tl.store(weights_ptr + place, weights.to(weights_ptr.dtype.element_ty), mask=number < CHOSEN)
