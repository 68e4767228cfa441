"""`cutaway run`: the link that it opens, and what opens it; browsers are driven in tests/web."""

from __future__ import annotations

import threading
import webbrowser

import pytest

from cutaway.cli import run
from cutaway.server.entry.auth import Keys

URL = "http://127.0.0.1:8000"


def test_without_keys_the_page_is_at_the_plain_address() -> None:
    assert run._link(URL, Keys()) == f"{URL}/"


def test_with_keys_each_link_is_new_and_lets_in_once() -> None:
    keys = Keys([("alice", "k" * 32)])
    first, second = run._link(URL, keys), run._link(URL, keys)
    assert first != second and first.startswith(f"{URL}/?once=")
    once = first.partition("=")[2]
    assert len(once) >= 43, "256 bits"
    assert keys.browsers.let_in(once) is not None and keys.browsers.let_in(once) is None


def test_a_browser_is_opened_beside_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[str, str]] = []
    done = threading.Event()

    def note(link: str) -> bool:
        opened.append((link, threading.current_thread().name))
        done.set()
        return True

    monkeypatch.setattr(webbrowser, "open", note)
    run._open(URL)
    assert done.wait(10) and opened[0][0] == URL
    assert opened[0][1] != threading.current_thread().name, "the server is not held up"
