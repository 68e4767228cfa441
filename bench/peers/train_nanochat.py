"""An update as nanochat's base_train.py makes it, with its own model, optimizer and compiler.

    git clone https://github.com/karpathy/nanochat NANOCHAT

Its class has no tied table, norms without weights, a squared ReLU of four times the width, which
has as many numbers as three matrices of 8/3, and tables of values beside every other layer. So the
shape is SmolLM2's in layers, width, heads and vocabulary. Attention is full in every layer, which
it recommends where its own kernels of attention are not installed.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

RATES = {"unembedding_lr": 0.008, "embedding_lr": 0.3, "scalar_lr": 0.5, "matrix_lr": 0.02}
_DECAY, _MOMENTUM = 0.28, 0.85  # of the first update


def model_file(folder: Path) -> Any:
    """The module of nanochat's model. folder: of its repository.

    Raises: ModuleNotFoundError where the folder has no nanochat.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # it asks a hub for kernels
    sys.path.insert(0, str(folder))
    return importlib.import_module("nanochat.gpt")


def update_of(
    folder: Path,
    config: Mapping[str, Any],
    ids: torch.Tensor,
    *,
    device: str = "cuda",
    is_compiled: bool = True,
) -> Callable[[int], float]:
    """What makes an update of these tokens, and gives its loss.

    folder: of nanochat's repository.   config: of a Llama, as config.json has it.
    ids: each row is one sequence, in which all but the first token are scored. Shapes: [B, T].

    Raises: ModuleNotFoundError where the folder has no nanochat.
    """
    gpt = model_file(folder)
    torch.set_float32_matmul_precision("high")  # as its compute_init does
    shape = gpt.GPTConfig(
        sequence_len=ids.shape[1],
        vocab_size=config["vocab_size"],
        n_layer=config["num_hidden_layers"],
        n_head=config["num_attention_heads"],
        n_kv_head=config["num_key_value_heads"],
        n_embd=config["hidden_size"],
        window_pattern="L",
    )
    with torch.device("meta"):
        model = gpt.GPT(shape)
    model.to_empty(device=device)
    torch.manual_seed(0)
    model.init_weights()
    optimizer = model.setup_optimizer(**RATES, weight_decay=_DECAY)
    compiled: Any = torch.compile(model, dynamic=False) if is_compiled else model
    # It reads one token more than it scores; the last of the row is not scored here instead.
    targets = torch.cat([ids[:, 1:], ids.new_full((len(ids), 1), -1)], dim=1).to(device)
    batch = ids.to(device)

    def update(index: int) -> float:
        del index
        loss = compiled(batch, targets)
        told = loss.detach()
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"]
            if group["kind"] == "muon":
                group["momentum"], group["weight_decay"] = _MOMENTUM, _DECAY
        optimizer.step()
        model.zero_grad(set_to_none=True)
        return float(told.item())

    return update
