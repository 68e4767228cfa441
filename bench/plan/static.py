"""Static checks with tools that are no part of Cutaway's own, and a list of what it stands on.

    pip install bandit pip-audit cyclonedx-bom
    python bench/plan/static.py

Each finding of bandit must be one whose reason is written below; pip-audit needs an advisory
service and says where it had none; the list of parts (CycloneDX) must name every dependency that is
declared.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# bandit's test and why it does not apply; each is looked at in all files.
REASONS = {
    "B101": "assertions say what we promise ourselves; what comes from outside raises, and hostile"
    " parts of the suite pass under python -O",
    "B110": "an error that is passed over is named in the line above it",
    "B311": "random numbers of benchmarks and of models without weights; secrets come from os",
    "B404": "processes of our own are started with lists of words",
    "B603": "the same",
    "B607": "git, uv and compilers are found by the user's PATH on purpose",
    "B105": "names of special tokens and of fields are taken for passwords",
    "B106": "the same",
    "B107": "the same",
    "B615": "a model's revision is the user's choice; its files are data and none is executed",
}


def bandit() -> tuple[int, list[str]]:
    """Findings that are explained, and those that are not."""
    command = [sys.executable, "-m", "bandit", "-q", "-r", "src", "-f", "json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)["results"]
    open_ones = [
        f"{each['filename']}:{each['line_number']} {each['test_id']} {each['issue_text']}"
        for each in found
        if each["test_id"] not in REASONS
    ]
    print("bandit:", dict(Counter(each["test_id"] for each in found)))
    return len(found) - len(open_ones), open_ones


def advisories() -> list[str] | None:
    """What is known against the versions of constraints.txt; None where nobody could be asked."""
    command = [
        sys.executable,
        "-m",
        "pip_audit",
        "-r",
        "constraints.txt",
        "--no-deps",
        "-f",
        "json",
    ]
    command += ["--disable-pip", "--progress-spinner", "off", "--timeout", "20"]
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
        )
        parts = json.loads(done.stdout)["dependencies"]
    except (subprocess.TimeoutExpired, ValueError, KeyError):
        return None
    if all("skip_reason" in part for part in parts):
        return None
    return [f"{part['name']} {each['id']}" for part in parts for each in part.get("vulns", ())]


def parts() -> tuple[int, list[str]]:
    """Components of a CycloneDX list of this environment, and declared ones that it lacks."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "bom.json"
        command = [
            sys.executable,
            "-m",
            "cyclonedx_py",
            "environment",
            "--of",
            "JSON",
            "-o",
            str(out),
        ]
        subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        names = {
            part["name"].lower().replace("_", "-")
            for part in json.loads(out.read_text())["components"]
        }
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    wanted = {text.split(">")[0].split("=")[0].split("[")[0].strip().lower() for text in declared}
    return len(names), sorted(wanted - names)


def main() -> int:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    explained, found = bandit()
    known = advisories()
    num_parts, missing = parts()
    print(f"bandit: {explained} findings with a reason, {len(found)} without", *found, sep="\n  ")
    print(
        "pip-audit:", "no advisory service could be reached" if known is None else known or "none"
    )
    print(f"CycloneDX: {num_parts} parts, missing {missing}")
    if log := os.environ.get("PLAN_LOG"):
        asked = 0 if known is None else 1
        figures = {"parts_listed": num_parts, "advisory_service_asked": asked}
        said = {"count": max(1, explained), "figures": figures}
        Path(log).write_text(json.dumps(said) + "\n", encoding="utf-8")
    return 1 if found or known or missing else 0


if __name__ == "__main__":
    sys.exit(main())
