"""Whole tasks of several turns with tools, by clients that people run, against a scripted model.

python bench/clients/run.py [CLIENT ...] [--folder FOLDER] [--json FILE] [--printed FILE.md]

Each client is installed from its registry into FOLDER (cutaway/clients in the cache of the user),
in an environment of its own, and driven without anybody at the keyboard; the server is
bench/clients/scripted_server.py. A line per client: its version, what came of it, and seconds.
--printed keeps what each printed, and what the server said to it, turn by turn.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

HERE = Path(__file__).parent
REPORT = '{"city": "Oslo", "degrees": 21}'
WEATHER = [
    {"call": "temperature", "arguments": {"city": "Oslo"}},
    {"call": "rounded", "arguments": {"value": 21.4}},
    {"say": REPORT},
]
WRITE, READ, END = "echo seen > hello.txt", "cat hello.txt", "The file says seen."
MOST_PRINTED = 3000  # characters of one client
TASK = "Write a file hello.txt with the word seen, read it, and tell what it says."


def shell(name: str, argument: str, **more: object) -> list[dict[str, object]]:
    """A plan of two commands for a tool that runs them, and the words at the end."""
    return [
        {"call": name, "arguments": {argument: WRITE, **more}},
        {"call": name, "arguments": {argument: READ, **more}},
        {"say": END},
    ]


@dataclass(frozen=True)
class Client:
    """A client, how it is had, and one task.

    kind: npm, pypi, or uv: of PyPI too, where pip looks for versions that agree for many minutes.
    packages: the client itself, then what it is driven with.
    command: {url}, {bin} and {here} stand for the server, its programs and this folder.
    files: written before, under the home of the run; env: beside a bare environment.
    made: a file that the task leaves, with the word seen in it.
    """

    kind: str
    packages: Sequence[str]
    plan: Sequence[Mapping[str, object]]
    command: Sequence[str]
    files: Mapping[str, str]
    env: Mapping[str, str]
    end: str = "done"
    made: str | None = None


def python(script: str, *packages: str) -> Client:
    """A client that is a library for Python, driven by a script beside this one."""
    return Client(
        "pypi", packages, WEATHER, ("{bin}/python", f"{{here}}/{script}", "{url}"), {}, {}
    )


def node(script: str, *packages: str) -> Client:
    """A client that is a library for Node."""
    return Client("npm", packages, WEATHER, ("node", script, "{url}"), {}, {})


CODEX = """model = "planned"
model_provider = "cutaway"
approval_policy = "never"
sandbox_mode = "danger-full-access"
[model_providers.cutaway]
name = "Cutaway"
base_url = "{url}/v1"
wire_api = "responses"
"""
OPENCODE = json.dumps(
    {
        "provider": {
            "cutaway": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "Cutaway",
                "options": {"baseURL": "{url}/v1", "apiKey": "none"},
                "models": {"planned": {"name": "planned"}},
            }
        },
        "model": "cutaway/planned",
        "autoupdate": False,
        "share": "disabled",
    }
)

CONTINUE = """name: Cutaway
version: 1.0.0
schema: v1
models:
  - name: planned
    provider: openai
    model: planned
    apiBase: {url}/v1
    apiKey: none
    roles: [chat]
    capabilities: [tool_use]
"""
LLM = """- model_id: cutaway
  model_name: planned
  api_base: {url}/v1
  supports_tools: true
"""
LLM_TOOLS = """def temperature(city: str) -> str:
    "The temperature of a city."
    return f"{city}: 21"

def rounded(value: float) -> str:
    "A number without its fraction."
    return str(round(value))
