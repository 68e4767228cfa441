"""Tokens per second beside transformers fp32 eager, and process start to first token.

    python bench/decode.py [--model smollm2] [--rounds 5] [--tokens 48]

Both decode the same prompt from the same weights in the same process, round by round in turn, so
that a ratio means something on a machine whose speed moves. transformers is a development tool.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

PROMPT = "Gravity is a fundamental force that"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--model", default="smollm2")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--tokens", type=int, default=48)
    args = options.parse_args()

    import torch
    import transformers

    from cutaway import LLM, SamplingParams
    from cutaway.bench.form import form_of

    llm = LLM(args.model, dtype="float32", cache_tokens=4096)
    fastest = LLM(args.model, cache_tokens=4096)
    print(f"{form_of(fastest.engine)} beside {form_of(llm.engine)}")
    theirs = _in_transformers(llm)
    params = SamplingParams(temperature=0.0, max_tokens=args.tokens, ignore_eos=True)
    prompt = llm.encode(PROMPT)

    def ours(engine: LLM) -> float:
        timings = engine.generate(prompt, params)[0].timings
        return (args.tokens - 1) / timings.decode

    def peer() -> float:
        with torch.inference_mode():
            ids, cache = torch.tensor([prompt]), transformers.DynamicCache()
            token = theirs(ids, past_key_values=cache).logits[:, -1:].argmax(-1)
            began = time.perf_counter()
            for _ in range(args.tokens - 1):
                token = theirs(token, past_key_values=cache).logits[:, -1:].argmax(-1)
            return (args.tokens - 1) / (time.perf_counter() - began)

    ours(fastest), ours(llm), peer()
    rounds = [(ours(fastest), ours(llm), peer()) for _ in range(args.rounds)]
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, ", end="")
    print(f"{torch.get_num_threads()} threads, {args.rounds} paired rounds of {args.tokens} tokens")
    for name, column in (("cutaway auto", 0), ("cutaway float32", 1), ("transformers eager", 2)):
        speed = statistics.median(each[column] for each in rounds)
        ratio = statistics.median(each[column] / each[2] for each in rounds)
        print(f"{name:20}{speed:8.1f} tokens/s, {ratio:5.2f} of transformers")
    firsts = [_first_token(args.model) for _ in range(3)]
    print(f"process start to first token: {statistics.median(firsts):.2f} s (median of 3)")


def _in_transformers(llm):
    """transformers' model over our float32 weights: the tables are shared, not copied."""
    import torch
    import transformers

    facts = llm.engine.model.facts
    transformer = llm.engine.model.transformer
    config = transformers.LlamaConfig(
        vocab_size=facts.vocab_size,
        hidden_size=facts.width,
        intermediate_size=facts.inner,
        num_hidden_layers=facts.num_layers,
        num_attention_heads=facts.num_heads,
        num_key_value_heads=facts.num_groups,
        max_position_embeddings=facts.max_length,
        rope_theta=transformer.frequencies[0].base,
        tie_word_embeddings=True,
    )
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    table = transformer.embedding.table.weight
    state = {"model.embed_tokens.weight": table, "lm_head.weight": table}
    state["model.norm.weight"] = transformer.unembedding.norm.weight
    query_rows, group_rows = facts.num_heads * facts.head_size, facts.num_groups * facts.head_size
    for layer, block in enumerate(transformer.blocks):
        at = f"model.layers.{layer}."
        q, k, v = block.attention.qkv.segments[0].weight.split((query_rows, group_rows, group_rows))
        gate, up = block.mlp.gate_up.segments[0].weight.chunk(2)
        state |= {
            at + "self_attn.q_proj.weight": q,
            at + "self_attn.k_proj.weight": k,
            at + "self_attn.v_proj.weight": v,
            at + "self_attn.o_proj.weight": block.attention.output.segments[0].weight,
            at + "mlp.gate_proj.weight": gate,
            at + "mlp.up_proj.weight": up,
            at + "mlp.down_proj.weight": block.mlp.down.segments[0].weight,
            at + "input_layernorm.weight": block.attention_norm.weight,
            at + "post_attention_layernorm.weight": block.mlp_norm.weight,
        }
    model.load_state_dict(state, assign=True)
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    return model.eval()


def _first_token(model: str) -> float:
    """Seconds from starting `cutaway complete` to the first character of its answer."""
    command = [str(Path(sys.executable).with_name("cutaway")), "complete", "--model", model]
    command += ["--max-tokens", "1", "--json", PROMPT]
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, check=True, env=os.environ)
    seconds = time.perf_counter() - began
    assert json.loads(done.stdout)["token_ids"]
    return seconds


if __name__ == "__main__":
    main()
