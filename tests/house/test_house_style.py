"""Rules of style that no linter knows: first lines, comments, words, names, portable imports."""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from house_tree import PACKAGE, ROOT, python_files, source_files

BANNED_WORDS = re.compile(r"\b(simply|just|please|oops)\b", re.IGNORECASE)
BANNED_NAMES = {"utils", "util", "helpers", "helper", "common", "manager", "base", "misc"}
POSIX_ONLY = {
    *("fcntl", "grp", "posix", "pty", "pwd", "readline"),
    *("resource", "syslog", "termios", "tty", "curses"),
}


def names(paths: list[Path]) -> list[str]:
    return [path.relative_to(ROOT).as_posix() for path in paths]


def test_the_rules_have_something_to_judge() -> None:
    assert len(source_files()) > 10
    assert Path(__file__) in python_files()


def test_every_module_says_in_its_first_line_what_it_gives() -> None:
    silent: list[Path] = []
    for path in source_files():
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        if not docstring or not docstring.splitlines()[0].endswith("."):
            silent.append(path)
    assert not names(silent), "a docstring's first line is a whole sentence"


def test_every_public_function_says_what_it_gives() -> None:
    silent = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in source_files()
        for name, docstring in public_functions(path.read_text(encoding="utf-8"))
        if not docstring.partition("\n")[0].endswith(".")
    ]
    assert not silent, "a docstring's first line is a whole sentence on what one gets"


def test_public_functions_are_told_from_those_that_are_not() -> None:
    source = (
        'def seen():\n    """One."""\n    def nested(): ...\n'
        "def _hidden(): ...\n"
        "class Seen:\n    async def method(self): ...\n    def __call__(self): ...\n"
        "class _Hidden:\n    def method(self): ...\n"
        "if True:\n    def filled(): ...\n"
        'filled.__doc__ = f"""Two.\n\n{1}"""\n'
    )
    found = {"seen": "One.", "Seen.method": "", "filled": "Two.\n\n"}
    assert dict(public_functions(source)) == found


def test_comments_are_ascii() -> None:
    foreign: list[str] = []
    for path in python_files():
        with path.open("rb") as file:
            for token in tokenize.tokenize(file.readline):
                if token.type == tokenize.COMMENT and not token.string.isascii():
                    foreign.append(f"{path.relative_to(ROOT)}:{token.start[0]}")
    assert not foreign


def test_messages_avoid_words_that_blame_or_belittle() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in source_files()
        for line, text in messages(path.read_text(encoding="utf-8"))
        if BANNED_WORDS.search(text)
    ]
    assert not found


def test_messages_are_seen_when_they_are_parts_of_a_raise_or_an_assertion() -> None:
    source = 'raise ValueError(f"{x} is odd; " "just try")\nassert x, f"oops {x}"\ny = "please"\n'
    texts = [text for _, text in messages(source)]
    assert [word for text in texts for word in BANNED_WORDS.findall(text)] == ["just", "oops"]


def test_no_module_is_a_drawer_for_odds_and_ends() -> None:
    drawers = [
        path
        for path in PACKAGE.rglob("*")
        if (path.is_dir() or path.suffix == ".py") and BANNED_NAMES & set(path.stem.split("_"))
    ]
    assert not names(drawers), "name it after what it gives"


def test_no_module_needs_posix_to_be_imported() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in source_files()
        for name in imports_at_the_top(path.read_text(encoding="utf-8"))
        if name in POSIX_ONLY
    ]
    assert not found, "import it inside the function that needs it, after asking for the platform"


def test_names_of_any_length_are_compared_in_one_place() -> None:
    found = [
        str(path.relative_to(PACKAGE))
        for path in source_files()
        if "difflib" in path.read_text(encoding="utf-8")
    ]
    assert found == ["core/limits.py"], "limits.similar compares no more than a name's beginning"


def test_nothing_that_a_file_holds_can_run() -> None:
    runs = re.compile(
        r"^\s*(?:import|from) (?:pickle|marshal|shelve)\b|torch\.load\(|(?<![.\w])(?:eval|exec)\("
    )
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in source_files()
        for line in path.read_text(encoding="utf-8").splitlines()
        if runs.search(line)
    ]
    assert not found, "weights are GGUF or safetensors, state is JSON"
    assert runs.search("    import pickle") and runs.search("eval(x)")
    assert not runs.search("model.eval()")


def test_imports_at_the_top_are_told_from_those_in_functions() -> None:
    source = "import fcntl\nfrom pty import spawn\ndef f():\n    import pwd\n"
    assert list(imports_at_the_top(source)) == ["fcntl", "pty"]


def test_test_files_have_names_of_their_own() -> None:
    tests = [path for path in python_files() if path.is_relative_to(ROOT / "tests")]
    stems = [path.stem for path in tests if path.stem != "conftest"]
    assert sorted(stems) == sorted(set(stems)), "tests have no packages: two equal names collide"


def messages(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of every string constant inside a raise, or said by an assertion."""
    for node in ast.walk(ast.parse(source)):
        said = node.exc if isinstance(node, ast.Raise) else None
        if isinstance(node, ast.Assert):
            said = node.msg
        for part in ast.walk(said) if said else ():
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                yield part.lineno, part.value


def public_functions(source: str) -> Iterator[tuple[str, str]]:
    """Name and docstring of public functions of a module, and of methods of its public classes."""
    module = ast.parse(source)
    assigned = dict(assigned_docstrings(module))

    def walk(body: list[ast.stmt], owner: str) -> Iterator[tuple[str, str]]:
        for node in body:
            if isinstance(node, ast.If | ast.Try):
                yield from walk([*node.body, *node.orelse], owner)
            is_named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            if not is_named or node.name.startswith("_"):
                continue
            name = owner + node.name
            if isinstance(node, ast.ClassDef):
                yield from walk(node.body, f"{name}.")
            else:
                yield name, ast.get_docstring(node) or assigned.get(name, "")

    return walk(module.body, "")


def assigned_docstrings(module: ast.Module) -> Iterator[tuple[str, str]]:
    """Function and text of each name.__doc__ = ..., as a docstring with computed parts is set."""
    for node in module.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).endswith(".__doc__"):
            texts = [part.value for part in ast.walk(node.value) if isinstance(part, ast.Constant)]
            yield ast.unparse(node.targets[0]).removesuffix(".__doc__"), str(texts[0])


def imports_at_the_top(source: str) -> Iterator[str]:
    """Top package of every import that runs whenever the module is imported."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.split(".")[0]
