"""One name, one meaning: classes of the package, and files that are not one of a list of equals.

Equals take the name under which they are asked for: a command, a view, an architecture. Forms of
one operation or of one kind of layer share its name: the block, its lowering, its native kernels.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from cutaway.cli.commands import COMMANDS, GROUPS
from cutaway.models import ARCHITECTURES, GGUF_ARCHITECTURES
from cutaway.views import VIEWS
from house_tree import PACKAGE, source_files

# Files of an operation's folder: its definition in torch, its forms for GPUs and for training.
FORMS = {"plain", "trainable", "triton", "triton_learned"}
# A kind of layer in its forms: the block, what is recorded of it, and the operations in C++.
KINDS = {"attention", "convolution", "delta", "experts", "heads", "latent"}
KIND_FOLDERS = {"blocks/attention", "kernels/lowering", "kernels/native"}
SUBCOMMANDS = {"bench_context", "bench_paper", "bench_serve", "bench_speculate", "bench_speed"}


def is_equal(path: Path) -> bool:
    """Whether a file is one of a list of equals, or a form of what its name stands for."""
    folder, name = path.parent.relative_to(PACKAGE).as_posix(), path.stem
    if folder == "cli":
        return name in {*COMMANDS, *GROUPS, *SUBCOMMANDS, "estimate", "quantize"}
    if folder == "views":
        return name in {view.probe.__module__.rpartition(".")[2] for view in VIEWS}
    if folder == "models":
        return name in {*ARCHITECTURES.values(), *GGUF_ARCHITECTURES.values()}
    return name in FORMS or (name in KINDS and folder in KIND_FOLDERS)


def class_names(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef):
            yield node.name


def doubles(named: dict[str, list[str]]) -> dict[str, list[str]]:
    return {name: where for name, where in named.items() if len(where) > 1}


def test_a_class_has_a_name_of_its_own() -> None:
    named: dict[str, list[str]] = defaultdict(list)
    for path in source_files():
        for name in class_names(path):
            named[name].append(path.relative_to(PACKAGE).as_posix())
    assert not doubles(named), "one name, one meaning: call one of them after what it holds"


def test_a_file_has_a_name_of_its_own() -> None:
    named: dict[str, list[str]] = defaultdict(list)
    for path in source_files():
        if path.stem not in ("__init__", "__main__") and not is_equal(path):
            named[path.stem].append(path.relative_to(PACKAGE).as_posix())
    assert not doubles(named), "one name, one meaning: call one of them after what it gives"


def test_equals_are_those_that_a_table_names() -> None:
    assert is_equal(PACKAGE / "views" / "attention.py") and is_equal(PACKAGE / "cli" / "view.py")
    assert is_equal(PACKAGE / "kernels" / "norm" / "plain.py")
    assert not is_equal(PACKAGE / "views" / "helper.py")
    assert not is_equal(PACKAGE / "server" / "attention.py")


def test_doubles_are_found(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("class A: ...\nclass B:\n    class A: ...\n", "utf-8")
    assert list(class_names(tmp_path / "one.py")) == ["A", "B", "A"]
    assert doubles({"A": ["x.py", "y.py"], "B": ["x.py"]}) == {"A": ["x.py", "y.py"]}


def test_the_structs_of_c_are_called_so() -> None:
    tree = ast.parse((PACKAGE / "kernels" / "native" / "structs.py").read_text("utf-8"))
    structs = [
        node.name
        for node in tree.body
        if isinstance(node, ast.ClassDef) and "Structure" in ast.unparse(node.bases[0])
    ]
    assert len(structs) > 20 and all(name.endswith("Struct") for name in structs)


def test_no_folder_has_more_files_than_one_keeps_apart() -> None:
    """Equals are a list, whatever their number."""
    counts: dict[str, int] = defaultdict(int)
    for path in source_files():
        if path.stem != "__init__" and not is_equal(path):
            counts[path.parent.relative_to(PACKAGE).as_posix()] += 1
    crowded = {folder: count for folder, count in counts.items() if count > 24}
    assert not crowded, "give what belongs together a folder of its own"


# Participles without -ed that a function could be called; "put", "cut" and "read" are orders too.
IRREGULAR = set(
    "begun bound broken built chosen done drawn found given gone held kept known left lost made "
    "meant paid said seen sent shown sought spoken taken thrown told written".split()
)
ORDERS_IN_ED = {"bed", "embed", "exceed", "feed", "need", "proceed", "seed", "shed"}


def bare_participles(tree: ast.Module) -> Iterator[str]:
    """Public functions and methods (no properties) that are called by a participle alone."""
    bodies = [tree.body, *(node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef))]
    for node in (each for body in bodies for each in body):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            is_property = any("property" in ast.unparse(each) for each in node.decorator_list)
            is_regular = node.name.endswith("ed") and node.name not in ORDERS_IN_ED
            is_alone = "_" not in node.name  # neither private nor of several words
            if is_alone and not is_property and (is_regular or node.name in IRREGULAR):
                yield node.name


def test_functions_are_orders() -> None:
    found = {
        f"{path.relative_to(PACKAGE)}: {name}"
        for path in source_files()
        for name in bare_participles(ast.parse(path.read_text("utf-8")))
    }
    assert not found, "a function is called by what it does: write, not written"


def test_bare_participles_are_found() -> None:
    code = "def written(): ...\ndef feed(): ...\nclass A:\n  def kept(self): ...\n"
    code += "  @property\n  def closed(self): ...\n  def closed_at(self): ...\n"
    assert list(bare_participles(ast.parse(code))) == ["written", "kept"]
