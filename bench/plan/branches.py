"""Branches of scheduler, page cache and validators that their tests take; all of them are wanted.

pip install coverage
python bench/plan/branches.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from mutants import GROUPS, ROOT


def main() -> int:
    missing: list[str] = []
    num_branches = taken = 0
    for name, group in GROUPS.items():
        with tempfile.TemporaryDirectory(prefix="cutaway-plan-") as folder:
            # The tests try as often as in the suite: PLAN_TRIALS is of this script.
            usual = {name: v for name, v in os.environ.items() if not name.startswith("PLAN_")}
            environment = {**usual, "COVERAGE_FILE": f"{folder}/data"}
            nodes = [f"tests/{node}" for node in group.tests]
            run = ["-m", "coverage", "run", "--branch", f"--source={','.join(group.modules)}"]
            pytest = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout=0", *nodes]
            subprocess.run([sys.executable, *run, *pytest], cwd=ROOT, env=environment, check=True)
            out = Path(folder) / "report.json"
            report = ["-m", "coverage", "json", "-q", "-o", str(out)]
            subprocess.run([sys.executable, *report], cwd=ROOT, env=environment, check=True)
            files = json.loads(out.read_text())["files"]
        assert len(files) == len(group.modules), f"not all modules of {name} were imported"
        for path, found in files.items():
            num_branches += found["summary"]["num_branches"]
            taken += found["summary"]["covered_branches"]
            missing += [f"{path}: {a} to {b}" for a, b in found["missing_branches"]]
    print(f"{taken} of {num_branches} branches taken", *missing, sep="\n  ")
    if log := os.environ.get("PLAN_LOG"):
        said = {"count": num_branches, "figures": {"branches_not_taken": len(missing)}}
        Path(log).write_text(json.dumps(said) + "\n", encoding="utf-8")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
