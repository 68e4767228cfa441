"""A GGUF file in every block type at once: the whole model, unpacked and packed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import architectures
from cutaway.core.gguf_types import BLOCK_TYPES
from cutaway.core.request import Request, SamplingParams
from cutaway.engine.build import load_model
from cutaway.engine.config import EngineConfig
from cutaway.kernels import native
from cutaway.weights.find.find import find
from engines import engine, run
from gguf_cases import FLOAT16_AT, NUMBERS, random_blocks
from reference import Float64Llama
from thread_ranks import assert_rows_of_one

package = pytest.importorskip("gguf")

WIDTH, HEADS, GROUPS, VOCABULARY = 256, 4, 2, 258
# Real files mix types within a layer, and within queries, keys and values.
TYPES = (
    {
        "q": "Q4_K",
        "k": "Q6_K",
        "v": "Q5_K",
        "o": "Q3_K",
        "gate": "Q2_K",
        "up": "Q8_0",
        "down": "Q6_K",
    },
    {"q": "Q5_0", "k": "Q5_1", "v": "IQ4_NL", "o": "IQ4_XS", "gate": "MXFP4", "up": "Q4_0"}
    | {"down": "Q4_1"},
)


def blocks(type: str, rows: int, seed: int) -> np.ndarray:
    """Random blocks whose values spread by about 1 / sqrt(width)."""
    per_block = BLOCK_TYPES[NUMBERS[type]].block_values
    made = random_blocks(type, rows * WIDTH // per_block, seed=seed)
    values = package.quants.dequantize(made, package.GGMLQuantizationType[type])
    for at in FLOAT16_AT[type]:
        halves = made[:, at : at + 2].copy().view(np.float16)
        smaller = (halves / (values.std() * WIDTH**0.5)).astype(np.float16)
        made[:, at : at + 2] = smaller.view(np.uint8)
    if type == "MXFP4":
        made[:, 0] = 121
    return made.reshape(rows, -1)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("types") / "types.gguf"
    writer = package.GGUFWriter(path, "llama")
    writer.add_block_count(len(TYPES))
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(GROUPS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*architectures.byte_alphabet(), "th", "<end>"])
    writer.add_token_types([1] * (VOCABULARY - 1) + [3])
    writer.add_token_merges(["t h"])
    writer.add_eos_token_id(VOCABULARY - 1)

    def add(name: str, type: str, rows: int) -> None:
        made = blocks(type, rows, seed=len(writer.tensors[0]))
        writer.add_tensor(name, made, raw_dtype=package.GGMLQuantizationType[type])

    add("token_embd.weight", "Q6_K", VOCABULARY)
    names = {"q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output"}
    for layer, types in enumerate(TYPES):
        for short, type in types.items():
            rows = WIDTH * GROUPS // HEADS if short in "kv" else WIDTH
            add(f"blk.{layer}.{names.get(short, f'ffn_{short}')}.weight", type, rows)
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{norm}.weight", np.ones(WIDTH, np.float32))
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def logprobs(path: Path, dtype: str, token_ids: list[int]) -> torch.Tensor:
    model = load_model(find(str(path)), EngineConfig(dtype=dtype, device="cpu"))
    params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, prompt_logprobs=0)
    asked = Request(request_id="r", prompt_token_ids=tuple(token_ids), params=params)
    choice = run(engine(model), [asked])["r", 0]
    return torch.tensor([each.logprob for each in choice.prompt_logprobs[1:]]).double()


@pytest.mark.parametrize(("dtype", "allowed"), [("float32", 1e-4), ("auto", 0.1)])
def test_every_type_in_one_model(path: Path, dtype: str, allowed: float) -> None:
    if dtype == "auto" and not native.is_available():
        pytest.skip("auto is float32 without the native kernels")
    token_ids = torch.randint(0, 256, (60,), generator=torch.Generator().manual_seed(4)).tolist()
    expected = Float64Llama(path).logits(token_ids).log_softmax(-1)[:-1]
    wanted = expected.gather(1, torch.tensor(token_ids[1:])[:, None])[:, 0]
    assert wanted.std() > 0.5
    found = logprobs(path, dtype, token_ids)
    # auto rounds activations to 8 bits; one scale in the wrong place moves this by more than 1.
    assert (found - wanted).abs().mean() < allowed


@pytest.mark.skipif(not native.is_available(), reason="needs the native kernels")
@pytest.mark.parametrize("size", [2, 4])
def test_scale_t2_ranks_over_every_type_give_the_rows_of_one(path: Path, size: int) -> None:
    assert_rows_of_one(str(path), size)
