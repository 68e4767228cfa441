"""Reliability test 32: whatever is wrong at the start, one line says what, with an exit code.

All cases run in one process. None ends in a traceback or a fault of Cutaway itself.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import tiny
from cutaway.cli.settings.setting_keys import KEYS, Key
from gguf_bytes import STRING, gguf, key, string
from program import Cutaway, Ended

USAGE, MODEL = 2, 3


def check_fault(ended: Ended, code: int) -> None:
    """One line says what is wrong, at most one more what to do, and nothing is on stdout."""
    assert (ended.code, ended.out) == (code, ""), ended.err
    first, *hints = ended.err.splitlines()
    assert first.startswith("error: ") and len(first) > 20
    assert "fault of Cutaway itself" not in first
    assert "Traceback" not in ended.err
    assert [hint.startswith("hint: ") for hint in hints] in ([], [True])


# Wrong values of flags, from the table of settings.


def wrong_values(setting: Key) -> Iterator[str]:
    """Values beside the range and of another kind."""
    if setting.name == "stop":
        yield from ("", "x" * 257, "\udcff")
    elif setting.kind in ("int", "float"):
        yield from ("", "x", "1,5", "nan", "inf", "-inf", "1e999", "0x1", "--1", "9" * 30)
    if setting.kind == "int":
        yield from ("1.5", "1T", "-1K" if setting.name != "seed" else "1e2")
    if setting.limit is not None and setting.kind == "float":
        yield str(setting.limit.least - 1)
        yield str(setting.limit.most + 1)
    if setting.name in ("dtype", "device", "draft"):
        yield from ("", "int3", "CUDA", "auto ")


VALUES = [(setting, value) for setting in KEYS for value in wrong_values(setting)]


@pytest.mark.parametrize(
    ("setting", "value"), VALUES, ids=[f"{setting.name}={value}" for setting, value in VALUES]
)
def test_r32_a_wrong_value_of_a_setting(
    cutaway: Cutaway, tiny_model: str, setting: Key, value: str
) -> None:
    check_fault(cutaway("complete", "hi", "-m", tiny_model, f"{setting.flag}={value}"), USAGE)


@pytest.mark.parametrize(
    "flags",
    [
        ["--page-size", "0"],
        ["--page-size", "48"],
        ["--page-size", "-16"],
        ["--cache-tokens", "0"],
        ["--cache-tokens", "8"],
        ["--max-sequences", "0"],
        ["--max-tokens-per-step", "0"],
        ["--prefill-chunk", "0"],
        ["--device", "cuda:99"],
        ["--device", "mps"],
        ["--device", "cpu:x"],
        ["--max-tokens", "0"],
        ["--max-tokens", "9999999"],
        ["--min-tokens", "10", "--max-tokens", "5"],
        ["--stop", "a", *["--stop", "b"] * 16],
        ["--chat", "--system", "\udcff"],
    ],
    ids=" ".join,
)
def test_r32_settings_that_do_not_fit_the_engine(
    cutaway: Cutaway, tiny_model: str, flags: list[str]
) -> None:
    check_fault(cutaway("complete", "hi", "-m", tiny_model, *flags), USAGE)


@pytest.mark.parametrize("tokens", ["10G", "100000G"])  # a system lends the first, and then kills
def test_r32_a_cache_larger_than_memory(cutaway: Cutaway, tiny_model: str, tokens: str) -> None:
    ended = cutaway("complete", "hi", "-m", tiny_model, "--cache-tokens", tokens)
    assert ended.code == 2
    assert "GiB are free. Ask for at most " in ended.err


# Wrong commands.


@pytest.mark.parametrize(
    "arguments",
    [
        ["complet", "hi"],
        ["complete", "hi", "there"],
        ["complete", "--bogus"],
        ["complete", "--temperature"],
        ["complete", "hi", "--json=yes"],
        ["chat", "a", "b"],
        ["models"],
        ["models", "list"],
        ["models", "rm"],
        ["config"],
        ["config", "get"],
        ["tokenize", "--chat"],
        ["detokenize", "one"],
        ["detokenize", "-5"],
        ["doctor", "now"],
        ["--verbose"],
    ],
    ids=" ".join,
)
def test_r32_a_wrong_command(cutaway: Cutaway, tiny_model: str, arguments: list[str]) -> None:
    check_fault(cutaway(*arguments), USAGE)


# Models that are not there or cannot be used.


@pytest.mark.parametrize(
    "name",
    [
        *("nosuch", "", " ", ".", "/", "smollm", "SMOLLM2", "a/b/c", "random:", "random:nosuch"),
        *("random:/nosuch/config.json", "nosuch.gguf", "/nosuch/model.gguf", "x" * 5000, "a\0b"),
        *("owner/absent", "../../etc", "~nobody/model", "file:///model", "https://host/model.gguf"),
    ],
)
@pytest.mark.parametrize("arguments", [["complete", "hi"], ["tokenize", "hi"]], ids=" ".join)
def test_r32_a_model_that_is_not_there(
    cutaway: Cutaway,
    name: str,
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = cutaway(*arguments, "--model", name)
    check_fault(ended, 4 if name == "owner/absent" else MODEL)


FILES = {
    "empty.gguf": b"",
    "text.gguf": b"this is no model at all, whatever its name says",
    "short.gguf": b"GGUF",
    "magic.gguf": gguf([key("general.architecture", STRING, string("llama"))])[:-3],
    "none.gguf": gguf(),
    "other.gguf": gguf([key("general.architecture", STRING, string("mamba"))]),
    "bare.gguf": gguf([key("general.architecture", STRING, string("llama"))]),
    "version.gguf": gguf(version=9),
    "many.gguf": gguf(num_tensors=2**60),
    "model.bin": b"\x80\x04pickle",
    "model.safetensors": b"\x08\0\0\0\0\0\0\0{}",
    "model.json": b"{}",
    "plain": b"",
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("arguments", [["complete", "hi"], ["tokenize", "hi"]], ids=" ".join)
def test_r32_a_file_that_is_no_model(
    cutaway: Cutaway, tmp_path: Path, name: str, arguments: list[str]
) -> None:
    (tmp_path / name).write_bytes(FILES[name])
    check_fault(cutaway(*arguments, "--model", str(tmp_path / name)), MODEL)


@pytest.fixture(scope="module")
def whole_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with stored weights and the smallest byte-level tokenizer."""
    folder = tmp_path_factory.mktemp("whole")
    architecture, model = tiny.random_model(dtype=torch.float32)
    parameters = dict(model.named_parameters())
    state = {
        name: parameters[target.parameter].detach().clone()
        for name, target in architecture.targets("hf").items()
    }
    save_file(state, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(tiny.config()), encoding="utf-8")
    (folder / "tokenizer.json").write_text(json.dumps(byte_level_tokenizer()), encoding="utf-8")
    return folder


