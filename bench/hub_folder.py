"""A GGUF model of Llama's form as a folder in the hub's layout, in float32, for other programs.

    python bench/hub_folder.py --model smollm2 --out DIR [--tasks FILE]

Its vocabulary is one of bytes. --tasks writes requests beside it, as bench/train_rollouts.py reads
them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuned_data import general

from cutaway.host import gguf_file
from cutaway.models.parts.reading import read_gguf
from cutaway.train.model.model_folder import open_model, stored_tensors
from cutaway.weights.files.safetensors_writer import write_safetensors
from cutaway.weights.find.find import find

CONTROL = 3  # a GGUF's kind of token


def tokenizer_of(told: Mapping[str, Any]) -> dict[str, object]:
    """What tokenizer.json has of a GGUF's vocabulary of bytes and merges."""
    tokens, kinds = list(told["tokenizer.ggml.tokens"]), told["tokenizer.ggml.token_type"]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    bytes_ = {"type": "ByteLevel", "trim_offsets": True, "use_regex": True}
    digits = {"type": "Digits", "individual_digits": True}
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": i, "content": tokens[i], **flags, "special": True}
            for i, kind in enumerate(kinds)
            if kind == CONTROL
        ],
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [digits, {**bytes_, "add_prefix_space": False}],
        },
        "decoder": {**bytes_, "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "vocab": {each: i for i, each in enumerate(tokens)},
            "merges": [each.split(" ") for each in told["tokenizer.ggml.merges"]],
        },
    }


def main() -> None:
    """Write the folder."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--model", default="smollm2")
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--tasks", type=Path)
    args = options.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    file = gguf_file.read(find(args.model).path)
    told, architecture = file.metadata, read_gguf(file)
    model = open_model(args.model, is_base=True)
    write_safetensors(
        args.out / "model.safetensors", stored_tensors(model.transformer, architecture)
    )
    end = int(str(told["tokenizer.ggml.eos_token_id"]))
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "float32",
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "intermediate_size": told["llama.feed_forward_length"],
        "num_hidden_layers": architecture.facts.num_layers,
        "max_position_embeddings": architecture.facts.max_length,
        "bos_token_id": end,
        "eos_token_id": end,
        **model.config,
    }
    (args.out / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    template = str(told["tokenizer.chat_template"])
    (args.out / "chat_template.jinja").write_text(template, encoding="utf-8")
    (args.out / "tokenizer.json").write_text(json.dumps(tokenizer_of(told)), encoding="utf-8")
    tokens = list(told["tokenizer.ggml.tokens"])
    names = {"eos_token": tokens[end], "add_bos_token": False}
    (args.out / "tokenizer_config.json").write_text(json.dumps(names), encoding="utf-8")
    if args.tasks:
        held, _ = general()
        rows = [json.dumps({"prompt": each, "answer": ""}) + "\n" for each in held]
        args.tasks.write_text("".join(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
