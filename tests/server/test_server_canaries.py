"""A thousand requests with words that must not be seen: not in lines, metrics, errors or dumps.

The engine's process has its lines on the same stderr: it fails, dies and is dumped here as well.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx2
import pytest
from server_app import chat, completion
from test_server_program import children_of, served

from house_tree import PACKAGE
from trials import ran, seed, trials

CANARY = "canary-7f3a"
PROMPTED = [*b"canary-7f3a"]  # the same words, as the byte tokenizer has them
KEY = "key-canary-5d2e9b81-of-bob"

# In the engine's process alone: what is asked for so many tokens fails, with the prompt in words.
FAILING = """
import sys

if "cutaway.service.child" in sys.orig_argv:
    from cutaway.engine.engine import Engine
    add = Engine.add

    def failing_add(self, request, told=()):
        if request.params.max_tokens == 3:
            words = bytes(i for i in request.prompt_token_ids if i < 256)
            raise ValueError(f"{words!r} {request.prompt_token_ids}")
        add(self, request, told)

    Engine.add = failing_add
"""


def requests(chance: random.Random) -> tuple[str, dict[str, Any]]:
    """One request that has the words wherever a client may write any."""
    schema = {"type": "object", "properties": {CANARY: {"const": CANARY}}}
    wide = {"type": "json_schema", "json_schema": {"name": CANARY, "schema": schema}}
    tool = {"type": "function", "function": {"name": "f", "description": CANARY}}
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("/v1/chat/completions", {**chat(CANARY), "user": CANARY, "stop": [CANARY]}),
        ("/v1/chat/completions", {**chat(CANARY), "stream": True, "response_format": wide}),
        ("/v1/chat/completions", {**chat(CANARY), "tools": [tool], CANARY: CANARY}),
        ("/v1/chat/completions", {**chat(CANARY), "model": CANARY}),
        ("/v1/chat/completions", {**chat(CANARY), "n": CANARY}),
        ("/v1/completions", {**completion(CANARY), "max_tokens": 3}),
        ("/v1/completions", {**completion(CANARY), "logprobs": 3, "echo": True}),
        ("/v1/completions", {**completion(CANARY), "structured_outputs": {"regex": f"({CANARY}"}}),
        ("/v1/responses", {"model": "tiny", "input": CANARY, "metadata": {CANARY: CANARY}}),
        ("/v1/messages", {"model": "tiny", "system": CANARY, "messages": CANARY}),
        ("/tokenize", {"prompt": CANARY}),
        ("/detokenize", {"tokens": CANARY}),
        ("/cutaway/v1/learn", {"text": CANARY * 9}),
        (f"/cutaway/v1/traces/{CANARY}/views", {"view": CANARY, "text": CANARY}),
        (f"/cutaway/v1/traces/{CANARY}/compare", {"change": f"token@{CANARY}=5"}),
        (f"/{CANARY}?{CANARY}={KEY}", {CANARY: CANARY}),
    ]
    return chance.choice(kinds)


@pytest.mark.slow
def test_words_of_clients_are_seen_nowhere_but_in_their_own_answers(
    folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(FAILING, encoding="utf-8")
    keys = tmp_path / "keys"
    keys.write_text(f"alice the-key-of-alice-0001\nbob {KEY}\n", encoding="utf-8")
    environ = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{PACKAGE.parent}"}
    chance, count, statuses = random.Random(seed(22)), trials(120), Counter[int]()
    arguments = ("--api-key-file", str(keys), "--log", "json")
    with served(folder, *arguments, environ=environ) as (process, url, lines):
        said = list(lines)
        reading = threading.Thread(target=read, args=(process, said))
        reading.start()
        bob = {"authorization": f"Bearer {KEY}"}
        told: list[str] = []
        with httpx2.Client(base_url=url, timeout=300, headers=bob) as http:
            for number in range(count):
                path, body = requests(chance)
                answer = http.post(path, json=body)
                statuses[answer.status_code] += 1
                if number in (count // 3, count // 2):
                    (engine,) = children_of(process.pid)
                    how = signal.SIGKILL if number == count // 3 else signal.SIGABRT
                    os.kill(int(engine), how)
                    wait_until_ready(http)
            alice = {"authorization": "Bearer the-key-of-alice-0001"}
            for path in ("/metrics", "/cutaway/v1/engine", "/openapi.json", "/ready"):
                told.append(http.get(path, headers=alice).text)
        process.send_signal(signal.SIGTERM)
        reading.join(timeout=300)
        process.wait(timeout=300)
    text = "".join(said)
    assert process.returncode == 0 and text.count('"event":"request"') >= count
    assert statuses[200] > count // 10 and statuses[400] > count // 10 and statuses[500]
    ids = json.dumps(PROMPTED).strip("[]")
    for place in (text, *told):
        assert CANARY not in place and KEY not in place and ids not in place, excerpt(place)
    ran(count, total_lines=len(said), total_faults=statuses[500])


def read(process: subprocess.Popen[str], said: list[str]) -> None:
    assert process.stderr is not None
    said.extend(process.stderr)


def wait_until_ready(http: httpx2.Client) -> None:
    began = time.monotonic()
    while http.get("/ready").status_code == 200 and time.monotonic() - began < 10:
        time.sleep(0.02)
    while http.get("/ready").status_code != 200:
        assert time.monotonic() - began < 300
        time.sleep(0.05)


def excerpt(text: str) -> str:
    """The lines in which the words stand."""
    return "\n".join(line for line in text.splitlines() if CANARY in line or KEY in line)[:3000]
