"""`cutaway models estimate` on configurations alone."""

from __future__ import annotations

import json

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "vocab_size": 128256,
}  # fmt: skip


def test_estimates_a_folder_without_weights(cutaway, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    ended = cutaway("models", "estimate", str(tmp_path), "--context", "8192", "--json")
    assert ended.code == 0
    made = json.loads(ended.out)
    assert made["parameters_total"] == 8_030_261_248
    assert made["kv_bytes_at_context"] == 2**30
    assert made["roofline"]["bound"] == "memory"
    shown = cutaway("models", "estimate", str(tmp_path / "config.json"))
    assert "8,030,261,248" in str(shown.out)


def test_names_random_weights_and_gguf_files_alike(cutaway, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    arguments = ("models", "estimate", "--quant", "Q4_0", "--json", "--training-tokens", "1000")
    arguments = (*arguments, "--device", "H100")  # whose figures are the same each time
    plain, random = (cutaway(*arguments, name).json for name in (str(path), f"random:{tmp_path}"))
    assert plain == random
    assert plain["quant"] == "Q4_0"
    assert plain["weight_bytes"] == (8_030_261_248 - 65 * 4096) // 32 * 18 + 65 * 4096 * 4
    assert plain["flops_training"] == 6 * 8_030_261_248 * 1000
    assert plain["roofline"]["computes"] == "int8"


def test_overrides_are_levers_of_the_shape(cutaway, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    call = ("models", "estimate", str(tmp_path), "--json", "--override")
    assert cutaway(*call, "num_key_value_heads=1").json["kv_bytes_per_token"] == 131_072 // 8
    ended = cutaway(*call, "rope_theta=5")
    assert ended.code != 0
    assert "changes no size" in ended.err


def test_measures_this_machine(cutaway, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    made = cutaway("models", "estimate", str(tmp_path), "--device", "cpu", "--json").json
    line = made["roofline"]
    assert line["device"] == "cpu" and line["computes"] == "float32"
    assert 1e8 < line["bandwidth"] < 1e13
    assert 1e9 < line["peak_flops"] < 1e15
    assert line["decode_seconds"] >= made["bytes_decode"] / line["bandwidth"]
    assert made["measured"]["threads"] >= 1


def test_refuses_what_it_cannot_take(cutaway, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    for option, value in (("--device", "H900"), ("--quant", "Q9"), ("--kv-dtype", "int2")):
        ended = cutaway("models", "estimate", str(tmp_path), option, value)
        assert ended.code != 0
        assert value in ended.err and "must be one of" in ended.err
    ended = cutaway("models", "estimate", str(tmp_path), "--quant", "file")
    assert ended.code != 0 and "no GGUF file" in ended.err


def test_refuses_unknown_and_broken_configurations(cutaway, tmp_path):
    path = tmp_path / "config.json"
    for content in ('{"architectures": ["Other"]}', "[]", "{"):
        path.write_text(content)
        ended = cutaway("models", "estimate", str(path))
        assert ended.code != 0
        assert "config.json" in str(ended.err)
    assert cutaway("models", "estimate", str(tmp_path / "none")).code != 0