def byte_level_tokenizer() -> dict[str, object]:
    from cutaway.tokens.files import symbols

    return {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel"},
        "model": {
            "type": "BPE",
            "vocab": {symbol: byte for byte, symbol in enumerate(symbols.BYTE_SYMBOLS)},
            "merges": [],
        },
    }


def test_the_whole_folder_answers(cutaway: Cutaway, whole_folder: Path) -> None:
    ended = cutaway("complete", "hi", "-m", str(whole_folder), "--max-tokens", "3", "--json")
    assert ended.code == 0, ended.err
    assert ended.json["prompt_token_ids"] == [104, 105]


def replaced(name: str, content: bytes | None) -> object:
    def change(folder: Path) -> None:
        if content is None:
            (folder / name).unlink()
        else:
            (folder / name).write_bytes(content)

    return pytest.param(change, id=f"{name}: {'absent' if content is None else content[:30]!r}")


def configured(**changes: object) -> object:
    def change(folder: Path) -> None:
        values = {**tiny.config(), **changes}
        text = json.dumps({k: v for k, v in values.items() if v != "absent"})
        (folder / "config.json").write_text(text, encoding="utf-8")

    return pytest.param(change, id=f"config: {changes}")


def cut(name: str, share: float) -> object:
    def change(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: int(len(content) * share)])

    return pytest.param(change, id=f"{name}: cut at {share:.0%}")


