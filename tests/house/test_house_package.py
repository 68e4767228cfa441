"""What is installed: the wheel's contents, and metadata that agrees with itself."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from house_tree import ROOT, settings, source_files

# What a dependency is called when it is imported, where that differs from its name.
IMPORT_NAMES = {
    "httptools": "uvicorn",  # by the module of uvicorn that is built on it
    "huggingface-hub": "huggingface_hub",
    "opentelemetry-exporter-otlp-proto-http": "opentelemetry",
    "opentelemetry-sdk": "opentelemetry",
    "prometheus-client": "prometheus_client",
    "prompt-toolkit": "prompt_toolkit",
    "pydantic-settings": "pydantic_settings",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiles the CPU kernels too, unless `make native` did."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def wheel_names(wheel: Path) -> list[str]:
    return zipfile.ZipFile(wheel).namelist()


def test_the_wheel_is_for_one_platform_when_it_holds_native_code(wheel: Path) -> None:
    native = [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]
    assert native in ([], ["cutaway/kernels/_native.so"])
    assert wheel.name.endswith("-py3-none-any.whl") == (not native)
    assert "-py3-none-" in wheel.name, "ctypes loads it: no version of Python is special"


def test_a_pure_wheel_serves_every_platform(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    environment = {**os.environ, "CUTAWAY_PURE": "1"}
    subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=True)
    (built,) = tmp_path.glob("*.whl")
    assert built.name.endswith("-py3-none-any.whl")
    assert not [name for name in zipfile.ZipFile(built).namelist() if name.endswith(".so")]


def test_the_wheel_holds_every_module_and_its_typing_mark(wheel_names: list[str]) -> None:
    modules = {path.relative_to(ROOT / "src").as_posix() for path in source_files()}
    assert {*modules, "cutaway/py.typed"} <= set(wheel_names)


def test_the_wheel_holds_the_built_page_and_it_is_small(wheel: Path) -> None:
    files = {i.filename: i for i in zipfile.ZipFile(wheel).infolist() if "/_web/" in i.filename}
    if not (ROOT / "src/cutaway/_web/index.html").is_file():
        pytest.skip("the page is not built: make web")
    assert "cutaway/_web/index.html" in files
    assert sum(info.file_size for info in files.values()) <= 1_500_000
    packed = {Path(name).name: info.compress_size for name, info in files.items()}
    viewer = packed.pop("viewer.html")  # goes out within a trace alone; the page never asks for it
    assert viewer <= 130 * 1024  # the film of one token and every figure play in it too
    assert sum(packed.values()) <= 350 * 1024, "everything that the page may ever fetch"
    index = (ROOT / "src/cutaway/_web/index.html").read_text(encoding="utf-8")
    at_once = [size for name, size in packed.items() if name in index or name == "index.html"]
    assert len(at_once) >= 3
    assert sum(at_once) <= 80 * 1024, "a chat that loads at once"


def test_the_page_is_made_of_this_servers_files_alone() -> None:
    for path in sorted((ROOT / "web").glob("[cp]*/**/*")):
        if path.suffix in (".ts", ".svelte", ".css"):
            source = path.read_text(encoding="utf-8")
            assert not re.search(r"@html|innerHTML|outerHTML|insertAdjacent|\beval\(", source), path
            # What is not shipped may name addresses; a namespace is a name that nobody fetches.
            is_test = path.name.endswith(".test.ts")
            elsewhere = re.search(r"[\"'(]https?://(?!www\.w3\.org/\d{4}/)", source)
            assert is_test or not elsewhere, path


def test_the_lock_of_the_page_names_no_registry() -> None:
    assert '"resolved"' not in (ROOT / "web/package-lock.json").read_text(encoding="utf-8")


def test_the_wheel_holds_the_licence_and_the_notices(wheel_names: list[str]) -> None:
    licences = {Path(name).name for name in wheel_names if ".dist-info/licenses/" in name}
    assert licences == {"LICENSE", "THIRD_PARTY_NOTICES.md"}


def test_the_wheel_holds_nothing_else(wheel_names: list[str]) -> None:
    strangers = [
        name
        for name in wheel_names
        if not name.startswith("cutaway/") and ".dist-info/" not in name
    ]
    assert not strangers
    assert not [name for name in wheel_names if "test" in name or name.endswith(".gguf")]


def test_classifiers_agree_with_the_python_range() -> None:
    project = settings()["project"]
    allowed = SpecifierSet(project["requires-python"])
    prefix = "Programming Language :: Python :: 3."
    named = {c.removeprefix(prefix) for c in project["classifiers"] if c.startswith(prefix)}
    assert named == {str(minor) for minor in range(40) if f"3.{minor}" in allowed}


def test_tools_aim_at_the_oldest_python() -> None:
    project, pyright = settings()["project"], settings()["tool"]["pyright"]
    oldest = re.search(r">=(3\.\d+)", project["requires-python"])
    assert oldest and pyright["pythonVersion"] == oldest[1]


def test_every_direct_dependency_is_pinned_within_its_range() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    pinned = {canonicalize_name(pin.name): str(pin.specifier) for pin in pins}
    wrong = [
        str(each)
        for each in declared()
        if not pinned.get(canonicalize_name(each.name), "").startswith("==")
        or pinned[canonicalize_name(each.name)].removeprefix("==") not in each.specifier
    ]
    assert not wrong, "pin it in constraints.txt"
    assert set(pinned) == {canonicalize_name(each.name) for each in declared()}


def test_every_dependency_of_the_package_is_imported_somewhere() -> None:
    imported: set[str] = set()
    for path in source_files():
        source = path.read_text(encoding="utf-8")
        by_name = "importlib.import_module(" in source  # where an extra brings it
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module.split(".")[0])
            elif by_name and isinstance(node, ast.Constant) and isinstance(node.value, str):
                imported.add(node.value.split(".")[0])
    needed = {IMPORT_NAMES.get(each.name, each.name) for each in declared(dev=False)}
    assert needed - imported == set(), "a dependency that nothing imports is deleted"


def test_every_dependency_of_the_package_stands_in_the_notices() -> None:
    notices = (ROOT / "THIRD_PARTY_NOTICES.md").read_text(encoding="utf-8")
    page = json.loads((ROOT / "web/package.json").read_text(encoding="utf-8"))
    names = [*(each.name for each in declared(dev=False)), *page["dependencies"], "svelte"]
    assert [name for name in names if f"| {name} |" not in notices] == []
    rows = notices.partition("| svelte |")[2].partition("\n\n")[0]
    named = {"svelte", *re.findall(r"^\| ([a-z.-]+) \|", rows, re.MULTILINE)}
    assert named == {*page["dependencies"], "svelte"}, "what the page no longer has"


def declared(*, dev: bool = True) -> list[Requirement]:
    """Requirements of the package and its extras, other than the package itself."""
    project = settings()["project"]
    extras = project["optional-dependencies"]
    chosen = [each for name, group in extras.items() if dev or name != "dev" for each in group]
    found = [Requirement(each) for each in [*project["dependencies"], *chosen]]
    return [each for each in found if each.name != project["name"]]
