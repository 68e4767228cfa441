"""`cutaway models` and `cutaway config`, with nothing fetched and nothing asked of the network."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tomllib
from pathlib import Path

import pytest

from cutaway.cli.session import at_hand as at_hand_module
from cutaway.cli.session.at_hand import at_hand
from cutaway.core.errors import ModelNotFoundError
from cutaway.weights.find import hub, named_models, package
from gguf_bytes import STRING, gguf, key, string
from program import Cutaway


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> Path:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(hub, "fetch", refuse)
    monkeypatch.setattr(package, "_download", refuse)


@pytest.fixture
def small_model(monkeypatch: pytest.MonkeyPatch) -> Path:
    """smollm2 replaced by a file of some bytes, which is in the cache."""
    content = gguf([key("general.architecture", STRING, string("llama"))])
    model = dataclasses.replace(
        named_models.NAMED["smollm2"],
        sha256=hashlib.sha256(content).hexdigest(),
        num_bytes=len(content),
    )
    monkeypatch.setitem(named_models.NAMED, "smollm2", model)  # pyright: ignore[reportArgumentType]
    path = package.cached_path(model)
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    return path


def test_ls_lists_names_with_licences(cutaway: Cutaway) -> None:
    ended = cutaway("models", "ls")
    header, line, gemma = ended.out.splitlines()
    assert header.split() == ["NAME", "HERE", "SIZE", "LICENCE", "FROM"]
    assert line.split()[:5] == ["smollm2", "no", "93.8", "MiB", "Apache-2.0"]
    assert gemma.split()[:7] == ["gemma3-270m", "no", "241.4", "MiB", "Gemma", "Terms", "of"]
    listed = cutaway("models", "ls", "--json").json
    assert listed["models"][0]["licence"] == "Apache-2.0"
    assert listed["models"][0]["is_cached"] is False


def test_ls_tells_what_is_here(cutaway: Cutaway, small_model: Path) -> None:
    assert cutaway("models", "ls", "--json").json["models"][0]["is_cached"] is True


def test_info_of_an_absent_model_fetches_nothing(cutaway: Cutaway) -> None:
    for name in ("smollm2", "owner/name"):
        ended = cutaway("models", "info", name)
        assert (ended.code, ended.out) == (3, "")
        assert f"{name} is not here; `cutaway models pull {name}` fetches it." in ended.err


def test_info_shows_licence_and_source(cutaway: Cutaway, small_model: Path) -> None:
    ended = cutaway("models", "info")
    assert "licence       Apache-2.0" in ended.out
    assert "HuggingFaceTB/SmolLM2-135M-Instruct" in ended.out
    assert cutaway("models", "info", "--json").json["path"] == str(small_model)


def test_info_of_random_weights(cutaway: Cutaway, tiny_model: str) -> None:
    ended = cutaway("models", "info", tiny_model)
    assert "architecture  LlamaForCausalLM" in ended.out
    assert "licence       not stated" in ended.out
    assert cutaway("models", "info", tiny_model, "--json").json["num_parameters"] == 0


def test_pull_of_a_model_that_is_here_prints_its_path(cutaway: Cutaway, small_model: Path) -> None:
    ended = cutaway("models", "pull")
    assert (ended.code, ended.out) == (0, f"{small_model}\n")
    assert ended.err == "smollm2 is under this licence: Apache-2.0.\n"
    assert cutaway("models", "pull", "--json").json["licence"] == "Apache-2.0"


def test_verify_compares_checksums(cutaway: Cutaway, small_model: Path) -> None:
    assert cutaway("models", "verify").code == 0
    content = bytearray(small_model.read_bytes())
    content[-1] ^= 1
    small_model.write_bytes(content)
    ended = cutaway("models", "verify")
    assert ended.code == 4
    assert "DAMAGED" in ended.out
    assert "error: smollm2 has another checksum than was published." in ended.err
    assert cutaway("models", "verify", "--json").json["models"][0]["is_intact"] is False


def test_verify_without_models_finds_nothing_wrong(cutaway: Cutaway) -> None:
    assert cutaway("models", "verify", "--json").json == {"models": []}
    assert cutaway("models", "verify", "smollm2").code == 3


def test_rm_removes_and_tells_how_much(cutaway: Cutaway, small_model: Path) -> None:
    num_bytes = small_model.stat().st_size
    assert cutaway("models", "rm", "smollm2", "--json").json["freed_bytes"] == num_bytes
    assert not small_model.exists()
    assert cutaway("models", "rm", "smollm2").code == 3


def test_a_hub_model_is_found_in_the_hubs_own_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, text in (("config.json", "{}"), ("model.safetensors", "")):
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.setattr(at_hand_module, "_hub_folder", lambda name: tmp_path)
    found = at_hand("owner/name")
    assert found is not None
    assert (found.name, found.path) == ("owner/name", tmp_path)


@pytest.mark.parametrize("name", ["nosuch", "a/b/c", "./nosuch/", "../..", ""])
def test_what_is_no_model_is_refused(name: str) -> None:
    with pytest.raises(ModelNotFoundError):
        at_hand(name)


def test_config_show_is_toml_that_can_be_read_back(
    cutaway: Cutaway, tmp_path: Path, tiny_model: str
) -> None:
    flags = ["-m", tiny_model, "--stop", "a\nb", "--stop", "“", "--system", 'Say "hi".\n']
    ended = cutaway("config", "show", *flags, "--origin")
    file = tmp_path / "made.toml"
    file.write_text(ended.out, encoding="utf-8")
    values = tomllib.loads(ended.out)
    assert values["stop"] == ["a\nb", "“"]
    assert values["system"] == 'Say "hi".\n'
    again = cutaway("config", "show", "--config", str(file), "--json").json
    assert again == cutaway("config", "show", *flags, "--json").json


def test_config_show_tells_each_origin(
    cutaway: Cutaway, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CUTAWAY_TOP_K", "5")
    file = tmp_path / "own.toml"
    file.write_text("seed = 3", encoding="utf-8")
    shown = cutaway(
        *("config", "show", "--origin", "--json", "--config", str(file), "--top-p", "0.5")
    ).json
    assert shown["top_p"] == {"value": 0.5, "origin": "flag"}
    assert shown["top_k"] == {"value": 5, "origin": "environment"}
    assert shown["seed"] == {"value": 3, "origin": "file"}
    assert shown["min_p"] == {"value": 0.0, "origin": "default"}


def test_config_show_has_what_the_model_recommends(
    cutaway: Cutaway, small_model: Path, tmp_path: Path
) -> None:
    shown = cutaway("config", "show", "--origin", "--json").json
    assert shown["temperature"] == {"value": 0.2, "origin": "model"}
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "config.json").write_text("{}", encoding="utf-8")
    (folder / "model.safetensors").touch()
    (folder / "generation_config.json").write_text(json.dumps({"top_k": 7}), encoding="utf-8")
    ended = cutaway("config", "show", "-m", str(folder), "--origin")
    assert "top_k = 7                        # model" in ended.out.splitlines()


def test_config_show_works_while_the_model_is_not_here(cutaway: Cutaway) -> None:
    assert "smollm2 is not here" in cutaway("config", "show").err
    ended = cutaway("config", "show", "-m", "nosuch")
    assert ended.code == 0
    assert 'warning: there is no model "nosuch".' in ended.err


@pytest.mark.parametrize(
    "command",
    [
        ("models", "pull", "gemma3-270m"),
        ("complete", "-m", "gemma3-270m", "hello"),
        ("chat", "gemma3-270m"),
        ("tokenize", "-m", "gemma3-270m", "hello"),
        ("serve", "gemma3-270m", "--port", "0"),
    ],
)
def test_a_model_with_terms_is_not_fetched_before_they_are_accepted(
    cutaway: Cutaway, command: tuple[str, ...]
) -> None:
    ended = cutaway(*command)
    assert ended.code == 3
    assert "is under the Gemma Terms of Use (https://ai.google.dev/gemma/terms)" in ended.err
    assert "give --accept-license" in ended.err
    assert ended.out == ""


def test_terms_are_accepted_by_flag_environment_or_file(
    cutaway: Cutaway, monkeypatch: pytest.MonkeyPatch
) -> None:
    accepted: list[str] = []

    def fetch(model: named_models.NamedModel, **_: object) -> Path:
        accepted.append(model.name)
        return Path("gemma.gguf")

    monkeypatch.setattr(package, "fetch", fetch)
    ended = cutaway("models", "pull", "gemma3-270m", "--accept-license")
    assert (ended.code, ended.out) == (0, "gemma.gguf\n")
    assert "they forbid some uses" in ended.err
    monkeypatch.setenv("CUTAWAY_ACCEPT_LICENSE", "true")
    assert cutaway("models", "pull", "gemma3-270m").code == 0
    assert accepted == ["gemma3-270m"] * 2
