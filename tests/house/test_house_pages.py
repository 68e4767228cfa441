"""The pages are true to the tree, and the tree names no machine and no registry."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from house_tree import ROOT, tree_files

# Put together here so that this file does not hold what it looks for.
MACHINE_PATHS = re.compile(
    rb"(?<![\w.-])/(?:%s)/" % b"|".join([b"work", b"root", b"home", b"opt", b"Users"])
)
REGISTRY_HOSTS = re.compile(
    b"|".join(
        re.escape(b".".join(host))
        for host in (
            [b"pypi", b"org"],
            [b"pythonhosted", b"org"],
            [b"npmjs", b"org"],
            [b"npmjs", b"com"],
            [b"deb", b"debian", b"org"],
            [b"download", b"pytorch", b"org"],
        )
    )
)


def load_tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec and spec.loader, f"tools/{name}.py is there"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("pattern", [MACHINE_PATHS, REGISTRY_HOSTS], ids=["paths", "registries"])
def test_the_tree_names_no_machine_and_no_registry(pattern: re.Pattern[bytes]) -> None:
    found = [
        f"{path.relative_to(ROOT)}: {match[0].decode()}"
        for path in tree_files()
        if (match := pattern.search(path.read_bytes()))
    ]
    assert not found


def test_machine_paths_are_told_from_paths_of_the_tree() -> None:
    inside = b"/".join([b"", b"home", b"ada", b"x"])
    assert MACHINE_PATHS.search(b'open("' + inside)
    assert not MACHINE_PATHS.search(b"docs" + inside)


def test_the_pages_name_only_what_is_there() -> None:
    check_docs = load_tool("check_docs")
    faults = [fault for page in check_docs.pages() for fault in check_docs.faults_of(page)]
    assert [*faults, *check_docs.lost_pages()] == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("see `engine/engin.py`", "`engine/engin.py` is not in the tree"),
        ("see `core/limits.py:LIMIT`", "`core/limits.py:LIMIT` is not in the tree"),
        ("see `core/{limits,limit}.py`", "`core/{limits,limit}.py` is not in the tree"),
        ("[a](nowhere.md)", "the link nowhere.md leads nowhere"),
        ("# One\n[a](#two)", "the link #two leads nowhere"),
        ("`make tea`", "the Makefile has no target tea"),
        ("text\n\n    PYTHON=python3 make tea\n", "the Makefile has no target tea"),
        ("```\nmake tea\n```\n", "the Makefile has no target tea"),
        ("```\ncutaway tea --hot\n```\n", "there is no command `cutaway tea`"),
        ("`cutaway models tea`", "there is no command `cutaway models tea`"),
        ("    cat x | cutaway complete - --tea=hot", "`cutaway complete` has no option --tea"),
    ],
)
def test_a_page_that_names_what_is_not_there_is_caught(
    tmp_path: Path, text: str, fault: str
) -> None:
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    assert [f.partition(": ")[2] for f in load_tool("check_docs").faults_of(page)] == [fault]


def test_a_page_that_names_what_is_there_passes(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One two\n[a](#one-two) `core/{limits,request}.py` `core/` `core/limits.py:LIMITS` "
        "`make check` `.venv/bin/` `tokenizer.json` `from cutaway import LLM` "
        "`cutaway complete 'a b' --seed 1 | wc` `cutaway models ls --json` `cutaway --help`",
        encoding="utf-8",
    )
    assert list(load_tool("check_docs").faults_of(page)) == []


def test_the_tree_in_architecture_is_that_of_the_package() -> None:
    tree = load_tool("tree")
    page = tree.PAGE.read_text(encoding="utf-8")
    assert page == tree.with_tree(page, tree=list(tree.tree_lines())), "run `make tree`"
