"""Writes the tree in docs/tree.md from the first docstring line of every module.

Folders stand in the order of the layers in pyproject.toml, so the page cannot drift from the
contracts. `--check` compares and writes nothing; `--first-line FILE` prints one file's line.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "cutaway"
PAGE = ROOT / "docs" / "tree.md"
BEGIN, END = "<!-- tree: written by `make tree` -->\n", "<!-- end of tree -->"
LEFT = 26  # characters of the column of names


def main(arguments: list[str]) -> int:
    """Write, check or print; returns the exit status."""
    if arguments[:1] == ["--first-line"]:
        print(f"{arguments[1]}: {first_line(Path(arguments[1]))}")
        return 0
    before = PAGE.read_text(encoding="utf-8")
    after = with_tree(before, tree=list(tree_lines()))
    if arguments == ["--check"]:
        print(sizes())
        if before != after:
            print("docs/tree.md: the tree is not that of src/cutaway; run `make tree`.")
        return int(before != after)
    PAGE.write_text(after, encoding="utf-8")
    return 0


def with_tree(page: str, *, tree: list[str]) -> str:
    """The page with what stands between the two marks replaced."""
    head, rest = page.split(BEGIN)
    _, tail = rest.split(END)
    return "".join([head, BEGIN, "```text\n", *(f"{line}\n" for line in tree), "```\n", END, tail])


def tree_lines() -> Iterator[str]:
    """One line per module: top folders by layer, then their files and folders by name."""
    for folder in layer_order():
        if not (PACKAGE / folder / "__init__.py").is_file():
            continue
        yield _line(0, f"{folder}/", PACKAGE / folder / "__init__.py")
        yield from _inside(1, PACKAGE / folder)


def layer_order() -> list[str]:
    """Top folders from highest to lowest, as the layers contract lists them."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    layers = next(each["layers"] for each in contracts if each["id"] == "layers")
    return [name.strip(" ()") for layer in layers for name in layer.split("|")]


def first_line(path: Path) -> str:
    """The first line of a file's docstring; empty where there is none."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    return docstring.splitlines()[0] if docstring else ""


def sizes() -> str:
    """Size of the package in one line: printed, never enforced."""
    lines = {
        path: len(path.read_text(encoding="utf-8").splitlines()) for path in PACKAGE.rglob("*.py")
    }
    longest = max(lines, key=lines.__getitem__)
    name = longest.relative_to(PACKAGE).as_posix()
    return f"src: {len(lines)} files, {sum(lines.values())} lines; longest {name}, {lines[longest]}"


def _inside(depth: int, folder: Path) -> Iterator[str]:
    for path in sorted(folder.iterdir()):
        if (path / "__init__.py").is_file():
            yield _line(depth, f"{path.name}/", path / "__init__.py")
            yield from _inside(depth + 1, path)
        elif path.suffix == ".py" and path.name != "__init__.py":
            yield _line(depth, path.name, path)


def _line(depth: int, name: str, path: Path) -> str:
    return f"{'  ' * depth + name:<{LEFT}} {first_line(path)}".rstrip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
