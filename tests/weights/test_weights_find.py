"""From what a user calls a model to its files, and what is said when there are none."""

from __future__ import annotations

import json
from pathlib import Path

import httpx2
import huggingface_hub
import pytest
from huggingface_hub import errors as hub_errors

import gguf_bytes as b
from cutaway.core.errors import (
    DownloadError,
    ModelFormatError,
    ModelNotFoundError,
    UnsupportedModelError,
)
from cutaway.weights.find import hub, store
from cutaway.weights.find.find import find

HEADER = b'{"w":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]}}'
SAFETENSORS = len(HEADER).to_bytes(8, "little") + HEADER + bytes(12)
CARD = "---\nlanguage: en\nlicense: apache-2.0\n---\n# A model\nlicense: none\n"


def model_folder(path: Path, **generation: object) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    (path / "model.safetensors").write_bytes(SAFETENSORS)
    (path / "README.md").write_text(CARD)
    if generation:
        (path / "generation_config.json").write_text(json.dumps(generation))
    return path


def test_gguf_file_is_found_by_path_whatever_its_suffix(tmp_path: Path) -> None:
    for name in ("m.gguf", "sha256-0123"):
        (tmp_path / name).write_bytes(b.small_valid())
        found = find(str(tmp_path / name))
        assert (found.kind, found.path, found.licence) == ("gguf", tmp_path / name, None)


def test_gguf_file_says_licence_and_source_inside(tmp_path: Path) -> None:
    keys = [
        b.key("general.architecture", b.STRING, b.string("llama")),
        b.key("general.license", b.STRING, b.string("mit")),
        b.key("general.source.url", b.STRING, b.string("nobody/m")),
    ]
    (tmp_path / "m.gguf").write_bytes(b.gguf(keys))
    info = store.describe(find(str(tmp_path / "m.gguf")))
    assert (info.licence, info.source, info.num_parameters) == ("mit", "nobody/m", 0)


def test_folder_brings_licence_and_recommended_sampling(tmp_path: Path) -> None:
    folder = model_folder(
        tmp_path / "m",
        temperature=0.6,
        top_k=20,
        top_p=1,
        do_sample=True,
        eos_token_id=2,
        min_p=None,
    )
    found = find(str(folder))
    assert (found.kind, found.path, found.name) == ("folder", folder, "m")
    assert found.licence == "apache-2.0"
    assert found.sampling == {"temperature": 0.6, "top_k": 20, "top_p": 1.0}
    info = store.describe(found)
    assert (info.architecture, info.types) == ("LlamaForCausalLM", {"BF16": 6})


def test_folder_without_card_or_generation_config_is_found(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m")
    (folder / "README.md").write_text("license: apache-2.0 outside of any front matter")
    found = find(str(folder))
    assert (found.licence, found.sampling) == (None, {})
    (folder / "README.md").unlink()
    assert find(str(folder)).licence is None


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("temperature", "hot", 'temperature is "hot"; it must be a number from 0 to 5'),
        ("top_p", 1.5, "top_p is 1.5"),
        ("top_k", 1.5, "top_k is 1.5; it must be an integer"),
    ],
)
def test_recommended_sampling_out_of_range_is_refused(
    field: str, value: object, words: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelFormatError, match=words) as caught:
        find(str(model_folder(tmp_path, **{field: value})))
    assert caught.value.field == field


def test_generation_config_that_is_no_object_is_refused(tmp_path: Path) -> None:
    (model_folder(tmp_path) / "generation_config.json").write_text("[]")
    with pytest.raises(ModelFormatError, match=r"generation_config\.json: is no JSON object"):
        find(str(tmp_path))


def test_folder_without_config_names_the_gguf_files_in_it(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"has no config\.json\.$"):
        find(str(tmp_path))
    (tmp_path / "m.gguf").write_bytes(b.small_valid())
    with pytest.raises(ModelNotFoundError, match=r"Give the path of one of its files: m\.gguf"):
        find(str(tmp_path))


def test_folder_without_weights_is_refused(tmp_path: Path) -> None:
    (model_folder(tmp_path) / "model.safetensors").unlink()
    with pytest.raises(ModelNotFoundError, match=r"has neither model\.safetensors nor .*json\.$"):
        find(str(tmp_path))
    (tmp_path / "pytorch_model-00001-of-00002.bin").write_bytes(b"")
    with pytest.raises(ModelNotFoundError, match="Its weights are pickles, which are never loaded"):
        find(str(tmp_path))


