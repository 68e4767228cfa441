"""Tours with the official clients, each in an environment of its own, against real servers."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from live_server import live
from scripted import THINKING_TEMPLATE, ScriptedService
from server_app import make_folder
from test_server_program import KEY, served
from test_server_tools import CALL

from cutaway.server.entry.auth import Keys
from fetch_oracles import oracles_folder
from oracles import smollm2_gguf

pytestmark = [pytest.mark.oracle, pytest.mark.slow, pytest.mark.network]

# The major versions that the tours are written for.
CLIENTS = {"openai": "openai>=3,<4", "anthropic": "anthropic>=2,<3"}


def client_python(name: str) -> str:
    """The Python of an environment with that client; it is made once and kept."""
    folder = oracles_folder() / "clients" / name
    python, is_made = folder / "bin" / "python", folder / "made"
    if not is_made.exists():
        for step in (
            [sys.executable, "-m", "venv", "--clear", str(folder)],
            [str(python), "-m", "pip", "install", "--quiet", CLIENTS[name]],
        ):
            subprocess.run(step, check=True, timeout=300)
        is_made.touch()
    return str(python)


def toured(name: str, *arguments: str) -> list[str]:
    """The lines that a tour printed; it must come to its end."""
    script = Path(__file__).parent / f"tour_{name}.py"
    done = subprocess.run(
        [client_python(name), str(script), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("name", CLIENTS)
def test_a_tour_of_smollm2(name: str, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"alice {KEY}\n", encoding="utf-8")
    model, settings = str(smollm2_gguf()), ("--api-key-file", str(file))
    with served(model, *settings, dtype="auto") as (_, url, _):
        assert toured(name, url, "tiny", KEY)[-1] == "all as expected"


@pytest.mark.parametrize("name", CLIENTS)
def test_h14_a_tour_of_a_model_that_calls_tools(name: str, tmp_path: Path) -> None:
    async def ask() -> list[str]:
        folder = make_folder(tmp_path / "scripted", template=THINKING_TEMPLATE)
        service = ScriptedService(f"<think>Rain?</think>Let me look.\n{CALL}")
        async with live(folder, service=service, keys=Keys([("alice", KEY)])) as server:
            url = f"http://127.0.0.1:{server.port}"
            return await asyncio.to_thread(toured, name, url, "tiny", KEY, "calls")

    assert asyncio.run(ask())[-1] == "all as expected"


def test_a_tour_of_answers_that_are_kept(tmp_path: Path) -> None:
    settings = ("--store", str(tmp_path / "answers.db"))
    with served(str(smollm2_gguf()), *settings, dtype="auto") as (_, url, _):
        assert toured("openai", url, "tiny", "none", "kept")[-1] == "all as expected"
