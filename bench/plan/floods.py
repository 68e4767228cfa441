"""Runs bench/fairness.py and judges what it prints: floods of one key, and what times give away.

python bench/plan/floods.py flood      another key's first token at most twice its time alone
python bench/plan/floods.py timing     hits and misses of another's prefix cannot be told apart
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STEP_MS = 50.0  # the longest step that is promised
ROW = re.compile(
    r"^\| [\w, ]+ \| \d+ \| ([\d.]+) \| ([\d.]+) \| [\d.]+ \| [\d.]+ "
    r"\| ([\d,]+) ([\d,]+) \| (\d+)"
)
TIMING = re.compile(r"AUC ([\d.]+) across keys, ([\d.]+) for one's own")


def run(*words: str) -> str:
    """What bench/fairness.py prints."""
    command = [sys.executable, str(ROOT / "bench" / "fairness.py"), *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    print(done.stdout, done.stderr[-3000:], sep="")
    done.check_returncode()
    return done.stdout


def floods() -> tuple[int, dict[str, float], list[str]]:
    """Questions asked beside floods, the largest ratio, and what was not kept."""
    questions, faults, most, count = 15, list[str](), 0.0, 0
    for line in run("--probes", "5", "--questions", str(questions)).splitlines():
        if not (found := ROW.match(line)):
            continue
        alone, beside, *cached, refused = found.groups()
        count += questions
        most = max(most, float(beside) / float(alone))
        is_slow = float(beside) > 2 * float(alone) + STEP_MS
        if is_slow or int(refused) or cached[0] != cached[1]:
            faults.append(line)
    return count, {"first_token_times_alone": round(most, 2)}, faults


def timing() -> tuple[int, dict[str, float], list[str]]:
    """Probes, how well times tell hits from misses, and what that gives away."""
    num = int(os.environ.get("PLAN_TRIALS", 200)) // 2
    said = run("--flood", "400 at once", "--words", "20", "--questions", "1", "--probes", str(num))
    found = TIMING.search(said)
    assert found, "it tells of no probes"
    across, own = float(found[1]), float(found[2])
    figures = {"auc_across_keys": across, "auc_of_ones_own": own}
    is_kept = abs(across - 0.5) <= 0.05 and own >= 0.95
    return 2 * num, figures, [] if is_kept else [found[0]]


def main() -> int:
    count, figures, faults = floods() if sys.argv[1:] == ["flood"] else timing()
    print(f"{count} questions", figures, *faults, sep="\n")
    if log := os.environ.get("PLAN_LOG"):
        said = {"count": count, "figures": figures}
        Path(log).write_text(json.dumps(said) + "\n", encoding="utf-8")
    return 1 if faults or not count else 0


if __name__ == "__main__":
    sys.exit(main())