CHANGES = [
    *(replaced(name, None) for name in ("config.json", "model.safetensors", "tokenizer.json")),
    *(replaced("config.json", content) for content in (b"", b"{", b"[]", b"\xff", b"{}", b"null")),
    *(replaced("tokenizer.json", content) for content in (b"", b"{", b"[]", b"{}", b"\xff\xfe")),
    *(
        replaced("model.safetensors", content)
        for content in (b"", b"\0" * 8, b"\xff" * 64, b"\x02\0\0\0\0\0\0\0{}")
    ),
    *(replaced("generation_config.json", content) for content in (b"[", b'{"temperature": -1}')),
    *(replaced("generation_config.json", content) for content in (b'{"top_k": "x"}', b"[]")),
    *(cut("model.safetensors", share) for share in (0.01, 0.1, 0.5, 0.9, 0.999)),
    *(cut("config.json", share) for share in (0.1, 0.5, 0.9)),
    *(cut("tokenizer.json", share) for share in (0.1, 0.5, 0.9)),
    *(configured(architectures=value) for value in (None, [], "x", ["Unknown"], [3])),
    *(configured(vocab_size=value) for value in (0, -1, 321, "x", None, 2**62, True)),
    *(configured(hidden_size=value) for value in (0, 47, 96, 1.5, None)),
    *(configured(num_hidden_layers=value) for value in (0, 3, -2, 1, "two")),
    *(configured(num_attention_heads=value) for value in (0, 3, 5, None)),
    *(configured(num_key_value_heads=value) for value in (0, 3, 4, 8)),
    *(configured(rope_scaling=value) for value in ("x", {"rope_type": "unknown"}, [1])),
    *(configured(hidden_act=value) for value in ("unknown", 3)),
    *(configured(max_position_embeddings=value) for value in (0, -1, "x")),
    *(configured(rms_norm_eps=value) for value in (-1, "x")),
]


@pytest.mark.parametrize("change", CHANGES)
def test_r32_a_folder_that_lies(
    cutaway: Cutaway, whole_folder: Path, tmp_path: Path, change: object
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(whole_folder, folder)
    assert callable(change)
    change(folder)
    check_fault(cutaway("complete", "hi", "-m", str(folder), "--max-tokens", "2"), MODEL)


# Settings that cannot be read.


@pytest.mark.parametrize(
    "content", [b"x", b"[", b"\xff", b"unknown = 1", b"temperature = 9", b"top_p = 'x'", b"= 1"]
)
def test_r32_a_file_of_settings_that_is_wrong(
    cutaway: Cutaway, tiny_model: str, tmp_path: Path, content: bytes
) -> None:
    file = tmp_path / "own.toml"
    file.write_bytes(content)
    check_fault(cutaway("complete", "hi", "-m", tiny_model, "--config", str(file)), USAGE)
    check_fault(cutaway("config", "show", "--config", str(file)), USAGE)


@pytest.mark.parametrize("file", ["nosuch.toml", ".", "", "\0"])
def test_r32_a_file_of_settings_that_is_not_there(cutaway: Cutaway, file: str) -> None:
    check_fault(cutaway("config", "show", "--config", file), USAGE)


def test_r32_there_are_two_hundred_cases() -> None:
    models = 20 * 2 + len(FILES) * 2
    assert len(VALUES) + 16 + 1 + 16 + models + len(CHANGES) + 7 * 2 + 4 >= 200
