"""Gemma 3 270M itself: logits of transformers over the very same weights, and its windows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from cutaway import LLM, SamplingParams
from cutaway.cache.table import window_pages
from cutaway.core.layout import Window
from cutaway.core.request import Request
from cutaway.core.step import Step
from oracles import gemma3_gguf, prose

pytestmark = [pytest.mark.oracle, pytest.mark.slow]


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(str(gemma3_gguf()), dtype="float32", cache_tokens=2048, prefix_cache=False)


def reference(llm: LLM) -> Any:
    """transformers over the weights that the gguf package unpacks; names by its own table."""
    transformers, gguf = pytest.importorskip("transformers"), pytest.importorskip("gguf")
    facts = llm.engine.model.facts
    config = transformers.Gemma3TextConfig(
        vocab_size=facts.vocab_size,
        hidden_size=facts.width,
        intermediate_size=facts.inner,
        num_hidden_layers=facts.num_layers,
        num_attention_heads=facts.num_heads,
        num_key_value_heads=facts.num_groups,
        head_dim=facts.head_size,
        max_position_embeddings=facts.max_length,
        sliding_window=512,
        attn_implementation="eager",
    )
    with torch.device("meta"):
        model = transformers.Gemma3ForCausalLM(config)
    reader = gguf.GGUFReader(gemma3_gguf())
    stored = {tensor.name: tensor for tensor in reader.tensors}
    arch = next(n for n, word in gguf.MODEL_ARCH_NAMES.items() if word == "gemma3")
    table = gguf.get_tensor_name_map(arch, facts.num_layers)
    state: dict[str, torch.Tensor] = {}
    for name, parameter in model.named_parameters():
        tensor = stored[table.get_name(name, try_suffixes=(".weight",))]
        flat = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        value = torch.from_numpy(flat.copy()).reshape(parameter.shape).float()
        state[name] = value - 1 if name.endswith("norm.weight") else value
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, assign=True)
    # Tables of inverse frequencies and the embedding's factor are no weights: made anew.
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    model.model.embed_tokens.embed_scale = torch.tensor(facts.width**0.5)
    return model.eval()


@torch.inference_mode()
def test_logits_equal_transformers_past_the_window(llm: LLM) -> None:
    token_ids = llm.encode(prose("moby-dick")[5000:9000])[:540]
    assert len(token_ids) == 540, "past the window of 512"
    # The last 24 rows alone: logits of all would take 560 MB.
    step = replace(Step.without_cache([token_ids]), logit_rows=torch.arange(516, 540))
    ours = llm.engine.model.transformer(step)
    theirs = reference(llm)(torch.tensor([token_ids]), logits_to_keep=24).logits[0]
    assert theirs.std() > 1
    assert (ours - theirs).abs().max() < 2e-3, "of logits that differ by tens"
    assert torch.equal(ours.argmax(-1), theirs.argmax(-1))


def test_past_its_windows_they_hold_no_more_pages_than_they_need(llm: LLM) -> None:
    engine = llm.engine
    prompt = llm.encode(prose("moby-dick")[:9000])[:1400]
    assert len(prompt) == 1400, "far past the window of 512"
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    engine.add(Request(request_id="long", prompt_token_ids=tuple(prompt), params=params))
    while not engine.scheduler.running or engine.scheduler.running[0].num_tokens < 1404:
        engine.step()
    (sequence,) = engine.scheduler.running
    size = engine.config.page_size
    assert sequence.tables is not None
    for table in sequence.tables.groups:
        if isinstance(table.extent, Window):
            assert table.extent.width == 512
            assert len(table.held) <= window_pages(table.extent, size) == 33
        else:
            assert len(table.held) >= 1400 // size
    engine.abort("long")
    engine.step()
