"""URLs and names of ill will in every text of a request: no socket, no file beyond the roots."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import pytest
from server_app import chat, completion

from cutaway.server.route_context import Context
from house_tree import ROOT
from trials import ran, seed, trials

HOSTS = (
    *("127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "[fe80::1%25lo]", "0x7f000001"),
    *("2130706433", "0177.0.0.1", "127.1", "0", "169.254.169.254", "metadata.google.internal"),
    *(
        "user:pw@127.0.0.1",
        "example.com@127.0.0.1",
        "127.0.0.1#@example.com",
        "127.0.0.1\\@x.example",
    ),
    *("localtest.me", "rebind.example", "xn--e1afmkfd", "127\u30020\u30020\u30021", "\u2460\u2461"),
)
SCHEMES = (
    *("http://", "https://", "file://", "file:///", "ftp://", "gopher://", "data:text/html,", "//"),
    *("\\\\", "jar:http://", "unix:", "http:/", "HTTP://", " http://", "dict://", "s3://"),
)
PATHS = (":8000/x.png", "/etc/passwd", "/latest/meta-data/", ":22", "/%2e%2e/%2e%2e/etc/passwd", "")
NAMES = (
    *("../../etc/passwd", "/etc/passwd", "..\\..\\win.ini", "C:\\x", "C:x", "a/../../../etc/hosts"),
    *("%2e%2e%2fetc%2fpasswd", "..%252f..%252fetc", "....//....//etc/passwd", "\x00", "a\x00.json"),
    *("/proc/self/environ", "/proc/self/fd/0", "/dev/stdin", "~/.ssh/id_rsa", "$HOME", "file:x"),
    *(
        "CON",
        "x" * 300,
        ".",
        "..",
        "./.",
        "tiny/../tiny",
        "\u2025/\u2025/etc/passwd",
        "\uff0e\uff0e/x",
    ),
    *("sha256:../../x", "hf.co/a/b", "http://127.0.0.1/x", "a:b@c", "|id", "`id`", "$(id)", "\n"),
)


class Watch:
    """Whatever is opened or connected to while it is on."""

    def __init__(self) -> None:
        self.is_on = False
        self.opened: set[str] = set()
        self.reached: list[Any] = []
        sys.addaudithook(self._hear)

    def _hear(self, name: str, arguments: tuple[Any, ...]) -> None:
        if not self.is_on:
            return
        if name == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
            self.opened.add(os.path.realpath(os.fsdecode(arguments[0])))
        elif name in (
            "socket.connect",
            "socket.getaddrinfo",
            "socket.gethostbyname",
            "urllib.Request",
        ):
            self.reached.append((name, arguments[1:] if name == "socket.connect" else arguments))
        elif name in (
            "os.system",
            "subprocess.Popen",
            "os.exec",
            "os.posix_spawn",
            "ctypes.dlopen",
        ):
            if "cutaway.sampling.grammars.grammar_trial" not in str(
                arguments
            ):  # tries each grammar first
                self.reached.append((name, arguments))


@pytest.fixture(scope="module")
def watch() -> Iterator[Watch]:
    made = Watch()
    yield made
    made.is_on = False


def texts(chance: random.Random, count: int) -> Iterator[str]:
    """URLs and names, in turn."""
    for number in range(count):
        if number % 2:
            yield chance.choice(NAMES) + chance.choice(("", "", "/x", "\x00", ".safetensors"))
        else:
            yield chance.choice(SCHEMES) + chance.choice(HOSTS) + chance.choice(PATHS)


def bodies(text: str) -> list[tuple[str, str, Any]]:
    """Requests that have it wherever a reader of files or URLs might be tempted."""
    image = {"type": "image_url", "image_url": {"url": text}}
    source = {"type": "image", "source": {"type": "url", "url": text}}
    reference = {"json": {"$ref": text}}
    safe = quote(text, safe="")
    return [
        ("POST", "/v1/chat/completions", chat(text, max_tokens=1)),
        ("POST", "/v1/chat/completions", {**chat(), "model": text}),
        (
            "POST",
            "/v1/chat/completions",
            {**chat(), "messages": [{"role": "user", "content": [image]}]},
        ),
        ("POST", "/v1/chat/completions", {**chat(), "chat_template_kwargs": {"mood": text}}),
        (
            "POST",
            "/v1/messages",
            {"model": text, "messages": [{"role": "user", "content": [source]}]},
        ),
        ("POST", "/v1/responses", {"model": "tiny", "input": text, "previous_response_id": text}),
        ("POST", "/v1/completions", {**completion(), "structured_outputs": reference}),
        ("POST", f"/cutaway/v1/traces/{safe}/views", {"view": text, "text": text}),
        ("POST", f"/cutaway/v1/traces/{safe}/file", {"views": text}),
        ("POST", f"/cutaway/v1/traces/{safe}/compare", {"change": f"model={text}"}),
        ("GET", f"/v1/models/{safe}", None),
        ("GET", f"/{safe}", None),
        ("GET", f"/assets/{safe}", None),
        ("GET", f"/assets/../{safe}", None),
    ]


@pytest.mark.slow
def test_no_url_is_asked_and_no_file_is_opened_for_a_request(
    asked: Callable[..., Any], watch: Watch
) -> None:
    count, chance = trials(60), random.Random(seed(21))
    statuses: set[int] = set()

    async def ask(http: httpx2.AsyncClient, context: Context) -> None:
        await asyncio.gather(*(http.request(m, p, json=b) for m, p, b in bodies("warm")))
        watch.is_on = True
        for text in texts(chance, count):
            for method, path, body in bodies(text):
                try:
                    answer = await http.request(method, path, json=body)
                except httpx2.InvalidURL:
                    continue
                statuses.add(answer.status_code)
                assert answer.status_code < 500 or answer.status_code == 503, (path, body)
                assert "root:" not in answer.text
        watch.is_on = False

    asked(ask)
    roots = tuple(
        os.path.realpath(each)
        for each in (ROOT / "src", sys.prefix, sys.base_prefix, *sysconfig.get_paths().values())
    )
    # What Python itself reads: sources of a traceback, and modules that are first used here; and
    # what a grammar's process on trial has for its errors.
    beyond = [name for name in watch.opened - {os.devnull} if not name.startswith(roots)]
    assert beyond == [] and watch.reached == []
    assert {200, 400, 404} <= statuses
    ran(count)


def test_the_watch_sees_a_file_and_a_connection(watch: Watch, tmp_path: Path) -> None:
    watch.is_on = True
    (tmp_path / "x").write_text("x")
    with pytest.raises(OSError):
        import socket

        socket.create_connection(("127.0.0.1", 1), timeout=5)
    watch.is_on = False
    assert os.path.realpath(tmp_path / "x") in watch.opened and watch.reached
    watch.opened.clear()
    watch.reached.clear()
