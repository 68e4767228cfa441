"""How strong tests of validators, page cache and scheduler are: small faults, planted one by one.

    python bench/plan/mutants.py scheduler --seed 1 --count 200

A mutant is a module with one comparison, number, condition, sum or statement changed. It is killed
when one of the tests of its group fails. Tests run in a child forked from a process that has
imported all but the modules under test, so that a mutant takes about a second.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib.util
import io
import json
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# A mutant that never ends counts as killed, as a test that times out: by what it computes, which
# is the same on a busy machine, in times of what all tests take; and by the clock, where it sleeps.
MOST_TIMES, MOST_SECONDS = 3, 900


@dataclass(frozen=True)
class Group:
    """Modules that are changed, and for each the tests that should notice."""

    tests_of: dict[str, tuple[str, ...]]

    @property
    def modules(self) -> tuple[str, ...]:
        """All that are changed."""
        return tuple(self.tests_of)

    @property
    def tests(self) -> tuple[str, ...]:
        """All that should notice something."""
        return tuple(dict.fromkeys(test for tests in self.tests_of.values() for test in tests))


# Quickest first. A file whose tests cannot reach a module is not among its own.
SIMULATED = "engine/test_scheduler_simulation.py::test_120_seeds_keep_every_promise"
PAGED = ("cache/test_cache_paged.py", "cache/test_cache_pins.py")
OF_CACHE = (*PAGED, SIMULATED, "cache/test_cache_machine.py")
OF_SCHEDULER = ("engine/test_scheduler.py", SIMULATED)

GROUPS = {
    "scheduler": Group(
        {
            "cutaway.cache.allocator": ("cache/test_cache_allocator.py", *OF_CACHE),
            "cutaway.cache.hit": ("cache/test_cache_prefix.py", *OF_CACHE),
            "cutaway.cache.paged": OF_CACHE,
            "cutaway.cache.prefix": ("cache/test_cache_prefix.py", *OF_CACHE),
            "cutaway.cache.table": ("cache/test_cache_table.py", *OF_CACHE),
            "cutaway.engine.admission.waiting": ("engine/test_waiting_queue.py", *OF_SCHEDULER),
            "cutaway.engine.scheduler": OF_SCHEDULER,
        }
    ),
    "validators": Group(
        {
            "cutaway.core.limits": (
                "core/test_core_limits.py",
                "server/test_server_limits.py",
                "engine/test_engine_hostile.py",
            ),
            "cutaway.host.gguf_header": ("host/test_host_gguf.py",),
            "cutaway.weights.files.safetensors_header": ("weights/test_weights_safetensors.py",),
        }
    ),
}


class Changes(ast.NodeVisitor):
    """All places of a tree where one small fault can be planted."""

    def __init__(self) -> None:
        self.found: list[tuple[ast.AST, str]] = []

    def generic_visit(self, node: ast.AST) -> None:
        match node:
            case ast.Compare() if type(node.ops[0]) in SWAPS:
                self.found.append((node, "compare"))
            case ast.BinOp() if type(node.op) in SUMS:
                self.found.append((node, "sum"))
            case ast.BoolOp():
                self.found.append((node, "and or"))
            case ast.If() | ast.While() | ast.IfExp():
                self.found.append((node, "condition"))
            case ast.Constant() if type(node.value) is int:
                self.found.append((node, "number"))
            case ast.Constant() if type(node.value) is bool:
                self.found.append((node, "flag"))
            case ast.Expr() if isinstance(node.value, ast.Call):
                self.found.append((node, "call"))
            case ast.AugAssign():
                self.found.append((node, "assignment"))
            case ast.Return() if node.value is not None:
                self.found.append((node, "return"))
            case ast.Assert() | ast.Raise() | ast.keyword(arg="strict"):
                # What an assertion says is a promise to us, and so is that lists are as long as
                # one another; what is raised is in words.
                return
            case _:
                pass
        super().generic_visit(node)


SWAPS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt},
    **{ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is},
    **{ast.In: ast.NotIn, ast.NotIn: ast.In},
}
SUMS: dict[type[ast.operator], type[ast.operator]] = {
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult},
    **{ast.Mod: ast.FloorDiv},
}


def change(node: ast.AST, kind: str) -> ast.AST:
    """Plant the fault; returns what takes the node's place."""
    match kind, node:
        case "compare", ast.Compare():
            node.ops[0] = SWAPS[type(node.ops[0])]()
        case "sum", ast.BinOp():
            node.op = SUMS[type(node.op)]()
        case "and or", ast.BoolOp():
            node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        case "condition", ast.If() | ast.While() | ast.IfExp():
            node.test = ast.UnaryOp(ast.Not(), node.test)
        case "number", ast.Constant():
            node.value = int(node.value) + 1  # type: ignore[arg-type]
        case "flag", ast.Constant():
            node.value = not node.value
        case "return", ast.Return():
            node.value = ast.Constant(None)
        case _:
            return ast.copy_location(ast.Pass(), node)
    return node