@pytest.mark.parametrize("name", ["m.bin", "m.pt", "m.pth", "m.ckpt", "m.pkl"])
def test_pickle_is_never_opened(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b.small_valid())
    with pytest.raises(UnsupportedModelError, match="looks like a pickle, which can run code"):
        find(str(tmp_path / name))


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_one_file_of_a_folder_points_at_the_folder(name: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="one file of a model; give its folder"):
        find(str(model_folder(tmp_path) / name))


def test_other_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"MZ")
    with pytest.raises(ModelFormatError, match="magic: does not start as a GGUF file"):
        find(str(tmp_path / "m.gguf"))


def test_random_weights_take_a_config_or_its_folder(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m")
    for name in (folder, folder / "config.json"):
        found = find(f"random:{name}")
        assert (found.kind, found.path, found.name) == (
            "random",
            folder / "config.json",
            "random:m",
        )
    info = store.describe(found)
    assert (info.architecture, info.num_bytes) == ("LlamaForCausalLM", 0)
    with pytest.raises(ModelNotFoundError, match=r"random weights need a config\.json"):
        find(f"random:{tmp_path}")


def test_config_without_architecture_is_refused(tmp_path: Path) -> None:
    (model_folder(tmp_path) / "config.json").write_text("{}")
    with pytest.raises(ModelFormatError, match="architectures: is null; it must name the model's"):
        store.describe(find(str(tmp_path)))


@pytest.mark.parametrize(
    "name",
    [
        "",
        "smolm2",
        "./absent.gguf",
        "models/absent.gguf",
        "a/b/c",
        "x" * 5000,
        "nul\0",
        "../absent/x",
        "-/-",
    ],
)
def test_unknown_name_says_which_forms_are_allowed(name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        find(name)
    message = str(caught.value)
    assert len(message) < 500
    assert (
        "a known name (smollm2, gemma3-270m), the path of a .gguf file, a folder with config.json"
        in message
    )
    assert "a hub id such as owner/name, or random:PATH/config.json" in message
    assert ("Did you mean smollm2?" in message) == (name == "smolm2")


def test_hub_id_asks_for_plain_data_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, asked = model_folder(tmp_path / "snapshot"), list[object]()

    def snapshot_download(*names: object, **options: object) -> str:
        asked.extend([names, options])
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    found = find("HuggingFaceTB/SmolLM2-135M")
    assert (found.kind, found.path, found.name) == ("folder", folder, "HuggingFaceTB/SmolLM2-135M")
    assert asked == [("HuggingFaceTB/SmolLM2-135M",), {"allow_patterns": list(hub.FILES)}]
    assert not any(name.endswith((".bin", ".pt", ".py")) or name == "*" for name in hub.FILES)


def test_hub_id_that_is_a_local_folder_is_not_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_folder(tmp_path / "owner" / "name")
    monkeypatch.chdir(tmp_path)
    assert find("owner/name").path == Path("owner/name")


def hub_error(kind: type[Exception]) -> Exception:
    request = httpx2.Request("GET", "https://hub")
    return kind("no", response=httpx2.Response(404, request=request))  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        (hub_errors.GatedRepoError, DownloadError, "is gated: accept its terms"),
        (hub_errors.RepositoryNotFoundError, ModelNotFoundError, "the hub has no model a/b, or it"),
        (hub_errors.LocalEntryNotFoundError("no"), DownloadError, "HF_HUB_OFFLINE is set"),
        (hub_errors.HFValidationError("no"), ModelNotFoundError, "the hub has no model a/b"),
        (
            httpx2.ConnectError("refused"),
            DownloadError,
            "could not be fetched from the hub: refused",
        ),
        (OSError(28, "No space left"), DownloadError, "from the hub: .*No space left"),
    ],
)
def test_hub_faults_say_what_to_do(
    fault: Exception | type[Exception],
    error: type[Exception],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def snapshot_download(*_: object, **__: object) -> str:
        raise hub_error(fault) if isinstance(fault, type) else fault

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(error, match=words):
        find("a/b")


def test_hub_offline_without_a_copy_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(
        DownloadError, match="owner/name is not in the hub's cache and the hub cann"
    ):
        find("owner/name")


def test_hub_copy_is_used_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub's cache layout, links and all, made by hand."""
    base, commit = tmp_path / "models--owner--name", "0" * 40
    model_folder(base / "blobs")
    (base / "refs").mkdir()
    (base / "refs" / "main").write_text(commit)
    snapshot = base / "snapshots" / commit
    snapshot.mkdir(parents=True)
    for blob in (base / "blobs").iterdir():
        (snapshot / blob.name).symlink_to(blob)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    found = find("owner/name")
    assert found.path == snapshot
    assert store.describe(found).types == {"BF16": 6}
