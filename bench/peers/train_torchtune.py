"""An update as torchtune's full_finetune_single_device.py makes it, with packs of sequences.

    git clone https://github.com/pytorch/torchtune TORCHTUNE
    pip install --no-deps --target DIR torchao==0.18.0 omegaconf==2.4.0 antlr4-python3-runtime

Its builder of Llama 3.2 at SmolLM2's shape, its packs and their block mask for flex attention, its
loss in eight chunks, its compiled layers, all numbers in bfloat16 as its recipes have them, and
torch's fused AdamW with a clip. Its package imports what reads data sets and images; of it modules,
the builder, the packs' mask and the loss are taken alone.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

_PACK = 2048  # tokens of a pack at most
_IGNORED = -100
_BARE = ("", ".models", ".models.llama3", ".models.llama3_1", ".training", ".utils", ".data")


def update_of(
    folder: Path,
    config: Mapping[str, Any],
    ids: torch.Tensor,
    *,
    device: str = "cuda",
    is_compiled: bool = True,
) -> Callable[[int], float]:
    """What makes an update of these tokens, and gives its loss.

    folder: of torchtune's repository.   config: of a Llama, as config.json has it.
    ids: each row is one sequence, in which all but the first token are scored. Shapes: [B, T].

    Raises: ModuleNotFoundError where torchtune or torchao is not there.
    """
    _take_alone(folder)
    builder: Any = importlib.import_module("torchtune.models.llama3_2._component_builders")
    losses: Any = importlib.import_module("torchtune.modules.loss.cross_entropy_loss")
    masks: Any = importlib.import_module("torchtune.modules.attention_utils")
    compiling: Any = importlib.import_module("torchtune.training._compile")
    gradients: Any = importlib.import_module("torchtune.training._grad_scaler")
    batch = _packs(ids, device)
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            model = builder.llama3_2(
                vocab_size=config["vocab_size"],
                num_layers=config["num_hidden_layers"],
                num_heads=config["num_attention_heads"],
                num_kv_heads=config["num_key_value_heads"],
                embed_dim=config["hidden_size"],
                intermediate_dim=config["intermediate_size"],
                max_seq_len=batch["tokens"].shape[1],
            )
    finally:
        torch.set_default_dtype(before)
    torch.nn.init.normal_(model.tok_embeddings.weight, std=0.02)
    loss_of = losses.LinearCrossEntropyLoss()
    loss_of.set_model_output(model)
    if is_compiled:
        compiling.compile_model(model, verbose=False)
        loss_of = compiling.compile_loss(loss_of, verbose=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def update(index: int) -> float:
        del index
        # A mask is made for each batch, by what puts batches together.
        mask = masks.packed_block_causal_mask(seq_lens=batch["seq_lens"])
        mask = mask.to(device) if isinstance(mask, torch.Tensor) else mask
        count = (batch["labels"] != _IGNORED).sum()
        outputs = model(tokens=batch["tokens"], mask=mask, input_pos=batch["input_pos"])
        loss = loss_of(outputs, batch["labels"]) * count
        del outputs
        told = loss.detach()
        loss.backward()
        gradients.scale_grads_(model.parameters(), 1.0 / count)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float((told / count).item())

    return update


def _take_alone(folder: Path) -> None:
    """Let packages be imported whose own __init__ would import what is not needed here."""
    for name in _BARE:
        package = ModuleType(f"torchtune{name}")
        package.__path__ = [str(folder / "torchtune" / name.replace(".", "/").strip("/"))]
        sys.modules[package.__name__] = package
    logs: Any = importlib.import_module("torchtune.utils._logging")
    names = {each: getattr(logs, each) for each in ("get_logger", "log_once", "deprecated")}
    sys.modules["torchtune.utils"].__dict__.update(names)


def _packs(ids: torch.Tensor, device: str) -> dict[str, Any]:
    """As many sequences as fit in each pack, as its PackedDataset has them."""
    count, length = ids.shape
    each = max(1, min(count, _PACK // length))
    assert count % each == 0, "packs are full"
    labels = torch.cat([ids[:, 1:], ids.new_full((count, 1), _IGNORED)], dim=1)
    shape = (count // each, each * length)
    return {
        "tokens": ids.reshape(shape).to(device),
        "labels": labels.reshape(shape).to(device),
        "input_pos": torch.arange(length).repeat(shape[0], each).to(device),
        "seq_lens": [torch.full((each,), length) for _ in range(shape[0])],
    }
