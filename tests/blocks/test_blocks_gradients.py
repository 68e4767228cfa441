"""The blocks can be trained: analytic gradients equal finite differences, in float64."""

from __future__ import annotations

import torch
from torch import Tensor

import tiny
from cutaway.core.step import Step

SMALL = tiny.config(
    vocab_size=11,
    hidden_size=8,
    intermediate_size=12,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=4,
    attention_bias=True,
    mlp_bias=True,
)


def test_gradients_of_a_whole_model_equal_finite_differences() -> None:
    _, model = tiny.random_model(SMALL)
    step = Step.without_cache([[1, 5, 3], [7, 2]])
    names, parameters = zip(*model.named_parameters(), strict=True)

    def logits(*values: Tensor) -> Tensor:
        state = dict(zip(names, values, strict=True))
        return torch.func.functional_call(model, state, (step,))

    # Every entry would take minutes; the fast mode checks random projections of all of them.
    assert torch.autograd.gradcheck(logits, parameters, fast_mode=True)


def test_gradients_of_one_block_equal_finite_differences_entry_by_entry() -> None:
    _, model = tiny.random_model(SMALL)
    step = Step.without_cache([[1, 5, 3]])
    block = model.blocks[0]
    hidden = torch.randn(3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    cos, sin = torch.ones(3, 2).double() * 0.6, torch.ones(3, 2).double() * 0.8

    def forward(x: Tensor) -> Tensor:
        return block(x, block.attention_norm(x), (cos, sin), step, 0)[0]

    assert torch.autograd.gradcheck(forward, (hidden.requires_grad_(),))


def test_a_later_token_does_not_change_earlier_logits() -> None:
    _, model = tiny.random_model()
    with torch.no_grad():
        long = model(Step.without_cache([[5, 9, 200, 31]]))
        other = model(Step.without_cache([[5, 9, 200, 77]]))
    assert torch.equal(long[:3], other[:3])
    assert not torch.equal(long[3], other[3])
