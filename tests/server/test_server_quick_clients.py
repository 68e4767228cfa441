"""The quickest six clients do a whole task in CI too; the others: test_server_agents.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fetch_oracles import oracles_folder

RUN = Path(__file__).parents[2] / "bench" / "clients" / "run.py"
QUICK = ("openai", "anthropic", "openai-node", "anthropic-node", "vercel-ai", "llm")

pytestmark = pytest.mark.slow  # an installation each, kept in the user's cache


@pytest.mark.parametrize("name", QUICK)
def test_n26_n32_a_quick_client_does_a_whole_task(name: str) -> None:
    """Skipped, with the registry's words, where it cannot be had; in CI it must be had."""
    done = subprocess.run(
        [sys.executable, str(RUN), name, "--folder", str(oracles_folder() / "clients")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout, done.stderr[-1500:]
    row = json.loads(done.stdout)
    if row["result"].startswith("not installed") and not os.environ.get("CUTAWAY_REQUIRE_ORACLES"):
        pytest.skip(row["result"])
    assert row["result"] == "the whole task", row
