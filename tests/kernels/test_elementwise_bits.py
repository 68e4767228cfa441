"""Rule 5 for the torch form: an entry's and a row's bits do not hang on where they lie."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

import cutaway
import torch_bits
from cutaway.kernels import elementwise

# What torch can be told to do without, by what the processor has.
SETS = ("DEFAULT", "AVX2", "AVX512")
HERE = torch.backends.cpu.get_cpu_capability()
OWN = ("sigmoid", "silu", "softplus", "gelu", "gelu_tanh")


def sets_of_this_processor() -> tuple[str, ...]:
    """All up to the best; another kind of processor has one alone, which needs no name."""
    return SETS[: SETS.index(HERE) + 1] if HERE in SETS else ("",)


@pytest.mark.slow
@pytest.mark.parametrize("instructions", sets_of_this_processor())
def test_bits_hang_on_no_place_under_any_instruction_set(instructions: str) -> None:
    told = {"ATEN_CPU_CAPABILITY": instructions.lower()} if instructions else {}
    ran = subprocess.run(
        [sys.executable, torch_bits.__file__],
        env=os.environ | told,
        stdout=subprocess.PIPE,
        timeout=600,
        check=True,
    )
    answer = json.loads(ran.stdout)
    assert answer["capability"] == (instructions or HERE)
    assert answer["found"] == {}
    # What the trial is for it finds: torch's own sigmoid, and sums of columns.
    assert answer["controls"]["sum"] is not None
    assert instructions == "DEFAULT" or not instructions or answer["controls"]["sigmoid"]


def exact(name: str, x: Tensor) -> Tensor:
    """In float64, by the formula that is exact enough there."""
    if name == "gelu_tanh":
        return torch.nn.functional.gelu(x, approximate="tanh")
    return (torch.sigmoid if name == "sigmoid" else getattr(torch.nn.functional, name))(x)


@pytest.mark.parametrize("name", OWN)
def test_own_forms_are_as_accurate_as_torchs(name: str) -> None:
    x = torch.linspace(-30, 30, 200_001)
    expected = exact(name, x.double())
    own, torchs = getattr(elementwise, name)(x), exact(name, x)
    for worst in (Tensor.max, lambda error: error.square().mean().sqrt()):
        error, allowed = (worst((each.double() - expected).abs()) for each in (own, torchs))
        # Without vector instructions torch's own erf is behind the library's, by less than a bit.
        last_bit = torch.finfo(torch.float32).eps * 2 ** expected.abs().max().log2().floor()
        assert error <= max(1.02 * allowed, last_bit if worst is Tensor.max else 0.0)
    function = getattr(elementwise, name)
    for narrow in (torch.bfloat16, torch.float16):  # rounded once
        assert torch.equal(function(x.to(narrow)), function(x.to(narrow).float()).to(narrow))


@pytest.mark.parametrize("name", OWN)
def test_gradients_of_own_forms_equal_finite_differences_and_are_finite_far_out(name: str) -> None:
    own = getattr(elementwise, name)
    x = torch.linspace(-6, 6, 25, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(own, (x,))
    assert torch.autograd.gradgradcheck(own, (x,))
    far = torch.tensor([-1e4, -200.0, -89.0, 89.0, 200.0, 1e4], requires_grad=True)
    own(far).sum().backward()
    assert far.grad is not None and far.grad.isfinite().all()


# By torch's names: their bits hang on a place, or their rows on a layout.
UNSAFE = frozenset(
    "sigmoid logsigmoid silu gelu softplus mish selu elu celu hardswish logit sum mean var std "
    "prod logsumexp vector_norm normalize cumsum logcumsumexp pow float_power conv1d einsum dot "
    "vdot hypot addcdiv lerp rms_norm scaled_dot_product_attention".split()
)
TORCHS = {"torch", "functional", "nn.functional", "torch.nn.functional", "torch.linalg"}
# Where one of them may stand, and why its bits hang on nothing there.
ALLOWED = {
    "kernels/elementwise/plain.py": {"sigmoid", "silu", "gelu", "softplus", "sum"},  # the owner
    "kernels/checksum/plain.py": {"sum"},  # whole numbers
    "kernels/norm/__init__.py": {"rms_norm"},  # plain.py's own, by torch's name
    "kernels/experts/grouped_products.py": {"sum", "cumsum"},  # whole numbers
    "kernels/attention/trainable.py": {"scaled_dot_product_attention"},  # training serves nobody
    "kernels/likelihood/plain.py": {"logsumexp"},  # the same: of losses
    "kernels/native/learn.py": {"sum"},  # of a weight's gradient: the same
    "kernels/norm/trainable.py": {"rms_norm"},  # the package's own
    "kernels/attention/naive.py": {"einsum"},  # promised to rounding alone
    "blocks/attention/opened.py": {"einsum"},  # shown, never compared by bits
    "blocks/attention/latent.py": {"einsum"},  # of updates, which are shown
    "blocks/attention/grouped.py": {"einsum"},  # the same
    "sampling/integer_weights.py": {"sum"},  # whole numbers in float64
    "sampling/filters.py": {"cumsum"},  # the same
    "sampling/draw.py": {"cumsum"},  # the same, and int64
    "sampling/logprobs.py": {"sum"},  # a count
    "sampling/effects.py": {"sum"},  # a count
    "quantize/checkpoints/packed_words.py": {"sum"},  # int64
    "quantize/compensated.py": {"mean"},  # of one whole diagonal, when a model is made
}


def unsafe_names(path: Path) -> set[str]:
    """Names of unsafe operations that a file takes from torch or calls on a tensor."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Attribute):  # handed on without a call
            if ast.unparse(node.value) in TORCHS:
                names.add(node.attr)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            names.add(node.func.attr)
    # self.norm(x) is a layer.
    return {name.rstrip("_") for name in names - {"norm"}} & UNSAFE


def test_operations_that_hang_on_a_place_stand_where_they_do_no_harm() -> None:
    root = Path(cutaway.__file__).parent
    found = {
        str(path.relative_to(root)): names
        for folder in ("blocks", "kernels", "sampling", "quantize")
        for path in sorted((root / folder).rglob("*.py"))
        # Triton's own words; a row's sums are fixed by the shape there.
        if "\nimport triton\n" not in path.read_text(encoding="utf-8")
        if (names := unsafe_names(path))
    }
    assert found == ALLOWED, "take the forms of kernels/elementwise, or say why this one is safe"
