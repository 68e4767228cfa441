"""Agents and libraries do whole tasks of several turns; docs/clients.md has what was seen.

The quickest six are driven in CI too: test_server_quick_clients.py.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fetch_oracles import oracles_folder

RUN = Path(__file__).parents[2] / "bench" / "clients" / "run.py"
CLIENTS = (
    *("codex", "claude-code", "opencode", "continue", "aider"),
    *("openai-agents", "openai-agents-node", "pydantic-ai", "langchain", "llama-index", "litellm"),
    "open-webui",
)

pytestmark = [pytest.mark.slow, pytest.mark.network]


@pytest.mark.parametrize("name", CLIENTS)
def test_n26_n27_n32_a_client_does_a_whole_task(name: str) -> None:
    folder = oracles_folder() / "clients"
    done = subprocess.run(
        [sys.executable, str(RUN), name, "--folder", str(folder)],
        capture_output=True,
        text=True,
        timeout=900,  # Open WebUI is 2.4 GB to fetch
        check=False,
    )
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-1500:]