"""

CLIENTS: Mapping[str, Client] = {
    "codex": Client(
        "npm",
        ("@openai/codex",),
        shell("exec_command", "cmd"),
        ("{bin}/codex", "exec", "--skip-git-repo-check", TASK),
        {".codex/config.toml": CODEX},
        {},
        END,
        "hello.txt",
    ),
    "claude-code": Client(
        "npm",
        ("@anthropic-ai/claude-code",),
        shell("Bash", "command", description="A step"),
        ("{bin}/claude", "-p", TASK, "--model", "planned", "--allowedTools", "Bash"),
        {},
        {
            "ANTHROPIC_BASE_URL": "{url}",
            "ANTHROPIC_AUTH_TOKEN": "none",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
        },
        END,
        "hello.txt",
    ),
    "opencode": Client(
        "npm",
        ("opencode-ai",),
        shell("bash", "command", description="A step"),
        ("{bin}/opencode", "run", TASK),
        {".config/opencode/opencode.json": OPENCODE},
        {"OPENCODE_DISABLE_AUTOUPDATE": "1"},
        END,
        "hello.txt",
    ),
    "continue": Client(
        "npm",
        ("@continuedev/cli",),
        shell("Bash", "command"),
        ("{bin}/cn", "-p", TASK, "--config", "../config.yaml", "--auto"),
        {"config.yaml": CONTINUE},
        {"CONTINUE_TELEMETRY_ENABLED": "0", "CONTINUE_CLI_DISABLE_UPDATE": "1"},
        END,
        "hello.txt",
    ),
    "llm": Client(
        "pypi",
        ("llm",),
        WEATHER,
        ("{bin}/llm", "-m", "cutaway", "--key", "none", "--functions", LLM_TOOLS, "Oslo?"),
        {".config/io.datasette.llm/extra-openai-models.yaml": LLM},
        {},
        '"degrees": 21',
    ),
    "aider": Client(
        "pypi",
        ("aider-chat",),
        [{"say": f"{END}\n\nhello.txt\n```\nseen\n```\n"}],
        (
            *("{bin}/aider", "--model", "openai/planned", "--edit-format", "whole"),
            *("--no-git", "--yes-always", "--no-check-update", "--no-show-model-warnings"),
            *("--analytics-disable", "--message", TASK, "hello.txt"),
        ),
        {},
        {"OPENAI_API_BASE": "{url}/v1", "OPENAI_API_KEY": "none"},
        END,
        "hello.txt",
    ),
    "openai": python("openai_sdk.py", "openai"),
    "anthropic": python("anthropic_sdk.py", "anthropic"),
    "openai-agents": python("openai_agents.py", "openai-agents"),
    "pydantic-ai": python("pydantic_agent.py", "pydantic-ai-slim[openai,anthropic]"),
    "langchain": python("langchain_tools.py", "langchain-openai", "langchain-anthropic"),
    "litellm": python("litellm_tools.py", "litellm"),
    "llama-index": python(
        "llama_index_tools.py", "llama-index-core", "llama-index-llms-openai-like"
    ),
    "open-webui": Client(
        "uv",
        ("open-webui", "playwright"),
        WEATHER,
        ("{bin}/python", "{here}/open_webui.py", "{url}"),
        {},
        {},
        '"degrees": 21',
    ),
    "openai-node": node("openai_sdk.mjs", "openai"),
    "anthropic-node": node("anthropic_sdk.mjs", "@anthropic-ai/sdk"),
    "vercel-ai": node("vercel_ai.mjs", "ai", "@ai-sdk/openai-compatible", "zod"),
    "openai-agents-node": node("openai_agents.mjs", "@openai/agents", "openai", "zod"),
}


_QUIETLY = ("--quiet", "--no-compile", "--disable-pip-version-check")


def installed(name: str, client: Client, folder: Path) -> tuple[Path, str]:
    """Where its programs are, and its version; it is fetched once and kept."""
    home = folder / name
    made = home / "made"
    if client.kind != "npm":
        programs = home / "bin"
        # A pip of its own for each environment takes longer than most of the clients.
        pip = [sys.executable, "-m", "pip", "--python", str(programs / "python")]
        if not made.exists():
            venv.create(home, clear=True)
            if client.kind == "uv":
                _run([*pip, "install", *_QUIETLY, "uv"])
                uv = [str(programs / "uv"), "pip", "install", "--quiet"]
                _run([*uv, "--python", str(programs / "python"), *client.packages])
            else:
                _run([*pip, "install", *_QUIETLY, *client.packages])
        own = client.packages[0].partition("[")[0]
        shown = _run([*pip, "show", own])
        version = next(line for line in shown.splitlines() if line.startswith("Version: "))[9:]
    else:
        programs = home / "node_modules" / ".bin"
        home.mkdir(parents=True, exist_ok=True)
        if not made.exists():
            (home / "package.json").write_text('{"private": true}', encoding="utf-8")
            _run(["npm", "install", "--silent", "--no-audit", "--no-fund", *client.packages], home)
        package = home / "node_modules" / client.packages[0] / "package.json"
        version = json.loads(package.read_text(encoding="utf-8"))["version"]
    made.touch()
    return programs, version


def driven(name: str, client: Client, folder: Path, *, seconds: float) -> dict[str, object]:
    """One whole task; what came of it, and under "printed" what was printed and said."""
    programs, version = installed(name, client, folder)
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        (home / "plan.json").write_text(json.dumps(client.plan), encoding="utf-8")
        log = home / "prompts.jsonl"
        server = subprocess.Popen(
            [
                *(sys.executable, str(HERE / "scripted_server.py")),
                *(str(home / "plan.json"), "--log", str(log)),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert server.stdout is not None, "it was started with a pipe"
            url = server.stdout.readline().strip()
            began = perf_counter()
            done, told = _driven(client, programs, home, folder / name, url, seconds=seconds)
            took = perf_counter() - began
        finally:
            server.terminate()
            server.wait(30)
        lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
        told = told.replace(str(home), "~").replace(str(folder), "FOLDER").replace(url, "URL")
    return {
        "client": name,
        "version": version,
        "result": done or "the whole task",
        "requests": len(lines),
        "seconds": round(took, 1),
        "printed": told,
        "said": [json.loads(line)["said"] for line in lines],
    }


def _driven(
    client: Client, programs: Path, home: Path, own: Path, url: str, *, seconds: float
) -> tuple[str, str]:
    """Empty where the task came to its end, else what is wrong; and what was printed."""
    work = home / "task"
    work.mkdir()

    def filled(text: str) -> str:
        for word, value in {"url": url, "bin": str(programs), "here": str(HERE)}.items():
            text = text.replace(f"{{{word}}}", value)
        return text

    for path, text in client.files.items():
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(filled(text), encoding="utf-8")
    command = [filled(part) for part in client.command]
    if command[0] == "node":  # a module finds its packages beside itself
        shutil.copy(HERE / command[1], own / command[1])
        command[1] = str(own / command[1])
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "NO_COLOR": "1", "IS_SANDBOX": "1"}
    env |= {key: filled(value) for key, value in client.env.items()}
    try:
        done = subprocess.run(
            command,
            cwd=work,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"not done within {seconds:g} s", ""
    told = done.stdout + done.stderr
    if done.returncode or client.end not in told:
        return f"exit {done.returncode}: {told.strip()[-600:]}", told
    if client.made is not None:
        left = work / client.made
        if not left.exists() or "seen" not in left.read_text(encoding="utf-8"):
            return f"{client.made} was not written: {told.strip()[-600:]}", told
    return "", told


def _run(command: list[str], cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:3])}: {(done.stderr or done.stdout)[-500:]}")
    return done.stdout


def tell_printed(rows: Sequence[Mapping[str, object]]) -> str:
    """What each client printed and was told, as Markdown."""
    parts = ["# What clients printed", "", "`python bench/clients/run.py --printed FILE.md`."]
    for row in rows:
        said, told = row.get("said", []), str(row.get("printed", "")).strip()
        assert isinstance(said, list), "driven makes it a list"
        parts += ["", f"## {row['client']} {row.get('version', '')}: {row['result']}", ""]
        parts += ["The server said:", "", "```text", *map(str, said), "```", ""]
        parts += ["It printed:", "", "```text", told[-MOST_PRINTED:], "```"]
    return "\n".join(parts) + "\n"


def main(drive: Callable[..., dict[str, object]] = driven) -> int:
    """Drive the named clients, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("client", nargs="*", choices=[*CLIENTS, []])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--printed", type=Path)
    parser.add_argument("--seconds", type=float, default=180)
    asked = parser.parse_args()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = (asked.folder or cache / "cutaway" / "clients").absolute()
    rows: list[dict[str, object]] = []
    for name in asked.client or CLIENTS:
        try:
            row = drive(name, CLIENTS[name], folder, seconds=asked.seconds)
        except (RuntimeError, OSError) as error:
            row = {"client": name, "result": f"not installed: {error}"}
        rows.append(row)
        short = {key: value for key, value in row.items() if key not in ("printed", "said")}
        print(json.dumps(short, ensure_ascii=False), flush=True)
        if asked.json is not None:
            asked.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        if asked.printed is not None:
            asked.printed.write_text(tell_printed(rows), encoding="utf-8")
    return any(row["result"] != "the whole task" for row in rows)


if __name__ == "__main__":
    sys.exit(main())