class Place(ast.NodeTransformer):
    """Puts the changed node in the old one's place."""

    def __init__(self, old: ast.AST, kind: str) -> None:
        self.old, self.kind = old, kind

    def visit(self, node: ast.AST) -> ast.AST:
        return change(node, self.kind) if node is self.old else super().visit(node)


def path_of(module: str) -> Path:
    return ROOT / "src" / (module.replace(".", "/") + ".py")


def places(modules: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    """Every module and number of a place in it that can be changed."""
    for module in modules:
        yield from ((module, index) for index in range(len(changes_of(module)[1])))


def changes_of(module: str) -> tuple[ast.Module, list[tuple[ast.AST, str]]]:
    tree = ast.parse(path_of(module).read_text(encoding="utf-8"))
    for node in ast.walk(tree):  # words and types are not what is tested
        if isinstance(node, ast.AnnAssign) and node.value is None:
            node.annotation = ast.Constant(None)
    finder = Changes()
    finder.visit(tree)
    return tree, finder.found


def mutant(module: str, index: int) -> tuple[ast.Module, str]:
    """The changed tree, and what was changed in words."""
    tree, found = changes_of(module)
    node, kind = found[index]
    before = ast.unparse(copy.deepcopy(node)).splitlines()[0]
    made = ast.fix_missing_locations(Place(node, kind).visit(tree))
    return made, f"{module}:{getattr(node, 'lineno', 0)} {kind}: {before:.90}"


class Planted:
    """Loads one module from a changed tree."""

    def __init__(self, module: str, tree: ast.Module) -> None:
        self.module, self.tree = module, tree

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        if name != self.module:
            return None
        return importlib.util.spec_from_loader(name, self, origin=str(path_of(name)))

    def create_module(self, spec: object) -> None:
        return None

    def exec_module(self, module: object) -> None:
        exec(compile(self.tree, str(path_of(self.module)), "exec"), module.__dict__)


def survives(group: Group, module: str, index: int, *, seconds: int) -> tuple[bool, str]:
    """Whether all tests pass with that fault, in a child of this process.

    seconds: of computing, after which it is killed.
    """
    tree, words = mutant(module, index)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setpgrp()  # what it started ends with it; a session of its own would not be as nice
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
            sys.meta_path.insert(0, Planted(module, tree))
            status = run_tests(group.tests_of[module])
        finally:
            os._exit(status)
    began = time.monotonic()
    while time.monotonic() - began < MOST_SECONDS:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status == 0, words
        time.sleep(0.01)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False, words


def run_tests(tests: tuple[str, ...]) -> int:
    """Exit status of pytest over these."""
    import pytest

    words = ["-x", "-q", "-p", "no:cacheprovider", "--timeout=0"]
    words += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        words += ["-m", "not slow", *(f"tests/{test}" for test in tests)]
        return int(pytest.main(words, plugins=[Unshrunk()]))


class Unshrunk:
    """Lets hypothesis make nothing smaller that fails: that takes minutes, and nobody reads it."""

    def pytest_configure(self) -> None:
        """Once the suite's own settings are there, before its tests are read."""
        from hypothesis import Phase, settings

        phases = tuple(set(Phase) - {Phase.shrink, Phase.explain})
        settings.register_profile("mutants", settings.default, phases=phases)
        settings.load_profile("mutants")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("group", choices=GROUPS)
    parser.add_argument("--count", type=int, default=int(os.environ.get("PLAN_TRIALS", 20)))
    parser.add_argument("--seed", type=int, default=int(os.environ.get("PLAN_SEED", 1)))
    args = parser.parse_args()
    os.chdir(ROOT)
    log = os.environ.get("PLAN_LOG")
    # The tests try as often as in the suite: PLAN_TRIALS is of this script.
    for name in [name for name in os.environ if name.startswith("PLAN_")]:
        del os.environ[name]
    group = GROUPS[args.group]
    drawn = list(places(group.modules))
    random.Random(0).shuffle(drawn)  # each seed takes the next ones of one order
    mine = drawn[(args.seed - 1) * args.count : args.seed * args.count]
    import hypothesis.stateful  # noqa: F401  # ahead of the fork
    import pytest  # noqa: F401

    before = set(sys.modules)
    child = os.fork()
    if child == 0:
        os._exit(run_tests(group.tests))
    _, status, used = os.wait4(child, 0)
    assert status == 0, "the tests fail without any fault"
    seconds = 10 + int(MOST_TIMES * (used.ru_utime + used.ru_stime))
    assert not set(group.modules) & before, "a module under test was imported ahead"
    alive: list[str] = []
    for module, index in mine:
        lives, words = survives(group, module, index, seconds=seconds)
        if lives:
            alive.append(words)
            print("survived:", words, flush=True)
    killed = len(mine) - len(alive)
    print(f"{args.group}: {killed} of {len(mine)} killed, of {len(drawn)} that there are")
    if log:
        share = round(100 * len(alive) / max(1, len(mine)), 1)
        said = {"count": len(mine), "figures": {"total_survived": len(alive), "of_100": share}}
        Path(log).write_text(json.dumps(said) + "\n", encoding="utf-8")
    return 0 if len(alive) <= 0.1 * len(mine) else 1


if __name__ == "__main__":
    sys.exit(main())
