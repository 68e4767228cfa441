"""The reference of docs/python.md, made from signatures and docstrings of the sources.

It reads the text of the modules: nothing of the package runs, and torch is not imported.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

import cutaway

SOURCES = Path(__file__).resolve().parent.parent / "src"

# The order of the page; what of a front is for a server's own use is left out.
ORDER = (
    *(
        "LLM",
        "AsyncLLM",
        "SamplingParams",
        "Grammar",
        "RepetitionDetection",
        "Generation",
        "Choice",
        "Delta",
    ),
    *("TokenLogprob", "Usage", "Timings", "Verdict", "Shown", "CutawayError", "RequestError"),
)
INNER: Mapping[str, frozenset[str]] = {
    "LLM": frozenset({"engine", "request", "requests", "generation"}),
    "AsyncLLM": frozenset({"ask", "look", "listen", "compare", "follow"}),
    "SamplingParams": frozenset({"on", "has_penalties", "is_greedy"}),
}


def reference() -> Iterator[str]:
    """A section for each public name: how it is called, what it says of itself, what it has."""
    assert {*ORDER, "__version__"} == {*cutaway.__all__}, (
        "tools/python_api.py: ORDER has every public name"
    )
    for name in ORDER:
        yield from ("", f"### {name}", "")
        yield from _section(name, _class(name))


def _where() -> Mapping[str, str]:
    """The module of each public name, as cutaway/__init__.py has them."""
    for node in ast.parse((SOURCES / "cutaway/__init__.py").read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_WHERE":
            found: Mapping[str, str] = ast.literal_eval(node.value)
            return found
    raise AssertionError("cutaway/__init__.py has the table _WHERE")


def _class(name: str) -> ast.ClassDef:
    path = SOURCES / Path(*_where()[name].split(".")).with_suffix(".py")
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return node
    raise AssertionError(f"{path} has no class {name}")


def _section(name: str, node: ast.ClassDef) -> Iterator[str]:
    made = next((e for e in _functions(node) if e.name == "__init__"), None)
    if made is not None:
        yield from (f"    {_signature(made, name)}", "")
    yield from _paragraphs(ast.get_docstring(node) or "")
    fields = [e for e in node.body if isinstance(e, ast.AnnAssign) and not _is_private(e.target)]
    if fields:
        yield from ("", "| field | type | default |", "|---|---|---|")
    for each in fields:
        default = "" if each.value is None else _default(each.value)
        kind = ast.unparse(each.annotation).replace("|", "or")
        yield f"| `{ast.unparse(each.target)}` | `{kind}` | {default} |"
    for each in _functions(node):
        if each.name.startswith("_") or each.name in INNER.get(name, ()):
            continue
        is_property = any(ast.unparse(d) == "property" for d in each.decorator_list)
        told = f"{name}.{each.name}" if is_property else _signature(each, f"{name}.{each.name}")
        wait = "await " if isinstance(each, ast.AsyncFunctionDef) else ""
        yield from ("", f"**`{wait}{told}`**", "")
        yield from _paragraphs(ast.get_docstring(each) or "")


def _functions(node: ast.ClassDef) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    yield from (e for e in node.body if isinstance(e, ast.FunctionDef | ast.AsyncFunctionDef))


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef, called: str) -> str:
    """How it is called: names and defaults; types are in the code and in editors."""
    arguments = node.args
    for each in (*arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg):
        if each is not None:
            each.annotation = None
    arguments.args = [each for each in arguments.args if each.arg not in ("self", "cls")]
    return f"{called}({ast.unparse(arguments)})"


def _paragraphs(docstring: str) -> Iterator[str]:
    """A docstring on a page: a definition, as in `level: ...`, begins a line of its own."""
    for line in textwrap.dedent(docstring).strip().splitlines():
        word = line.partition(":")[0]
        is_definition = ":" in line and word.replace(", ", "").replace("_", "").isidentifier()
        if line and not line.startswith(" ") and is_definition:
            yield f"- {line}"
        else:
            yield line


def _default(value: ast.expr) -> str:
    text = ast.unparse(value)
    for kind in ("FloatByModel", "IntByModel"):
        if text.startswith(f"{kind}("):
            return f"the model's, else `{text[len(kind) + 1 : -1]}`"
    if text.startswith("field("):
        (text,) = [ast.unparse(k.value) for k in ast.walk(value) if _is_default(k)] or [""]
    return f"`{'{}' if text == '_NO_BIAS' else text}`" if text else ""


def _is_default(node: ast.AST) -> bool:
    return isinstance(node, ast.keyword) and node.arg == "default"


def _is_private(target: ast.expr) -> bool:
    return ast.unparse(target).startswith("_")
