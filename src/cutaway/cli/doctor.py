"""`cutaway doctor`: what this machine and installation are, and what is known to go wrong there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

from cutaway.cli import environment
from cutaway.cli.settings.integer_text import show_bytes
from cutaway.cli.settings.options import AsJson
from cutaway.cli.terminal import exits
from cutaway.cli.terminal.terminal import note, print_data, print_json

ReportSection = environment.ReportSection

# SmolLM2 in float32 takes 0.5 GiB, torch itself about as much.
_LEAST_MEMORY = 2**30
_MISSED = ("chat", "grammar")  # extras of which most people miss what they bring


@dataclass(frozen=True)
class Problem:
    """Something that is known to go wrong. stops: whether nothing runs until it is mended."""

    problem: str
    hint: str
    stops: bool = False


def doctor(*, json: AsJson = False) -> int:
    """Report on this machine and installation; exit code 1 if something stops Cutaway.

    The report holds no prompt and no secret, so it can go into a bug report as it is.
    """
    report = gather()
    problems = find_problems(report)
    if json:
        print_json({**report, "problems": [asdict(problem) for problem in problems]})
    else:
        print_data("\n".join(_lines(report)))
        for problem in problems:
            note(f"{'error' if problem.stops else 'warning'}: {problem.problem}")
            note(f"hint: {problem.hint}")
        if not problems:
            note("No known problem.")
    return exits.FAULT if any(problem.stops for problem in problems) else exits.OK


def gather() -> dict[str, ReportSection]:
    """Everything that is looked at, by section."""
    try:
        torch: ReportSection = environment.torch_report()
    except Exception as error:  # a broken installation raises whatever it likes
        torch = {"error": f"{type(error).__name__}: {error}"}
    return {
        "versions": environment.versions(),
        "extras": environment.extras(),
        "system": environment.system(),
        "memory": environment.memory(),
        "torch": torch,
        "models": _models(),
        "environment": environment.variables(),
    }


def find_problems(report: Mapping[str, ReportSection]) -> list[Problem]:
    """What is known to go wrong with such a machine."""
    torch, models = report["torch"], report["models"]
    problems: list[Problem] = []
    if "error" in torch:
        hint = "install torch anew; docs/development.md tells how to get the build for the CPU."
        problems.append(Problem(f"torch cannot be imported: {torch['error']}", hint, stops=True))
    elif torch["cuda_build"] and not torch["gpus"]:
        problems.append(
            Problem(
                "torch was built for CUDA and sees no GPU, so the CPU is used.",
                "check the driver with nvidia-smi; without a GPU the CPU build takes less disk.",
            )
        )
    threads, cores = torch.get("threads"), report["system"]["usable_cores"]
    if isinstance(threads, int) and isinstance(cores, int | float) and threads > max(1, cores):
        problems.append(
            Problem(
                f"torch uses {threads} threads on {cores:g} usable cores, which slows it down.",
                f"set OMP_NUM_THREADS={max(1, int(cores))}.",
            )
        )
    problems += _room_problems(report["memory"], models)
    for name in _MISSED:
        if report["extras"][name] is None:
            package, what = environment.EXTRAS[name]
            hint = f"pip install 'cutaway[{name}]' adds {what}."
            problems.append(Problem(f"{package} is not installed.", hint))
    return problems


def _room_problems(memory: ReportSection, models: ReportSection) -> list[Problem]:
    problems: list[Problem] = []
    rooms = [memory["available_bytes"], memory["limit_bytes"]]
    room = min((each for each in rooms if isinstance(each, int)), default=None)
    if room is not None and room < _LEAST_MEMORY:
        hint = "end other programs, or raise the container's limit; SmolLM2 needs about 1 GiB."
        problems.append(Problem(f"only {show_bytes(room)} of memory are free.", hint))
    if not models["is_writable"]:
        hint = "set CUTAWAY_CACHE to a folder that can be written."
        problems.append(Problem(f"models cannot be kept in {models['cache']}.", hint))
    return problems


def _models() -> ReportSection:
    """The cache of models: where it is, what is in it, how much room it has."""
    from cutaway.weights.find.package import cache_folder
    from cutaway.weights.find.store import list_models

    folder = cache_folder()
    existing = next((each for each in (folder, *folder.parents) if each.exists()), Path.cwd())
    return {
        "cache": str(folder),
        "is_writable": os.access(existing, os.W_OK),
        "free_bytes": shutil.disk_usage(existing).free,
        "here": [f"{each.name} ({each.licence})" for each in list_models() if each.is_cached],
    }


def _lines(report: Mapping[str, ReportSection]) -> list[str]:
    lines: list[str] = []
    for section, entries in report.items():
        lines.append(section)
        lines += [f"  {name:<18} {_shown(name, value)}" for name, value in entries.items()]
    return lines


def _shown(name: str, value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and name.endswith("_bytes"):
        return show_bytes(value)
    if isinstance(value, list):
        items = cast("Sequence[object]", value)
        return " ".join(_shown(name, item) for item in items) or "none"
    if isinstance(value, dict):
        fields = cast("dict[str, object]", value)
        return ", ".join(f"{key} {_shown(key, item)}" for key, item in fields.items())
    return str(value) or "empty"
