"""Checks that what the pages name is there: links, code paths, commands; and that none is lost.

Reads every Markdown page of the tree. It does not know whether a sentence is true.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "cutaway"

FENCE = re.compile(r"^```[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"^ {4}(.+)$", re.MULTILINE)
INLINE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)
# `engine/engine.py`, `cache/{page,table}.py`, `blocks/`: what is claimed to exist. A name after a
# colon, as in `core/limits.py:LIMITS`, must stand in the file.
PATH = re.compile(
    r"([\w.{},*-]+(?:/[\w.{},*-]+)*(?:/|/[\w.{},*-]+\.(?:py|md|cpp|h|toml|ts|sh)))(?::(\w+))?"
)
BRACES = re.compile(r"\{([^}]*)\}")
# A program's name stands first on a line, after a pipe or the like, or after a variable's value.
FIRST = r"(?:^|[|;&$] *|=\S* )"
MAKE = re.compile(FIRST + r"make ([a-z]+)", re.MULTILINE)
COMMAND = re.compile(FIRST + r"cutaway ((?:[a-z]|--)[^\n|;&#>]*)", re.MULTILINE)


def main() -> int:
    """Print every fault; returns the exit status."""
    faults = [*(fault for page in pages() for fault in faults_of(page)), *lost_pages()]
    for fault in faults:
        print(fault)
    return int(bool(faults))


def pages() -> list[Path]:
    """Every Markdown page that belongs to the tree."""
    folders = (ROOT / name for name in ("docs", "bench", "native", "examples"))
    return sorted([*ROOT.glob("*.md"), *(page for each in folders for page in each.rglob("*.md"))])


def lost_pages() -> Iterator[str]:
    """Pages of docs/ that its index does not list."""
    index = ROOT / "docs" / "README.md"
    listed = {(index.parent / link).resolve() for link in LINK.findall(index.read_text("utf-8"))}
    for page in sorted(index.parent.glob("*.md")):
        if page not in listed and page != index:
            yield f"docs/README.md: {page.name} is not listed"


def faults_of(page: Path) -> Iterator[str]:
    """One line per thing that the page names and the tree lacks."""
    text = page.read_text(encoding="utf-8")
    name = page.relative_to(ROOT) if page.is_relative_to(ROOT) else page
    prose = FENCE.sub("", text)
    fenced = FENCE.findall(text)
    quoted = INLINE.findall(prose)
    for target in LINK.findall(prose):
        if not _link_leads_somewhere(page, target):
            yield f"{name}: the link {target} leads nowhere"
    for code in quoted:
        found = PATH.fullmatch(code)
        if found and not _path_exists(page, found[1], found[2]):
            yield f"{name}: `{code}` is not in the tree"
    for code in [*quoted, *fenced, *INDENTED.findall(prose)]:
        for target in MAKE.findall(code):
            if target not in make_targets():
                yield f"{name}: the Makefile has no target {target}"
        for arguments in COMMAND.findall(code):
            yield from (f"{name}: {fault}" for fault in command_faults(arguments.split()))


@cache
def make_targets() -> frozenset[str]:
    """Targets of the Makefile that a person can ask for."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return frozenset(re.findall(r"^([a-z]+):", text, re.MULTILINE))


def command_faults(words: list[str]) -> Iterator[str]:
    """What of `cutaway WORDS` the program does not know: a command, or a long option of it."""
    command, path = program(), "cutaway"
    for word in words:
        known = getattr(command, "commands", None)
        if word.startswith("--"):
            option = word.partition("=")[0]
            known_options = {o for p in command.params for o in (*p.opts, *p.secondary_opts)}
            if option not in {*known_options, "--help"}:
                yield f"`{path}` has no option {option}"
        elif known is not None and word not in known:
            yield f"there is no command `{path} {word}`"
            return
        elif known is not None:
            command, path = known[word], f"{path} {word}"


@cache
def program() -> Any:
    """The command line as an object: groups hold commands, commands hold params."""
    import typer

    from cutaway.cli.commands import application

    return typer.main.get_command(application())


def _link_leads_somewhere(page: Path, target: str) -> bool:
    if re.match(r"[a-z]+:", target):
        return True  # another site; whether it answers is not known here
    path, _, anchor = target.partition("#")
    file = page.parent / path if path else page
    if not file.exists():
        return False
    return not anchor or anchor in _anchors(file.read_text(encoding="utf-8"))


def _anchors(text: str) -> set[str]:
    """Headings as they are written after # in a link: lower case, dashes, no punctuation."""
    headings = HEADING.findall(FENCE.sub("", text))
    return {re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in headings}


def _path_exists(page: Path, path: str, member: str | None) -> bool:
    if path.split("/")[0] in _ignored():
        return True  # made on the user's machine, not part of the tree
    return all(_one_exists(page, each, member) for each in _expanded(path))


def _one_exists(page: Path, path: str, member: str | None) -> bool:
    bases = (ROOT, PACKAGE, page.parent)
    found = [file for base in bases for file in base.glob(path)]
    if member is None:
        return bool(found)
    return any(re.search(rf"\b{member}\b", file.read_text(encoding="utf-8")) for file in found)


@cache
def _ignored() -> frozenset[str]:
    lines = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    return frozenset(line.strip("/") for line in lines)


def _expanded(path: str) -> list[str]:
    """`a/{b,c}.py` as `a/b.py` and `a/c.py`."""
    parts = BRACES.split(path)
    choices = [part.split(",") if odd % 2 else [part] for odd, part in enumerate(parts)]
    return ["".join(choice) for choice in product(*choices)]


if __name__ == "__main__":
    sys.exit(main())
