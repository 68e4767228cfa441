"""The setting that promises a row's bits: kept where kernels hold to it, refused where not."""

from __future__ import annotations

import pytest
import torch

from cutaway.blocks.invariant import parts_without, set_invariant
from cutaway.core.errors import ConfigError
from cutaway.engine.config import EngineConfig
from cutaway.kernels.attention import invariant_paged_attention, paged_attention
from engines import engine, loaded


def test_a_cpu_that_computes_with_torch_refuses_it_and_names_what_does() -> None:
    with pytest.raises(ConfigError, match=r"invariant is true.*all of it.*native kernels"):
        engine(loaded(), invariant=True)


def test_adapters_beside_it_are_refused() -> None:
    with pytest.raises(ConfigError, match='lora is "a=b"'):
        EngineConfig(invariant=True, lora=("a=b",))


def test_what_decides_the_numbers_tells_it() -> None:
    assert EngineConfig().numeric_settings() == {}
    assert EngineConfig(invariant=True, quant="int4").numeric_settings() == {
        "quant": "int4",
        "invariant": "True",
    }


def test_a_model_takes_the_other_forms_and_goes_back() -> None:
    model = loaded(dtype=torch.bfloat16).transformer
    attention = model.blocks[0].attention
    for is_on, form in ((True, invariant_paged_attention), (False, paged_attention)):
        set_invariant(model, is_on=is_on)
        assert attention.over_pages is form
        assert attention.output.segments[0].is_invariant is is_on
        assert attention.attends_by_length(torch.device("cuda"), torch.float64) is False


def test_parts_without_such_a_form_are_named() -> None:
    sizes = {"num_local_experts": 4, "num_experts_per_tok": 2}
    mixture = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral"}
    assert parts_without(loaded().transformer) == []
    assert "Experts" in parts_without(loaded(**mixture, **sizes).transformer)
