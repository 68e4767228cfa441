"""A GGUF model of Llama's form as a folder in the hub's layout, in float32, for other programs.

    python bench/hub_folder.py --model smollm2 --out DIR [--tasks FILE]

Its vocabulary is one of bytes. --tasks writes requests beside it, as bench/train_rollouts.py reads
them.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from tuned_data import general

from cutaway.host import gguf_file
from cutaway.models.parts.reading import read_gguf
from cutaway.train.model.model_folder import open_model, stored_tensors
from cutaway.weights.files.safetensors_writer import write_safetensors
from cutaway.weights.find.find import find


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
    tokens, merges = list(told["tokenizer.ggml.tokens"]), list(told["tokenizer.ggml.merges"])
    pairs = [tuple(each.split(" ")) for each in merges]
    made = Tokenizer(models.BPE(vocab={each: i for i, each in enumerate(tokens)}, merges=pairs))
    digits = pre_tokenizers.Digits(individual_digits=True)
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    made.pre_tokenizer = pre_tokenizers.Sequence([digits, bytes_])
    made.decoder = decoders.ByteLevel()
    control = [tokens[i] for i, kind in enumerate(told["tokenizer.ggml.token_type"]) if kind == 3]
    made.add_special_tokens([AddedToken(each, special=True, normalized=False) for each in control])
    made.save(str(args.out / "tokenizer.json"))
    names = {"eos_token": tokens[end], "add_bos_token": False}
    (args.out / "tokenizer_config.json").write_text(json.dumps(names), encoding="utf-8")
    if args.tasks:
        held, _ = general()
        rows = [json.dumps({"prompt": each, "answer": ""}) + "\n" for each in held]
        args.tasks.write_text("".join(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
