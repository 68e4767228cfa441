"""Host code never pulls torch in, and the engine runs without what only its front needs.

The import contracts in pyproject.toml judge the text of the code; these tests import it.
"""

from __future__ import annotations

import subprocess
import sys

from house_tree import PACKAGE, settings, source_files

FRONT = ("pydantic", "pydantic_settings", "fastapi", "uvicorn", "typer", "rich", "platformdirs")


def torch_free_modules() -> list[str]:
    """Every module that the contract names, and all below it."""
    contracts = settings()["tool"]["importlinter"]["contracts"]
    named = next(each["source_modules"] for each in contracts if each["id"] == "torch-free")
    return [m for m in modules() if any(f"{m}.".startswith(f"{each}.") for each in named)]


def engine_modules() -> list[str]:
    """Modules below the front: all but the command line and the server.

    Scripts of peers run in another interpreter, which has the peer; Triton's forms where it is.
    """
    above = ("cutaway.cli.", "cutaway.server.", "cutaway.bench.peers.")
    in_triton = triton_modules()
    below = [module for module in modules() if not f"{module}.".startswith(above)]
    return [module for module in below if module not in in_triton]


def triton_modules() -> set[str]:
    """Those that hold kernels in Triton, whatever their name."""
    forms = zip(modules(), source_files(), strict=True)
    return {module for module, path in forms if "\nimport triton\n" in path.read_text("utf-8")}


def modules() -> list[str]:
    """Every module of the package by its dotted name."""
    parts = [path.relative_to(PACKAGE.parent).with_suffix("").parts for path in source_files()]
    return [".".join(each[:-1] if each[-1] == "__init__" else each) for each in parts]


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r}); {code}"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_there_are_torch_free_modules() -> None:
    assert {"cutaway.core.limits", "cutaway.core.request"} <= set(torch_free_modules())


def test_every_module_named_by_the_contract_exists() -> None:
    contracts = settings()["tool"]["importlinter"]["contracts"]
    named = next(each["source_modules"] for each in contracts if each["id"] == "torch-free")
    assert set(named) <= set(modules())


def test_torch_stays_out_when_host_code_is_imported() -> None:
    # All in one process: where none brings torch, none does alone. The first that does is named.
    code = (
        "import importlib\n"
        f"for module in {torch_free_modules()!r}:\n"
        "    importlib.import_module(module)\n"
        "    assert 'torch' not in sys.modules, module"
    )
    run(f"exec({code!r})")


def test_torch_stays_out_when_the_package_is_imported() -> None:
    assert run("import cutaway; print('torch' in sys.modules)") == "False\n"


def test_torch_stays_out_when_help_is_asked_for() -> None:
    code = (
        "from cutaway.cli.main import main\n"
        "sys.argv = ['cutaway', '--help']\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        "print('torch' in sys.modules)"
    )
    assert run(f"exec({code!r})").endswith("\nFalse\n")


def test_the_engine_imports_where_the_front_is_not_installed() -> None:
    hide = "".join(f"sys.modules[{name!r}] = None; " for name in FRONT)
    imports = "; ".join(f"importlib.import_module({module!r})" for module in engine_modules())
    run(f"import importlib; {hide}{imports}")
