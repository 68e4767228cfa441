"""Forms of computing: compiled blocks and 16-bit products stay near the plain ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import tiny
from cutaway.models.parts.reading import read_config
from cutaway.quantize.adapted import adapt
from cutaway.quantize.dense import DenseWeight
from cutaway.train.data.packing import MicroBatch, ScoredSequence
from cutaway.train.losses.likelihood import likelihood
from cutaway.train.losses.losses import cross_entropy
from cutaway.train.model import compute_forms
from cutaway.train.model.model_folder import fill

BATCHES = [
    MicroBatch(
        tuple(ScoredSequence.whole(list(range(n, n + length))) for n, length in enumerate(lengths))
    )
    for lengths in ((9, 9, 9), (5, 30), (2, 3, 4, 50), (12, 12, 12))
]


def gradients(*, compiled: bool = False, dtype: torch.dtype | None = None) -> list[Tensor]:
    """The flat gradients of each batch."""
    _, model = tiny.random_model(dtype=torch.float32)
    if dtype is not None:
        compute_forms.multiply_in(model, dtype)
    if compiled:
        compute_forms.compile_blocks(model, rows=40, backend="aot_eager")
    found: list[Tensor] = []
    for batch in BATCHES:
        model.zero_grad()
        cross_entropy(likelihood(model, batch)).total.backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        assert all(grad.dtype == torch.float32 for grad in grads)
        found.append(torch.cat([grad.flatten() for grad in grads]))
    return found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_compiled_blocks_give_the_same_gradients_for_any_lengths() -> None:
    """Traced and differentiated by the compiler; the lengths are not compiled in."""
    torch.compiler.reset()
    compiled = gradients(compiled=True)
    for ours, plain in zip(compiled, gradients(), strict=True):
        assert float((ours - plain).norm() / plain.norm()) < 1e-5


def compiled_for(batches: Sequence[MicroBatch]) -> list[list[str]]:
    """What each batch made the compiler compile, and for which numbers of rows to begin with."""
    _, model = tiny.random_model(dtype=torch.float32)
    told: list[str] = []

    def tell(graph: torch.fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        sizes = [list(each.shape) for each in examples if isinstance(each, Tensor)]
        hints = [[getattr(getattr(n, "node", None), "hint", n) for n in each] for each in sizes]
        told.append(f"{sizes} {hints} {graph.code}")
        return graph.forward

    compute_forms.compile_blocks(model, rows=40, backend=tell)
    found: list[list[str]] = []
    for batch in batches:
        told.clear()
        cross_entropy(likelihood(model, batch)).total.backward()
        with torch.no_grad():
            likelihood(model, batch)
        found.append(list(told))
    return found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_what_is_compiled_does_not_hang_on_the_lengths_that_come_first() -> None:
    """Sums over rows are cut up by the first number of them, and a run that goes on has another."""
    whole, resumed = compiled_for(BATCHES), compiled_for(BATCHES[::-1])
    assert whole[0] and whole[0] == resumed[0]
    assert not any(whole[1:]) and not any(resumed[1:])


# Where norms, maps by head, experts and windows meet products of fewer bits.
LAYERS: dict[str, dict[str, object]] = {
    "Llama": {"num_key_value_heads": 1},
    "Qwen3": {"head_dim": 8},
    "Olmo2": {},
    "Mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "Gemma3": {"model_type": "gemma3_text", "head_dim": 8, "sliding_window": 4},
    "DeepseekV2": {
        **{"kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8},
        **{"q_lora_rank": 12, "moe_intermediate_size": 16, "n_routed_experts": 4},
        **{"num_experts_per_tok": 2, "n_shared_experts": 1, "first_k_dense_replace": 1},
    },
}


@pytest.mark.parametrize("name", LAYERS)
def test_every_kind_of_layer_learns_with_products_in_bfloat16(name: str) -> None:
    config = {
        **{"architectures": [f"{name}ForCausalLM"], "model_type": name.lower(), "vocab_size": 70},
        **{"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2},
        **{"num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 64},
        **({"model_type": "deepseek_v2"} if name == "DeepseekV2" else {}),
        **LAYERS[name],
    }
    architecture = read_config(config, file="config.json").architecture
    found: list[Tensor] = []
    for dtype in (torch.float32, torch.bfloat16):
        model = architecture.build()
        fill(model, architecture, seed=0)
        if dtype != torch.float32:
            compute_forms.multiply_in(model, dtype)
        cross_entropy(likelihood(model, BATCHES[1])).total.backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        found.append(torch.cat([grad.flatten() for grad in grads]))
    assert 1e-5 < float((found[1] - found[0]).norm() / found[0].norm()) < 0.1


def test_a_pair_multiplies_in_the_dtype_of_its_matrix() -> None:
    """Else all behind it, attention too, would be float32 beside products in bfloat16."""
    base = DenseWeight(6, 8)
    base.weight.data.normal_()
    base.product_dtype = torch.bfloat16
    trained, x = adapt(base, rank=2, alpha=4.0, seed=0), torch.randn(5, 8)
    trained.adapter_up.data.normal_()
    with torch.no_grad():
        ours = trained.multiply(x)
    assert ours.dtype == base.multiply(x).dtype == torch.bfloat16
    pair = trained.adapter_up.double() @ trained.adapter_down.double()
    exact = x.double() @ (base.weight.double() + trained.scale * pair).detach().T
    assert float((ours.double() - exact).norm() / exact.norm()) < 2**-6


def test_products_in_bfloat16_keep_float32_gradients() -> None:
    for half, plain in zip(gradients(dtype=torch.bfloat16), gradients(), strict=True):
        assert 1e-5 < float((half - plain).norm() / plain.norm()) < 0.05


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_compiled_blocks_in_bfloat16_are_near_the_plain_ones() -> None:
    """With one product for all segments of a linear map."""
    torch.compiler.reset()
    compiled = gradients(compiled=True, dtype=torch.bfloat16)
    for ours, plain in zip(compiled, gradients(dtype=torch.bfloat16), strict=True):
        assert float((ours - plain).norm() / plain.norm()) < 0.02
